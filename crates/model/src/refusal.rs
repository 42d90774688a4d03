//! Why the engine refused a well-formed command. A refusal is never a bug and never an I/O error.

use crate::ids::{LeaseToken, QueueName, Seq, SessionId, Timestamp, TopicName};
use crate::topic::Address;

/// Why a command was refused. Nothing has changed. Each front end maps refusals in one exhaustive `match`.
#[allow(missing_docs)] // the field names say what they hold
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue does not exist.
    #[error("queue `{queue}` does not exist")]
    QueueNotFound { queue: QueueName },
    /// The queue exists with other settings than the declaration.
    #[error(
        "queue `{queue}` already exists with {field} = {is}, not {asked}: declare it with its current settings, or update it"
    )]
    QueueDiffers {
        queue: QueueName,
        /// The first field that differs.
        field: &'static str,
        is: String,
        asked: String,
    },
    /// The update would change a setting that is fixed when the queue is declared.
    #[error("{field} of queue `{queue}` cannot be changed: delete the queue and declare it again")]
    QueueFixed { queue: QueueName, field: &'static str },
    /// The topic does not exist.
    #[error("topic `{topic}` does not exist")]
    TopicNotFound { topic: TopicName },
    /// The topic exists with other settings than the declaration.
    #[error(
        "topic `{topic}` already exists with {field} = {is}, not {asked}: declare it with its current settings, or delete it first"
    )]
    TopicDiffers {
        topic: TopicName,
        /// The first field that differs.
        field: &'static str,
        is: String,
        asked: String,
    },
    /// The topic accepts messages only from other topics and queues.
    #[error("topic `{topic}` is internal: it accepts messages only from other topics and queues")]
    TopicInternal { topic: TopicName },
    /// A different rule with this name exists.
    #[error(
        "{} already has a different rule `{rule}` on topic `{topic}`: remove it first", target.quoted()
    )]
    RuleDiffers { topic: TopicName, target: Address, rule: String },
    /// The rule does not exist.
    #[error("{} has no rule `{rule}` on topic `{topic}`", target.quoted())]
    RuleNotFound { topic: TopicName, target: Address, rule: String },
    /// The specification of a queue, topic or rule is invalid.
    #[error("{field}: {why}")]
    BadSpec { field: &'static str, why: String },
    /// The name is not valid for a queue or topic.
    #[error("name `{name}` {why}")]
    BadName {
        /// The start of the name.
        name: String,
        why: &'static str,
    },
    /// The operation is not possible on a dead-letter set.
    #[error("`{queue}` is a dead-letter set: {why}")]
    DeadLetterSet {
        queue: QueueName,
        /// What to do instead.
        why: &'static str,
    },
    /// The queue is the dead-letter target of another queue.
    #[error("queue `{queue}` is the dead-letter target of `{by}`: update `{by}` first")]
    QueueInUse { queue: QueueName, by: QueueName },
    /// The session id is invalid.
    #[error("session id `{session}` must have 1 to 128 characters")]
    BadSessionId {
        /// The start of the id.
        session: String,
    },
    /// The message has no session id, and the queue has sessions.
    #[error("queue `{queue}` requires a session id on every message")]
    SessionRequired { queue: QueueName },
    /// The operation needs sessions, and the queue has none.
    #[error("queue `{queue}` has no sessions: declare it with sessions to use them")]
    NoSessions { queue: QueueName },
    /// The session id is not in the queue's fixed list.
    #[error(
        "session `{session}` is not in the fixed list of queue `{queue}`: use one of its ids, or map keys onto them"
    )]
    SessionNotListed { queue: QueueName, session: SessionId },
    /// Another receiver holds the session.
    #[error("session `{session}` is held by another receiver until {until}")]
    SessionHeld {
        session: SessionId,
        /// When the hold ends unless it is renewed.
        until: Timestamp,
    },
    /// The receiver must hold a session before it can receive from this queue.
    #[error("queue `{queue}` has sessions: accept a session first, then receive with its token")]
    HoldRequired { queue: QueueName },
    /// The lease or hold has ended.
    #[error("lease {lease} is no longer valid: it expired, was released or was already settled")]
    LeaseLost { lease: LeaseToken },
    /// The text is not a lease token.
    #[error("`{token}` is not a lease token: expected 32 hexadecimal digits")]
    BadToken { token: String },
    /// The queue has no message with this sequence number in the state that the operation needs.
    #[error("queue `{queue}` has no {what} message with sequence number {seq}")]
    MessageNotFound {
        queue: QueueName,
        seq: Seq,
        /// scheduled, deferred, dead-lettered …
        what: &'static str,
    },
    /// The message is larger than the queue accepts.
    #[error(
        "the message has {size_bytes} bytes; queue `{queue}` accepts at most {size_bytes_max}: raise message_bytes_max or send less"
    )]
    MessageTooLarge { queue: QueueName, size_bytes: u64, size_bytes_max: u64 },
    /// The queue has reached its length or size limit.
    #[error("queue `{queue}` is full ({field} = {limit}): receive from it, or raise {field}")]
    QueueFull { queue: QueueName, field: &'static str, limit: u64 },
    /// The queue or topic is disabled for this operation.
    #[error("{what} `{name}` is {status}: {why}")]
    Disabled { what: &'static str, name: String, status: &'static str, why: &'static str },
    /// The operation would break the order within sessions.
    #[error("queue `{queue}` has sessions: {why}")]
    HasSessions { queue: QueueName, why: &'static str },
    /// The queue belongs to another connection.
    #[error("queue `{queue}` is exclusive to the connection that declared it")]
    QueueExclusive { queue: QueueName },
    /// An exclusive consumer is the only consumer of its queue.
    #[error("queue `{queue}` {why}")]
    ConsumerExclusive { queue: QueueName, why: &'static str },
    /// The transaction was not committed in time.
    #[error("the transaction timed out: it must be committed within {limit_ms} ms after it begins")]
    TransactionOver { limit_ms: u64 },
    /// A value is out of range.
    #[error("{what} must be {rule}")]
    OutOfRange { what: &'static str, rule: String },
    /// The request carries too much. Retrying does not help.
    #[error("too many {what}: the limit is {limit}")]
    BatchTooLarge { what: &'static str, limit: u64 },
    /// A limit of the whole engine is reached. Retrying may help later.
    #[error("too many {what}: the limit is {limit}")]
    BoundReached { what: &'static str, limit: u64 },
    /// Too many sends are waiting for the disk. Settling still works.
    #[error("too much is being sent at once: nothing was sent; try again shortly")]
    Busy,
    /// The disk is full. Receiving and settling still work.
    #[error(
        "the disk is full: sending is refused until space is freed; receiving and settling still work"
    )]
    DiskFull,
    /// The journal cannot grow, for a reason other than a full disk. Receiving and settling still work.
    #[error(
        "no journal segment can be created: {why}; sending is refused until this is fixed; receiving and settling still work"
    )]
    NoSegment {
        /// What is wrong, and what to do.
        why: String,
    },
}
