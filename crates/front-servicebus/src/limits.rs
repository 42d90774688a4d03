//! Bounds of a connection, each with its reason.

use std::time::Duration;

use malote_wire_amqp::connection::Room;

/// Frames as large as the service takes.
pub const FRAME_BYTES_MAX: u32 = 65_536;
/// Sessions of a connection: some clients begin one for every link.
pub const CHANNEL_MAX: u16 = 4_999;
/// Links of a connection.
pub const LINKS_MAX: usize = 5_000;
/// What a caller may hold once it is known.
pub const ROOM: Room = Room {
    sessions_max: CHANNEL_MAX as usize + 1,
    links_max: LINKS_MAX,
    incoming_bytes_max: SENDING_BYTES_MAX,
};
/// What it may hold before: enough for a token, which has some kilobytes. More ends its link or its connection.
pub const UNKNOWN_ROOM: Room =
    Room { sessions_max: 8, links_max: 16, incoming_bytes_max: 64 << 10 };
/// A caller that is not known by then is sent away with `amqp:unauthorized-access`.
pub const AUTHENTICATE: Duration = Duration::from_secs(30);
/// Silence that we announce to bear; twice that is borne.
pub const IDLE_MS: u32 = 120_000;
/// The handshake, until the client has opened.
pub const HANDSHAKE: Duration = Duration::from_secs(30);
/// The last frames may take so long to leave.
pub const FAREWELL: Duration = Duration::from_secs(5);
/// Deliveries that a client may have under way on one sending link.
pub const SEND_CREDIT: u32 = 200;
/// Bytes of messages of one connection that are being sent and not answered yet; more is refused as busy.
pub const SENDING_BYTES_MAX: usize = 64 << 20;
/// Bytes of messages that are handed over at once; what is more goes next.
pub const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// Requests that a client may have under way at one desk.
pub const REQUEST_CREDIT: u32 = 100;
/// Answers that wait for a client's credit.
pub const ANSWERS_MAX: usize = 256;
/// Bytes of the answers of one connection that wait for credit or to be written; the link of the next one is detached.
pub const ANSWERS_BYTES_MAX: usize = 8 << 20;
/// Peeks under way on one connection, of [`ANSWER_BYTES_MAX`] each; more are refused as busy.
pub const PEEKS_MAX: u32 = 4;
/// Transactions under way on one connection; each may stage 16 MiB.
pub const TRANSACTIONS_MAX: usize = 16;
/// Tokens that a connection may have put.
pub const CLAIMS_MAX: usize = 1_024;
/// Tokens are looked at this often, however long they last: clocks may be set.
pub const TOKEN_LOOK: Duration = Duration::from_secs(3600);
/// Properties of one message, application properties included: the service's limit.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Messages of one batch deletion: the service's limit.
pub const DELETE_MAX: u64 = 4_000;
/// Messages of one batch.
pub const BATCH_MAX: usize = malote_model::limits::SEND_BATCH_MAX;
/// What the engine may deliver to one link at once, before it is known how large the messages are.
pub const WINDOW_FIRST: u32 = 16;
/// The same, however small they are.
pub const WINDOW_MAX: u32 = 1_024;
/// Bytes that are about to be written, over all links.
pub const OUTGOING_BYTES_MAX: usize = 2 << 20;
/// How long an accept waits for a session if the client does not say.
pub const ACCEPT_WAIT_MS: u64 = 60_000;
/// Messages of one peek, and bytes of them.
pub const PEEK_MAX: usize = 250;
/// Bytes of the messages of one answer; the first goes over it if it must.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Messages that a browsing link reads at once, before it is known how large they are.
pub const BROWSE_FIRST: usize = 4;
/// The same, however small they are.
pub const BROWSE_MAX: usize = 64;
/// Temporary queues and subscriptions of a connection.
pub const TEMPORARY_MAX: usize = 1_000;
/// A temporary subscription that nobody consumes from goes after this time: a crash may have left it.
pub const TEMPORARY_IDLE_MS: u64 = 5 * 60_000;
/// Sessions or rules of one page.
pub const PAGE_MAX: usize = 100;
