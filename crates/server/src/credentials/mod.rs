//! Who may come in, and what they may do: one store for every protocol.
//!
//! | credential | proves itself by | kept as |
//! |---|---|---|
//! | user | name and password (HTTP Basic, AMQP PLAIN, Kafka PLAIN) | argon2id |
//! | token | a random bearer token (HTTP) | SHA-256 |
//! | key | a signature (AWS SigV4, Service Bus SAS) | the secret itself: checking needs it |
//!
//! Grants are `send`, `receive` or `manage` on a queue pattern. Keys and tokens act for a user or
//! hold grants of their own. Everything is in `credentials.toml` in the data directory, mode
//! 0600; `malote user …` changes it there and a running server takes it up within a second.
//!
//! An empty store is open: whoever reaches a listener may do anything. The server opens ports to
//! other machines only when there are credentials or when it is forced to.

mod error;
mod file;
mod grant;
mod password;
mod random;
mod store;
#[cfg(test)]
mod tests;
mod words;

pub use error::CredentialsError;
pub use file::{KeyKind, UnknownKeyKind};
pub use grant::{BadGrant, Grant, Pattern};
pub use store::{CREDENTIALS_FILE, Store};
pub use words::{Holder, KeyInfo, KeySecret, Listing, NewKey, NewToken, TokenInfo, UserInfo};
