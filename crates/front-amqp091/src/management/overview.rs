//! `/api/overview`, `/api/nodes`, `/api/whoami`, `/api/feature-flags`.

use serde_json::{Value, json};

use super::answer::{Answer, json};
use super::connections;
use super::error::ApiError;
use super::list::{Rendered, list, one};
use super::queues::all_queues;
use super::request::Call;
use super::scan::{Scope, TopicScan};
use super::state::ManagementState;
use super::stats::Sum;
use crate::conn::handshake::{CLUSTER_NAME, VERSION};
use crate::names::DEFAULT_VHOST;

pub(super) const NODE: &str = CLUSTER_NAME;

/// The types of exchanges, with RabbitMQ's descriptions.
pub(super) fn exchange_types() -> Value {
    let types = [
        ("direct", "AMQP direct exchange, as per the AMQP specification"),
        ("fanout", "AMQP fanout exchange, as per the AMQP specification"),
        ("headers", "AMQP headers exchange, as per the AMQP specification"),
        ("topic", "AMQP topic exchange, as per the AMQP specification"),
        ("x-consistent-hash", "Consistent Hashing Exchange"),
        ("x-delayed-message", "Delayed Message Exchange"),
    ];
    let types =
        types.map(|(name, text)| json!({ "name": name, "description": text, "enabled": true }));
    json!(types)
}

pub(super) fn listeners(state: &ManagementState) -> Value {
    let listeners = state.listeners().iter().map(|listener| {
        json!({
            "node": NODE,
            "protocol": listener.protocol,
            "ip_address": listener.address.ip().to_string(),
            "port": listener.address.port(),
        })
    });
    listeners.collect()
}

pub(super) async fn overview(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    let mut overview = json!({
        "management_version": VERSION,
        "rabbitmq_version": VERSION,
        "product_name": "RabbitMQ",
        "product_version": VERSION,
        "malote_version": env!("CARGO_PKG_VERSION"),
        "rates_mode": "basic",
        "cluster_name": CLUSTER_NAME,
        "node": NODE,
        "disable_stats": false,
        "exchange_types": exchange_types(),
    });
    let mut sum = Sum::default();
    let mut queues = all_queues(state, call);
    while let Some(page) = queues.next().await? {
        page.iter().for_each(|facts| sum.add(facts, &state.history));
    }
    state.front.has_vhost(DEFAULT_VHOST).await?;
    let (mut exchanges, mut count) = (TopicScan::new(Scope::new(state, &call.caller, None)), 0);
    while let Some(page) = exchanges.next().await? {
        count += page.len();
    }
    let [connections, channels, consumers] = connections::count(state, &call.caller).await;
    overview["object_totals"] = json!({
        "queues": sum.queues,
        "exchanges": count,
        "connections": connections,
        "channels": channels,
        "consumers": consumers,
    });
    (overview["queue_totals"], overview["message_stats"]) = sum.fields();
    if call.caller.is_monitoring() {
        overview["listeners"] = listeners(state);
        overview["contexts"] = contexts(state);
    }
    Ok(one(call, overview))
}

/// The ports of this API.
fn contexts(state: &ManagementState) -> Value {
    let http = state.listeners().iter().filter(|listener| listener.protocol.starts_with("http"));
    let contexts = http.map(|listener| {
        json!({
            "node": NODE,
            "description": "RabbitMQ Management",
            "path": "/",
            "ip": listener.address.ip().to_string(),
            "port": listener.address.port().to_string(),
        })
    });
    contexts.collect()
}

fn node_object(state: &ManagementState) -> Value {
    let (engine, disk) = (&state.front.engine, state.front.engine.disk());
    let mut node = json!({
        "name": NODE,
        "type": "disc",
        "running": true,
        "being_drained": false,
        "partitions": [],
        "enabled_plugins": [],
        "os_pid": std::process::id().to_string(),
        "uptime": engine.now().0.saturating_sub(state.started_at.0),
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            { "name": "PLAIN", "description": "SASL PLAIN authentication mechanism", "enabled": true },
            { "name": "AMQPLAIN", "description": "QPid AMQPLAIN mechanism", "enabled": true },
        ],
        "applications": [
            { "name": "malote", "description": "Malote", "version": env!("CARGO_PKG_VERSION") },
        ],
        "contexts": contexts(state),
        "mem_alarm": false,
        "disk_free_alarm": !disk.publish_allowed,
        "sockets_used": state.front.registry.len(),
    });
    if disk.free_bytes > 0 {
        node["disk_free"] = disk.free_bytes.into();
    }
    if let Ok(processors) = std::thread::available_parallelism() {
        node["processors"] = processors.get().into();
    }
    node
}

pub(super) async fn list_nodes(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    call.caller.require_monitoring()?;
    list(state, call, Rendered::new(vec![(NODE.to_owned(), node_object(state))])).await
}

pub(super) async fn node(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_monitoring()?;
    match name == NODE {
        true => Ok(one(call, node_object(state))),
        false => Err(ApiError::not_found()),
    }
}

/// The feature flags of RabbitMQ whose features Malote has.
pub(super) fn feature_flags() -> Answer {
    let flags = [
        (
            "implicit_default_bindings",
            "Default bindings are now implicit, instead of being stored in the database",
        ),
        ("quorum_queue", "Support queues of type `quorum`"),
    ];
    let flags = flags.map(|(name, text)| {
        json!({
            "name": name,
            "desc": text,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": "rabbit",
        })
    });
    json(&json!(flags))
}

pub(super) fn cluster_name() -> Answer {
    json(&json!({ "name": CLUSTER_NAME }))
}

/// How a browser signs in: with a password only.
pub(super) fn auth() -> Answer {
    let (id, location) = ("", "");
    json(&json!({
        "oauth_enabled": false, "enable_uaa": false, "uaa_client_id": id, "uaa_location": location
    }))
}

pub(super) async fn whoami(call: &Call) -> Result<Answer, ApiError> {
    let caller = &call.caller;
    Ok(json(&json!({ "name": caller.user, "tags": caller.tags })))
}
