//! AMQP 0-9-1 as RabbitMQ speaks it. To amqplib, pika, lapin, amqp091-go and the Java client, Malote is a RabbitMQ.
//!
//! | what | where |
//! |---|---|
//! | accepting a connection, cleaning up after it | `listen.rs` |
//! | I/O loop, handshake, channels, confirms, unacknowledged messages | `conn/` |
//! | one operation each: declare, bind, publish, consume, get, acknowledge, transactions | `ops/` |
//! | frames, methods, tables, properties: bytes ↔ typed values | [`wire`] |
//! | open connections, channels and consumers | `registry.rs` |
//! | names of queues and exchanges, virtual hosts | `names.rs` |
//! | arguments of queues and exchanges ↔ settings | `arguments.rs` |
//! | publications → messages, deliveries → content | `message.rs` |
//! | users, tags and permissions | [`users`]; expressions over names: [`name_expression`] |
//! | policies, and what they do to queues and exchanges | [`policy`] |
//! | virtual hosts, policies and parameters as stored | [`metadata`] |
//! | RabbitMQ's definitions: import and export | [`definitions`] |
//! | refusals → reply codes and texts | `refusal.rs` |
//! | the management API over HTTP | `management/` |
//! | bounds of the protocol and of this front end | [`limits`] |
//!
//! # How RabbitMQ maps onto the engine
//!
//! - An **exchange** is a topic of the same kind; a **binding** is a rule, and an exchange-to-exchange binding is a rule
//!   that leads to a topic. The default exchange does not exist: publishing to it sends to the queue itself.
//! - A **queue** is a queue. Its arguments become settings; the original arguments are kept in a label, because a
//!   declaration must match them by value and an error shows their types. A queue made here differs from a native one in
//!   its defaults: no limit of failed deliveries (quorum: 20), and dead letters without a destination are deleted.
//! - A **non-durable** queue or exchange is transient: it ends with the broker. A message that is not persistent is stored
//!   like any other, but its confirm does not wait for the disk.
//! - A **consumer** is a consumer of the engine's connection; prefetch is its credit. A delivery tag stands for a lease,
//!   which ends with the connection. `basic.nack` with requeue counts as a failed delivery; closing a channel does not.
//! - A **publish** keeps the property section as it came (`Native::AMQP_091`, with the exchange in front), so that it
//!   leaves byte for byte. Everything read from the socket at once becomes one request to the engine, and one `basic.ack`
//!   confirms many messages, after the disk has them.
//! - **Dead letters** go through the topic of `x-dead-letter-exchange`. The engine keeps the history of a message;
//!   `x-death` is built from it on delivery.
//! - A **virtual host** is a prefix of names; the default one shares its names with all protocols. It exists if its
//!   predeclared exchanges do.
//!
//! Each connection has one task. Requests of one channel are handled strictly in order; different channels do not wait for
//! each other. The server owns TLS, ports and credentials: it implements [`Keys`] and passes streams to [`serve_peer`].

#![allow(missing_docs, reason = "used by the server only")]

mod administration;
mod arguments;
mod arguments_json;
mod conn;
pub mod definitions;
pub mod limits;
mod listen;
mod management;
mod message;
pub mod metadata;
pub mod name_expression;
pub mod names;
mod ops;
pub mod policy;
pub mod refusal;
mod registry;
pub mod users;
mod vhosts;
pub mod wire;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use malote_engine::Engine;
use malote_http::Budget;
use malote_model::{Access, Principal};
use parking_lot::Mutex;

pub use administration::{AdministrationError, by_server};
#[doc(hidden)]
pub use conn::handshake::credentials;
pub use listen::{serve_connection, serve_peer};
pub use management::{ListenerFacts, ManagementApi, management_busy};
#[doc(hidden)]
pub use message::is_acceptable;
pub use ops::reply_to::ReplyInbox;

use metadata::{MetadataStore, NoFile};
use users::Users;

/// The only user of a broker without credentials; also its password.
const GUEST: &str = "guest";

/// State shared by all connections.
pub struct Front {
    pub engine: Engine,
    pub access: Arc<dyn Access>,
    pub keys: Arc<dyn Keys>,
    /// Tags and permissions.
    pub users: Arc<dyn Users>,
    /// Virtual hosts, policies and parameters.
    pub metadata: Arc<MetadataStore>,
    /// How long a message may be unacknowledged; none for no limit.
    pub consumer_timeout: Option<Duration>,
    /// Requesters that wait for direct replies, by the name that they gave.
    pub(crate) replies: Mutex<HashMap<String, ReplyInbox>>,
    /// Virtual hosts whose predeclared exchanges are known to exist.
    pub(crate) vhosts: Mutex<HashSet<String>>,
    /// The deletion of a virtual host that is in progress.
    pub(crate) deletions: tokio::sync::Mutex<()>,
    /// Memory for bodies that have not arrived completely.
    pub(crate) unfinished: Arc<Budget>,
    pub(crate) connections: AtomicU64,
    pub(crate) registry: registry::Registry,
}

impl Front {
    pub fn new(engine: Engine, access: Arc<dyn Access>, keys: Arc<dyn Keys>) -> Self {
        Self {
            engine,
            access,
            keys,
            users: Arc::new(users::NoUsers),
            metadata: Arc::new(MetadataStore::open(NoFile).expect("nothing is read")),
            consumer_timeout: Some(limits::CONSUMER_TIMEOUT),
            replies: Mutex::default(),
            vhosts: Mutex::default(),
            deletions: tokio::sync::Mutex::default(),
            unfinished: Budget::new(
                limits::UNFINISHED_ALL_BYTES_MAX,
                limits::UNFINISHED_ADDRESS_BYTES_MAX,
            ),
            connections: AtomicU64::new(1),
            registry: registry::Registry::default(),
        }
    }

    /// Whether the caller's messages may have the `user-id` of another user.
    pub(crate) fn impersonates(&self, who: &Principal) -> bool {
        self.users.tags(who).iter().any(|tag| tag == users::IMPERSONATOR)
    }

    /// Verifies a password. A server without credentials has only the user `guest`. As in RabbitMQ, `guest` may sign in
    /// from this machine only, whatever its password is.
    pub(crate) async fn verify(
        &self,
        user: &str,
        password: &str,
        peer: IpAddr,
    ) -> Option<Principal> {
        match self.keys.is_open() {
            _ if user == GUEST && !peer.to_canonical().is_loopback() => None,
            true => (user == GUEST && password == GUEST).then(Principal::anonymous),
            false => self.keys.verify_password(user, password, peer).await,
        }
    }
}

/// The remote end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: IpAddr,
    pub port: u16,
    /// The address that the peer connected to.
    pub local: SocketAddr,
    pub tls: bool,
    /// Set once the peer has authenticated. Until then, the server may close the connection to make room for others.
    pub known: Arc<AtomicBool>,
}

/// Future result of a password check.
pub type Verified<'a> = Pin<Box<dyn Future<Output = Option<Principal>> + Send + 'a>>;

/// The credentials this protocol needs. The server implements it on top of its credential store.
pub trait Keys: Send + Sync {
    /// Whether the server runs without credentials. Only `guest` with the password `guest` is then accepted.
    fn is_open(&self) -> bool;
    /// Verifies the password of a user. `peer` is the client's address.
    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> Verified<'a>;
}
