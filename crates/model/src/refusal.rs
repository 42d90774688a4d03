//! Why the engine said no to a well-formed command. Never a bug, never I/O.

use crate::ids::{LeaseToken, QueueName, Seq, SessionId, Timestamp, TopicName};

/// A refusal has no effect: nothing changed, nothing is lost. Each front end maps it in one exhaustive `match`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such queue.
    #[error("queue `{queue}` does not exist")]
    QueueNotFound {
        /// The name asked for.
        queue: QueueName,
    },
    /// A declaration that differs from what exists.
    #[error(
        "queue `{queue}` exists with {field} = {is}, not {asked}: declare it as it is, or update it"
    )]
    QueueDiffers {
        /// Which queue.
        queue: QueueName,
        /// The first field that differs.
        field: &'static str,
        /// What it is.
        is: String,
        /// What was asked.
        asked: String,
    },
    /// An update that would change what is fixed at declaration.
    #[error("{field} of queue `{queue}` cannot be changed: delete the queue and declare it anew")]
    QueueFixed {
        /// Which queue.
        queue: QueueName,
        /// The field.
        field: &'static str,
    },
    /// No such topic.
    #[error("topic `{topic}` does not exist")]
    TopicNotFound {
        /// The name asked for.
        topic: TopicName,
    },
    /// A declaration that differs from what exists.
    #[error(
        "topic `{topic}` exists with {field} = {is}, not {asked}: declare it as it is, or delete it first"
    )]
    TopicDiffers {
        /// Which topic.
        topic: TopicName,
        /// The first field that differs.
        field: &'static str,
        /// What it is.
        is: String,
        /// What was asked.
        asked: String,
    },
    /// A topic that takes messages only from others.
    #[error("topic `{topic}` is internal: it takes messages only from other topics and queues")]
    TopicInternal {
        /// Which topic.
        topic: TopicName,
    },
    /// A rule of that name is there, and is another.
    #[error("queue `{queue}` has another rule `{rule}` on topic `{topic}`: remove it first")]
    RuleDiffers {
        /// Which topic.
        topic: TopicName,
        /// Which queue.
        queue: QueueName,
        /// The rule's name.
        rule: String,
    },
    /// No such rule.
    #[error("queue `{queue}` has no rule `{rule}` on topic `{topic}`")]
    RuleNotFound {
        /// Which topic.
        topic: TopicName,
        /// Which queue.
        queue: QueueName,
        /// The rule's name.
        rule: String,
    },
    /// A specification no queue can have.
    #[error("{field}: {why}")]
    BadSpec {
        /// The field.
        field: &'static str,
        /// What it must be.
        why: String,
    },
    /// A name no queue and no topic can have.
    #[error("name `{name}` {why}")]
    BadName {
        /// The start of the name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The operation does not exist on a dead-letter set.
    #[error("`{queue}` is a dead-letter set: {why}")]
    DeadLetterSet {
        /// Which.
        queue: QueueName,
        /// What to do instead.
        why: &'static str,
    },
    /// A queue that dead letters of another go to.
    #[error("queue `{queue}` is where dead letters of `{by}` go: update `{by}` first")]
    QueueInUse {
        /// Which.
        queue: QueueName,
        /// Who needs it.
        by: QueueName,
    },
    /// A session id that is none.
    #[error("session id `{session}` must have 1 to 128 characters")]
    BadSessionId {
        /// The start of the id.
        session: String,
    },
    /// A message without a session for a session queue.
    #[error("queue `{queue}` needs a session id on every message")]
    SessionRequired {
        /// Which queue.
        queue: QueueName,
    },
    /// A session operation on a queue without sessions.
    #[error("queue `{queue}` has no sessions: declare it with sessions to use them")]
    NoSessions {
        /// Which queue.
        queue: QueueName,
    },
    /// Not on the fixed list.
    #[error(
        "session `{session}` is not on the fixed list of queue `{queue}`: use one of its ids, or map keys onto them"
    )]
    SessionNotListed {
        /// Which queue.
        queue: QueueName,
        /// The id asked for.
        session: SessionId,
    },
    /// Somebody else holds it.
    #[error("session `{session}` is held by another receiver until {until}")]
    SessionHeld {
        /// Which session.
        session: SessionId,
        /// When the hold ends unless it is renewed.
        until: Timestamp,
    },
    /// Receiving from a session queue in a way that needs a hold first.
    #[error("queue `{queue}` has sessions: accept a session first, then receive with its token")]
    HoldRequired {
        /// Which queue.
        queue: QueueName,
    },
    /// The lease or hold is over.
    #[error("lease {lease} is over: it expired, was released or was already settled")]
    LeaseLost {
        /// The token.
        lease: LeaseToken,
    },
    /// Not a token at all.
    #[error("`{token}` is not a lease token: 32 hexadecimal digits")]
    BadToken {
        /// The start of what was given.
        token: String,
    },
    /// No such message in the state that the operation needs.
    #[error("queue `{queue}` has no {what} message with sequence {seq}")]
    MessageNotFound {
        /// Which queue.
        queue: QueueName,
        /// The sequence.
        seq: Seq,
        /// scheduled, deferred, dead-lettered …
        what: &'static str,
    },
    /// Larger than the queue takes.
    #[error(
        "message has {size_bytes} bytes, queue `{queue}` takes {size_bytes_max}: raise message_bytes_max or send less"
    )]
    MessageTooLarge {
        /// Which queue.
        queue: QueueName,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        size_bytes_max: u64,
    },
    /// The queue is as full as it was declared to become.
    #[error("queue `{queue}` is full ({field} = {limit}): receive from it, or raise {field}")]
    QueueFull {
        /// Which queue.
        queue: QueueName,
        /// The limit's name.
        field: &'static str,
        /// The limit.
        limit: u64,
    },
    /// An operator allows neither this nor anything like it for the time being.
    #[error("{what} `{name}` is {status}: {why}")]
    Disabled {
        /// queue or topic.
        what: &'static str,
        /// Which.
        name: String,
        /// The word for what it is.
        status: &'static str,
        /// What cannot be done.
        why: &'static str,
    },
    /// An operation that order within sessions does not allow.
    #[error("queue `{queue}` has sessions: {why}")]
    HasSessions {
        /// Which queue.
        queue: QueueName,
        /// What cannot be done.
        why: &'static str,
    },
    /// The queue belongs to another connection.
    #[error("queue `{queue}` is exclusive to the connection that declared it")]
    QueueExclusive {
        /// Which queue.
        queue: QueueName,
    },
    /// The transaction waited for its end for too long.
    #[error("the transaction is over: it must be committed within {limit_ms} ms of its beginning")]
    TransactionOver {
        /// How long it may take.
        limit_ms: u64,
    },
    /// A number or text outside of what is allowed.
    #[error("{what} must be {rule}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// What it must be.
        rule: String,
    },
    /// More than one request may carry: it would be refused again.
    #[error("too many {what}: the limit is {limit}")]
    BatchTooLarge {
        /// Of what, in one what.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A bound of the whole engine: possible again when some of them are gone.
    #[error("too many {what}: the limit is {limit}")]
    BoundReached {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// Publishing must wait: what was sent before is not on disk yet. Settling goes on.
    #[error("too much is being sent at once: nothing was sent, try again shortly")]
    Busy,
    /// Publishing must stop for want of space; settling goes on.
    #[error(
        "the disk is full: sending is refused until space returns; receiving and settling go on"
    )]
    DiskFull,
    /// Publishing must stop because the journal cannot be continued for another reason; settling goes on.
    #[error(
        "no journal segment can be made: {why}; sending is refused until that changes, receiving and settling go on"
    )]
    NoSegment {
        /// What is wrong, and what to do.
        why: String,
    },
}
