//! Counts of a queue's messages and sessions, to decide how many workers it needs.
//!
//! The broker keeps these numbers anyway or counts up to a bound, so the cost does not depend on the backlog.

use std::time::Duration;

/// The depth of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that can be delivered now.
    pub ready: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Messages leased by workers.
    pub in_flight: u64,
    /// The age of the oldest ready message.
    pub oldest: Duration,
    /// Messages sent since some fixed time; None if the broker does not count them.
    pub sent: Option<u64>,
    /// Delivery is paused.
    pub paused: bool,
    /// For a queue with sessions, if the broker counts them.
    pub sessions: Option<SessionDepth>,
    /// The queue has sessions that the broker does not count. Then the number of messages does not show how many
    /// workers are needed.
    pub uncounted_sessions: bool,
}

/// Counts of a queue's sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionDepth {
    /// Ready and not held.
    pub runnable: u64,
    /// Held by a worker.
    pub held: u64,
    /// Neither: the first message is delayed, or there is only a state.
    pub other: u64,
}
