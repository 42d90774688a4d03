//! The events of the journal. A replay applies them again and makes no decisions.
//!
//! The index entry of a message points to its newest record. `Sent` holds the whole message. `Moved`, `Returned` and
//! `Deferred` can be overlays: they refer to an older record (`from`) and hold only what changed, so they never copy a
//! body. `Relocated` is a complete copy, made only by compaction.

use bytes::Bytes;
use malote_model::{
    DeadReason, LeaseToken, Properties, QueueName, QueueSpec, Rule, SessionId, Timestamp,
    TopicName, TopicSpec,
};

use smallvec::SmallVec;

use crate::codec::DeadLetter;
use crate::journal::Pos;

/// Identifies a queue or topic inside the engine. Ids are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QueueId(pub u32);

/// A message: its queue and its sequence number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageRef {
    pub queue: QueueId,
    pub seq: u64,
}

/// A change of the durable state.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The broker started. Connection-bound leases and holds of earlier starts have ended.
    Booted { epoch: u32, at: Timestamp },
    /// A queue and its dead-letter set were created.
    Declared { queue: QueueId, dead: QueueId, name: QueueName, spec: Box<QueueSpec>, at: Timestamp },
    /// The settings of a queue changed. `at` is 0 in older records.
    Updated { queue: QueueId, spec: Box<QueueSpec>, at: Timestamp },
    /// A queue and its dead-letter set were deleted.
    Deleted { queue: QueueId },
    /// Delivery was paused or resumed.
    Paused { queue: QueueId, paused: bool },
    /// All messages below `below` that were not leased were deleted. With `leased`, leased ones too, and the
    /// de-duplication keys were forgotten.
    Purged { queue: QueueId, below: u64, leased: bool },
    /// A message was sent.
    Sent(SentEvent),
    /// Messages were removed, for one reason. `session` is set if they were taken under its hold.
    Removed { queue: QueueId, why: Removal, session: Option<SessionId>, seqs: Vec<u64> },
    /// Messages were granted to a receiver.
    Leased(LeasedEvent),
    /// Leases or session holds were renewed.
    Renewed { leases: Vec<LeaseToken>, until: Timestamp },
    /// The wall clock stepped forward, and every lease and hold lasts that much longer.
    ClockStepped { by_ms: u64, at: Timestamp },
    /// A lease ended, and its message is back in the queue.
    Returned(ReturnedEvent),
    /// A message was deferred.
    Deferred { queue: QueueId, seq: u64, overlay: Option<Overlay> },
    /// A message moved from one queue to others.
    Moved(Box<MovedEvent>),
    /// A session has a holder.
    Held { queue: QueueId, session: SessionId, token: LeaseToken, until: Timestamp, bound: bool },
    /// A session hold ended; `lost` if it expired or its connection was lost.
    Unheld { queue: QueueId, session: SessionId, lost: bool },
    /// The state of a session was set or cleared.
    State { queue: QueueId, session: SessionId, state: Option<Bytes>, at: Timestamp },
    /// A topic was created. Messages that it has not routed yet are in a queue with the same id, its inbox.
    TopicDeclared { topic: QueueId, name: TopicName, spec: Box<TopicSpec>, at: Timestamp },
    /// The settings of a topic changed. `at` is 0 in older records.
    TopicUpdated { topic: QueueId, spec: Box<TopicSpec>, at: Timestamp },
    /// A topic was deleted.
    TopicDeleted { topic: QueueId },
    /// A rule was added or replaced.
    Bound { topic: QueueId, queue: QueueId, rule: Box<Rule> },
    /// A rule was removed.
    Unbound { topic: QueueId, queue: QueueId, rule: String },
    /// A message was copied, so that the segments of its older records can be recycled. Its state does not change.
    Relocated(Box<RelocatedMessage>),
    /// A hash of a part of the state, which a replay compares with its own. Changes nothing.
    Digest(Box<Digest>),
}

/// Hashes of a part of the state. `core/digest.rs` computes and compares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The version of the hash computation.
    pub method: u8,
    pub at: Timestamp,
    /// Damaged parts of the journal that the broker skipped when it started. Their records are not in its state.
    pub damage: Vec<(Pos, Pos)>,
    /// Counters of the whole broker.
    pub totals: u64,
    pub queues: Vec<QueueDigest>,
    pub topics: Vec<TopicDigest>,
    pub leases: LeaseDigest,
}

/// A queue, with a range of its messages and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDigest {
    pub queue: QueueId,
    pub settings: u64,
    pub counters: u64,
    pub keys: u64,
    /// The first sequence number of the range.
    pub from: u64,
    /// The end of the range, exclusive.
    pub to: u64,
    pub messages: u64,
    pub sessions: Vec<SessionDigest>,
}

/// A session, with its messages below a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDigest {
    pub session: SessionId,
    pub below: u64,
    pub hash: u64,
}

/// A topic, its rules, and its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDigest {
    pub topic: QueueId,
    pub hash: u64,
}

/// Leases in the slots from `from` to below `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDigest {
    pub from: u32,
    pub to: u32,
    pub hash: u64,
}

/// A complete copy of a message, with all its overlays applied.
#[derive(Clone, Debug, PartialEq)]
pub struct RelocatedMessage {
    /// Where the message is. Copies in several queues can share one body.
    pub places: Vec<MessageRef>,
    /// When it was added to its current queue.
    pub at: Timestamp,
    /// When it was first sent.
    pub sent_at: Timestamp,
    /// The message is a dead letter; `deaths[0]` says why.
    pub dead: bool,
    /// All times that it was dead-lettered, newest first.
    pub deaths: Vec<DeadLetter>,
    /// Its sequence number in the queue that it was first sent to, if it has left that queue.
    pub first_seq: Option<u64>,
    /// The dead-letter topic that last routed it.
    pub routed_by: Option<TopicName>,
    /// The headers and, unless it is in `body`, the payload. Empty in a replay.
    pub head: Bytes,
    /// The payload. Empty in a replay.
    pub body: Bytes,
}

/// A new message.
#[derive(Clone, Debug, PartialEq)]
pub struct SentEvent {
    /// Where the message is. A topic may place it in several queues; it is stored once.
    pub places: SmallVec<[Placement; 1]>,
    pub at: Timestamp,
    /// The message is scheduled: it is not part of the order until it is due.
    pub scheduled: bool,
    pub session: Option<SessionId>,
    pub priority: u8,
    /// The message's own time to live.
    pub ttl_ms: Option<u64>,
    /// The de-duplication key, if its queue or topic uses one.
    pub dedup: Option<u128>,
    /// The message id, if it is a UUID and not the de-duplication key. It is returned for duplicates.
    pub known_as: Option<u128>,
    /// The topic that routed the message.
    pub topic: Option<QueueId>,
    /// The record that holds the body, if it is shared. Then only the headers are stored here.
    pub body_at: Option<Pos>,
    /// Set only if the message came from a topic's inbox and a rule's action changed it.
    pub history: RouteHistory,
    /// The encoded headers and, unless it is in `body`, the payload.
    pub head: Bytes,
    /// The payload. Empty in a replay, which needs only its size.
    pub body: Bytes,
    /// Bytes of head and body.
    pub size: u32,
}

/// A position in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub queue: QueueId,
    pub seq: u64,
    /// The message is not delivered before this time; 0 for immediately.
    pub due: Timestamp,
}

/// Why messages were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// A receiver completed them.
    Completed,
    /// They were removed on delivery.
    Taken,
    /// Their schedule was cancelled.
    Cancelled,
    /// They were deleted instead of dead-lettered, because of the queue's settings.
    Dropped(LeaseEnd),
    /// An operator replaced them with an edited message.
    Replaced,
    /// Their time to live expired.
    Expired,
    /// They were deleted because the queue was full.
    Overflowed,
    /// No rule of their topic matched.
    Unrouted,
    /// An operator purged them.
    Purged,
}

/// Messages were granted to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedEvent {
    pub queue: QueueId,
    /// 0 in older records.
    pub at: Timestamp,
    pub until: Timestamp,
    /// The leases end with their connection.
    pub bound: bool,
    /// The explicit session hold, if any.
    pub hold: Option<LeaseToken>,
    /// The sessions of the messages, in order, with the number of messages of each. Empty in a queue without sessions.
    pub sessions: Vec<(SessionId, usize)>,
    /// The messages were deferred, and become deferred again when their leases end.
    pub deferred: bool,
    /// Sequence numbers and leases.
    pub items: Vec<(u64, LeaseToken)>,
}

/// A lease ended, and its message is back in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct ReturnedEvent {
    pub queue: QueueId,
    pub seq: u64,
    pub cause: LeaseEnd,
    /// The message is not delivered before this time; 0 for immediately.
    pub due: Timestamp,
    /// The session continues without the message until it is due.
    pub parked: bool,
    /// Properties that the move changes.
    pub overlay: Option<Overlay>,
}

/// How a lease ended, if its message stays in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseEnd {
    /// Nothing is counted.
    Released = 0,
    /// The receiver reported a failure.
    Abandoned = 1,
    /// The lock expired or the connection was lost.
    Lost = 2,
}

/// Property changes on top of an older record.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlay {
    /// The older record.
    pub from: Pos,
    /// Properties that were set or replaced.
    pub properties: Properties,
}

/// A message moved from one queue to others.
#[derive(Clone, Debug, PartialEq)]
pub struct MovedEvent {
    /// The queue and …
    pub from_queue: QueueId,
    /// … sequence number that it leaves.
    pub from_seq: u64,
    /// Its newest record there.
    pub from: Pos,
    /// Its new positions. A topic may route it to several queues.
    pub places: SmallVec<[Placement; 1]>,
    pub at: Timestamp,
    /// Its session, if a target has sessions.
    pub session: Option<SessionId>,
    /// Its size, as sent.
    pub size: u32,
    /// Its priority, as sent.
    pub priority: u8,
    /// Its own time to live. Dead letters have none.
    pub ttl_ms: Option<u64>,
    pub history: RouteHistory,
    /// A new routing key.
    pub key: Option<String>,
    /// A new message id.
    pub message_id: Option<String>,
    pub why: MoveReason,
    /// Properties that were set or replaced.
    pub properties: Properties,
}

/// Where a message was forwarded and dead-lettered, to detect cycles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteHistory {
    /// Queues that dead-lettered the message since a receiver last dead-lettered it explicitly.
    pub dead_lettered_in: SmallVec<[QueueId; 2]>,
    /// How often it was forwarded.
    pub hops: u8,
    /// The queue that last dead-lettered it. If no rule of the dead-letter topic matches, the message goes to this
    /// queue's own set.
    pub dead_lettered_from: Option<QueueId>,
}

/// Why a message moved.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveReason {
    /// Its scheduled time was reached.
    Due,
    /// It was dead-lettered.
    DeadLettered {
        reason: DeadReason,
        /// The name of the queue that it comes from, which may be deleted later.
        source: QueueName,
        /// How often the message was delivered before it was dead-lettered.
        receives: u32,
        /// Failed deliveries before.
        failed: u32,
        /// How its last lease ended. Only abandoned and lost leases are counted.
        cause: LeaseEnd,
        /// The dead-letter topic that gets it. Older records do not name it.
        to: Option<TopicName>,
    },
    /// An operator moved it; its counters are reset.
    Redriven,
    /// Its topic routed it.
    Routed,
    /// Its queue forwarded it.
    Forwarded,
}
