//! `/api/connections`, `/api/channels`, `/api/consumers`: what AMQP 0-9-1 clients have open.

use std::borrow::Cow;
use std::sync::Arc;
use std::vec::IntoIter;

use axum::http::Method as HttpMethod;
use futures_util::future::join_all;
use malote_model::{AuditAction, QueueName};
use serde_json::{Value, json};

use super::answer::{Answer, no_content};
use super::error::ApiError;
use super::json::object;
use super::list::{ObjectSource, list, one};
use super::overview::NODE;
use super::request::{Call, Caller};
use super::scan::find_host;
use super::state::ManagementState;
use crate::names::VirtualHost;
use crate::registry::{ChannelSnapshot, ConnectionEntry, ConnectionSnapshot, ConsumerSnapshot};

/// Connections that are asked at the same time.
const ASKED_AT_ONCE: usize = 256;
/// What a client reads when an operator closes its connection without a reason.
const CLOSED: &str = "Closed via management plugin";

/// What a list shows of a connection.
#[derive(Clone, Copy)]
pub(super) enum Shows {
    Connections,
    Channels,
    Consumers,
}

/// The list of connections, or of what they have.
struct Connections {
    entries: IntoIter<Arc<ConnectionEntry>>,
    shows: Shows,
    /// Only consumers of this queue.
    queue: Option<QueueName>,
}

impl Connections {
    fn new(entries: Vec<Arc<ConnectionEntry>>, shows: Shows) -> Self {
        Self { entries: entries.into_iter(), shows, queue: None }
    }
}

impl ObjectSource for Connections {
    type Item = (String, Value);

    async fn next(&mut self) -> Result<Option<Vec<(String, Value)>>, ApiError> {
        let some: Vec<_> = self.entries.by_ref().take(ASKED_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(None);
        }
        let snapshots = join_all(some.iter().map(|entry| entry.describe())).await;
        let mut rows = Vec::new();
        for (entry, snapshot) in some.iter().zip(snapshots) {
            // It has ended meanwhile.
            let Some(snapshot) = snapshot else { continue };
            match self.shows {
                Shows::Connections => {
                    rows.push((entry.name.clone(), connection_object(entry, &snapshot)));
                }
                Shows::Channels => {
                    rows.extend(snapshot.channels.iter().map(|channel| {
                        (channel_name(entry, channel), channel_object(entry, channel))
                    }))
                }
                Shows::Consumers => {
                    for channel in &snapshot.channels {
                        let wanted = |queue| self.queue.as_ref().is_none_or(|only| only == queue);
                        let some = channel.consumers.iter().filter(|one| wanted(&one.queue));
                        rows.extend(some.map(|consumer| {
                            (consumer.tag.clone(), consumer_object(entry, channel, consumer))
                        }));
                    }
                }
            }
        }
        Ok(Some(rows))
    }

    fn name<'i>(&self, (name, _): &'i (String, Value)) -> Cow<'i, str> {
        Cow::Borrowed(name)
    }

    fn object(&self, (_, object): (String, Value)) -> Value {
        object
    }
}

fn connection_object(entry: &ConnectionEntry, snapshot: &ConnectionSnapshot) -> Value {
    let (session, peer) = (&entry.session, &entry.peer);
    let mut connection = json!({
        "name": entry.name,
        "node": NODE,
        "user": session.user,
        "user_who_performed_action": session.user,
        "vhost": session.host.name(),
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": session.mechanism,
        "ssl": peer.tls,
        "host": peer.local.ip().to_string(),
        "port": peer.local.port(),
        "peer_host": peer.address.to_string(),
        "peer_port": peer.port,
        "channels": snapshot.channels.len(),
        "channel_max": session.channel_max,
        "frame_max": session.frame_max,
        "timeout": session.heartbeat,
        "connected_at": entry.connected_at.0,
        "client_properties": object(session.client_properties.as_table()),
        "state": if snapshot.blocked { "blocked" } else { "running" },
        "recv_oct": snapshot.traffic.received_bytes,
        "recv_cnt": snapshot.traffic.reads,
        "send_oct": snapshot.traffic.sent_bytes,
        "send_cnt": snapshot.traffic.writes,
    });
    if let Some(name) = session.client_properties.get("connection_name").and_then(|n| n.as_str()) {
        connection["user_provided_name"] = name.into();
    }
    connection
}

fn channel_name(entry: &ConnectionEntry, channel: &ChannelSnapshot) -> String {
    format!("{} ({})", entry.name, channel.number)
}

fn channel_object(entry: &ConnectionEntry, channel: &ChannelSnapshot) -> Value {
    json!({
        "name": channel_name(entry, channel),
        "number": channel.number,
        "node": NODE,
        "user": entry.session.user,
        "user_who_performed_action": entry.session.user,
        "vhost": entry.session.host.name(),
        "state": "running",
        "connection_details": {
            "name": entry.name,
            "peer_host": entry.peer.address.to_string(),
            "peer_port": entry.peer.port,
        },
        "confirm": channel.confirm,
        "transactional": channel.transactional,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.prefetch_all,
        "consumer_count": channel.consumers.len(),
        "messages_unacknowledged": channel.unacked,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": channel.uncommitted,
        "acks_uncommitted": channel.acks_uncommitted,
    })
}

fn consumer_object(
    entry: &ConnectionEntry,
    channel: &ChannelSnapshot,
    consumer: &ConsumerSnapshot,
) -> Value {
    let mut object = json!({
        "consumer_tag": consumer.tag,
        "queue": {
            "name": entry.session.host.shown(consumer.queue.as_str()),
            "vhost": entry.session.host.name(),
        },
        "ack_required": !consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "arguments": object(consumer.arguments.as_table()),
        "channel_details": {
            "name": channel_name(entry, channel),
            "number": channel.number,
            "connection_name": entry.name,
            "node": NODE,
            "peer_host": entry.peer.address.to_string(),
            "peer_port": entry.peer.port,
            "user": entry.session.user,
        },
    });
    if let Some(active) = consumer.active {
        object["active"] = active.into();
        object["activity_status"] = "up".into();
    }
    object
}

/// Users see their own connections; those who monitor the broker see all.
fn visible(
    state: &ManagementState,
    caller: &Caller,
    host: Option<&str>,
) -> Vec<Arc<ConnectionEntry>> {
    let mut all = state.front.registry.all();
    all.retain(|entry| {
        let own = caller.is_monitoring() || entry.session.user == caller.user;
        own && host.is_none_or(|host| entry.session.host.name() == host)
    });
    all
}

pub(super) async fn list_open(
    state: &ManagementState,
    call: &Call,
    host: Option<&str>,
    shows: Shows,
) -> Result<Answer, ApiError> {
    if let Some(host) = host {
        find_host(state, &call.caller, host).await?;
    }
    list(state, call, Connections::new(visible(state, &call.caller, host), shows)).await
}

/// The consumers of a queue, as an array.
pub(super) async fn consumers_of(state: &ManagementState, queue: &QueueName) -> Value {
    let host = VirtualHost::of(queue.as_str());
    let mut all = state.front.registry.all();
    all.retain(|entry| entry.session.host == host);
    let mut consumers = Connections::new(all, Shows::Consumers);
    consumers.queue = Some(queue.clone());
    let mut objects = Vec::new();
    while let Ok(Some(rows)) = consumers.next().await {
        objects.extend(rows.into_iter().map(|(_, object)| object));
    }
    Value::Array(objects)
}

fn find(
    state: &ManagementState,
    caller: &Caller,
    name: &str,
) -> Result<Arc<ConnectionEntry>, ApiError> {
    let found = state.front.registry.find(name).ok_or_else(ApiError::not_found)?;
    match caller.is_monitoring() || found.session.user == caller.user {
        true => Ok(found),
        false => Err(ApiError::not_authorised("User not authorised to see this connection")),
    }
}

pub(super) async fn connection(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    let found = find(state, &call.caller, name)?;
    match call.method {
        HttpMethod::GET => {
            let snapshot = found.describe().await.ok_or_else(ApiError::not_found)?;
            Ok(one(call, connection_object(&found, &snapshot)))
        }
        HttpMethod::DELETE => {
            if !call.caller.is_administrator() && found.session.user != call.caller.user {
                return Err(ApiError::not_authorised("User not authorised"));
            }
            let reason = malote_http::header_text(&call.headers, "x-reason").unwrap_or(CLOSED);
            if !found.close(reason.to_owned()).await {
                return Err(ApiError::not_found());
            }
            let entry = call.caller.audit(AuditAction::Delete, name).detail("connection");
            state.front.access.audit().record(entry);
            Ok(no_content())
        }
        _ => Err(ApiError::no_method("HEAD, GET, DELETE, OPTIONS")),
    }
}

/// `/api/connections/{name}/channels`.
pub(super) async fn channels_of(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    let found = find(state, &call.caller, name)?;
    list(state, call, Connections::new(vec![found], Shows::Channels)).await
}

/// `/api/channels/{name}`: the name of the connection, and the number in parentheses.
pub(super) async fn channel(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    let (connection, _) = name.rsplit_once(" (").ok_or_else(ApiError::not_found)?;
    let found = find(state, &call.caller, connection)?;
    let snapshot = found.describe().await.ok_or_else(ApiError::not_found)?;
    let channel = snapshot.channels.iter().find(|channel| channel_name(&found, channel) == name);
    let channel = channel.ok_or_else(ApiError::not_found)?;
    let mut object = channel_object(&found, channel);
    let consumers = channel.consumers.iter();
    object["consumer_details"] =
        consumers.map(|consumer| consumer_object(&found, channel, consumer)).collect();
    Ok(one(call, object))
}

/// Channels and consumers of all connections, for the overview.
pub(super) async fn count(state: &ManagementState, caller: &Caller) -> [u64; 3] {
    let entries = visible(state, caller, None);
    let mut counts = [entries.len() as u64, 0, 0];
    for some in entries.chunks(ASKED_AT_ONCE) {
        let snapshots = join_all(some.iter().map(|entry| entry.describe())).await;
        for channel in snapshots.iter().flatten().flat_map(|snapshot| &snapshot.channels) {
            counts[1] += 1;
            counts[2] += channel.consumers.len() as u64;
        }
    }
    counts
}
