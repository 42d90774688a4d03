//! From a TCP port to a front end: accept, count, detect the protocol, handle TLS, route.
//!
//! ```text
//! Listener ── accept ── ConnectionLimit ── detect ─┬─ TLS handshake ── detect ─┐
//!                                                  └───────────────────────────┴─ Router → handler
//! ```
//! A [`Port`] does all of this. TLS is supported on every port and detected by its first bytes. Detection reads no more
//! than it needs, and the handler gets every byte.

mod detect;
mod limit;
mod listener;
mod port;
mod stream;
mod tls;

pub use detect::{
    Amqp10Layer, DETECT_BYTES_MAX, DetectError, DetectedProtocol, Detection, detect_protocol,
    read_protocol,
};
pub use limit::{
    ConnectionCounts, ConnectionLimit, ConnectionPermit, HEALTH_CONNECTIONS_MAX,
    UNKNOWN_CONNECTIONS_MAX, raise_file_limit,
};
pub use listener::{BindError, Listener};
pub use port::{Admission, ConnectionHandler, HandlerFuture, PeerInfo, Port, Router, handler};
pub use stream::{PrefixedStream, Stream};
pub use tls::{Tls, TlsError, TlsInfo};
