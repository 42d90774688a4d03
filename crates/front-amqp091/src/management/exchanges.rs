//! `/api/exchanges`: list, describe, declare, delete.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::Method as HttpMethod;
use malote_engine::TopicFacts;
use malote_model::{HashOn, TopicKind};
use serde_json::{Map, Value, json};

use super::answer::{Answer, no_content, put};
use super::error::ApiError;
use super::json::{boolean, short, table};
use super::list::{ObjectSource, list, one};
use super::local::run;
use super::policies::put_policies;
use super::request::Call;
use super::scan::{Scope, TopicScan, find_host, find_topic};
use super::state::ManagementState;
use crate::metadata::Metadata;
use crate::names::{DEFAULT_EXCHANGE, DEFAULT_VHOST, VirtualHost};
use crate::policy::{PolicyTarget, declared_alternate};
use crate::wire::method::exchange;

/// The list of exchanges.
struct Exchanges {
    scan: TopicScan,
    metadata: Arc<Metadata>,
}

impl ObjectSource for Exchanges {
    type Item = TopicFacts;

    async fn next(&mut self) -> Result<Option<Vec<TopicFacts>>, ApiError> {
        self.scan.next().await
    }

    fn name<'i>(&self, facts: &'i TopicFacts) -> Cow<'i, str> {
        let name = facts.name.as_str();
        Cow::Owned(VirtualHost::of(name).shown_exchange(name).into_owned())
    }

    fn object(&self, facts: TopicFacts) -> Value {
        exchange_object(&facts, &self.metadata)
    }
}

/// An exchange as an object.
pub(super) fn exchange_object(facts: &TopicFacts, metadata: &Metadata) -> Value {
    let name = facts.name.as_str();
    let host = VirtualHost::of(name);
    // Without what a policy sets.
    let spec = declared_alternate(&host, facts);
    let kind = match spec.kind {
        TopicKind::Direct | TopicKind::Queue => "direct",
        TopicKind::Fanout => "fanout",
        TopicKind::Topic | TopicKind::Filter => "topic",
        TopicKind::Headers => "headers",
        TopicKind::Hash => "x-consistent-hash",
    };
    let mut arguments = Map::new();
    if let Some(alternate) = &spec.alternate {
        let alternate = host.shown_exchange(alternate.as_str());
        arguments.insert("alternate-exchange".into(), alternate.into());
    }
    let hash = match &spec.hash_on {
        HashOn::Key => None,
        HashOn::MessageId => Some(("hash-property", "message_id")),
        HashOn::CorrelationId => Some(("hash-property", "correlation_id")),
        HashOn::Property(name) => Some(("hash-header", name.as_str())),
    };
    if let Some((name, value)) = hash {
        arguments.insert(name.into(), value.into());
    }
    let mut exchange = json!({
        "name": host.shown_exchange(name),
        "vhost": host.name(),
        "type": kind,
        "durable": !spec.transient,
        "auto_delete": spec.auto_delete,
        // The default exchange is no rule's target, but every user may publish to it.
        "internal": spec.internal && spec.kind != TopicKind::Queue,
        "arguments": arguments,
        "message_stats": { "publish_out": facts.totals.copies },
    });
    if let Value::Object(exchange) = &mut exchange {
        let shown = host.shown_exchange(name);
        put_policies(exchange, metadata, &host, PolicyTarget::Exchange, &shown);
    }
    exchange
}

pub(super) async fn list_exchanges(
    state: &ManagementState,
    call: &Call,
    host: Option<&str>,
) -> Result<Answer, ApiError> {
    let host = match host {
        Some(host) => Some(find_host(state, &call.caller, host).await?),
        // The default virtual host gets its exchanges when it is first used.
        None => {
            state.front.has_vhost(DEFAULT_VHOST).await?;
            None
        }
    };
    let scan = TopicScan::new(Scope::new(state, &call.caller, host));
    list(state, call, Exchanges { scan, metadata: state.front.metadata.current() }).await
}

/// The name that AMQP uses: the default exchange has none.
pub(super) fn wire_name(name: &str) -> &str {
    if name == DEFAULT_EXCHANGE { "" } else { name }
}

pub(super) async fn exchange(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    match call.method {
        HttpMethod::GET => {
            let facts = find_topic(state, &call.caller, &host, name).await?;
            Ok(one(call, exchange_object(&facts, &state.front.metadata.current())))
        }
        HttpMethod::PUT => {
            let body = call.object()?;
            let flag = |name: &str| boolean(body.get(name));
            let kind = match body.get("type") {
                None => "direct",
                Some(Value::String(kind)) => kind.as_str(),
                Some(other) => {
                    return Err(ApiError::bad_request(format!("type must be a text, not {other}")));
                }
            };
            let declare = exchange::Declare {
                exchange: short("name", wire_name(name))?,
                kind: short("type", kind)?,
                durable: flag("durable")?,
                auto_delete: flag("auto_delete")?,
                internal: flag("internal")?,
                arguments: body.get("arguments").map(table).transpose()?.unwrap_or_default(),
                ..exchange::Declare::default()
            };
            let existed = find_topic(state, &call.caller, &host, name).await.is_ok();
            run(state, &call.caller, &host, &declare).await?;
            Ok(put(!existed))
        }
        HttpMethod::DELETE => {
            find_topic(state, &call.caller, &host, name).await?;
            let delete = exchange::Delete {
                exchange: short("name", wire_name(name))?,
                if_unused: call.flag("if-unused"),
                ..exchange::Delete::default()
            };
            run(state, &call.caller, &host, &delete).await?;
            Ok(no_content())
        }
        _ => Err(ApiError::no_method("HEAD, GET, PUT, DELETE, OPTIONS")),
    }
}
