//! Policies: settings for all queues or exchanges whose names match an expression.
//!
//! | file | what |
//! |---|---|
//! | `definition.rs` | which settings exist, and their checks |
//! | `effective.rs` | the policy of one queue or exchange |
//! | `overlay.rs` | a policy and the arguments of a declaration → settings of the engine |
//! | `walk.rs` | applies changed policies to what exists |
//!
//! A policy never changes the arguments of a declaration, which are stored with the queue. Its effect is written into the
//! settings of the queue; when the policy is deleted, the settings are made from the arguments again. Only queues and
//! exchanges of AMQP 0-9-1 have policies.

mod definition;
mod effective;
mod overlay;
mod walk;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name_expression::NameExpression;

pub use effective::{EffectivePolicy, PolicyTarget};
pub(crate) use overlay::queue_spec_with;
pub(crate) use walk::declared_alternate;

/// Who makes a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// Users of the broker.
    User,
    /// The operator: it limits what users may set.
    Operator,
}

/// What a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyTo {
    #[default]
    All,
    Queues,
    ClassicQueues,
    QuorumQueues,
    Streams,
    Exchanges,
}

impl ApplyTo {
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_value(Value::String(text.to_owned())).ok()
    }
}

/// A policy. Its name and virtual host are its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    pub pattern: NameExpression,
    #[serde(rename = "apply-to", default)]
    pub apply_to: ApplyTo,
    pub definition: Map<String, Value>,
    /// Of several policies that match, the one with the highest priority applies.
    #[serde(default)]
    pub priority: i64,
}

impl Policy {
    /// Reads RabbitMQ's JSON of a policy, as the body of a request or in definitions. The error is RabbitMQ's text.
    pub fn from_json(kind: PolicyKind, object: &Map<String, Value>) -> Result<Self, String> {
        for key in ["pattern", "definition"] {
            if !object.contains_key(key) {
                return Err(format!("[{{key_missing,{key}}}]"));
            }
        }
        let failed = |why: String| format!("Validation failed\n\n{why}\n");
        let pattern = object.get("pattern").and_then(Value::as_str);
        let pattern = pattern.ok_or_else(|| failed("pattern should be binary".into()))?;
        let pattern = NameExpression::new(pattern).map_err(|error| {
            let why = error.why;
            failed(format!("pattern should be regular expression but is invalid: {why}"))
        })?;
        let apply_to = match object.get("apply-to") {
            None | Some(Value::Null) => ApplyTo::All,
            Some(value) => value.as_str().and_then(ApplyTo::parse).ok_or_else(|| {
                let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                failed(format!(
                    "apply-to '{shown}' unrecognised; should be 'queues', 'exchanges' or 'all'"
                ))
            })?,
        };
        let priority = match object.get("priority") {
            None | Some(Value::Null) => 0,
            Some(value) => value.as_i64().ok_or_else(|| {
                let shown = definition::shown(value);
                failed(format!("priority should be a number, actually was {shown}"))
            })?,
        };
        let definition = object.get("definition").and_then(Value::as_object);
        let definition =
            definition.ok_or_else(|| failed("definition should be an object".into()))?;
        definition::check(kind, definition).map_err(failed)?;
        Ok(Self { pattern, apply_to, definition: definition.clone(), priority })
    }

    /// RabbitMQ's JSON, with the key.
    pub fn to_json(&self, vhost: Option<&str>, name: &str) -> Map<String, Value> {
        let mut object = Map::new();
        if let Some(vhost) = vhost {
            object.insert("vhost".into(), vhost.into());
        }
        object.insert("name".into(), name.into());
        object.extend(self.value());
        object
    }

    /// The part that a runtime parameter of the component `policy` or `operator_policy` has as its value.
    pub fn value(&self) -> Map<String, Value> {
        let apply_to = serde_json::to_value(self.apply_to).unwrap_or_default();
        Map::from_iter([
            ("pattern".into(), self.pattern.as_str().into()),
            ("apply-to".into(), apply_to),
            ("definition".into(), Value::Object(self.definition.clone())),
            ("priority".into(), self.priority.into()),
        ])
    }
}
