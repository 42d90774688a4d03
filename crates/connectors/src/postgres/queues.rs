//! Declaring and looking up queues. The settings of a queue never change.

use std::sync::Arc;

use malote_model::{
    DeadLetterTarget, Dedup, Durability, OnExpiry, QueueName, QueueSpec, Refusal, RetryOrder,
    SessionId, Sessions, Status,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::PgShared;
use super::connection::Sql;
use super::error::unreadable;
use crate::broker::BrokerError;

pub(super) const FIND_QUEUE: Sql =
    Sql { text: "select id, spec::text from malote.queues where name = $1", types: &[Type::TEXT] };
pub(super) const DECLARE_QUEUE: Sql = Sql {
    text: "insert into malote.queues (name, spec) values ($1, $2::text::jsonb) on conflict (name) do nothing",
    types: &[Type::TEXT, Type::TEXT],
};

/// Bound of the cache; further queues are looked up each time.
const CACHED_MAX: usize = 100_000;

/// A queue, or the dead letters of one.
pub(super) struct PgQueue {
    /// Negative: the dead letters of that queue.
    pub id: i32,
    pub name: QueueName,
    pub spec: QueueSpec,
}

impl PgQueue {
    /// Whether messages belong to sessions. Dead letters do not.
    pub(super) fn has_sessions(&self) -> bool {
        self.id > 0 && self.spec.sessions.required()
    }

    /// The number of failures at which a message becomes a dead letter.
    pub(super) fn failed_max(&self) -> Option<i32> {
        self.spec.failed_max.filter(|_| self.id > 0).and_then(|max| i32::try_from(max).ok())
    }
}

impl PgShared {
    /// Looks up a queue.
    pub(super) async fn queue(&self, name: &QueueName) -> Result<Arc<PgQueue>, BrokerError> {
        if let Some(known) = self.queues.lock().get(name) {
            return Ok(known.clone());
        }
        let owner = name.owner().unwrap_or(name.as_str());
        let rows = self.claiming.query(&FIND_QUEUE, &[&owner]).await?;
        let Some(row) = rows.first() else {
            return Err(Refusal::QueueNotFound { queue: name.clone() }.into());
        };
        let (id, spec): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        let spec: StoredSpec = serde_json::from_str(&spec).map_err(unreadable)?;
        let id = if name.is_dead_letters() { -id } else { id };
        let queue = Arc::new(PgQueue { id, name: name.clone(), spec: spec.read()? });
        let mut known = self.queues.lock();
        if known.len() < CACHED_MAX {
            known.insert(name.clone(), queue.clone());
        }
        Ok(queue)
    }

    /// Creates a queue, or checks that it exists with these settings.
    pub(super) async fn declare(
        &self,
        name: &QueueName,
        requested: QueueSpec,
    ) -> Result<(), BrokerError> {
        requested.check()?;
        supported(&requested)?;
        if name.is_dead_letters() {
            let why = "is a set of dead letters: declare its queue instead";
            return Err(Refusal::BadName { name: name.to_string(), why }.into());
        }
        let spec = serde_json::to_string(&StoredSpec::of(&requested)).map_err(unreadable)?;
        self.sending.query(&DECLARE_QUEUE, &[&name.as_str(), &spec]).await?;
        let queue = self.queue(name).await?;
        match queue.spec.difference(&requested) {
            None => Ok(()),
            Some((field, is, asked)) => {
                Err(Refusal::QueueDiffers { queue: name.clone(), field, is, asked }.into())
            }
        }
    }
}

/// Refuses settings that this broker does not support.
fn supported(spec: &QueueSpec) -> Result<(), BrokerError> {
    let default = QueueSpec::default();
    let requested = [
        ("receives_max", spec.receives_max.is_some()),
        ("dead_letter", spec.dead_letter != DeadLetterTarget::Own),
        ("dead_letters_keep_age", spec.dead_letters_keep_age),
        ("status", spec.status != Status::Active),
        ("retry", spec.retry != RetryOrder::Hold),
        ("length_max", spec.length_max.is_some()),
        ("bytes_max", spec.bytes_max.is_some()),
        ("overflow", spec.overflow != default.overflow),
        ("auto_delete", spec.auto_delete),
        ("idle_ms_max", spec.idle_ms_max.is_some()),
        ("exclusive", spec.exclusive),
        ("fair", spec.fair),
        ("forward_to", spec.forward_to.is_some()),
    ];
    match requested.into_iter().find(|(_, requested)| *requested) {
        None => Ok(()),
        Some((what, _)) => Err(BrokerError::Unsupported {
            broker: super::BROKER,
            what,
            fix: "leave this setting at its default, or use embedded: or malote:",
        }),
    }
}

/// The settings of a queue as stored in the database.
#[derive(Serialize, Deserialize)]
struct StoredSpec {
    /// None: no sessions. An empty list: any session.
    sessions: Option<Vec<String>>,
    lock_ms: u64,
    failed_max: Option<u32>,
    relaxed: bool,
    delay_ms: u64,
    message_bytes_max: u64,
    backlog_warning: u64,
    ttl_ms: Option<u64>,
    expired_are_dead_letters: bool,
    priority_max: u8,
    dedup: Option<StoredDedup>,
}

#[derive(Serialize, Deserialize)]
struct StoredDedup {
    window_ms: u64,
    per_session: bool,
    content: bool,
}

impl StoredSpec {
    fn of(spec: &QueueSpec) -> Self {
        Self {
            sessions: match &spec.sessions {
                Sessions::None => None,
                Sessions::Dynamic => Some(Vec::new()),
                Sessions::Fixed(ids) => Some(ids.iter().map(|id| id.as_str().to_owned()).collect()),
            },
            lock_ms: spec.lock_ms,
            failed_max: spec.failed_max,
            relaxed: spec.durability == Durability::Relaxed,
            delay_ms: spec.delay_ms,
            message_bytes_max: spec.message_bytes_max,
            backlog_warning: spec.backlog_warning,
            ttl_ms: spec.ttl_ms,
            expired_are_dead_letters: spec.on_expiry == OnExpiry::DeadLetter,
            priority_max: spec.priority_max,
            dedup: spec.dedup.map(|dedup| StoredDedup {
                window_ms: dedup.window_ms,
                per_session: dedup.per_session,
                content: dedup.content,
            }),
        }
    }

    fn read(self) -> Result<QueueSpec, BrokerError> {
        let sessions = match self.sessions {
            None => Sessions::None,
            Some(ids) if ids.is_empty() => Sessions::Dynamic,
            Some(ids) => {
                let ids: Result<Vec<_>, _> = ids.iter().map(|id| SessionId::new(id)).collect();
                Sessions::Fixed(ids?)
            }
        };
        Ok(QueueSpec {
            sessions,
            lock_ms: self.lock_ms,
            failed_max: self.failed_max,
            durability: if self.relaxed { Durability::Relaxed } else { Durability::Fsync },
            delay_ms: self.delay_ms,
            message_bytes_max: self.message_bytes_max,
            backlog_warning: self.backlog_warning,
            ttl_ms: self.ttl_ms,
            on_expiry: if self.expired_are_dead_letters {
                OnExpiry::DeadLetter
            } else {
                OnExpiry::Drop
            },
            priority_max: self.priority_max,
            dedup: self.dedup.map(|dedup| Dedup {
                window_ms: dedup.window_ms,
                per_session: dedup.per_session,
                content: dedup.content,
            }),
            ..QueueSpec::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_a_round_trip_and_unsupported_ones_are_refused_by_name() {
        let ids = ["a", "b"].map(|id| SessionId::new(id).unwrap()).to_vec();
        let spec = QueueSpec {
            sessions: Sessions::Fixed(ids),
            failed_max: None,
            ttl_ms: Some(5),
            on_expiry: OnExpiry::DeadLetter,
            dedup: Some(Dedup { window_ms: 7, per_session: true, content: true }),
            ..QueueSpec::default()
        };
        supported(&spec).unwrap();
        let json = serde_json::to_string(&StoredSpec::of(&spec)).unwrap();
        let read: StoredSpec = serde_json::from_str(&json).unwrap();
        assert_eq!(read.read().unwrap(), spec);
        let error = supported(&QueueSpec { length_max: Some(1), ..spec }).unwrap_err();
        assert!(error.to_string().contains("no length_max"), "{error}");
    }
}
