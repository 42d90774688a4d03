//! HTTP connections: serving them, their limits, the credentials of requests, and a small client.
//!
//! | file | contains |
//! |---|---|
//! | `connection.rs` | one HTTP/1 connection, with time limits for slow peers |
//! | `limits.rs` | the limits of a connection |
//! | `budget.rs` | memory that peers may use, in total and by address |
//! | `credentials.rs` | `Authorization` headers, and the trait that verifies them |
//! | `origin.rs` | origin and host checks against foreign web pages |
//! | `client.rs` | the connection of a client, for the command line and benchmarks |
//!
//! It knows no protocol on top of HTTP: a front end passes its router, and its own answer for a busy server.

mod budget;
mod client;
mod connection;
mod credentials;
mod limits;
mod origin;

pub use budget::{Budget, Share};
pub use client::{ClientConnection, SendError, read_body};
pub use connection::{BusyAnswer, ConnectionSlot, Peer, serve_connection};
pub use credentials::{AllAnonymous, Authenticate, Authenticated, Credential, Unauthenticated};
pub use limits::ConnectionLimits;
pub use origin::{check_origin, header_text};
