//! The limits of an HTTP connection.

use std::sync::Arc;
use std::time::Duration;

use crate::Budget;

/// What one peer, and all peers together, may make the process hold.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// The head of a request must be complete within this time, from its first byte to its last.
    pub head_time_max: Duration,
    /// A connection without a request is closed after this time.
    pub idle_time_max: Duration,
    /// The head of a request, all lines together.
    pub head_bytes_max: usize,
    /// A peer that reads nothing of its answer for this time, or only a few bytes, is disconnected.
    pub write_pause_max: Duration,
    /// Answers to safe requests, such as GET, that are not written yet, of all connections. More are refused as busy.
    pub pages: Arc<Budget>,
    /// The other answers that are not written yet. They can be the only copy of received messages, so more of them wait.
    /// The budget is separate, so that unread pages do not stop receivers.
    pub received: Arc<Budget>,
}
