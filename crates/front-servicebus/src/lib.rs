//! Azure Service Bus over AMQP 1.0. To the official SDKs, Malote is a Service Bus namespace.
//!
//! | what | where |
//! |---|---|
//! | accepting a connection, cleaning up after it | `listen.rs` |
//! | I/O loop, connection and link state, WebSocket transport | `conn/` |
//! | SASL and `$cbs`: authentication | `ops/sasl.rs`, `ops/cbs.rs`, `ops/claims.rs` |
//! | attach: addresses → queues, topics, sessions; temporary queues; the reply | `ops/attach/` |
//! | send a message or a batch | `ops/send.rs` |
//! | receive, credit | `ops/receive.rs`, `ops/credit.rs` |
//! | browse | `ops/browse.rs` |
//! | complete, abandon, defer, dead-letter, release | `ops/settle.rs` |
//! | transactions | `ops/transaction.rs` |
//! | `$management`: peek, renew, schedule, cancel, deferred, sessions, rules, dispositions | `ops/request.rs`, `ops/management/` |
//! | the administration API: Atom XML over HTTP | `ops/admin/` |
//! | bytes ↔ typed values | `wire/` |
//! | refusals → AMQP conditions | `refusal.rs` |
//! | entities from Microsoft's `Config.json` | `config.rs` |
//!
//! Each connection has one task. The engine pushes deliveries within the client's credit; nothing is polled. The server
//! owns TLS, ports and credentials: it implements [`Keys`] and passes streams to [`serve_connection`].

#![allow(missing_docs, reason = "used by the server only")]

mod config;
mod conn;
mod entity;
mod limits;
mod listen;
mod ops;
pub mod refusal;
pub mod wire;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use malote_engine::Engine;
use malote_model::{Access, Principal};

pub use config::{Config, ConfigError};
pub use conn::websocket::websocket;
pub use listen::{serve_connection, serve_peer};
pub use ops::admin::Admin;

/// State shared by all connections.
pub struct Front {
    pub engine: Engine,
    pub access: Arc<dyn Access>,
    pub keys: Arc<dyn Keys>,
}

/// The remote end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: IpAddr,
    /// Set once the peer has authenticated. Until then, the server may close the connection to make room for others.
    pub known: Arc<AtomicBool>,
}

/// A shared access key and its owner.
#[derive(Clone)]
pub struct Key {
    /// The key in plain text.
    pub secret: Arc<str>,
    pub principal: Principal,
}

/// Future result of a password check.
pub type Verified<'a> = Pin<Box<dyn Future<Output = Option<Principal>> + Send + 'a>>;

/// The credentials this protocol needs. The server implements it on top of its credential store.
pub trait Keys: Send + Sync {
    /// Whether the server runs without credentials. Any token is then accepted, and none is required.
    fn is_open(&self) -> bool;
    /// Looks up a shared access key by name.
    fn key(&self, name: &str) -> Option<Key>;
    /// Verifies the password of a user. `peer` is the client's address.
    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> Verified<'a>;
    /// Verifies a bearer token.
    fn verify_token(&self, token: &str) -> Option<Principal>;
    /// Whether `name` is a host name of this broker, according to its certificate. Tokens for such a name may omit the
    /// scheme.
    fn is_own_name(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}
