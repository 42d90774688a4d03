//! `/api/queues`: list, describe, declare, delete, purge.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::Method as HttpMethod;
use malote_engine::{History, QueueFacts};
use serde_json::{Map, Value};

use super::answer::{Answer, no_content, put};
use super::connections::consumers_of;
use super::error::ApiError;
use super::json::{boolean, object, short, table};
use super::list::{ObjectSource, list, one};
use super::local::run;
use super::overview::NODE;
use super::policies::put_policies;
use super::request::Call;
use super::scan::{QueueScan, Scope, find_host, find_queue};
use super::state::ManagementState;
use super::stats::{queue_counts, queue_stats};
use crate::arguments::{queue_type, shown_arguments};
use crate::metadata::Metadata;
use crate::names::VirtualHost;
use crate::policy::PolicyTarget;
use crate::wire::method::queue;

/// The list of queues.
pub(super) struct Queues {
    pub scan: QueueScan,
    history: Arc<History>,
    metadata: Arc<Metadata>,
    /// Only what never changes.
    without_stats: bool,
}

impl ObjectSource for Queues {
    type Item = QueueFacts;

    async fn next(&mut self) -> Result<Option<Vec<QueueFacts>>, ApiError> {
        self.scan.next().await
    }

    fn name<'i>(&self, facts: &'i QueueFacts) -> Cow<'i, str> {
        Cow::Owned(VirtualHost::of(facts.name.as_str()).shown(facts.name.as_str()).into_owned())
    }

    fn object(&self, facts: QueueFacts) -> Value {
        let history = (!self.without_stats).then_some(&*self.history);
        Value::Object(queue_object(&facts, &self.metadata, history))
    }
}

/// A queue as an object.
pub(super) fn queue_object(
    facts: &QueueFacts,
    metadata: &Metadata,
    history: Option<&History>,
) -> Map<String, Value> {
    let (spec, name) = (&facts.spec, facts.name.as_str());
    let host = VirtualHost::of(name);
    let arguments = shown_arguments(spec);
    let mut queue = Map::new();
    let mut put = |name: &str, value: Value| queue.insert(name.to_owned(), value);
    put("name", host.shown(name).into());
    put("vhost", host.name().into());
    put("type", queue_type(&arguments).into());
    put("durable", (!spec.transient).into());
    put("auto_delete", spec.auto_delete.into());
    put("exclusive", spec.exclusive.into());
    put("arguments", object(arguments.as_table()));
    put("node", NODE.into());
    put("state", if facts.paused { "stopped" } else { "running" }.into());
    let target = match queue_type(&arguments) {
        "quorum" => PolicyTarget::QuorumQueue,
        _ => PolicyTarget::ClassicQueue,
    };
    put_policies(&mut queue, metadata, &host, target, &host.shown(name));
    if let Some(history) = history {
        queue_counts(&mut queue, facts, history);
        queue.insert("message_stats".into(), queue_stats(facts, history));
    }
    queue
}

pub(super) async fn list_queues(
    state: &ManagementState,
    call: &Call,
    host: Option<&str>,
) -> Result<Answer, ApiError> {
    let host = match host {
        Some(host) => Some(find_host(state, &call.caller, host).await?),
        None => None,
    };
    let scan = QueueScan::new(Scope::new(state, &call.caller, host));
    let (history, metadata) = (state.history.clone(), state.front.metadata.current());
    let without_stats = call.flag("disable_stats");
    list(state, call, Queues { scan, history, metadata, without_stats }).await
}

pub(super) async fn queue(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    match call.method {
        HttpMethod::GET => {
            let facts = find_queue(state, &call.caller, &host, name).await?;
            let mut queue =
                queue_object(&facts, &state.front.metadata.current(), Some(&state.history));
            queue.insert("consumer_details".into(), consumers_of(state, &facts.name).await);
            Ok(one(call, Value::Object(queue)))
        }
        HttpMethod::PUT => declare(state, call, &host, name).await,
        HttpMethod::DELETE => {
            find_queue(state, &call.caller, &host, name).await?;
            let delete = queue::Delete {
                queue: short("name", name)?,
                if_unused: call.flag("if-unused"),
                if_empty: call.flag("if-empty"),
                ..queue::Delete::default()
            };
            run(state, &call.caller, &host, &delete).await?;
            Ok(no_content())
        }
        _ => Err(ApiError::no_method("HEAD, GET, PUT, DELETE, OPTIONS")),
    }
}

async fn declare(
    state: &ManagementState,
    call: &Call,
    host: &VirtualHost,
    name: &str,
) -> Result<Answer, ApiError> {
    let body = call.object()?;
    let flag = |name: &str| boolean(body.get(name));
    let declare = queue::Declare {
        queue: short("name", name)?,
        durable: flag("durable")?,
        auto_delete: flag("auto_delete")?,
        // An exclusive queue would end with the request.
        exclusive: false,
        arguments: body.get("arguments").map(table).transpose()?.unwrap_or_default(),
        ..queue::Declare::default()
    };
    let existed = find_queue(state, &call.caller, host, name).await.is_ok();
    run(state, &call.caller, host, &declare).await?;
    Ok(put(!existed))
}

/// `DELETE …/contents`.
pub(super) async fn purge(
    state: &ManagementState,
    call: &Call,
    host: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    if call.method != HttpMethod::DELETE {
        return Err(ApiError::no_method("DELETE, OPTIONS"));
    }
    let host = find_host(state, &call.caller, host).await?;
    find_queue(state, &call.caller, &host, name).await?;
    let purge = queue::Purge { queue: short("name", name)?, ..queue::Purge::default() };
    run(state, &call.caller, &host, &purge).await?;
    Ok(no_content())
}

/// The queues of a scope with their counters: for the overview.
pub(super) fn all_queues(state: &ManagementState, call: &Call) -> QueueScan {
    QueueScan::new(Scope::new(state, &call.caller, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::QueueSpec;
    use serde_json::json;

    #[test]
    fn a_queue_of_another_protocol_is_classic() {
        let spec = QueueSpec { ttl_ms: Some(5), ..QueueSpec::default() };
        let arguments = shown_arguments(&spec);
        assert_eq!(queue_type(&arguments), "classic");
        assert_eq!(object(arguments.as_table()), json!({ "x-message-ttl": 5 }));
    }
}
