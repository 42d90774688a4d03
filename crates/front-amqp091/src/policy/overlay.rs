//! A policy and the arguments of a declaration → settings of the engine.
//!
//! As in RabbitMQ, an argument wins over a policy, except for numbers: the smaller one applies.

use malote_model::{QueueSpec, TopicSpec};

use super::definition as keys;
use super::{EffectivePolicy, PolicyTarget};
use crate::arguments::{self, queue_spec, queue_type};
use crate::metadata::Metadata;
use crate::names::VirtualHost;
use crate::wire::error::Exception;
use crate::wire::method::queue;
use crate::wire::table::{FieldTable, FieldValue};
use crate::wire::text::ShortString;

/// Marks a queue whose settings a policy has changed, so that others are left alone.
pub(super) const POLICY_LABEL: &str = "amqp091.policy";
/// The alternate exchange that an exchange was declared with, while a policy sets another one. Empty for none.
pub(crate) const ALTERNATE_LABEL: &str = "amqp091.alternate";

/// The policy of a queue.
pub(crate) fn of_queue(
    metadata: &Metadata,
    host: &VirtualHost,
    name: &str,
    arguments: &FieldTable,
) -> EffectivePolicy {
    let target = match queue_type(arguments) == arguments::TYPE_QUORUM {
        true => PolicyTarget::QuorumQueue,
        false => PolicyTarget::ClassicQueue,
    };
    EffectivePolicy::of(metadata, host.name(), target, name)
}

/// The settings of a new queue, with its policy.
pub(crate) fn queue_spec_with(
    metadata: &Metadata,
    host: &VirtualHost,
    name: &str,
    declare: &queue::Declare,
) -> Result<QueueSpec, Exception> {
    let declared = queue_spec(host, name, declare)?;
    let policy = of_queue(metadata, host, name, &declare.arguments);
    Ok(overlaid(host, name, declare, declared.clone(), &policy).unwrap_or(declared))
}

/// The settings that an existing queue should have; `None` if it has them, or no policy concerns it.
pub(super) fn wanted(
    metadata: &Metadata,
    host: &VirtualHost,
    name: &str,
    current: &QueueSpec,
) -> Option<QueueSpec> {
    let arguments = arguments::stored(current)?;
    let policy = of_queue(metadata, host, name, &arguments);
    if policy.definition.is_empty() && !current.labels.contains_key(POLICY_LABEL) {
        return None;
    }
    let declare = queue::Declare {
        queue: ShortString::truncated(name),
        durable: !current.transient,
        exclusive: current.exclusive,
        auto_delete: current.auto_delete,
        arguments,
        ..Default::default()
    };
    let wanted = match policy.definition.is_empty() {
        true => {
            let mut restored = current.clone();
            take_settings(&mut restored, queue_spec(host, name, &declare).ok()?);
            restored.labels.remove(POLICY_LABEL);
            restored
        }
        false => overlaid(host, name, &declare, current.clone(), &policy)?,
    };
    let same = wanted.difference(current).is_none() && wanted.labels == current.labels;
    (!same).then_some(wanted)
}

/// `base` with the settings that the arguments and the policy give together. `None` if they contradict each other.
fn overlaid(
    host: &VirtualHost,
    name: &str,
    declare: &queue::Declare,
    mut base: QueueSpec,
    policy: &EffectivePolicy,
) -> Option<QueueSpec> {
    if policy.definition.is_empty() {
        return None;
    }
    let arguments = merged(&declare.arguments, policy);
    let together = queue::Declare { arguments, ..declare.clone() };
    match queue_spec(host, name, &together) {
        Ok(spec) => take_settings(&mut base, spec),
        Err(error) => {
            tracing::warn!(queue = name, %error, front = "rabbitmq", "a policy cannot be applied to a queue");
            return None;
        }
    }
    let names = [&policy.policy, &policy.operator_policy];
    let names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
    base.labels.insert(POLICY_LABEL.to_owned(), names.join(","));
    Some(base)
}

/// The arguments that would have the same effect as the declared ones and the policy.
fn merged(declared: &FieldTable, policy: &EffectivePolicy) -> FieldTable {
    let numbers = [
        keys::MESSAGE_TTL,
        keys::EXPIRES,
        keys::MAX_LENGTH,
        keys::MAX_LENGTH_BYTES,
        keys::DELIVERY_LIMIT,
    ];
    let mut table = FieldTable::builder();
    let number_of = |name: &str| declared.get(name).and_then(FieldValue::as_integer);
    table.copy(declared.as_table(), |name| {
        let key = name.strip_prefix("x-").unwrap_or_default();
        !numbers.contains(&key) || policy.number(key).is_none()
    });
    for key in numbers {
        let name = format!("x-{key}");
        // A delivery limit of -1 means none.
        let argument = number_of(&name).filter(|&number| number >= 0);
        if let Some(limit) = policy.number(key) {
            table.put(&name, argument.map_or(limit, |argument| argument.min(limit)));
        }
    }
    let has = |key: &str| declared.get(&format!("x-{key}")).is_some();
    let exchange = policy.text(keys::DEAD_LETTER_EXCHANGE);
    let dead_letters = exchange.is_some() || has(keys::DEAD_LETTER_EXCHANGE);
    for key in [keys::DEAD_LETTER_EXCHANGE, keys::DEAD_LETTER_ROUTING_KEY, keys::OVERFLOW] {
        // A routing key means nothing without an exchange.
        let useless = key == keys::DEAD_LETTER_ROUTING_KEY && !dead_letters;
        if let Some(text) = policy.text(key).filter(|_| !useless && !has(key)) {
            table.put(&format!("x-{key}"), text);
        }
    }
    table.build()
}

/// Copies the settings that a policy can change.
fn take_settings(spec: &mut QueueSpec, from: QueueSpec) {
    spec.ttl_ms = from.ttl_ms;
    spec.on_expiry = from.on_expiry;
    spec.dead_letter = from.dead_letter;
    spec.overflow = from.overflow;
    spec.length_max = from.length_max;
    spec.bytes_max = from.bytes_max;
    spec.idle_ms_max = from.idle_ms_max;
    spec.failed_max = from.failed_max;
}

/// The policy of an exchange.
pub(crate) fn of_exchange(metadata: &Metadata, host: &VirtualHost, name: &str) -> EffectivePolicy {
    EffectivePolicy::of(metadata, host.name(), PolicyTarget::Exchange, name)
}

/// The settings of an exchange, with the alternate exchange of its policy if it was declared without one.
pub(super) fn topic_spec_with(
    metadata: &Metadata,
    host: &VirtualHost,
    name: &str,
    declared: TopicSpec,
) -> TopicSpec {
    if declared.alternate.is_some() {
        return declared;
    }
    let policy = of_exchange(metadata, host, name);
    let alternate = policy.text(keys::ALTERNATE_EXCHANGE);
    let alternate = alternate.and_then(|exchange| host.topic(exchange).ok());
    TopicSpec { alternate, ..declared }
}
