//! HTTP connections for front ends: serving them, their limits, and the credentials of requests.
//!
//! | file | contains |
//! |---|---|
//! | `connection.rs` | one HTTP/1 connection, with time limits for slow peers |
//! | `limits.rs` | the limits of a connection |
//! | `budget.rs` | memory that peers may use, in total and by address |
//! | `credentials.rs` | `Authorization` headers, and the trait that verifies them |
//! | `origin.rs` | origin and host checks against foreign web pages |
//!
//! It knows no protocol on top of HTTP: a front end passes its router, and its own answer for a busy server.

mod budget;
mod connection;
mod credentials;
mod limits;
mod origin;

pub use budget::{Budget, Share};
pub use connection::{BusyAnswer, KeptConnection, Peer, serve_connection};
pub use credentials::{Authenticate, Authenticated, Credential, Nobody, Unauthenticated};
pub use limits::ConnectionLimits;
pub use origin::{check_origin, header_text};
