//! From a TCP port to a front end: accept, count, sniff the first bytes, speak TLS, route.
//!
//! ```text
//! Listener ── accept ── Gate (limit) ── sniff ─┬─ TLS handshake ── sniff ─┐
//!                                              └──────────────────────────┴─ Router → handler
//! ```
//! A [`Port`] does all of it. Any protocol can be plugged into any port; TLS is spoken on every
//! port, told apart by its first bytes. Nothing here reads past what is needed to tell protocols
//! apart, and every byte read is given back to the handler.

mod gate;
mod listener;
mod port;
mod sniff;
mod stream;
mod tls;

pub use gate::{
    Gate, GateCounts, HEALTH_CONNECTIONS_MAX, Pass, UNKNOWN_CONNECTIONS_MAX, raise_file_limit,
};
pub use listener::{BindError, Listener};
pub use port::{Admission, Handler, HandlerFuture, PeerInfo, Port, Router, handler};
pub use sniff::{Amqp10Layer, SNIFF_BYTES_MAX, SniffError, Sniffed, Verdict, classify, sniff};
pub use stream::{Prefixed, Stream};
pub use tls::{Tls, TlsError, TlsInfo};
