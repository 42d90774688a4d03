//! What RabbitMQ keeps beside queues and exchanges: virtual hosts, policies and runtime parameters.
//!
//! Everything is one JSON document, small enough to be written as a whole. `store.rs` keeps it in memory and writes it
//! before a change is answered.

mod store;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits;
use crate::policy::{Policy, PolicyKind};

pub use store::{MetadataFile, MetadataStore, NoFile};

/// The version that is written. A newer one is refused.
const VERSION: u32 = 1;

/// A key of something in a virtual host: the virtual host and the name.
pub type VhostKey = (String, String);

/// The content of `rabbitmq.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    version: u32,
    #[serde(default)]
    pub vhosts: BTreeMap<String, VhostFacts>,
    #[serde(default, with = "rows")]
    pub policies: BTreeMap<VhostKey, Policy>,
    #[serde(default, with = "rows")]
    pub operator_policies: BTreeMap<VhostKey, Policy>,
    #[serde(default, with = "rows")]
    pub parameters: BTreeMap<(String, String, String), Value>,
    #[serde(default)]
    pub global_parameters: BTreeMap<String, Value>,
}

/// A virtual host. Its queues and exchanges are in the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostFacts {
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub tags: Vec<String>,
    /// The type of queues that are declared without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_queue_type: Option<String>,
    /// The virtual host is being deleted. A restart continues.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// Why the metadata could not be read or changed. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("virtual host `{0}` does not exist")]
    NoVhost(String),
    #[error("{0}")]
    Invalid(String),
    #[error("there are {most} {what} already: delete some")]
    TooMany { what: &'static str, most: usize },
    #[error("cannot write the policies and parameters: {0}")]
    Unwritable(String),
    #[error("cannot read the policies and parameters: {0}")]
    Malformed(String),
}

impl Metadata {
    fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        let found: Self = serde_json::from_slice(bytes)
            .map_err(|error| MetadataError::Malformed(error.to_string()))?;
        match found.version {
            VERSION => Ok(found),
            other => Err(MetadataError::Malformed(format!(
                "unsupported version {other}: the file was written by a newer Malote"
            ))),
        }
    }

    fn to_bytes(&self) -> Result<Vec<u8>, MetadataError> {
        let current = Self { version: VERSION, ..self.clone() };
        let bytes = serde_json::to_vec_pretty(&current)
            .map_err(|error| MetadataError::Unwritable(error.to_string()))?;
        match bytes.len() > limits::METADATA_BYTES_MAX {
            true => Err(MetadataError::Invalid(format!(
                "policies, parameters and virtual hosts may have {} bytes together",
                limits::METADATA_BYTES_MAX
            ))),
            false => Ok(bytes),
        }
    }

    pub fn policies(&self, kind: PolicyKind) -> &BTreeMap<VhostKey, Policy> {
        match kind {
            PolicyKind::User => &self.policies,
            PolicyKind::Operator => &self.operator_policies,
        }
    }

    /// Adds or replaces a policy. Returns whether it is new.
    pub fn put_policy(
        &mut self,
        kind: PolicyKind,
        vhost: &str,
        name: &str,
        policy: Policy,
    ) -> Result<bool, MetadataError> {
        check_name(name)?;
        check_value(&Value::Object(policy.definition.clone()))?;
        let is_new = !self.policies(kind).contains_key(&(vhost.to_owned(), name.to_owned()));
        let (what, most) = ("policies", limits::POLICIES_MAX);
        if is_new && self.policies.len() + self.operator_policies.len() >= most {
            return Err(MetadataError::TooMany { what, most });
        }
        let policies = match kind {
            PolicyKind::User => &mut self.policies,
            PolicyKind::Operator => &mut self.operator_policies,
        };
        policies.insert((vhost.to_owned(), name.to_owned()), policy);
        Ok(is_new)
    }

    /// Returns whether the policy existed.
    pub fn remove_policy(&mut self, kind: PolicyKind, vhost: &str, name: &str) -> bool {
        let key = (vhost.to_owned(), name.to_owned());
        match kind {
            PolicyKind::User => self.policies.remove(&key),
            PolicyKind::Operator => self.operator_policies.remove(&key),
        }
        .is_some()
    }

    /// Adds or replaces a runtime parameter. Returns whether it is new.
    pub fn put_parameter(
        &mut self,
        component: &str,
        vhost: &str,
        name: &str,
        value: Value,
    ) -> Result<bool, MetadataError> {
        check_name(component)?;
        check_name(name)?;
        check_value(&value)?;
        let key = (component.to_owned(), vhost.to_owned(), name.to_owned());
        let is_new = !self.parameters.contains_key(&key);
        self.check_parameters(is_new)?;
        self.parameters.insert(key, value);
        Ok(is_new)
    }

    /// Adds or replaces a global parameter. Returns whether it is new.
    pub fn put_global_parameter(
        &mut self,
        name: &str,
        value: Value,
    ) -> Result<bool, MetadataError> {
        check_name(name)?;
        check_value(&value)?;
        let is_new = !self.global_parameters.contains_key(name);
        self.check_parameters(is_new)?;
        self.global_parameters.insert(name.to_owned(), value);
        Ok(is_new)
    }

    fn check_parameters(&self, is_new: bool) -> Result<(), MetadataError> {
        let (what, most) = ("parameters", limits::PARAMETERS_MAX);
        match is_new && self.parameters.len() + self.global_parameters.len() >= most {
            true => Err(MetadataError::TooMany { what, most }),
            false => Ok(()),
        }
    }

    /// Adds or replaces a virtual host. Returns whether it is new.
    pub fn put_vhost(&mut self, name: &str, facts: VhostFacts) -> Result<bool, MetadataError> {
        check_name(name)?;
        let long = |tag: &String| tag.is_empty() || tag.len() > limits::TAG_BYTES_MAX;
        if facts.tags.len() > limits::TAGS_MAX || facts.tags.iter().any(long) {
            return Err(MetadataError::Invalid(format!(
                "a virtual host may have {} tags of 1 to {} bytes",
                limits::TAGS_MAX,
                limits::TAG_BYTES_MAX
            )));
        }
        check_value(&Value::String(facts.description.clone()))?;
        let is_new = !self.vhosts.contains_key(name);
        if is_new && self.vhosts.len() >= limits::VHOSTS_MAX {
            let (what, most) = ("virtual hosts", limits::VHOSTS_MAX);
            return Err(MetadataError::TooMany { what, most });
        }
        self.vhosts.insert(name.to_owned(), facts);
        Ok(is_new)
    }

    /// Removes a virtual host with its policies and parameters.
    pub fn remove_vhost(&mut self, name: &str) {
        self.vhosts.remove(name);
        self.policies.retain(|(vhost, _), _| vhost != name);
        self.operator_policies.retain(|(vhost, _), _| vhost != name);
        self.parameters.retain(|(_, vhost, _), _| vhost != name);
    }
}

fn check_name(name: &str) -> Result<(), MetadataError> {
    let most = limits::METADATA_NAME_BYTES_MAX;
    match name.is_empty() || name.len() > most {
        true => Err(MetadataError::Invalid(format!("a name must have 1 to {most} bytes"))),
        false => Ok(()),
    }
}

fn check_value(value: &Value) -> Result<(), MetadataError> {
    let most = limits::METADATA_VALUE_BYTES_MAX;
    match value.to_string().len() > most {
        true => Err(MetadataError::Invalid(format!("a value may have {most} bytes as JSON"))),
        false => Ok(()),
    }
}

/// Maps with keys that JSON has no objects for, as arrays of pairs.
mod rows {
    use std::collections::BTreeMap;

    use serde::de::DeserializeOwned;
    use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: DeserializeOwned + Ord,
        V: DeserializeOwned,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
