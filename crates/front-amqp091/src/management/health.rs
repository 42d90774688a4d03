//! Health checks: `/api/health/checks/*`, `/api/aliveness-test/{vhost}`, `/api/healthchecks/node`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, json, json_with};
use super::error::ApiError;
use super::local::LocalClient;
use super::overview::NODE;
use super::request::Call;
use super::scan::find_host;
use super::state::ManagementState;
use crate::names::DEFAULT_VHOST;
use crate::wire::method::{Method, basic, queue};
use crate::wire::properties::Properties;
use crate::wire::text::ShortString;

/// The queue of the aliveness test. It stays, as in RabbitMQ: creating it every time would be expensive.
const QUEUE: ShortString = ShortString::from_static("aliveness-test");

fn ok() -> Answer {
    json(&json!({ "status": "ok" }))
}

fn failed(fields: Value) -> Answer {
    let mut answer = json!({ "status": "failed" });
    if let (Value::Object(answer), Value::Object(fields)) = (&mut answer, fields) {
        answer.extend(fields);
    }
    json_with(StatusCode::SERVICE_UNAVAILABLE, &answer)
}

pub(super) async fn check(state: &ManagementState, checks: &[&str]) -> Result<Answer, ApiError> {
    Ok(match checks {
        ["alarms" | "local-alarms"] => match alarms(state) {
            alarms if alarms.is_empty() => ok(),
            alarms => failed(json!({ "reason": "There are alarms in effect", "alarms": alarms })),
        },
        ["virtual-hosts"] => {
            state.front.has_vhost(DEFAULT_VHOST).await?;
            ok()
        }
        ["port-listener", port] => {
            let invalid = |_| ApiError::bad_request("Invalid port");
            let port: u16 = port.parse().map_err(invalid)?;
            let ports: Vec<_> = state.listeners().iter().map(|one| one.address.port()).collect();
            match ports.contains(&port) {
                true => json(&json!({ "status": "ok", "port": port })),
                false => failed(json!({
                    "reason": "No active listener", "missing": port, "ports": ports
                })),
            }
        }
        ["protocol-listener", protocol] => {
            let known: Vec<_> = state.listeners().iter().map(|one| one.protocol).collect();
            // AMQP 0-9-1 and AMQP 1.0 share a port.
            let word = match *protocol {
                "amqp091" | "amqp0.9.1" | "amqp10" | "amqp1.0" => "amqp",
                "amqps" | "amqp/tls" => "amqp/ssl",
                other => other,
            };
            match known.contains(&word) {
                true => json(&json!({ "status": "ok", "protocol": protocol })),
                false => failed(json!({
                    "reason": "No active listener", "missing": protocol, "protocols": known
                })),
            }
        }
        ["node-is-quorum-critical" | "node-is-mirror-sync-critical"] => {
            json(&json!({ "status": "ok", "reason": "single node cluster" }))
        }
        _ => return Err(ApiError::not_found()),
    })
}

/// A full disk is the only alarm: memory is bounded by limits of its own.
fn alarms(state: &ManagementState) -> Vec<Value> {
    match state.front.engine.disk().publish_allowed {
        true => Vec::new(),
        false => vec![json!({ "node": NODE, "resource": "disk" })],
    }
}

/// `/api/healthchecks/node`.
pub(super) async fn node(state: &ManagementState, name: Option<&str>) -> Result<Answer, ApiError> {
    if name.is_some_and(|name| name != NODE) {
        return Err(ApiError::not_found());
    }
    if state.front.engine.is_poisoned() {
        let reason = "the engine has failed: restart the broker";
        return Ok(failed(json!({ "reason": reason })));
    }
    check(state, &["alarms"]).await
}

/// Declares a queue, publishes a message, and gets it.
pub(super) async fn aliveness(
    state: &ManagementState,
    call: &Call,
    host: &str,
) -> Result<Answer, ApiError> {
    let host = find_host(state, &call.caller, host).await?;
    let mut client = LocalClient::open(state, &call.caller, &host).await?;
    let tested = async {
        client.call(&queue::Declare { queue: QUEUE, ..Default::default() }).await?;
        let publish = basic::Publish { routing_key: QUEUE, ..Default::default() };
        client.publish(&publish, &Properties::default(), b"test_message").await?;
        let get = basic::Get { queue: QUEUE, no_ack: true, ..Default::default() };
        let method = client.call(&get).await?;
        if !matches!(method, Method::BasicGetOk(_)) {
            return Ok(false);
        }
        client.content(method).await?;
        Ok::<_, super::local::CallError>(true)
    };
    let tested = tested.await;
    client.close().await;
    Ok(if tested? { ok() } else { failed(json!({ "reason": "the message did not arrive" })) })
}
