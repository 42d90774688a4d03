//! The policy of one queue or exchange: the highest priority wins, and an operator policy limits it.

use serde_json::{Map, Value};

use super::{ApplyTo, Policy, PolicyKind, definition};
use crate::metadata::Metadata;

/// What a policy is looked up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyTarget {
    ClassicQueue,
    QuorumQueue,
    Exchange,
}

impl PolicyTarget {
    fn is_in(self, apply_to: ApplyTo) -> bool {
        match apply_to {
            ApplyTo::All => true,
            ApplyTo::Queues => self != Self::Exchange,
            ApplyTo::ClassicQueues => self == Self::ClassicQueue,
            ApplyTo::QuorumQueues => self == Self::QuorumQueue,
            ApplyTo::Exchanges => self == Self::Exchange,
            ApplyTo::Streams => false,
        }
    }
}

/// The policies of a queue or exchange, as the management API shows them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EffectivePolicy {
    pub policy: Option<String>,
    pub operator_policy: Option<String>,
    /// The definitions of the policy and the operator policy, merged.
    pub definition: Map<String, Value>,
}

impl EffectivePolicy {
    /// Looks up the policies of a name in a virtual host.
    pub fn of(metadata: &Metadata, vhost: &str, target: PolicyTarget, name: &str) -> Self {
        let user = best(metadata, PolicyKind::User, vhost, target, name);
        let operator = best(metadata, PolicyKind::Operator, vhost, target, name);
        let mut definition = user.map_or_else(Map::new, |(_, policy)| policy.definition.clone());
        for (key, limit) in operator.iter().flat_map(|(_, policy)| &policy.definition) {
            let value = match definition.get(key).and_then(Value::as_i64).zip(limit.as_i64()) {
                Some((value, limit)) if definition::takes_minimum(key) => value.min(limit).into(),
                _ => limit.clone(),
            };
            definition.insert(key.clone(), value);
        }
        Self {
            policy: user.map(|(name, _)| name.to_owned()),
            operator_policy: operator.map(|(name, _)| name.to_owned()),
            definition,
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.definition.get(key)?.as_str()
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        self.definition.get(key)?.as_i64()
    }
}

/// The policy with the highest priority; of several, the first by name.
fn best<'a>(
    metadata: &'a Metadata,
    kind: PolicyKind,
    vhost: &str,
    target: PolicyTarget,
    name: &str,
) -> Option<(&'a str, &'a Policy)> {
    let mut best: Option<(&str, &Policy)> = None;
    let of_vhost = metadata
        .policies(kind)
        .range((vhost.to_owned(), String::new())..)
        .take_while(|((host, _), _)| host == vhost);
    for ((_, policy_name), policy) in of_vhost {
        let better = best.is_none_or(|(_, known)| policy.priority > known.priority);
        if better && target.is_in(policy.apply_to) && policy.pattern.matches(name) {
            best = Some((policy_name, policy));
        }
    }
    best
}
