//! Limits of a client.

use std::time::Duration;

/// Commands that wait for the driver; further callers wait.
pub const COMMANDS_MAX: usize = 1_024;
/// Commands that the driver handles before it looks at the socket again.
pub const COMMANDS_PER_TURN: usize = 256;
/// Bytes of messages without an outcome; further senders wait. A larger message is sent alone.
pub const SENDING_BYTES_MAX: usize = 32 << 20;
/// Unread messages of one receiver.
pub const PREFETCH_MAX: u32 = 10_000;
/// AMQP sessions, one for each link or pair of links: the service's limit for one connection.
pub const CHANNEL_MAX: u16 = 4_999;
/// Links of a connection.
pub const LINKS_MAX: usize = 5_000;
/// The frame size of the service.
pub const FRAME_BYTES_MAX: u32 = 65_536;
/// The announced idle timeout; the connection fails after twice this time.
pub const IDLE_MS: u32 = 60_000;
/// The largest message received: the limit of the service's largest namespaces.
pub const MESSAGE_BYTES_MAX: u64 = 100 << 20;
/// Bytes of partly received messages, over all links.
pub const INCOMING_BYTES_MAX: usize = 128 << 20;
/// Bytes that wait to be written.
pub const OUTGOING_BYTES_MAX: usize = 2 << 20;
/// Credit of a link for responses.
pub const RESPONSES_CREDIT: u32 = 100;
/// Requests without a response, for each pair of links.
pub const REQUESTS_MAX: usize = 100;
/// Audiences with a token.
pub const AUDIENCES_MAX: usize = 1_024;
/// Time for the round trip, added to the time that the server has to answer.
pub const REPLY_GRACE: Duration = Duration::from_secs(5);
/// How long closing may take.
pub const CLOSE_MAX: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// The longest pause.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
