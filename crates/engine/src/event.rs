//! What can have happened. Events are journaled and applied; a replay applies them again and decides nothing.
//!
//! A message's newest record is where its index entry points. `Sent` holds all of it; `Moved`, `Returned` and
//! `Deferred` may lie over an older record (`from`) and hold only what changed, so none of them copies a body. `Kept`
//! is a whole copy, made by compaction alone.

#![allow(missing_docs)] // the fields of an event are named for what they are

use bytes::Bytes;
use malote_model::{
    DeadReason, LeaseToken, Properties, QueueName, QueueSpec, Rule, SessionId, Timestamp,
    TopicName, TopicSpec,
};

use smallvec::SmallVec;

use crate::codec::DeadLetter;
use crate::journal::Pos;

/// A queue inside the engine; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QueueId(pub u32);

/// A message: its queue and its sequence number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageRef {
    pub queue: QueueId,
    pub seq: u64,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The broker started: connection-bound leases and holds of earlier starts are over.
    Booted { epoch: u32, at: Timestamp },
    /// A queue and its dead-letter set came to be.
    Declared { queue: QueueId, dead: QueueId, name: QueueName, spec: Box<QueueSpec>, at: Timestamp },
    /// A queue has another specification. Older records do not say since when: 0.
    Updated { queue: QueueId, spec: Box<QueueSpec>, at: Timestamp },
    /// A queue and its dead-letter set are gone.
    Deleted { queue: QueueId },
    /// Delivery stopped or resumed.
    Paused { queue: QueueId, paused: bool },
    /// Every message below `below` that was not out is gone; with `leased`, those that were out as well, and what was
    /// remembered of any.
    Purged { queue: QueueId, below: u64, leased: bool },
    /// A message came in.
    Sent(Sent),
    /// Messages are gone, for one reason; of which session if they were taken under its hold.
    Removed { queue: QueueId, why: Removal, session: Option<SessionId>, seqs: Vec<u64> },
    /// Messages went out to a receiver.
    Leased(Leased),
    /// Leases or holds last until then.
    Renewed { leases: Vec<LeaseToken>, until: Timestamp },
    /// A lease ended and its message is in the queue again.
    Returned(Returned),
    /// A message was set aside.
    Deferred { queue: QueueId, seq: u64, over: Option<Over> },
    /// A message left one place and entered another.
    Moved(Box<Moved>),
    /// A session has a holder.
    Held { queue: QueueId, session: SessionId, token: LeaseToken, until: Timestamp, bound: bool },
    /// A session's hold is over; `lost` if it ran out or its holder vanished.
    Unheld { queue: QueueId, session: SessionId, lost: bool },
    /// A session has a state since then, or none.
    State { queue: QueueId, session: SessionId, state: Option<Bytes>, at: Timestamp },
    /// A topic came to be. What it has not routed yet stands in a queue of its own, whose id is the topic's.
    TopicDeclared { topic: QueueId, name: TopicName, spec: Box<TopicSpec>, at: Timestamp },
    /// A topic has other properties. Older records do not say since when: 0.
    TopicUpdated { topic: QueueId, spec: Box<TopicSpec>, at: Timestamp },
    /// A topic is gone.
    TopicDeleted { topic: QueueId },
    /// A queue gets copies by this rule.
    Bound { topic: QueueId, queue: QueueId, rule: Box<Rule> },
    /// A rule is gone.
    Unbound { topic: QueueId, queue: QueueId, rule: String },
    /// A message was copied, so that the segment of its older records can be used again. Nobody notices.
    Kept(Box<Kept>),
    /// What a part of the state was like, for a replay to compare with its own. Changes nothing.
    Digest(Box<Digest>),
}

/// Hashes of a part of the state. `core/digest.rs` computes and compares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// How the hashes were computed.
    pub method: u8,
    pub at: Timestamp,
    /// Damaged parts of the journal that the broker skipped when it started: their records are not in its state.
    pub damage: Vec<(Pos, Pos)>,
    /// Counters of the whole broker.
    pub totals: u64,
    pub queues: Vec<QueueDigest>,
    pub topics: Vec<TopicDigest>,
    pub leases: LeaseDigest,
}

/// A queue, with a part of its messages and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDigest {
    pub queue: QueueId,
    pub settings: u64,
    pub counters: u64,
    pub keys: u64,
    /// Live messages with sequences from here …
    pub from: u64,
    /// … to below this.
    pub to: u64,
    pub messages: u64,
    pub sessions: Vec<SessionDigest>,
}

/// A session, with its messages below a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDigest {
    pub session: SessionId,
    pub below: u64,
    pub hash: u64,
}

/// A topic, its rules, and what it has not routed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDigest {
    pub topic: QueueId,
    pub hash: u64,
}

/// Leases in slots from `from` to below `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDigest {
    pub from: u32,
    pub to: u32,
    pub hash: u64,
}

/// A whole message as it was stored, with all that had been laid over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Queues and places: several where one body stands in several queues.
    pub places: Vec<MessageRef>,
    /// When it entered the queue that it is in.
    pub at: Timestamp,
    /// When it was first sent.
    pub sent_at: Timestamp,
    /// It is a dead letter: the first of `deaths` tells why.
    pub dead: bool,
    /// Every time that it became one, newest first.
    pub deaths: Vec<DeadLetter>,
    /// Its place in the queue that it was first sent to, if it has left it.
    pub first_seq: Option<u64>,
    /// Headers and, unless they stand in `body`, the payload. Empty in a replay.
    pub head: Bytes,
    /// The payload. Empty in a replay.
    pub body: Bytes,
}

/// A message came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Where. Several if it was routed: it is stored once.
    pub places: SmallVec<[Placed; 1]>,
    /// When.
    pub at: Timestamp,
    /// It holds no place until it is due.
    pub scheduled: bool,
    /// Its session.
    pub session: Option<SessionId>,
    /// Higher first, where that counts.
    pub priority: u8,
    /// Its own time to live.
    pub ttl_ms: Option<u64>,
    /// What it is known by, where that counts.
    pub dedup: Option<u128>,
    /// Its id, if that is a UUID and not what it is known by: whoever sends it again is told.
    pub known_as: Option<u128>,
    /// The topic that it came through.
    pub topic: Option<QueueId>,
    /// Its body is that of the message in this record: only the headers differ.
    pub body_at: Option<Pos>,
    /// What it remembers of its way, if a topic changed it on that.
    pub way: Way,
    /// Everything else, as `codec` wrote it: headers, then the body.
    pub head: Bytes,
    /// The payload. Empty in a replay, which needs only its size.
    pub body: Bytes,
    /// Bytes of head and body.
    pub size: u32,
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub queue: QueueId,
    pub seq: u64,
    /// Not delivered before; 0 for at once.
    pub due: Timestamp,
}

/// Why messages are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The holder completed them.
    Completed,
    /// They were removed as they were delivered.
    Taken,
    /// Their schedule was cancelled.
    Cancelled,
    /// Dropped instead of dead-lettered, as the queue is declared; their leases ended like this.
    Dropped(Cause),
    /// Replaced by an edited one.
    Replaced,
    /// Their time to live was over.
    Expired,
    /// They made room in a full queue.
    Overflowed,
    /// Their topic found nobody who wants them.
    Unrouted,
    /// An operator named them, or all that were older than something.
    Purged,
}

/// Messages went out to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// From where.
    pub queue: QueueId,
    /// When; 0 in records that did not say.
    pub at: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Ends with its connection.
    pub bound: bool,
    /// Under this explicit hold.
    pub hold: Option<LeaseToken>,
    /// Of these sessions, in order, so many of each; none in a queue without sessions.
    pub sessions: Vec<(SessionId, usize)>,
    /// They were deferred, and fall back to that.
    pub deferred: bool,
    /// Places and leases.
    pub items: Vec<(u64, LeaseToken)>,
}

/// A lease ended and its message is in the queue again.
#[derive(Clone, Debug, PartialEq)]
pub struct Returned {
    /// Where.
    pub queue: QueueId,
    /// Its place.
    pub seq: u64,
    /// What is counted.
    pub cause: Cause,
    /// Not delivered before; 0 for at once.
    pub due: Timestamp,
    /// Its session goes on without it until it is due.
    pub parked: bool,
    /// What changed.
    pub over: Option<Over>,
}

/// How a lease ended without settling its message for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Nothing is counted.
    Released = 0,
    /// The holder said that it failed.
    Abandoned = 1,
    /// The lock ran out or the holder vanished.
    Lost = 2,
}

/// What lies over an older record.
#[derive(Clone, Debug, PartialEq)]
pub struct Over {
    /// The older record.
    pub from: Pos,
    /// Properties set or replaced.
    pub properties: Properties,
}

/// A message left one place and entered another.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// Out of this queue …
    pub from_queue: QueueId,
    /// … and this place,
    pub from_seq: u64,
    /// whose newest record stands here,
    pub from: Pos,
    /// into these. Several if a topic routed it.
    pub places: SmallVec<[Placed; 1]>,
    /// When.
    pub at: Timestamp,
    /// Its session, if the target has sessions.
    pub session: Option<SessionId>,
    /// Its size, as sent.
    pub size: u32,
    /// As sent.
    pub priority: u8,
    /// Its own time to live; a dead letter has none any more.
    pub ttl_ms: Option<u64>,
    /// What it remembers of its way.
    pub way: Way,
    /// Its routing key from now on, if that changes.
    pub key: Option<String>,
    /// Its id from now on, if that changes.
    pub message_id: Option<String>,
    /// Why.
    pub why: Why,
    /// Properties set or replaced.
    pub properties: Properties,
}

/// What a message remembers of its way, so that it does not go in circles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Queues that it left as a dead letter since somebody last said so.
    pub died_in: SmallVec<[QueueId; 2]>,
    /// How often it was forwarded.
    pub hops: u8,
    /// The queue that it last left as a dead letter: should nobody want it, that is where it belongs.
    pub home: Option<QueueId>,
}

/// Why a message moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Its scheduled time came.
    Due,
    /// It is a dead letter now.
    Dead {
        /// The reason.
        reason: DeadReason,
        /// The queue it comes from, by name: the queue may be gone one day.
        source: QueueName,
        /// Grants before.
        receives: u32,
        /// Failed deliveries before.
        failed: u32,
        /// How its last lease ended. Only an abandoned or a lost one counts as such.
        cause: Cause,
    },
    /// An operator sent it back; counters start anew.
    Redriven,
    /// Its topic found where it goes.
    Routed,
    /// Its queue forwards.
    Forwarded,
}
