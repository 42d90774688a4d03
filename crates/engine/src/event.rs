//! What can have happened. Events are journaled and applied; a replay applies them again and decides nothing.
//!
//! A message's newest record is where its index entry points. `Sent` holds all of it; `Moved`, `Returned` and
//! `Deferred` may lie over an older record (`from`) and hold only what changed, so none of them copies a body. `Kept`
//! is a whole copy, made by compaction alone.

#![allow(missing_docs)] // the fields of an event are named for what they are

use bytes::Bytes;
use malote_model::{
    DeadReason, LeaseToken, Properties, QueueName, QueueSpec, SessionId, Timestamp,
};

use crate::codec::DeadLetter;
use crate::journal::Pos;

/// A queue inside the engine; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QueueId(pub u32);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The broker started: connection-bound leases and holds of earlier starts are over.
    Booted { epoch: u32, at: Timestamp },
    /// A queue and its dead-letter set came to be.
    Declared { queue: QueueId, dead: QueueId, name: QueueName, spec: Box<QueueSpec>, at: Timestamp },
    /// A queue has another specification.
    Updated { queue: QueueId, spec: Box<QueueSpec> },
    /// A queue and its dead-letter set are gone.
    Deleted { queue: QueueId },
    /// Delivery stopped or resumed.
    Paused { queue: QueueId, paused: bool },
    /// Every message below `below` that was not out is gone.
    Purged { queue: QueueId, below: u64 },
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
    /// A session has a state, or none.
    State { queue: QueueId, session: SessionId, state: Option<Bytes> },
    /// A message was copied, so that the segment of its older records can be used again. Nobody notices.
    Kept(Box<Kept>),
}

/// A whole message as it was stored, with all that had been laid over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Queues and places: several where one body stands in several queues.
    pub places: Vec<(QueueId, u64)>,
    /// When it entered the queue that it is in.
    pub at: Timestamp,
    /// Why it is a dead letter, if it is one.
    pub dead: Option<DeadLetter>,
    /// Headers and, unless they stand in `body`, the payload. Empty in a replay.
    pub head: Bytes,
    /// The payload. Empty in a replay.
    pub body: Bytes,
}

/// A message came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Where.
    pub queue: QueueId,
    /// Its place.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// Not delivered before; 0 for at once.
    pub due: Timestamp,
    /// It holds no place until it is due.
    pub scheduled: bool,
    /// Its session, in a queue that has sessions.
    pub session: Option<SessionId>,
    /// Everything else, as `codec` wrote it: headers, then the body.
    pub head: Bytes,
    /// The payload. Empty in a replay, which needs only its size.
    pub body: Bytes,
    /// Bytes of head and body.
    pub size: u32,
}

/// Why messages are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Removal {
    /// The holder completed them.
    Completed = 0,
    /// They were removed as they were delivered.
    Taken = 1,
    /// Their schedule was cancelled.
    Cancelled = 2,
    /// Dropped instead of dead-lettered, as the queue is declared.
    Dropped = 3,
    /// Replaced by an edited one.
    Replaced = 4,
}

/// Messages went out to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// From where.
    pub queue: QueueId,
    /// Until when.
    pub until: Timestamp,
    /// Ends with its connection.
    pub bound: bool,
    /// Under this explicit hold.
    pub hold: Option<LeaseToken>,
    /// Of this session.
    pub session: Option<SessionId>,
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
    /// into this queue
    pub queue: QueueId,
    /// and this place.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// Its session, if the target has sessions.
    pub session: Option<SessionId>,
    /// Its size, as sent.
    pub size: u32,
    /// Why.
    pub why: Why,
    /// Properties set or replaced.
    pub properties: Properties,
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
    },
    /// An operator sent it back; counters start anew.
    Redriven,
}
