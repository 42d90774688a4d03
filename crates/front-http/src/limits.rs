//! The limits of this front end. The server can change them.

use std::sync::Arc;
use std::time::Duration;

use malote_http::{Budget, ConnectionLimits};
use malote_model::{WebGuard, limits};

/// Limits for one caller and for all callers together.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size of a body with messages: the largest send, as base64 in JSON.
    pub message_body_bytes_max: usize,
    /// Size of any other body: a fixed list of 10,000 sessions fits.
    pub control_body_bytes_max: usize,
    /// Total size of all bodies with messages.
    pub bodies_bytes_max: usize,
    /// Total size of all other bodies. It is a separate limit, so that settling works while senders wait.
    pub control_bodies_bytes_max: usize,
    /// Time without any byte of a body.
    pub body_pause_max: Duration,
    /// Time from the first to the last byte of the head of a request.
    pub head_time_max: Duration,
    /// Time until a connection without a request is closed.
    pub idle_time_max: Duration,
    /// Size of the head of a request.
    pub head_bytes_max: usize,
    /// Time until a peer that reads nothing, or only a few bytes, of its answer is disconnected.
    pub write_pause_max: Duration,
    pub pages: Arc<Budget>,
    pub received: Arc<Budget>,
    /// Concurrent peeks. Others wait for `publish_wait` and are then refused as busy.
    pub peeks_max: usize,
    /// Size of a WebSocket message.
    pub frame_bytes_max: usize,
    /// How long a send waits until earlier sends are on disk. Then it is refused as busy.
    pub publish_wait: Duration,
    /// Pending requests of a native connection, without sends. At the limit, nothing more is read.
    pub requests_max: usize,
    /// Pending sends of a native connection. At the limit, the next send waits, or is refused as busy while publishing
    /// is stalled, so that the frames after it are read.
    pub sends_max: usize,
    /// Total size of the WebSocket messages with pending sends. A single message may be larger.
    pub send_bytes_max: usize,
    /// Unwritten bytes of a native connection. At the limit, deliveries stop.
    pub outgoing_bytes_max: usize,
    /// Consumers of one native connection.
    pub consumers_max: usize,
    /// Open transactions of a native connection.
    pub transactions_max: usize,
    /// Bytes staged by the transactions of a native connection: the largest transaction, as base64.
    pub staged_bytes_max: usize,
    /// The same for all native connections together.
    pub staged_bytes_all_max: usize,
    /// Interval of pings to a silent native connection.
    pub ping_every: Duration,
    /// A native connection that is silent for this long is lost.
    pub silence_max: Duration,
    /// How long a lost native connection can be resumed.
    pub reconnect_grace: Duration,
    /// HTTP requests that wait for a reply.
    pub replies_max: usize,
    /// Native connections, including those that wait to be resumed.
    pub connections_max: usize,
    /// Queues, and as many topics, on a page of `/metrics/per-object`: about 12 MB.
    pub metrics_objects_max: usize,
    /// Concurrent reads of such pages. Others are refused as busy.
    pub metrics_pages_max: usize,
    /// Concurrent streams of events. Others are refused as busy.
    pub streams_max: usize,
    /// Which web origins and host names are accepted.
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
            pages: self.pages.clone(),
            received: self.received.clone(),
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
            pages: Budget::new(128 << 20, 64 << 20),
            received: Budget::new(256 << 20, 128 << 20),
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
            streams_max: 256,
            web: WebGuard::default(),
        }
    }
}

/// Largest page of a peek.
pub const PAGE_MAX: usize = limits::RECEIVE_BATCH_MAX;
/// Default page size.
pub const PAGE_DEFAULT: usize = 100;
