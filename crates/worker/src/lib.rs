//! Message queue workers in Rust. You write handlers; the library fetches messages, retries, renews locks and shuts
//! down.
//!
//! [`Worker`] is the type to start with. It runs handlers for the messages of one queue:
//!
//! ```no_run
//! use malote::{Failure, Malote, QueueSpec, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { id: String, cents: u64 }
//!
//! /// An error from `?` is retried later. `Failure::dead` dead-letters the message.
//! async fn charge(order: Order) -> Result<(), Failure> {
//!     if order.cents == 0 {
//!         return Err(Failure::dead("NoTotal", "an order must cost something"));
//!     }
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), malote::Error> {
//!     let malote = Malote::connect("embedded:./data").await?; // or http://HOST:PORT
//!     malote.declare("orders", QueueSpec::default()).await?;
//!     malote.send("orders", &Order { id: "o-1".into(), cents: 900 }).await?;
//!     Worker::new(&malote, "orders").handle(charge).run_until_signal().await?;
//!     malote.close().await
//! }
//! ```
//!
//! This program needs no server: `embedded:./data` runs the broker in the process, and keeps the messages on disk. The
//! same program works with a Malote server, RabbitMQ, PostgreSQL and Azure Service Bus. Only the URL changes; see
//! [`Malote::connect`].
//!
//! - A message is delivered again until it is completed, also after a crash. Retries and their delays are durable.
//! - Messages of a session are handled in order and one at a time. Different sessions are handled in parallel.
//! - A handler can write to your PostgreSQL or SQLite database exactly once, and send messages in the same transaction.
//!
//! # What to use
//!
//! | task | type |
//! |---|---|
//! | run handlers | [`Worker`], then [`Worker::start`], [`Worker::run_until`] or [`Worker::run_until_signal`] |
//! | connect, create queues and send | [`Malote`] |
//! | take more than the body in a handler | [`Meta`], [`Session`], [`State`], [`Attempt`], [`Cancelled`]: see [`extract`] |
//! | decide what happens to a message | [`Failure`], [`Outcome`]: see [`outcome`] |
//! | handle several messages in one call | [`Batch`], [`Worker::handle_batch`] |
//! | handle messages in order | [`Worker::sessions`], [`SessionOptions`] |
//! | configure retries | [`Retry`], [`Backoff`] |
//! | stop fetching while a dependency is down | [`Breaker`] |
//! | adapt to the load | [`Worker::slots`], [`Scale`] |
//! | write to a database exactly once | `Tx`: see the module `once` (feature `sqlite` or `postgres`) |
//! | run steps that are all done or compensated | [`Saga`] |
//! | send a request and wait for the reply | [`Malote::request`], [`Reply`] |
//! | test handlers without a server | `testing::TestBroker` (feature `embedded`) |
//!
//! # Cargo features
//!
//! A program compiles only the connectors that it uses.
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `embedded` | `embedded:DIR`, the broker in your process, and the module `testing` | yes |
//! | `native` | `malote://`, `malote+tls://`, `http://`, `https://`: a Malote server | yes |
//! | `rabbitmq` | `amqp://`, `amqps://`: RabbitMQ | no |
//! | `servicebus` | `servicebus://`: Azure Service Bus | no |
//! | `postgres` | `postgres://` as the broker; `Tx`, outbox and sagas in PostgreSQL | no |
//! | `sqlite` | `Tx`, outbox and sagas in SQLite | no |
//!
//! A program that only embeds the broker uses `default-features = false, features = ["embedded"]`.
//!
//! # Logs
//!
//! A worker prints failed attempts and dead letters to standard error. In a program with a `tracing` subscriber it
//! sends `tracing` events instead, with the level `warn`.
//!
//! # Guides
//!
//! The directory `docs/guide` of the repository has a page for each topic: `workers.md` (your first worker),
//! `ordering.md`, `exactly-once.md`, `outbox.md`, `saga.md`, `request-reply.md`, `scaling.md`, `testing-handlers.md`
//! and `examples.md` (complete programs).

mod batch;
pub mod breaker;
mod client;
mod clock;
pub mod extract;
mod handler;
mod incoming;
mod limiter;
pub mod metrics;
#[cfg(feature = "once")]
pub mod once;
pub mod outcome;
mod pool;
mod probe_lock;
pub mod request;
pub mod retry;
mod routes;
mod running;
pub mod saga;
pub mod scale;
mod stderr;
#[cfg(feature = "embedded")]
pub mod testing;
mod text;
mod worker;

pub use batch::{Batch, BatchArgument, BatchBody, BatchItem, FromBatch, IntoOutcomes};
pub use breaker::{Breaker, BreakerState};
pub use client::{Malote, SendBuilder};
pub use extract::{
    Attempt, Body, Cancelled, FromDelivery, Meta, Session, SessionState, State, Text,
};
pub use handler::{Handler, HandlerArguments};
pub use incoming::Incoming;
#[cfg(feature = "embedded")]
pub use malote_connectors::Embedded;
#[cfg(feature = "native")]
pub use malote_connectors::NativeBroker;
pub use malote_connectors::{
    Broker, BrokerError, BrokerFuture, Capabilities, Capability, Delivery, Depth, NewState,
    RetryHold, Sent, SessionDepth, SessionHold, Settle, Source,
};
pub use malote_model as model;
pub use malote_model::{Address, Message, Properties, QueueName, QueueSpec, SessionId, Value};
pub use metrics::Metrics;
#[cfg(feature = "once")]
pub use once::{OutboxMessage, Tx};
pub use outcome::{FailedAttempt, Failure, IntoOutcome, Outcome};
pub use pool::{Counts, Report};
pub use request::{Reply, ReplyMessage, RequestBuilder};
pub use retry::{Backoff, Retry};
pub use routes::UnknownTypes;
pub use running::Running;
pub use saga::{Saga, SagaState, SagaStatus, SagaSummary, Step};
pub use scale::{Bounds, Scale, Scaler};
pub use worker::{SessionOptions, Shutdown, Worker};

/// An error of this library.
///
/// `{:?}` prints the same text as `{}`, followed by the causes. So a `main` that returns `Result<(), malote::Error>`
/// prints a readable message.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The broker refused a call or could not be reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The broker lacks a capability that the worker needs.
    #[error(transparent)]
    Missing(#[from] malote_connectors::capabilities::MissingCapabilities),
    /// A value could not be encoded.
    #[error("the value cannot be encoded as JSON: {0}")]
    Encode(String),
    /// The database of an inbox, an outbox or a saga failed.
    #[cfg(feature = "once")]
    #[error("database error: {0}")]
    Database(String),
    /// A request got no reply in time.
    #[error("no reply to the request to queue `{queue}` within {timeout:?}")]
    NoReply {
        /// The queue that the request was sent to.
        queue: String,
        /// The time-out of the request.
        timeout: std::time::Duration,
    },
    /// A reply could not be decoded.
    #[error("the reply cannot be decoded as JSON: {0}")]
    Decode(String),
    /// A setting of a worker or a saga is invalid.
    #[error("{0}")]
    Settings(String),
    /// Every slot has a handler that ignores its cancellation.
    #[error(
        "{stuck} handlers ignore their cancellation and occupy every slot: restart the worker, and use `Cancelled` or \
         `.await` in the handlers"
    )]
    Stuck {
        /// The number of these handlers.
        stuck: usize,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text::with_causes(self))
    }
}

/// Compiles the programs of the guides as doctests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guide/ordering.md")]
    struct Ordering;
    #[doc = include_str!("../../../docs/guide/saga.md")]
    struct Saga;
    #[doc = include_str!("../../../docs/guide/request-reply.md")]
    struct RequestReply;
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    #[doc = include_str!("../../../docs/guide/exactly-once.md")]
    struct ExactlyOnce;
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    #[doc = include_str!("../../../docs/guide/outbox.md")]
    struct Outbox;
}
