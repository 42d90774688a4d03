//! The native API: the requests, answers and frames that servers and clients exchange.
//!
//! Every type is a request or an answer. Unknown fields in a request are refused. Unknown fields in an answer are
//! ignored, because a newer server may add some. The same structs are JSON over HTTP, and JSON or MessagePack over the
//! native connection. Only bytes depend on the encoding: they are base64 in JSON and `bin` in MessagePack.
//!
//! The feature `schema` adds JSON Schemas, from which the server generates its OpenAPI document.
//!
//! | file | contains |
//! |---|---|
//! | `settings.rs`, `queue.rs` | queue settings; queues and their counts |
//! | `topic.rs`, `rule.rs` | topics, subscriptions and their rules |
//! | `message.rs`, `received.rs` | messages to send; received messages and dead letters |
//! | `body.rs`, `value.rs` | bodies, typed properties |
//! | `receive.rs`, `settle.rs`, `session.rs`, `dead_letter.rs`, `transaction.rs` | operations on messages |
//! | `frame.rs` | frames of the native connection |
//! | `about.rs`, `overview.rs`, `audit.rs`, `problem.rs`, `saga.rs` | server facts, all queues at a glance, audit records, errors, sagas |
//! | `exposition.rs`, `text.rs`, `nearest.rs`, `fields.rs` | metrics pages; base64 and times; suggestions; field names |

#[macro_use]
mod macros;

pub mod about;
pub mod audit;
pub mod body;
pub mod dead_letter;
pub mod exposition;
pub mod fields;
pub mod frame;
pub mod message;
pub mod nearest;
pub mod overview;
pub mod problem;
pub mod queue;
pub mod receive;
pub mod received;
pub mod rule;
pub mod saga;
#[cfg(feature = "schema")]
pub mod schema;
pub mod session;
pub mod settings;
pub mod settle;
pub mod text;
pub mod topic;
pub mod transaction;
pub mod value;

pub use value::PropertyMap;

use malote_model::Refusal;

/// Why a well-formed request cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Fields contradict each other, or a field does not apply.
    Field(String),
    /// The broker refused a value.
    Refused(Refusal),
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Field(text) => f.write_str(text),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for RequestError {}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
