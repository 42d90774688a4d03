//! The record of a queue's declared settings, and the settings that RabbitMQ cannot support.

use lapin::types::{AMQPValue, FieldTable};
use malote_model::{
    DeadLetterTarget, Durability, OnExpiry, Overflow, QueueSpec, RetryOrder, SessionId, Sessions,
    Status,
};
use serde::{Deserialize, Serialize};

use super::names::QueueNames;
use super::url::PARTITIONS_MAX;
use super::{BROKER, refused, values};
use crate::broker::BrokerError;

/// The version of new records.
const VERSION: u32 = 1;

/// The settings that may differ between queues. All others must have their defaults.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct QueueRecord {
    version: u32,
    /// 0 in a queue without sessions.
    pub partitions: usize,
    sessions: Option<Vec<String>>,
    lock_ms: u64,
    failed_max: Option<u32>,
    message_bytes_max: u64,
    backlog_warning: u64,
    ttl_ms: Option<u64>,
    expired_are_dead: bool,
    length_max: Option<u64>,
    bytes_max: Option<u64>,
    drop_oldest: bool,
    relaxed: bool,
}

fn unsupported(what: &'static str, fix: &'static str) -> BrokerError {
    BrokerError::Unsupported { broker: BROKER, what, fix }
}

/// Refuses settings that quorum queues cannot support. The error names the setting.
fn check(spec: &QueueSpec) -> Result<(), BrokerError> {
    spec.check().map_err(BrokerError::from)?;
    let defaults = QueueSpec::default();
    let sessions = spec.sessions.required();
    if spec.dedup.is_some() {
        return Err(unsupported(
            "de-duplication window (`dedup`)",
            "leave it out and make handlers exactly-once with an inbox",
        ));
    }
    if spec.priority_max > 0 {
        return Err(unsupported("priorities in quorum queues (`priority_max`)", "set it to 0"));
    }
    if spec.receives_max.is_some() {
        return Err(unsupported("limit of receives (`receives_max`)", "set `failed_max` instead"));
    }
    if spec.dead_letter != DeadLetterTarget::Own || spec.dead_letters_keep_age {
        return Err(unsupported(
            "other target for dead letters (`dead_letter`, `dead_letters_keep_age`)",
            "leave both at their defaults: dead letters go to NAME.dlq",
        ));
    }
    if spec.auto_delete || spec.exclusive || spec.idle_ms_max.is_some() {
        return Err(unsupported(
            "quorum queues that are deleted automatically (`auto_delete`, `exclusive`, `idle_ms_max`)",
            "leave them out",
        ));
    }
    if spec.forward_to.is_some() {
        return Err(unsupported("forwarding (`forward_to`)", "bind the queue to an exchange"));
    }
    if spec.status != Status::Active {
        return Err(unsupported("disabled queues (`status`)", "leave it out"));
    }
    if spec.delay_ms != defaults.delay_ms {
        return Err(unsupported(
            "default delay of messages (`delay_ms`)",
            "set a delay for each message",
        ));
    }
    if spec.retry == RetryOrder::Skip && sessions {
        return Err(unsupported("retries out of order (`retry`)", "set it to `hold`"));
    }
    if sessions && (spec.length_max.is_some() || spec.bytes_max.is_some()) {
        return Err(unsupported(
            "limit over all partitions (`length_max`, `bytes_max`)",
            "leave it out in a queue with sessions",
        ));
    }
    if sessions && spec.ttl_ms.is_some() && spec.on_expiry == OnExpiry::DeadLetter {
        // A message could expire while an earlier one of its session is being processed.
        return Err(unsupported(
            "dead letters for expired messages of sessions (`on_expiry`)",
            "set it to `drop`",
        ));
    }
    if spec.overflow == Overflow::DeadLetterOldest {
        return Err(unsupported(
            "durable dead letters for overflowed messages (`overflow`)",
            "set it to `reject` or `drop_oldest`",
        ));
    }
    if spec.overflow == Overflow::DropOldest && spec.on_expiry == OnExpiry::DeadLetter {
        return Err(unsupported(
            "combination of `drop_oldest` with dead letters for expired messages (`overflow`, `on_expiry`)",
            "set one of them to its default",
        ));
    }
    Ok(())
}

impl QueueRecord {
    pub(super) fn of(spec: &QueueSpec, partitions: usize) -> Result<Self, BrokerError> {
        check(spec)?;
        let sessions = match &spec.sessions {
            Sessions::Fixed(ids) => Some(ids.iter().map(|id| id.as_str().to_owned()).collect()),
            Sessions::None | Sessions::Dynamic => None,
        };
        Ok(Self {
            version: VERSION,
            partitions: if spec.sessions.required() { partitions } else { 0 },
            sessions,
            lock_ms: spec.lock_ms,
            failed_max: spec.failed_max,
            message_bytes_max: spec.message_bytes_max,
            backlog_warning: spec.backlog_warning,
            ttl_ms: spec.ttl_ms,
            expired_are_dead: spec.on_expiry == OnExpiry::DeadLetter,
            length_max: spec.length_max,
            bytes_max: spec.bytes_max,
            drop_oldest: spec.overflow == Overflow::DropOldest,
            relaxed: spec.durability == Durability::Relaxed,
        })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, BrokerError> {
        rmp_serde::to_vec_named(self).map_err(|error| refused("bad_spec", error.to_string()))
    }

    pub(super) fn from_bytes(bytes: &[u8], queue: &str) -> Result<Self, BrokerError> {
        let record: Option<Self> = rmp_serde::from_slice(bytes).ok();
        let right = |one: &Self| one.version == VERSION && one.partitions <= PARTITIONS_MAX;
        record.filter(right).ok_or_else(|| {
            let text = format!(
                "queue `{queue}` was declared by a newer version of Malote: use that version"
            );
            refused("unknown_spec", text)
        })
    }

    pub(super) fn spec(&self) -> QueueSpec {
        let ids = self.sessions.iter().flatten().filter_map(|id| SessionId::new(id).ok());
        let sessions = match (self.partitions, &self.sessions) {
            (0, _) => Sessions::None,
            (_, None) => Sessions::Dynamic,
            (_, Some(_)) => Sessions::Fixed(ids.collect()),
        };
        QueueSpec {
            sessions,
            lock_ms: self.lock_ms,
            failed_max: self.failed_max,
            message_bytes_max: self.message_bytes_max,
            backlog_warning: self.backlog_warning,
            ttl_ms: self.ttl_ms,
            on_expiry: if self.expired_are_dead { OnExpiry::DeadLetter } else { OnExpiry::Drop },
            length_max: self.length_max,
            bytes_max: self.bytes_max,
            overflow: if self.drop_oldest { Overflow::DropOldest } else { Overflow::Reject },
            durability: if self.relaxed { Durability::Relaxed } else { Durability::Fsync },
            ..QueueSpec::default()
        }
    }

    /// Refuses a declaration with other settings. The error names the setting.
    pub(super) fn check_same(&self, requested: &Self, queue: &str) -> Result<(), BrokerError> {
        if self.partitions != requested.partitions && self.partitions.min(requested.partitions) > 0
        {
            let (have, want) = (self.partitions, requested.partitions);
            let text = format!(
                "queue `{queue}` has {have} partitions, but {want} were requested: write ?partitions={have} into the URL"
            );
            return Err(refused("queue_differs", text));
        }
        match self.spec().difference(&requested.spec()) {
            None => Ok(()),
            Some((field, have, want)) => {
                let text = format!("queue `{queue}` has {field} {have}, but {want} was requested");
                Err(refused("queue_differs", text))
            }
        }
    }

    /// The arguments for declaring the queue, or each partition.
    pub(super) fn arguments(&self, names: &QueueNames) -> FieldTable {
        let mut table = quorum_arguments();
        let mut number = |name: &str, value: u64| {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            table.insert(name.into(), AMQPValue::LongLongInt(value));
        };
        if let Some(max) = self.length_max {
            number("x-max-length", max);
        }
        if let Some(max) = self.bytes_max {
            number("x-max-length-bytes", max);
        }
        if let Some(ms) = self.ttl_ms {
            number("x-message-ttl", ms.min(u32::MAX.into()));
        }
        // Needed only with a limit, or for at-least-once dead-lettering.
        let limited = self.length_max.is_some() || self.bytes_max.is_some();
        if limited || self.expired_are_dead {
            let overflow = if self.drop_oldest { "drop-head" } else { "reject-publish" };
            table.insert("x-overflow".into(), values::text(overflow));
        }
        if self.expired_are_dead {
            set_dead_letter_target(&mut table, "", Some(names.dead_letters().as_str()));
        }
        if self.partitions > 0 {
            table.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        table
    }
}

/// The arguments of a replicated queue.
pub(super) fn quorum_arguments() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), values::text("quorum"));
    table
}

/// Sets the target of messages that expire or overflow. They leave the queue only when they are stored in the target,
/// which requires `x-overflow` = `reject-publish`.
pub(super) fn set_dead_letter_target(table: &mut FieldTable, exchange: &str, key: Option<&str>) {
    table.insert("x-dead-letter-exchange".into(), values::text(exchange));
    table.insert("x-dead-letter-strategy".into(), values::text("at-least-once"));
    if let Some(key) = key {
        table.insert("x-dead-letter-routing-key".into(), values::text(key));
    }
}

#[cfg(test)]
mod tests {
    use malote_model::Dedup;

    use super::*;

    #[test]
    fn a_record_contains_all_settings_that_may_differ() {
        let a = SessionId::new("a").unwrap();
        let spec = QueueSpec {
            sessions: Sessions::Fixed(vec![a]),
            lock_ms: 7,
            failed_max: None,
            message_bytes_max: 9,
            backlog_warning: 10,
            ttl_ms: Some(11),
            durability: Durability::Relaxed,
            ..QueueSpec::default()
        };
        let record = QueueRecord::of(&spec, 4).unwrap();
        let read = QueueRecord::from_bytes(&record.to_bytes().unwrap(), "q").unwrap();
        assert_eq!(read.spec().difference(&spec), None);
        assert_eq!(read, record);
        assert!(QueueRecord::from_bytes(b"what", "q").is_err());
    }

    #[test]
    fn unsupported_settings_are_refused_by_name() {
        let dedup = Some(Dedup { window_ms: 1, per_session: false, content: false });
        let defaults = QueueSpec::default();
        let in_sessions = QueueSpec { sessions: Sessions::Dynamic, ..defaults.clone() };
        for (name, spec) in [
            ("dedup", QueueSpec { dedup, ..defaults.clone() }),
            ("priority_max", QueueSpec { priority_max: 3, ..defaults.clone() }),
            ("receives_max", QueueSpec { receives_max: Some(3), ..defaults.clone() }),
            ("dead_letter", QueueSpec { dead_letter: DeadLetterTarget::Drop, ..defaults.clone() }),
            ("idle_ms_max", QueueSpec { idle_ms_max: Some(3), ..defaults.clone() }),
            ("delay_ms", QueueSpec { delay_ms: 3, ..defaults.clone() }),
            ("overflow", QueueSpec { overflow: Overflow::DeadLetterOldest, ..defaults.clone() }),
            ("length_max", QueueSpec { length_max: Some(3), ..in_sessions.clone() }),
            ("retry", QueueSpec { retry: RetryOrder::Skip, ..in_sessions.clone() }),
        ] {
            let error = QueueRecord::of(&spec, 4).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{name}: {error}");
        }
    }

    #[test]
    fn a_different_number_of_partitions_is_refused_with_a_hint() {
        let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        let [four, eight] = [4, 8].map(|partitions| QueueRecord::of(&spec, partitions).unwrap());
        let error = four.check_same(&eight, "q").unwrap_err().to_string();
        assert!(error.contains("?partitions=4"), "{error}");
        let defaults = QueueRecord::of(&QueueSpec::default(), 4).unwrap();
        let error = four.check_same(&defaults, "q").unwrap_err().to_string();
        assert!(error.contains("has sessions dynamic"), "{error}");
    }
}
