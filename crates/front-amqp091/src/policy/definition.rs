//! The settings that a policy may have, with RabbitMQ's error texts.

use serde_json::{Map, Value};

use super::PolicyKind;

pub(super) const MESSAGE_TTL: &str = "message-ttl";
pub(super) const EXPIRES: &str = "expires";
pub(super) const MAX_LENGTH: &str = "max-length";
pub(super) const MAX_LENGTH_BYTES: &str = "max-length-bytes";
pub(super) const DELIVERY_LIMIT: &str = "delivery-limit";
pub(super) const DEAD_LETTER_EXCHANGE: &str = "dead-letter-exchange";
pub(super) const DEAD_LETTER_ROUTING_KEY: &str = "dead-letter-routing-key";
pub(super) const OVERFLOW: &str = "overflow";
pub(super) const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// RabbitMQ's largest duration: ten years.
const DURATION_MAX: i64 = 315_360_000_000;

/// What a setting may be.
enum Kind {
    /// At least this, and RabbitMQ's words for it.
    Number(i64, i64, &'static str),
    Text(&'static str),
    Overflow,
    /// Accepted without an effect: one node has no replicas, and keeps bodies on disk anyway.
    Ignored,
}

/// A setting, and whether an operator may limit it.
fn kind(key: &str) -> Option<(Kind, bool)> {
    Some(match key {
        MESSAGE_TTL => (Kind::Number(0, DURATION_MAX, "message TTL"), true),
        EXPIRES => (Kind::Number(1, DURATION_MAX, "queue expiry"), true),
        MAX_LENGTH => (Kind::Number(0, i64::MAX, "maximum length"), true),
        MAX_LENGTH_BYTES => (Kind::Number(0, i64::MAX, "maximum length in bytes"), true),
        DELIVERY_LIMIT => (Kind::Number(0, i64::from(u32::MAX), "delivery limit"), true),
        DEAD_LETTER_EXCHANGE => (Kind::Text("dead letter exchange name"), false),
        DEAD_LETTER_ROUTING_KEY => (Kind::Text("dead letter routing key"), false),
        ALTERNATE_EXCHANGE => (Kind::Text("alternate exchange name"), false),
        OVERFLOW => (Kind::Overflow, false),
        "max-in-memory-length"
        | "max-in-memory-bytes"
        | "ha-mode"
        | "ha-params"
        | "ha-sync-mode"
        | "ha-sync-batch-size"
        | "ha-promote-on-shutdown"
        | "ha-promote-on-failure"
        | "queue-master-locator"
        | "queue-leader-locator" => (Kind::Ignored, true),
        "queue-mode" | "queue-version" | "dead-letter-strategy" => (Kind::Ignored, false),
        _ => return None,
    })
}

/// Checks a definition.
pub(super) fn check(policy: PolicyKind, definition: &Map<String, Value>) -> Result<(), String> {
    if definition.is_empty() {
        return Err("no policy provided".to_owned());
    }
    for (key, value) in definition {
        let known = kind(key).filter(|(_, limits)| policy == PolicyKind::User || *limits);
        let Some((kind, _)) = known else {
            return Err(format!(
                "[{{<<\"{key}\">>,{}}}] are not recognised policy settings",
                shown(value)
            ));
        };
        let invalid = |what: &str| format!("{} is not a valid {what}", shown(value));
        match kind {
            Kind::Number(least, most, what) => {
                let number = value.as_i64().filter(|number| (least..=most).contains(number));
                number.ok_or_else(|| invalid(what))?;
            }
            Kind::Text(what) => {
                value.as_str().filter(|text| text.len() <= 255).ok_or_else(|| invalid(what))?;
            }
            Kind::Overflow => {
                let known = ["drop-head", "reject-publish", "reject-publish-dlx"];
                let word = value.as_str().filter(|word| known.contains(word));
                word.ok_or_else(|| invalid("overflow value"))?;
            }
            Kind::Ignored => {}
        }
    }
    Ok(())
}

/// Whether the smaller of two values applies.
pub(super) fn takes_minimum(key: &str) -> bool {
    matches!(kind(key), Some((Kind::Number(..), _)))
}

/// A value as RabbitMQ prints it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<<\"{text}\">>"),
        other => other.to_string(),
    }
}
