//! Workers for Malote, and for other brokers behind the same handlers.
//!
//! ```no_run
//! use malote::{Failure, Malote, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { id: String, cents: u64 }
//!
//! /// `?` means "try again later"; say so when trying again cannot help.
//! async fn charge(order: Order) -> Result<(), Failure> {
//!     if order.cents == 0 {
//!         return Err(Failure::dead("NoTotal", "an order must cost something"));
//!     }
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), malote::Error> {
//!     let malote = Malote::connect("embedded:./data").await?; // or malote://HOST:PORT
//!     Worker::new(&malote, "orders").handle(charge).sessions(50).run_until_signal().await?;
//!     malote.close().await
//! }
//! ```
//!
//! Read in this order: [`outcome`] (what a handler can say) → [`extract`] (what it can ask for) → `handler`, `dispatch`
//! → [`worker`] (how a worker is made) → `pool` (how it runs) → [`retry`], [`scale`], [`metrics`]. What a broker can do is in
//! `malote_connectors`.

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
pub use malote_connectors::{
    Broker, BrokerError, Capabilities, Capability, Delivery, Depth, Doing, Embedded, Held, Native,
    NewState, RetryHold, Sent, SessionDepth, Settle, Source,
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

/// Why a program of this library does not get what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

/// Examples of the guide are compiled with the tests.
#[cfg(all(doctest, feature = "sqlite", feature = "postgres"))]
mod guide {
    #[doc = include_str!("../../../docs/guide/exactly-once.md")]
    struct ExactlyOnce;
    #[doc = include_str!("../../../docs/guide/outbox.md")]
    struct Outbox;
}
