//! Bounds of a client, each with its reason.

use std::time::Duration;

/// Words that wait for the connection's task; whoever has one more waits.
pub const COMMANDS_MAX: usize = 1_024;
/// Words that are looked at before the socket is.
pub const COMMANDS_AT_ONCE: usize = 256;
/// Bytes of messages that were handed over and have no outcome yet; more wait. One larger message goes alone.
pub const SENDING_BYTES_MAX: usize = 32 << 20;
/// Messages that one receiver may have in its hands before they are taken.
pub const PREFETCH_MAX: u32 = 10_000;
/// Sessions of the protocol, one for each link or pair of links: what the service takes on one connection.
pub const CHANNEL_MAX: u16 = 4_999;
/// Links of a connection.
pub const LINKS_MAX: usize = 5_000;
/// Frames as large as the service sends.
pub const FRAME_BYTES_MAX: u32 = 65_536;
/// Silence that we announce to bear; twice that is borne.
pub const IDLE_MS: u32 = 60_000;
/// The largest message that is received: what the service's largest namespaces allow.
pub const MESSAGE_BYTES_MAX: u64 = 100 << 20;
/// Bytes of messages that are half received, over all links.
pub const INCOMING_BYTES_MAX: usize = 128 << 20;
/// Bytes that are about to be written.
pub const OUTGOING_BYTES_MAX: usize = 2 << 20;
/// Answers that may come at once on one link for answers.
pub const ANSWERS_CREDIT: u32 = 100;
/// Questions that wait for their answers on one link.
pub const ASKING_MAX: usize = 100;
/// Audiences with a token that is kept fresh.
pub const AUDIENCES_MAX: usize = 1_024;
/// An answer is waited for so much longer than the server was given, for the way there and back.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long a farewell may take.
pub const FAREWELL: Duration = Duration::from_secs(5);
/// The shortest pause between two attempts to connect.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// The longest.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
