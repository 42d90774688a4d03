//! The settings of a queue. Declaring a queue is idempotent: a declaration with other settings is refused.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::{QueueName, SessionId, TopicName};
use crate::limits;
use crate::refusal::Refusal;
use crate::session_from::SessionFrom;
use crate::topic::Address;

/// The settings of a queue. They change only through an update.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSpec {
    /// Whether messages belong to sessions.
    pub sessions: Sessions,
    /// Take the session id of a new message from this field, and ignore the id that its sender gave it.
    pub session_from: Option<SessionFrom>,
    /// How long a lease or session hold lasts, unless the receiver asks for another duration.
    pub lock_ms: u64,
    /// Dead-letter a message after this many failed deliveries.
    pub failed_max: Option<u32>,
    /// Dead-letter a message after this many receives, not counting releases.
    pub receives_max: Option<u32>,
    /// Where dead letters go.
    pub dead_letter: DeadLetterTarget,
    /// The age of a dead letter counts from when it was sent to this queue, not from when it was dead-lettered. This
    /// matters if the target has a time to live. Standard queues of SQS work this way.
    pub dead_letters_keep_age: bool,
    /// In a queue without sessions and priorities, session ids identify tenants. Tenants with many outstanding messages
    /// are served after the others, as in standard queues of SQS. Without it, session ids have no effect there and the
    /// queue is FIFO.
    pub fair: bool,
    /// Which operations are enabled.
    pub status: Status,
    /// Whether an answer waits for the disk.
    pub durability: Durability,
    /// What a delayed retry does to the rest of its session.
    pub retry: RetryOrder,
    /// The delay of messages that have no delay of their own.
    pub delay_ms: u64,
    /// The largest accepted message, body and headers.
    pub message_bytes_max: u64,
    /// The health check warns above this number of messages.
    pub backlog_warning: u64,
    /// Messages expire this long after they were enqueued. A message may have a shorter time to live of its own.
    pub ttl_ms: Option<u64>,
    /// What happens to expired messages.
    pub on_expiry: OnExpiry,
    /// The highest priority; 0 for a queue without priorities.
    pub priority_max: u8,
    /// Whether and how duplicates are detected.
    pub dedup: Option<Dedup>,
    /// The maximum number of ready messages.
    pub length_max: Option<u64>,
    /// The maximum size of all ready messages in bytes.
    pub bytes_max: Option<u64>,
    /// What happens at these limits.
    pub overflow: Overflow,
    /// Delete the queue when its last consumer leaves.
    pub auto_delete: bool,
    /// Delete the queue after this long without a consumer and without a declaration.
    pub idle_ms_max: Option<u64>,
    /// The queue belongs to the connection that declared it, and is deleted with it.
    pub exclusive: bool,
    /// Only one consumer receives at a time: the one with the highest priority that attached first. The next one takes
    /// over when it leaves.
    pub single_active: bool,
    /// The queue and its messages do not survive a restart of the broker.
    pub transient: bool,
    /// Delete dead letters that have no destination, instead of keeping them in the queue's own set: the target drops
    /// them, the dead-letter topic is missing or has no matching rule, or they would cycle.
    pub discard_unroutable: bool,
    /// Forward all messages to this queue or topic.
    pub forward_to: Option<Address>,
    /// Names and values that front ends store with the queue. The engine ignores them: declarations that differ only in
    /// labels are equal.
    pub labels: BTreeMap<String, String>,
}

impl Default for QueueSpec {
    /// The defaults of the native API; see docs/concepts/model.md.
    fn default() -> Self {
        Self {
            sessions: Sessions::None,
            session_from: None,
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
            single_active: false,
            transient: false,
            discard_unroutable: false,
            forward_to: None,
            labels: BTreeMap::new(),
        }
    }
}

/// Which operations are enabled. The broker itself still adds messages (copies of a topic, forwarded messages, dead
/// letters), and leased messages can still be settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Sending and receiving.
    #[default]
    Active,
    /// Messages can be received, not sent.
    SendDisabled,
    /// Messages can be sent, not received.
    ReceiveDisabled,
    /// Messages can neither be sent nor received.
    Disabled,
}

impl Status {
    /// The name of the status.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::SendDisabled => "send_disabled",
            Self::ReceiveDisabled => "receive_disabled",
            Self::Disabled => "disabled",
        }
    }

    /// Whether sending is enabled.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Active | Self::ReceiveDisabled)
    }

    /// Whether receiving is enabled.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Active | Self::SendDisabled)
    }
}

/// What happens to expired messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// They are deleted.
    #[default]
    Drop,
    /// They are dead-lettered.
    DeadLetter,
}

/// How duplicates are detected. The key is the sender's `dedup_id`, or else its `message_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// How long a key is remembered.
    pub window_ms: u64,
    /// Keys are separate for each session.
    pub per_session: bool,
    /// Messages without a key are identified by a hash of the body.
    pub content: bool,
}

/// What happens when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// New messages are refused.
    #[default]
    Reject,
    /// The oldest message of the lowest priority is deleted.
    DropOldest,
    /// The oldest message of the lowest priority is dead-lettered.
    DeadLetterOldest,
    /// New messages are dead-lettered, and their senders get a refusal.
    DeadLetterNewest,
}

/// Whether messages belong to sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sessions {
    /// No sessions: the queue is FIFO. Session ids are stored, but do not affect the order.
    #[default]
    None,
    /// Every message needs a session id.
    Dynamic,
    /// Every message needs one of these session ids.
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
    /// To the queue's own dead-letter set, `<name>/$deadletterqueue`.
    #[default]
    Own,
    /// To another queue.
    Queue(QueueName),
    /// To a topic.
    Topic {
        /// The topic that gets the dead letters.
        topic: TopicName,
        /// A routing key that replaces the message's own.
        key: Option<String>,
    },
    /// Nowhere: they are deleted. Messages that a receiver dead-letters still go to the queue's own set, unless
    /// [`QueueSpec::discard_unroutable`] is set.
    Drop,
}

/// What an answered send survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power loss: the answer waits for fdatasync.
    #[default]
    Fsync,
    /// A crash of the process. A power loss may lose the newest messages.
    Relaxed,
}

/// What a delayed retry does to the rest of its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryOrder {
    /// The session waits for it, so the order is kept.
    #[default]
    Hold,
    /// The session continues without it, so the order is not kept for that message.
    Skip,
}

macro_rules! differing {
    ($have:expr, $asked:expr, $($field:ident),+) => {
        $(if $have.$field != $asked.$field {
            let display = |spec: &QueueSpec| crate::ids::clip(&spec.$field.display_value());
            return Some((stringify!($field), display($have), display($asked)));
        })+
    };
}

/// Formats a setting for error messages.
trait DisplayValue {
    fn display_value(&self) -> String;
}

impl DisplayValue for u64 {
    fn display_value(&self) -> String {
        self.to_string()
    }
}

impl DisplayValue for u8 {
    fn display_value(&self) -> String {
        self.to_string()
    }
}

impl DisplayValue for bool {
    fn display_value(&self) -> String {
        self.to_string()
    }
}

impl<T: ToString> DisplayValue for Option<T> {
    fn display_value(&self) -> String {
        self.as_ref().map_or("none".into(), T::to_string)
    }
}

impl Dedup {
    /// Returns a refusal if the window is invalid.
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

impl DisplayValue for Status {
    fn display_value(&self) -> String {
        self.word().into()
    }
}

impl DisplayValue for OnExpiry {
    fn display_value(&self) -> String {
        match self {
            Self::Drop => "drop".into(),
            Self::DeadLetter => "dead_letter".into(),
        }
    }
}

impl DisplayValue for Overflow {
    fn display_value(&self) -> String {
        match self {
            Self::Reject => "reject".into(),
            Self::DropOldest => "drop_oldest".into(),
            Self::DeadLetterOldest => "dead_letter_oldest".into(),
            Self::DeadLetterNewest => "dead_letter_newest".into(),
        }
    }
}

impl DisplayValue for Sessions {
    fn display_value(&self) -> String {
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

impl DisplayValue for DeadLetterTarget {
    fn display_value(&self) -> String {
        match self {
            Self::Own => "own".into(),
            Self::Queue(name) => format!("queue {name}"),
            Self::Topic { topic, key: None } => format!("topic {topic}"),
            Self::Topic { topic, key: Some(key) } => format!("topic {topic} as {key}"),
            Self::Drop => "drop".into(),
        }
    }
}

impl DisplayValue for Durability {
    fn display_value(&self) -> String {
        match self {
            Self::Fsync => "fsync".into(),
            Self::Relaxed => "relaxed".into(),
        }
    }
}

impl DisplayValue for RetryOrder {
    fn display_value(&self) -> String {
        match self {
            Self::Hold => "hold".into(),
            Self::Skip => "skip".into(),
        }
    }
}

impl QueueSpec {
    /// The first field in which `asked` differs: its name, its current value, and the value asked for.
    pub fn difference(&self, asked: &Self) -> Option<(&'static str, String, String)> {
        differing!(
            self,
            asked,
            sessions,
            session_from,
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
            single_active,
            transient,
            discard_unroutable,
            forward_to
        );
        None
    }

    /// Returns a refusal if the specification is invalid.
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
                    format!("a fixed list must have 1 to {} ids", limits::SESSION_LIST_MAX),
                );
            }
            let mut sorted: Vec<_> = ids.iter().collect();
            sorted.sort();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return bad("sessions", format!("the id `{}` is in the list twice", pair[0]));
            }
        }
        if let Some(from) = &self.session_from {
            if !self.sessions.required() {
                return bad("session_from", "needs a queue with sessions".into());
            }
            from.check()?;
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
            return bad("labels", format!("at most {most} labels, with {bytes} bytes in total"));
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
            QueueSpec { session_from: Some(SessionFrom::Key), ..spec.clone() },
            QueueSpec {
                sessions: Sessions::Dynamic,
                session_from: Some(SessionFrom::Property(String::new())),
                ..spec.clone()
            },
            QueueSpec { labels: [("a".into(), "x".repeat(1 << 20))].into(), ..spec.clone() },
            QueueSpec { sessions: Sessions::Fixed(vec![a.clone(), a]), ..spec },
        ] {
            bad.check().unwrap_err();
        }
    }
}
