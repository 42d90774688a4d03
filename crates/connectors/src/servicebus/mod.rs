//! A client of Azure Service Bus and of other brokers that speak AMQP 1.0, built on `wire-amqp`.
//!
//! ```no_run
//! # async fn example() -> malote_connectors::servicebus::Result<()> {
//! use malote_connectors::servicebus::{Client, Message, ReceiverOptions};
//! let text = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true";
//! let client = Client::connect(text.parse()?).await?;
//! client.sender("orders").await?.send(&Message::new("hello")).await?;
//! let mut orders = client.receiver("orders", ReceiverOptions { prefetch: 10, ..Default::default() }).await?;
//! let message = orders.next().await?;
//! orders.complete(&message).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `config.rs` | connection strings, credentials |
//! | `dial.rs` | TCP, TLS |
//! | `driver/` | the task of a connection: socket, protocol engine, links |
//! | `client.rs`, `connection.rs` | the namespace; reconnecting |
//! | `claims.rs`, `sas.rs` | tokens and their renewal |
//! | `request_links.rs` | requests to `$cbs` and `$management` |
//! | `sender.rs` | sending messages and batches, many in flight |
//! | `receiver.rs` | receiving with credit or prefetch |
//! | `settle.rs` | complete, abandon, defer, dead-letter, renew |
//! | `session.rs` | sessions and their state |
//! | `management.rs` | peek, schedule, cancel, deferred messages |
//! | `error.rs` | errors and their kinds |
//! | `broker.rs`, `convert.rs` | the broker for workers |
//!
//! Not supported: WebSocket, transactions, administration, tokens of Entra ID.
//!
//! Bounded: bytes sent without an outcome, credit, unread messages, and requests without a response. A lost
//! connection ends its links; the next call on the client opens a new one.

pub mod broker;
mod claims;
mod client;
mod config;
mod connection;
mod convert;
mod dial;
mod driver;
mod error;
mod limits;
mod management;
mod message;
mod receiver;
mod request_links;
mod sas;
mod sender;
mod session;
mod settle;

pub use broker::ServiceBus;
pub use client::Client;
pub use config::{Config, Credential, TlsMode};
pub use error::{Error, ErrorKind, Result};
pub use management::Management;
pub use message::{Batch, LockToken, Message, Received, SequenceNumber};
pub use receiver::{Receiver, ReceiverOptions};
pub use sender::{PendingSend, Sender};
pub use session::SessionReceiver;
pub use settle::{PendingSettlement, Settlement, Settler};

/// Property values and maps.
pub use malote_wire_amqp::message::{BATCH_FORMAT, Body};
pub use malote_wire_amqp::types::{Map, Value};
