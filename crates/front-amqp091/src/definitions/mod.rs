//! RabbitMQ's definitions: everything but messages, as one JSON document.
//!
//! | file | what |
//! |---|---|
//! | `export.rs` | writes them |
//! | `import.rs` | reads them |
//! | `topology.rs` | queues, exchanges and bindings ↔ the engine |
//!
//! The types are those of RabbitMQ 3.10 to 4. Fields that are unknown here are ignored. `malote_password_hash` is an
//! addition: RabbitMQ ignores it, and another Malote reads passwords from it that RabbitMQ cannot check.

mod export;
mod import;
mod topology;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::users::HashAlgorithm;

pub use import::{ImportError, ImportReport};

/// The document. A part that is missing is not imported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definitions {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rabbit_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rabbitmq_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub product_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub product_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<UserDefinition>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhosts: Option<Vec<VhostDefinition>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<PermissionDefinition>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_permissions: Option<Vec<TopicPermissionDefinition>>,
    pub parameters: Vec<ParameterDefinition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_parameters: Option<Vec<GlobalParameterDefinition>>,
    pub policies: Vec<PolicyDefinition>,
    pub queues: Vec<QueueDefinition>,
    pub exchanges: Vec<ExchangeDefinition>,
    pub bindings: Vec<BindingDefinition>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UserDefinition {
    pub name: String,
    #[serde(default)]
    pub password_hash: String,
    #[serde(default)]
    pub hashing_algorithm: HashAlgorithm,
    #[serde(default, deserialize_with = "tags")]
    pub tags: Vec<String>,
    #[serde(default)]
    pub limits: Map<String, Value>,
    /// The password in clear text; never written.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// argon2id in PHC format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malote_password_hash: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VhostDefinition {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "tags")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_queue_type: Option<String>,
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PermissionDefinition {
    pub user: String,
    pub vhost: String,
    pub configure: String,
    pub write: String,
    pub read: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicPermissionDefinition {
    pub user: String,
    pub vhost: String,
    pub exchange: String,
    pub write: String,
    pub read: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterDefinition {
    pub value: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    pub component: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GlobalParameterDefinition {
    pub name: String,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyDefinition {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    pub name: String,
    /// Pattern, definition, priority and what it applies to.
    #[serde(flatten)]
    pub policy: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueDefinition {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    #[serde(default = "yes")]
    pub durable: bool,
    #[serde(default)]
    pub auto_delete: bool,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeDefinition {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "yes")]
    pub durable: bool,
    #[serde(default)]
    pub auto_delete: bool,
    #[serde(default)]
    pub internal: bool,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BindingDefinition {
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    pub destination: String,
    pub destination_type: DestinationKind,
    #[serde(default)]
    pub routing_key: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationKind {
    Queue,
    Exchange,
}

impl DestinationKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Exchange => "exchange",
        }
    }
}

fn yes() -> bool {
    true
}

/// Tags are a list, or, from RabbitMQ before 3.9, a text with commas.
pub(crate) fn tags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    tags_of(&Value::deserialize(deserializer)?)
        .ok_or_else(|| serde::de::Error::custom("tags must be a list or a text with commas"))
}

/// Reads tags in either form.
pub(crate) fn tags_of(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => {
            let tags = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
            Some(tags.map(str::to_owned).collect())
        }
        Value::Array(values) => {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        }
        _ => None,
    }
}
