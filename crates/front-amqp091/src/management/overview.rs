//! `/api/overview`, `/api/whoami`.

use serde_json::{Value, json};

use super::answer::{Answer, json};
use super::error::ApiError;
use super::list::one;
use super::request::Call;
use super::state::ManagementState;
use crate::conn::handshake::{CLUSTER_NAME, VERSION};

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
    if call.caller.is_monitoring() {
        overview["listeners"] = listeners(state);
    }
    Ok(one(call, overview))
}

pub(super) async fn whoami(call: &Call) -> Result<Answer, ApiError> {
    let caller = &call.caller;
    Ok(json(&json!({ "name": caller.user, "tags": caller.tags })))
}
