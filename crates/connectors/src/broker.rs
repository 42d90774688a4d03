//! The interface between workers and brokers.
//!
//! Workers fetch in batches. A connector for a broker that pushes buffers messages up to the credit that it granted.
//! Every call may be dropped while it waits, without losing a message or a session. The broker decides deadlines; a
//! worker counts the time of a lock from when it received the lock.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, Seq, SessionId, Settlement,
    Timestamp,
};

use crate::capabilities::Capabilities;
use crate::depth::Depth;
use crate::system;

/// The future of a call to a broker.
pub type BrokerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BrokerError>> + Send + 'a>>;

/// A message broker.
pub trait Broker: Send + Sync + 'static {
    /// The capabilities of this broker.
    fn capabilities(&self) -> &Capabilities;

    /// Creates the queue, or checks that it exists with these settings.
    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()>;

    /// Sends messages durably. All or none if the broker can; otherwise in order, and after an error an unknown
    /// prefix may have been sent.
    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>>;

    /// Opens a queue for receiving. With sessions, each session delivers one message at a time.
    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>>;

    /// Holds a session: the named one, or the next that becomes ready within `wait`. None if no session became ready.
    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>>;

    /// Settles leases, one result for each in order.
    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>>;

    /// Extends leases or holds to `lock` from now, one result for each in order.
    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>>;

    /// The state of a held session.
    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>>;

    /// The state of any session, held or not.
    fn peek_state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> BrokerFuture<'_, Option<Bytes>> {
        let (_, _) = (queue, session);
        let broker = self.capabilities().broker;
        Box::pin(async move { Err(cannot_inspect_sessions(broker)) })
    }

    /// Sessions with messages, a hold or a state, in no particular order, and the position for the next call.
    /// Sessions that are created or removed meanwhile may be missing or listed twice.
    fn list_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> BrokerFuture<'_, (Vec<SessionId>, Option<u32>)> {
        let (_, _, _) = (queue, from, max);
        let broker = self.capabilities().broker;
        Box::pin(async move { Err(cannot_inspect_sessions(broker)) })
    }

    /// The time that deadlines refer to: the broker's if it runs in this process, otherwise this machine's.
    fn now(&self) -> Timestamp {
        system::now()
    }

    /// Counts the messages of a queue, to decide how many workers it needs. The cost does not depend on the backlog.
    fn depth(&self, _queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let broker = self.capabilities().broker;
        let (what, fix) = ("queue depth", "scale by how busy the workers are");
        Box::pin(async move { Err(BrokerError::Unsupported { broker, what, fix }) })
    }

    /// Closes the connection. Leased messages return to their queues, uncounted.
    fn close(&self) -> BrokerFuture<'_, ()>;
}

fn cannot_inspect_sessions(broker: &'static str) -> BrokerError {
    let fix = "keep data that others must read in your own database";
    BrokerError::Unsupported { broker, what: "way to inspect sessions", fix }
}

/// A source of messages: a queue, or a held session.
pub trait Source: Send + Sync {
    /// The hold, if this is a held session.
    fn held(&self) -> Option<&SessionHold>;

    /// Fetches up to `max` messages. Returns as soon as there is one, or nothing after `wait`. Without a wait, it
    /// returns the messages that are ready now, as far as the broker can tell within a round trip.
    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>>;

    /// Releases the session and all messages that were prefetched but not fetched, uncounted. Settlements requested
    /// before still take effect. Dropping the source does the same without waiting.
    fn close(self: Box<Self>) -> BrokerFuture<'static, ()>;
}

/// A held session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHold {
    /// The id of the held session.
    pub session: SessionId,
    /// The token that proves the hold and renews it.
    pub hold: LeaseToken,
    /// Grows with every hold of this session. It distinguishes writes of the holder from those of earlier holders.
    pub epoch: u64,
}

/// A leased message.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The sequence number in the queue.
    pub seq: Seq,
    /// The token of the lease. In a held session, the deadline of the hold applies.
    pub lease: LeaseToken,
    /// Deliveries so far, including this one.
    pub receives: u32,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When the message was added to the queue.
    pub enqueued_at: Timestamp,
    /// The held session had no more ready messages after this one. Others may have arrived since. Always false for
    /// brokers that do not report it.
    pub last: bool,
    /// The reason and description of a dead letter.
    pub dead: Option<(String, String)>,
    /// The message as sent, with changes made since.
    pub message: Message,
}

/// The settlement of one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// The lease to settle.
    pub lease: LeaseToken,
    /// How to settle it: complete, abandon, defer or dead-letter.
    pub settlement: Settlement,
    /// A new state of the session, set atomically with the settlement.
    pub state: Option<NewState>,
}

impl Settle {
    /// Completes a message.
    pub fn complete(lease: LeaseToken) -> Self {
        Self { lease, settlement: Settlement::Complete, state: None }
    }

    /// Returns a message that was not tried.
    pub fn release(lease: LeaseToken) -> Self {
        Self { lease, settlement: Settlement::Release { delay_ms: 0 }, state: None }
    }
}

/// A new state of a held session; None clears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewState {
    /// The token of the hold.
    pub hold: LeaseToken,
    /// The bytes to store; None clears the state.
    pub state: Option<Bytes>,
}

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The sequence number, if the broker assigns one.
    pub seq: Seq,
    /// The sender's id, or a generated one.
    pub message_id: String,
    /// The message is a duplicate and was not stored.
    pub duplicate: bool,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The lease or hold has ended, or the message is already settled. Another worker may have it.
    #[error("the lock is lost: it ran out, was released or was settled already")]
    LockLost,
    /// The request was refused. Repeating it does not help.
    #[error("{text}")]
    Refused {
        /// A stable error code.
        code: String,
        /// What happened, and what to change.
        text: String,
    },
    /// Nothing happened. The same request may succeed later.
    #[error("{text}")]
    Busy {
        /// Why the broker is busy.
        text: String,
    },
    /// The broker did not answer, so the outcome is unknown.
    #[error("the broker cannot be reached: {text}")]
    Unreachable {
        /// The error of the connection or the request.
        text: String,
    },
    /// The broker does not support this.
    #[error("{broker} has no {what}: {fix}")]
    Unsupported {
        /// The name of the broker.
        broker: &'static str,
        /// The missing feature.
        what: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
    /// The caller has closed the connection.
    #[error("the connection to the broker was closed")]
    Closed,
}

impl BrokerError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unreachable { .. })
    }
}

impl From<Refusal> for BrokerError {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::LeaseLost { .. } => Self::LockLost,
            Refusal::Busy
            | Refusal::DiskFull
            | Refusal::NoSegment { .. }
            | Refusal::BoundReached { .. } => Self::Busy { text },
            Refusal::SessionHeld { .. } => Self::Refused { code: "session_held".into(), text },
            Refusal::QueueNotFound { .. } => Self::Refused { code: "queue_not_found".into(), text },
            Refusal::QueueDiffers { .. } => Self::Refused { code: "queue_differs".into(), text },
            Refusal::SessionRequired { .. } => {
                Self::Refused { code: "session_required".into(), text }
            }
            Refusal::NoSessions { .. } => Self::Refused { code: "no_sessions".into(), text },
            _ => Self::Refused { code: "refused".into(), text },
        }
    }
}
