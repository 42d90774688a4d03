//! What a queue is declared to be. Declaring is idempotent: a differing declaration is refused, field by field.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::{QueueName, SessionId, TopicName};
use crate::limits;
use crate::refusal::Refusal;
use crate::topic::Address;

/// The properties of a queue. They live with the queue and change only through an update.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSpec {
    /// Whether and which sessions.
    pub sessions: Sessions,
    /// How long a lease or an explicit hold lasts unless the receiver asks otherwise.
    pub lock_ms: u64,
    /// Dead-letter when `failed` reaches this.
    pub failed_max: Option<u32>,
    /// Dead-letter when receives, releases not counted, reach this.
    pub receives_max: Option<u32>,
    /// Where dead letters go.
    pub dead_letter: DeadLetterTarget,
    /// In a queue with a time to live they live from when they came into this one, not from when they died: a standard
    /// queue of SQS.
    pub dead_letters_keep_age: bool,
    /// In a queue with neither sessions nor priorities, a session id names a tenant, and whoever has much out is passed
    /// by the others: a standard queue of SQS. Else it means nothing there, and the queue is first in, first out.
    pub fair: bool,
    /// What callers may do with it.
    pub status: Status,
    /// Whether an answer waits for the disk.
    pub durability: Durability,
    /// What a delayed retry does to the rest of its session.
    pub retry: RetryOrder,
    /// Added to every message that brings no delay of its own.
    pub delay_ms: u64,
    /// The largest message it takes, body and headers.
    pub message_bytes_max: u64,
    /// Health warns above so many messages.
    pub backlog_warning: u64,
    /// Messages expire so long after they were enqueued, or earlier if they say so themselves.
    pub ttl_ms: Option<u64>,
    /// What becomes of an expired message.
    pub on_expiry: OnExpiry,
    /// The highest priority that counts; 0 is a queue without priorities.
    pub priority_max: u8,
    /// Whether a message that was sent before is taken again.
    pub dedup: Option<Dedup>,
    /// At most so many ready messages.
    pub length_max: Option<u64>,
    /// At most so many bytes of ready messages.
    pub bytes_max: Option<u64>,
    /// What happens at those limits.
    pub overflow: Overflow,
    /// The queue goes when its last consumer does.
    pub auto_delete: bool,
    /// The queue goes when nobody consumed from it or declared it for so long.
    pub idle_ms_max: Option<u64>,
    /// The queue belongs to the connection that declared it, and goes with it.
    pub exclusive: bool,
    /// Its messages go on to there.
    pub forward_to: Option<Address>,
    /// Names and texts that front ends keep with the queue and the engine gives no meaning. Two declarations that
    /// differ only here are the same.
    pub labels: BTreeMap<String, String>,
}

impl Default for QueueSpec {
    /// A queue made by the native API: docs/concepts/model.md.
    fn default() -> Self {
        Self {
            sessions: Sessions::None,
            lock_ms: 30_000,
            failed_max: Some(10),
            receives_max: None,
            dead_letter: DeadLetterTarget::Own,
            dead_letters_keep_age: false,
            fair: false,
            status: Status::Active,
            durability: Durability::Fsync,
            retry: RetryOrder::Hold,
            delay_ms: 0,
            message_bytes_max: limits::MESSAGE_BYTES_DEFAULT,
            backlog_warning: 1000,
            ttl_ms: None,
            on_expiry: OnExpiry::Drop,
            priority_max: 0,
            dedup: None,
            length_max: None,
            bytes_max: None,
            overflow: Overflow::Reject,
            auto_delete: false,
            idle_ms_max: None,
            exclusive: false,
            forward_to: None,
            labels: BTreeMap::new(),
        }
    }
}

/// What callers may do with a queue or topic. What the broker itself brings (copies of a topic, forwarded messages,
/// dead letters) still comes in, and what is out can still be settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Send and receive.
    #[default]
    Active,
    /// Receive only.
    SendDisabled,
    /// Send only.
    ReceiveDisabled,
    /// Neither.
    Disabled,
}

impl Status {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::SendDisabled => "send_disabled",
            Self::ReceiveDisabled => "receive_disabled",
            Self::Disabled => "disabled",
        }
    }

    /// Whether messages may be sent.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Active | Self::ReceiveDisabled)
    }

    /// Whether messages may be received.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Active | Self::SendDisabled)
    }
}

/// What becomes of an expired message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// It is gone.
    #[default]
    Drop,
    /// It goes where dead letters go.
    DeadLetter,
}

/// Which messages count as sent before. The key is the sender's `dedup_id`, else its `message_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// How long a key is remembered.
    pub window_ms: u64,
    /// Keys of different sessions have nothing to do with one another.
    pub per_session: bool,
    /// A message without a key is known by a hash of its body.
    pub content: bool,
}

/// What happens to a message that finds its queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It is refused.
    #[default]
    Reject,
    /// The oldest of the lowest priority makes room.
    DropOldest,
    /// The oldest of the lowest priority becomes a dead letter.
    DeadLetterOldest,
}

/// Whether messages belong to sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sessions {
    /// Plain FIFO; a session id on a message is kept and orders nothing.
    #[default]
    None,
    /// Any id; every message needs one.
    Dynamic,
    /// Only these ids.
    Fixed(Vec<SessionId>),
}

impl Sessions {
    /// Whether every message needs a session id.
    pub fn required(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Where dead letters go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeadLetterTarget {
    /// `<name>/$deadletterqueue`.
    #[default]
    Own,
    /// Another queue.
    Queue(QueueName),
    /// A topic, under the key that they have or under this one.
    Topic {
        /// Which.
        topic: TopicName,
        /// The key.
        key: Option<String>,
    },
    /// Nowhere: they are gone. An explicit dead-letter still goes to the own set.
    Drop,
}

/// What an answered send has survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Power loss: the answer waits for fdatasync.
    #[default]
    Fsync,
    /// A crash of the process only: power loss may cut the newest messages.
    Relaxed,
}

/// What a delayed retry does to the rest of its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryOrder {
    /// The session waits for it: order is kept.
    #[default]
    Hold,
    /// The session goes on without it: order is given up for that message.
    Skip,
}

macro_rules! differing {
    ($have:expr, $asked:expr, $($field:ident),+) => {
        $(if $have.$field != $asked.$field {
            let shown = |spec: &QueueSpec| crate::ids::clip(&spec.$field.shown());
            return Some((stringify!($field), shown($have), shown($asked)));
        })+
    };
}

/// A value as people write it.
trait Shown {
    fn shown(&self) -> String;
}

impl Shown for u64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for u8 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl<T: ToString> Shown for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map_or("none".into(), T::to_string)
    }
}

impl Dedup {
    /// Refuses a window that is none.
    pub fn check(&self) -> Result<(), Refusal> {
        let most = limits::DEDUP_WINDOW_MS_MAX;
        if !(1..=most).contains(&self.window_ms) {
            let why = format!("window_ms must be from 1 to {most} (7 days)");
            return Err(Refusal::BadSpec { field: "dedup", why });
        }
        Ok(())
    }
}

impl fmt::Display for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.window_ms)?;
        let scope = if self.per_session { " per session" } else { "" };
        let content = if self.content { " by content" } else { "" };
        write!(f, "{scope}{content}")
    }
}

impl Shown for Status {
    fn shown(&self) -> String {
        self.word().into()
    }
}

impl Shown for OnExpiry {
    fn shown(&self) -> String {
        match self {
            Self::Drop => "drop".into(),
            Self::DeadLetter => "dead_letter".into(),
        }
    }
}

impl Shown for Overflow {
    fn shown(&self) -> String {
        match self {
            Self::Reject => "reject".into(),
            Self::DropOldest => "drop_oldest".into(),
            Self::DeadLetterOldest => "dead_letter_oldest".into(),
        }
    }
}

impl Shown for Sessions {
    fn shown(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Dynamic => "dynamic".into(),
            Self::Fixed(ids) => {
                let ids: Vec<_> = ids.iter().take(8).map(SessionId::as_str).collect();
                format!("[{}]", ids.join(", "))
            }
        }
    }
}

impl Shown for DeadLetterTarget {
    fn shown(&self) -> String {
        match self {
            Self::Own => "own".into(),
            Self::Queue(name) => format!("queue {name}"),
            Self::Topic { topic, key: None } => format!("topic {topic}"),
            Self::Topic { topic, key: Some(key) } => format!("topic {topic} as {key}"),
            Self::Drop => "drop".into(),
        }
    }
}

impl Shown for Durability {
    fn shown(&self) -> String {
        match self {
            Self::Fsync => "fsync".into(),
            Self::Relaxed => "relaxed".into(),
        }
    }
}

impl Shown for RetryOrder {
    fn shown(&self) -> String {
        match self {
            Self::Hold => "hold".into(),
            Self::Skip => "skip".into(),
        }
    }
}

impl QueueSpec {
    /// The first field in which `asked` differs: its name, what it is, what was asked.
    pub fn difference(&self, asked: &Self) -> Option<(&'static str, String, String)> {
        differing!(
            self,
            asked,
            sessions,
            lock_ms,
            failed_max,
            receives_max,
            dead_letter,
            dead_letters_keep_age,
            fair,
            status,
            durability,
            retry,
            delay_ms,
            message_bytes_max,
            backlog_warning,
            ttl_ms,
            on_expiry,
            priority_max,
            dedup,
            length_max,
            bytes_max,
            overflow,
            auto_delete,
            idle_ms_max,
            exclusive,
            forward_to
        );
        None
    }

    /// Refuses what no queue can be.
    pub fn check(&self) -> Result<(), Refusal> {
        let bad = |field: &'static str, why: String| Err(Refusal::BadSpec { field, why });
        if !(limits::LOCK_MS_MIN..=limits::LOCK_MS_MAX).contains(&self.lock_ms) {
            return bad("lock_ms", format!("must be from 1 to {} (12 hours)", limits::LOCK_MS_MAX));
        }
        for (field, value) in [("failed_max", self.failed_max), ("receives_max", self.receives_max)]
        {
            if value.is_some_and(|v| v == 0 || v > limits::FAILED_MAX_MAX) {
                return bad(
                    field,
                    format!("must be from 1 to {}, or absent for no limit", limits::FAILED_MAX_MAX),
                );
            }
        }
        if self.delay_ms > limits::DELAY_MS_MAX {
            return bad("delay_ms", format!("must be at most {}", limits::DELAY_MS_MAX));
        }
        if !(1..=limits::MESSAGE_BYTES_MAX).contains(&self.message_bytes_max) {
            return bad(
                "message_bytes_max",
                format!("must be from 1 to {}", limits::MESSAGE_BYTES_MAX),
            );
        }
        if let Sessions::Fixed(ids) = &self.sessions {
            if ids.is_empty() || ids.len() > limits::SESSION_LIST_MAX {
                return bad(
                    "sessions",
                    format!("a fixed list has 1 to {} ids", limits::SESSION_LIST_MAX),
                );
            }
            let mut sorted: Vec<_> = ids.iter().collect();
            sorted.sort();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return bad("sessions", format!("the id `{}` stands in the list twice", pair[0]));
            }
        }
        if self.priority_max > 0 && self.sessions.required() {
            return bad(
                "priority_max",
                "must be 0 in a queue with sessions: a session has one order".into(),
            );
        }
        if self.fair && (self.priority_max > 0 || self.sessions.required()) {
            return bad("fair", "must be false in a queue with sessions or priorities".into());
        }
        for (field, ms) in [("ttl_ms", self.ttl_ms), ("idle_ms_max", self.idle_ms_max)] {
            if ms.is_some_and(|ms| ms == 0 || ms > limits::DELAY_MS_MAX) {
                return bad(
                    field,
                    format!("must be from 1 to {}, or absent", limits::DELAY_MS_MAX),
                );
            }
        }
        for (field, max) in [("length_max", self.length_max), ("bytes_max", self.bytes_max)] {
            if max == Some(0) {
                return bad(field, "must be at least 1, or absent for no limit".into());
            }
        }
        if let Some(dedup) = &self.dedup {
            dedup.check()?;
            if dedup.per_session && !self.sessions.required() {
                return bad("dedup", "per_session needs a queue with sessions".into());
            }
        }
        let bytes: usize = self.labels.iter().map(|(name, text)| name.len() + text.len()).sum();
        if self.labels.len() > limits::LABELS_MAX || bytes > limits::LABELS_BYTES_MAX {
            let (most, bytes) = (limits::LABELS_MAX, limits::LABELS_BYTES_MAX);
            return bad("labels", format!("at most {most}, with {bytes} bytes in all"));
        }
        if let DeadLetterTarget::Topic { key: Some(key), .. } = &self.dead_letter
            && key.len() > limits::RULE_KEY_BYTES_MAX
        {
            return bad(
                "dead_letter",
                format!("the key must have at most {} bytes", limits::RULE_KEY_BYTES_MAX),
            );
        }
        if self.forward_to.is_some() && self.sessions.required() {
            return bad("forward_to", "must be absent in a queue with sessions".into());
        }
        if let Some(Address::Queue(name)) = &self.forward_to
            && name.is_dead_letters()
        {
            return bad("forward_to", "must be a queue or a topic, not a dead-letter set".into());
        }
        if let DeadLetterTarget::Queue(name) = &self.dead_letter
            && name.is_dead_letters()
        {
            return bad("dead_letter", "must be a queue, not a dead-letter set".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_field() {
        let have = QueueSpec::default();
        let asked = QueueSpec { lock_ms: 5, ..have.clone() };
        assert_eq!(have.difference(&asked), Some(("lock_ms", "30000".into(), "5".into())));
        assert_eq!(have.difference(&have.clone()), None);
    }

    #[test]
    fn impossible_specs_are_refused() {
        let spec = QueueSpec::default();
        spec.check().unwrap();
        let a = SessionId::new("a").unwrap();
        for bad in [
            QueueSpec { lock_ms: 0, ..spec.clone() },
            QueueSpec { failed_max: Some(0), ..spec.clone() },
            QueueSpec { message_bytes_max: 0, ..spec.clone() },
            QueueSpec { sessions: Sessions::Fixed(vec![]), ..spec.clone() },
            QueueSpec { labels: [("a".into(), "x".repeat(1 << 20))].into(), ..spec.clone() },
            QueueSpec { sessions: Sessions::Fixed(vec![a.clone(), a]), ..spec },
        ] {
            bad.check().unwrap_err();
        }
    }
}
