//! Workers for Malote and for other brokers: you write handlers, the library does the rest.
//!
//! [`Worker`] is the type to start with. It runs handlers for the messages of one queue:
//!
//! ```no_run
//! use malote::{Failure, Malote, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { id: String, cents: u64 }
//!
//! /// `?` means "try again later". `Failure::dead` means that a retry cannot help.
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
//!     malote.declare("orders", malote::QueueSpec::default()).await?;
//!     malote.send("orders", &Order { id: "o-1".into(), cents: 900 }).await?;
//!     Worker::new(&malote, "orders").handle(charge).run_until_signal().await?;
//!     malote.close().await
//! }
//! ```
//!
//! | you want to | use |
//! |---|---|
//! | connect, create queues and send | [`Malote`] |
//! | run handlers | [`Worker`], then [`Worker::start`], [`Worker::run_until`] or [`Worker::run_until_signal`] |
//! | take more than the body in a handler | [`Meta`], [`Session`], [`State`], [`Attempt`], [`Cancelled`]: see [`extract`] |
//! | say what happens to a message | [`Failure`], [`Outcome`]: see [`outcome`] |
//! | handle several messages in one call | [`Batch`], [`Worker::handle_batch`] |
//! | choose the retries | [`Retry`], [`Backoff`] |
//! | stop while a dependency is down | [`Breaker`] |
//! | write to a database exactly once | `Tx`, with the feature `sqlite` or `postgres` |
//! | run steps that are all done or compensated | [`Saga`] |
//! | send a request and wait for the reply | [`Malote::request`], [`Reply`] |
//! | test handlers without a server | `testing::TestBroker`, with the feature `embedded` |
//!
//! A worker prints failed attempts and dead letters to standard error unless the program has a `tracing` subscriber,
//! which then gets them as events.
//!
//! # Features
//!
//! Each connector is a feature: `embedded` and `native` are on by default, `rabbitmq`, `servicebus` and `postgres` are
//! not. `sqlite` and `postgres` add inbox and outbox in these databases. A program that only embeds the engine uses
//! `default-features = false, features = ["embedded"]`.

/// The programs of the guide are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/ordering.md")]
mod ordering {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/saga.md")]
mod saga_guide {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/request-reply.md")]
mod request_guide {}

mod batch;
pub mod breaker;
mod client;
mod clock;
mod dispatch;
pub mod extract;
mod fleet;
mod gate;
mod handler;
mod incoming;
pub mod metrics;
#[cfg(feature = "once")]
pub mod once;
pub mod outcome;
mod pool;
pub mod request;
pub mod retry;
pub mod saga;
pub mod scale;
mod stderr;
#[cfg(feature = "embedded")]
pub mod testing;
pub mod worker;

pub use batch::{Batch, FromBatch, IntoOutcomes, OfMessage, OfWorker, One};
pub use breaker::{Breaker, BreakerState};
pub use client::{Malote, Sending};
pub use dispatch::Unknown;
pub use extract::{
    Attempt, Body, Cancelled, FromDelivery, Meta, Session, SessionState, State, Text,
};
pub use handler::{FromDeliveryAll, Handler};
pub use incoming::Incoming;
#[cfg(feature = "embedded")]
pub use malote_connectors::Embedded;
#[cfg(feature = "native")]
pub use malote_connectors::Native;
pub use malote_connectors::{
    Broker, BrokerError, Capabilities, Capability, Delivery, Depth, Doing, Held, NewState,
    RetryHold, Sent, SessionDepth, Settle, Source,
};
pub use malote_model as model;
pub use malote_model::{Address, Message, Properties, QueueName, QueueSpec, SessionId, Value};
pub use metrics::Metrics;
#[cfg(feature = "once")]
pub use once::{Outgoing, Tx};
pub use outcome::{Failed, Failure, IntoOutcome, Outcome};
pub use pool::{Counts, Report};
pub use request::{Answer, Asking, Reply};
pub use retry::{Backoff, Retry};
pub use saga::{Saga, SagaState, SagaStatus, SagaSummary, Step};
pub use scale::{Bounds, Scale, Scaler};
pub use worker::{Running, Sessions, Shutdown, Worker};

/// Why a call of this library failed.
///
/// `{:?}` prints the same sentence as `{}`, followed by its causes: it is what a `main` that returns
/// `Result<(), malote::Error>` prints.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The broker said no, or nothing.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The broker cannot do what the worker needs.
    #[error(transparent)]
    Missing(#[from] malote_connectors::capabilities::Missing),
    /// A value that cannot be written as JSON.
    #[error("the value cannot be sent as JSON: {0}")]
    Encode(String),
    /// The database of an inbox or outbox said no.
    #[cfg(feature = "once")]
    #[error("the database: {0}")]
    Database(String),
    /// A request that nobody answered in time.
    #[error("queue `{queue}`: no answer came within {timeout:?}")]
    NoAnswer {
        /// Who was asked.
        queue: String,
        /// How long it was waited for.
        timeout: std::time::Duration,
    },
    /// An answer that is not what was expected.
    #[error("the answer cannot be read: {0}")]
    Decode(String),
    /// A worker that cannot be.
    #[error("{0}")]
    Settings(String),
    /// Handlers that never end took all slots.
    #[error(
        "{stuck} handlers ignore that they were cancelled, and hold every slot: restart this worker"
    )]
    Stuck {
        /// How many.
        stuck: usize,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        f.write_str(&text)
    }
}

/// Examples of the guide are compiled with the tests.
#[cfg(all(doctest, feature = "sqlite", feature = "postgres"))]
mod guide {
    #[doc = include_str!("../../../docs/guide/exactly-once.md")]
    struct ExactlyOnce;
    #[doc = include_str!("../../../docs/guide/outbox.md")]
    struct Outbox;
}
