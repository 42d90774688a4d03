//! Every bound of this front end, with its reason. The server may change them; nothing here grows without one.

use std::sync::Arc;
use std::time::Duration;

use malote_http::{Budget, ConnectionLimits};
use malote_model::{WebGuard, limits};

/// Bounds on what one caller, and all callers together, may make the process hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A body that carries messages: the largest send, as base64, and its JSON around it.
    pub message_body_bytes_max: usize,
    /// A body that carries a request: a fixed list of 10,000 sessions still fits.
    pub control_body_bytes_max: usize,
    /// Bodies that carry messages, of all requests being handled, together.
    pub bodies_bytes_max: usize,
    /// The other bodies together: apart, so that settling goes on while senders wait.
    pub control_bodies_bytes_max: usize,
    /// A body that brings no byte for so long is given up.
    pub body_pause_max: Duration,
    /// The head of a request must be complete within this, from its first byte to its last.
    pub head_time_max: Duration,
    /// A connection without a request is closed after this.
    pub idle_time_max: Duration,
    /// The head of a request, all lines together.
    pub head_bytes_max: usize,
    /// A peer that takes none of its answer for so long, or only a few bytes, is cut off.
    pub write_pause_max: Duration,
    /// Answers that are made and not written yet, of all connections; more are refused as busy.
    pub answers: Arc<Budget>,
    /// Peeks at once; others wait for `publish_wait` and are then refused as busy.
    pub peeks_max: usize,
    /// One WebSocket message.
    pub frame_bytes_max: usize,
    /// How long a send waits for those before it to reach the disk; then it is refused as busy.
    pub publish_wait: Duration,
    /// Requests of one native connection that have no answer yet, sends apart; at the bound nothing more is read.
    pub requests_max: usize,
    /// Sends of one native connection that have no answer yet. At the bound the next one waits, or is refused as
    /// busy while publishing is held up: what stands behind it must be read.
    pub sends_max: usize,
    /// Bytes of the messages that brought those sends. One message may be larger, if it is alone.
    pub send_bytes_max: usize,
    /// Bytes on their way out over one native connection; at the bound deliveries stop.
    pub outgoing_bytes_max: usize,
    /// Consumers of one native connection.
    pub consumers_max: usize,
    /// Transactions of one native connection that have been begun and are not over.
    pub transactions_max: usize,
    /// Bytes of the messages that brought what those transactions staged: the largest transaction, as base64.
    pub staged_bytes_max: usize,
    /// The same of all native connections together.
    pub staged_bytes_all_max: usize,
    /// A silent native connection is asked for a sign of life so often.
    pub ping_every: Duration,
    /// A native connection that is silent for so long is lost.
    pub silence_max: Duration,
    /// How long the leases of a lost native connection wait for it to come back.
    pub reconnect_grace: Duration,
    /// Requests over HTTP that wait for their answers.
    pub replies_max: usize,
    /// Native connections at once, those that wait to be resumed included.
    pub connections_max: usize,
    /// Queues, and as many topics, on one page of `/metrics/per-object`: about 12 MB.
    pub metrics_objects_max: usize,
    /// Such pages that may be read at once; more are refused as busy.
    pub metrics_pages_max: usize,
    /// Which web pages may call it, and by which names.
    pub web: WebGuard,
}

impl Limits {
    /// The limits of one HTTP connection.
    pub fn connection(&self) -> ConnectionLimits {
        ConnectionLimits {
            head_time_max: self.head_time_max,
            idle_time_max: self.idle_time_max,
            head_bytes_max: self.head_bytes_max,
            write_pause_max: self.write_pause_max,
            answers: self.answers.clone(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_body_bytes_max: (limits::SEND_BYTES_MAX as usize / 3 + 1) * 4 + (2 << 20),
            control_body_bytes_max: 8 << 20,
            bodies_bytes_max: 256 << 20,
            control_bodies_bytes_max: 64 << 20,
            body_pause_max: Duration::from_secs(20),
            head_time_max: Duration::from_secs(15),
            idle_time_max: Duration::from_secs(300),
            head_bytes_max: 64 << 10,
            write_pause_max: Duration::from_secs(60),
            answers: Budget::new(256 << 20, 128 << 20),
            peeks_max: 4,
            frame_bytes_max: limits::SEND_BYTES_MAX as usize,
            publish_wait: Duration::from_secs(5),
            requests_max: 1024,
            sends_max: 1024,
            send_bytes_max: 16 << 20,
            outgoing_bytes_max: 8 << 20,
            consumers_max: 1024,
            transactions_max: 64,
            staged_bytes_max: 2 * limits::TRANSACTION_BYTES_MAX as usize,
            staged_bytes_all_max: 256 << 20,
            ping_every: Duration::from_secs(15),
            silence_max: Duration::from_secs(45),
            reconnect_grace: Duration::from_secs(2),
            replies_max: 10_000,
            connections_max: 20_000,
            metrics_objects_max: 5000,
            metrics_pages_max: 8,
            web: WebGuard::default(),
        }
    }
}

/// How far the peeks of one page reach.
pub const PAGE_MAX: usize = limits::RECEIVE_BATCH_MAX;
/// A page unless the caller asks otherwise.
pub const PAGE_DEFAULT: usize = 100;
