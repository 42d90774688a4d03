//! What a worker asks of a broker, and what it gets.
//!
//! Pull, in batches: a connector of a broker that pushes keeps what was pushed within the credit it gave. Every call
//! may be dropped while it waits and takes no message and no session with it. Deadlines are the broker's; a worker
//! counts a lock from the moment in which it heard of it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Seq, SessionId, Settlement, Timestamp,
};

use crate::capabilities::Capabilities;
use crate::depth::Depth;

/// A call under way.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, BrokerError>> + Send + 'a>>;

/// A broker: send, fetch, settle, renew, hold sessions.
pub trait Broker: Send + Sync + 'static {
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes the queue, or finds it just as asked.
    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()>;

    /// Sends durably: all or none where the broker can; else in order, and of an error nobody knows how far it came.
    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>>;

    /// Messages of a queue without sessions, or of any of its sessions one at a time.
    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>>;

    /// Holds a session: by name, or the next that is ready within `wait`. None is no error.
    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>>;

    /// Ends leases, each on its own outcome, one answer for each in order.
    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>>;

    /// Prolongs leases or holds by `lock` from now, one answer for each in order.
    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>>;

    /// The state of a session in hand.
    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>>;

    /// The state of any session, for whoever looks.
    fn look_at_state(&self, queue: &QueueName, session: &SessionId) -> Doing<'_, Option<Bytes>> {
        let (_, _) = (queue, session);
        let broker = self.capabilities().broker;
        Box::pin(async move { Err(no_look(broker)) })
    }

    /// Some sessions of a queue that have something, in no order that means anything, and from where to go on. Those
    /// that come or go meanwhile may be missed or seen twice.
    fn look_at_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> Doing<'_, (Vec<SessionId>, Option<u32>)> {
        let (_, _, _) = (queue, from, max);
        let broker = self.capabilities().broker;
        Box::pin(async move { Err(no_look(broker)) })
    }

    /// The time by which deadlines are told: the broker's own if it is in this process, else this machine's.
    #[allow(clippy::disallowed_methods)] // this is the door
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }

    /// What a queue holds, for whoever scales workers. Costs the same whatever that is.
    fn depth(&self, _queue: &QueueName) -> Doing<'_, Depth> {
        let broker = self.capabilities().broker;
        let (what, fix) = ("count of what waits", "scale by how busy workers are");
        Box::pin(async move { Err(BrokerError::Unsupported { broker, what, fix }) })
    }

    /// An orderly end: what is out comes back uncounted.
    fn close(&self) -> Doing<'_, ()>;
}

fn no_look(broker: &'static str) -> BrokerError {
    let fix = "keep what must be seen in your own database";
    BrokerError::Unsupported { broker, what: "way to look at sessions", fix }
}

/// Where messages come from: a queue, or a session in hand.
pub trait Source: Send + Sync {
    /// The session, if it is one.
    fn held(&self) -> Option<&Held>;

    /// At least one message, or none once `wait` is over; no wait asks what is there now, as far as the broker can
    /// tell within a round trip.
    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>>;

    /// Lets go: of the session, and of what was fetched ahead and not handed out, uncounted. Settlements that were
    /// asked for before still count. Dropping it does the same without waiting.
    fn close(self: Box<Self>) -> Doing<'static, ()>;
}

/// A session in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub session: SessionId,
    /// Proof, and what to renew.
    pub hold: LeaseToken,
    /// Grows with every hold of this session: what the writes of an old holder are told from a new one's by.
    pub epoch: u64,
}

/// A message in hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Its place in the queue.
    pub seq: Seq,
    /// Proof of the lease. Under a hold, the hold's deadline counts.
    pub lease: LeaseToken,
    /// Grants so far, this one included.
    pub receives: u32,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When it entered the queue.
    pub enqueued_at: Timestamp,
    /// Nothing was ready behind it in its session in hand. More may have come since; a broker that cannot tell never
    /// says so.
    pub last: bool,
    /// Reason and text, of a dead letter.
    pub dead: Option<(String, String)>,
    /// As sent, with what was laid over it since.
    pub message: Message,
}

/// How one lease ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// Which.
    pub lease: LeaseToken,
    /// How.
    pub settlement: Settlement,
    /// A session's state that changes with it or not at all.
    pub state: Option<NewState>,
}

impl Settle {
    /// The work is done.
    pub fn complete(lease: LeaseToken) -> Self {
        Self { lease, settlement: Settlement::Complete, state: None }
    }

    /// It was not tried.
    pub fn release(lease: LeaseToken) -> Self {
        Self { lease, settlement: Settlement::Release { delay_ms: 0 }, state: None }
    }
}

/// A new state of a session in hand; no bytes clear it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewState {
    /// Proof of the hold.
    pub hold: LeaseToken,
    /// The state.
    pub state: Option<Bytes>,
}

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its place in the queue, if it has one.
    pub seq: Seq,
    /// The sender's id, or the one that was given.
    pub message_id: String,
    /// It was sent before: nothing was stored.
    pub duplicate: bool,
}

/// Why an answer is not the one asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The lease or hold is over, or its message was settled already. Somebody else may have it.
    #[error("the lock is lost: it ran out, was released or was settled already")]
    LockLost,
    /// Asking again will not help.
    #[error("{text}")]
    Refused {
        /// A stable word.
        code: String,
        /// What happened, and what to change.
        text: String,
    },
    /// Nothing happened; it may work a little later.
    #[error("{text}")]
    Busy {
        /// What is in the way.
        text: String,
    },
    /// The broker did not answer: the outcome is unknown.
    #[error("the broker cannot be reached: {text}")]
    Unreachable {
        /// What was seen.
        text: String,
    },
    /// This broker has no such thing.
    #[error("{broker} has no {what}: {fix}")]
    Unsupported {
        /// Which broker.
        broker: &'static str,
        /// What.
        what: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
    /// It was closed by its user.
    #[error("the connection to the broker was closed")]
    Closed,
}

impl BrokerError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unreachable { .. })
    }
}
