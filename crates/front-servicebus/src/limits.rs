//! Limits of a connection.

use std::time::Duration;

use malote_wire_amqp::connection::PeerLimits;

/// The frame size that the service accepts.
pub const FRAME_BYTES_MAX: u32 = 65_536;
/// Sessions per connection. Some clients begin a session for every link.
pub const CHANNEL_MAX: u16 = 4_999;
/// Links per connection.
pub const LINKS_MAX: usize = 5_000;
/// Limits of an authenticated caller.
pub const AUTHENTICATED_LIMITS: PeerLimits = PeerLimits {
    sessions_max: CHANNEL_MAX as usize + 1,
    links_max: LINKS_MAX,
    incoming_bytes_max: SENDING_BYTES_MAX,
};
/// Limits before authentication: enough for a token of a few kilobytes. Exceeding them ends the link or the connection.
pub const UNAUTHENTICATED_LIMITS: PeerLimits =
    PeerLimits { sessions_max: 8, links_max: 16, incoming_bytes_max: 64 << 10 };
/// A caller that has not authenticated by then is disconnected with `amqp:unauthorized-access`.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle timeout announced to the peer. The connection is closed after twice that time.
pub const IDLE_MS: u32 = 120_000;
/// Time for the handshake, until the client has sent its open.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the last frames to be written.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Unacknowledged deliveries per sending link.
pub const SEND_CREDIT: u32 = 200;
/// Bytes of messages per connection that wait for the engine's reply. More are refused as busy.
pub const SENDING_BYTES_MAX: usize = 64 << 20;
/// Bytes of messages sent to the engine in one batch.
pub const SEND_BATCH_BYTES_MAX: usize = 1 << 20;
/// Requests in progress per request link.
pub const REQUEST_CREDIT: u32 = 100;
/// Replies waiting for the client's credit, per link.
pub const REPLIES_MAX: usize = 256;
/// Bytes of replies per connection that wait for credit or to be written. When exceeded, the reply link is detached.
pub const REPLIES_BYTES_MAX: usize = 8 << 20;
/// Peeks in progress per connection, of [`REPLY_BYTES_MAX`] each. More are refused as busy.
pub const PEEKS_MAX: u32 = 4;
/// Open transactions per connection. Each may stage 16 MiB.
pub const TRANSACTIONS_MAX: usize = 16;
/// Tokens per connection.
pub const CLAIMS_MAX: usize = 1_024;
/// Tokens are checked at least this often, because the clock may be adjusted.
pub const TOKEN_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Properties of one message, including application properties; the service's limit.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Messages per batch deletion; the service's limit.
pub const DELETE_MAX: u64 = 4_000;
/// Messages per batch.
pub const BATCH_MAX: usize = malote_model::limits::SEND_BATCH_MAX;
/// Messages that the engine may deliver to a link at once, before their size is known.
pub const WINDOW_INITIAL: u32 = 16;
/// Upper bound of the delivery window, for small messages.
pub const WINDOW_MAX: u32 = 1_024;
/// Bytes waiting to be written, over all links.
pub const OUTGOING_BYTES_MAX: usize = 2 << 20;
/// Default time that an accept waits for a session.
pub const ACCEPT_WAIT_MS: u64 = 60_000;
/// Messages per peek.
pub const PEEK_MAX: usize = 250;
/// Bytes of messages per reply. A single larger message is still returned.
pub const REPLY_BYTES_MAX: usize = 1 << 20;
/// Messages that a browsing link reads at once, before their size is known.
pub const BROWSE_PAGE_INITIAL: usize = 4;
/// Upper bound of a browsed page, for small messages.
pub const BROWSE_PAGE_MAX: usize = 64;
/// Temporary queues and subscriptions per connection.
pub const TEMPORARY_MAX: usize = 1_000;
/// A temporary subscription without a consumer is deleted after this time. A crash may leave one behind.
pub const TEMPORARY_IDLE_MS: u64 = 5 * 60_000;
/// Sessions or rules per page.
pub const PAGE_MAX: usize = 100;
