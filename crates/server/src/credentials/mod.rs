//! Users, keys, tokens and their permissions: one store for all protocols.
//!
//! | credential | verified by | stored as |
//! |---|---|---|
//! | user | name and password (HTTP Basic, SASL PLAIN over AMQP) | argon2id; or RabbitMQ's hash, if it was imported |
//! | token | a random bearer token (HTTP) | SHA-256 |
//! | key | a signature (AWS SigV4, Service Bus SAS) | the secret itself, which verification needs |
//!
//! Grants are `send`, `receive` or `manage` on a queue pattern. Keys and tokens act for a user or have their own
//! grants. Users may also have RabbitMQ's tags and permissions (`rights.rs`); either way of granting suffices. Everything is stored in `credentials.toml` in the data directory, mode 0600. `malote user …` changes it
//! there, and a running server applies the change within a second.
//!
//! An empty store is open: everyone who can connect may do anything. The server opens ports to other machines only if
//! there are credentials, or if it is forced to.

mod error;
mod file;
mod grant;
mod password;
mod rabbitmq;
#[cfg(test)]
mod rabbitmq_tests;
mod random;
mod rights;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod types;

pub use malote_front_amqp091::name_expression::NameExpression;
pub use malote_front_amqp091::users::{UserChange, VhostPermission};

pub use error::CredentialsError;
pub use file::{KeyKind, UnknownKeyKind};
pub use grant::{BadGrant, Grant, Pattern};
pub use store::{CREDENTIALS_FILE, Store};
pub use types::{Holder, KeyInfo, KeySecret, Listing, NewKey, NewToken, TokenInfo, UserInfo};
