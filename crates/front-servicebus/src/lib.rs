//! Azure Service Bus over AMQP 1.0: the official SDKs take Malote for a namespace.
//!
//! | what | where |
//! |---|---|
//! | a connection's bytes, time and end | `listen.rs` |
//! | the same over WebSocket | `websocket.rs` |
//! | its links, and what happens to them | `conn/` |
//! | `$cbs`: who calls | `ops/claims.rs` |
//! | addresses of links → queues, topics, sessions | `ops/attach.rs` |
//! | temporary queues and subscriptions of a link | `ops/temporary.rs` |
//! | what an attach is answered: what is carried out | `ops/answer.rs` |
//! | browsing | `conn/browser.rs` |
//! | send one, a batch | `ops/send.rs` |
//! | transactions | `conn/transaction.rs` |
//! | complete, abandon, defer, dead-letter, release | `ops/settle.rs` |
//! | `$management`: peek, renew, schedule, cancel, deferred, sessions, rules, dispositions | `ops/management/` |
//! | refusals → conditions | `refusal.rs` |
//! | entities of Microsoft's `Config.json` | `config.rs`, `wire/duration.rs` |
//! | the administration API: Atom XML over HTTP | `admin/`, `wire/xml.rs` |
//!
//! One task per connection. The engine pushes deliveries within the credit that clients give; nothing is polled. TLS,
//! ports and credentials are the server's: it implements [`Keys`] and hands streams to [`serve_connection`].

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

/// What every connection shares.
pub struct Front {
    /// The broker.
    pub engine: Engine,
    /// Who may do what.
    pub access: Arc<dyn Access>,
    /// Who calls.
    pub keys: Arc<dyn Keys>,
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it is.
    pub address: IpAddr,
    /// Set once it has signed in or put a token: until then the server may close the connection to make room.
    pub known: Arc<AtomicBool>,
}

/// A shared access key, and who signs with it.
#[derive(Clone)]
pub struct Key {
    /// The plain key.
    pub secret: Arc<str>,
    /// Its holder.
    pub principal: Principal,
}

/// The answer to a password, some time.
pub type Verified<'a> = Pin<Box<dyn Future<Output = Option<Principal>> + Send + 'a>>;

/// Credentials as this protocol needs them. The server implements it over its store.
pub trait Keys: Send + Sync {
    /// Whether everyone may do everything: then any token is taken, and none is needed.
    fn is_open(&self) -> bool;
    /// A shared access key by its name.
    fn key(&self, name: &str) -> Option<Key>;
    /// A user's password, as a client at this address says it.
    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> Verified<'a>;
    /// A bearer token.
    fn verify_token(&self, token: &str) -> Option<Principal>;
    /// Whether this is a host name of the broker, by its certificate: a token may be signed for it without a scheme.
    fn is_own_name(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}
