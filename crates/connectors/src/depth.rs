//! How much waits in a queue, as whoever scales workers looks at it.
//!
//! Numbers that the broker keeps anyway, or counts up to a bound: asking costs the same whatever a queue holds.

use std::time::Duration;

/// What a queue holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting for a worker.
    pub ready: u64,
    /// Not yet due.
    pub delayed: u64,
    /// Out to workers.
    pub in_flight: u64,
    /// For how long the oldest has waited.
    pub oldest: Duration,
    /// Messages that came in since a moment that stays the same; none where nobody counts them.
    pub sent: Option<u64>,
    /// Nothing is given out at present, by somebody's word.
    pub paused: bool,
    /// Of a queue with sessions, where somebody counts those.
    pub sessions: Option<SessionDepth>,
    /// It has sessions and nobody counts them: messages do not say how many workers it needs.
    pub uncounted_sessions: bool,
}

/// Sessions of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionDepth {
    /// With work, and nobody holds them.
    pub runnable: u64,
    /// A worker holds them.
    pub held: u64,
    /// Neither: their first message is delayed, or they have only a state.
    pub other: u64,
}
