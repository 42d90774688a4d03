//! A client of Azure Service Bus, and of other brokers that speak AMQP 1.0, on our own protocol engine.
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
//! | what | where |
//! |---|---|
//! | connection strings, credentials | `config.rs` |
//! | TCP, TLS | `dial.rs` |
//! | the connection's one task: socket, protocol engine, links | `driver/` |
//! | the namespace; connecting again | `client.rs`, `connection.rs` |
//! | tokens, renewed before they expire | `claims.rs`, `sas.rs` |
//! | send one, a batch, many under way | `sender.rs` |
//! | receive with credit or prefetch | `receiver.rs` |
//! | complete, abandon, defer, dead-letter, renew | `settle.rs` |
//! | sessions and their state | `session.rs` |
//! | peek, schedule, cancel, deferred messages | `management.rs` |
//! | conditions → kinds of errors | `error.rs` |
//! | all of it as a broker for workers | `broker.rs`, `convert.rs` |
//!
//! Not here: WebSocket, transactions, administration, tokens of Entra ID.
//!
//! What waits is bounded: bytes that are sent and have no outcome, messages that were asked for and not taken, requests
//! without an answer. A lost connection ends its links; the client makes a new one when it is asked for the next.

pub mod broker;
mod claims;
mod client;
mod config;
mod connection;
mod convert;
mod desk;
mod dial;
mod driver;
mod error;
mod limits;
mod management;
mod message;
mod receiver;
mod sas;
mod sender;
mod session;
mod settle;

pub use broker::ServiceBus;
pub use client::Client;
pub use config::{Config, Credential, Tls};
pub use error::{Error, Kind, Result};
pub use management::Management;
pub use message::{Batch, LockToken, Message, Received, SequenceNumber};
pub use receiver::{Receiver, ReceiverOptions};
pub use sender::{Sender, Sent};
pub use session::SessionReceiver;
pub use settle::{Settled, Settlement, Settler};

/// Values and maps of properties, with their types.
pub use malote_wire_amqp::message::{BATCH_FORMAT, Body};
pub use malote_wire_amqp::types::{Map, Value};
