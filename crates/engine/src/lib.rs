//! The durable engine of Malote: queues with FIFO sessions, leases, dead letters, delays and schedules.
//!
//! Guarantees: an answered send is on disk (`fsync`, unless the queue is `relaxed`). Nothing is delivered before its
//! send is durable. The order within a session is never violated. A message and a session have at most one holder,
//! fenced by its token. A restart loses nothing that was answered and keeps free-standing leases.
//!
//! Reading order: [`handle`] (the API) → `mailbox` → `shard` (the loop) → `core` (decide and apply) → [`topic`]
//! (routing) → `codec` (encoding) → [`journal`] → [`disk`]. Time comes from [`clock`], randomness from [`chance`].

#![allow(missing_docs)] // an internal API: comments explain what names do not

mod admission;
pub mod chance;
pub mod clock;
mod codec;
pub mod command;
pub mod compact;
pub mod connection;
pub mod core;
mod dead_letters;
mod deliver;
pub mod disk;
pub mod event;
pub mod facts;
mod failure;
pub mod format;
pub mod handle;
mod history;
mod housekeeping;
mod inspect;
pub mod journal;
mod mailbox;
mod open;
pub mod outputs;
pub mod reads;
mod remove;
mod replies;
mod shard;
mod stepwise;
pub mod topic;
mod topics;
mod transaction;

pub use admission::AdmissionLimits;
pub use codec::{
    DeadLetter, EncodedMessage, Stored, Unreadable, decode_rule, decode_topic_spec, encode_rule,
    encode_topic_spec, read_state,
};
pub use command::{
    AcceptedSession, Binding, ConsumerId, MessageState, MoveItem, Peek, Receipt, Receipts,
    Resolution, StateChange, Wants,
};
pub use connection::{Connection, Consume, Outbound, Outbox};
pub use dead_letters::DeadLetterSelection;
pub use facts::{NoisyTenants, QueueFacts, SessionFacts, TopicFacts, TopicTotals, Totals};
pub use failure::EngineFailure;
pub use format::FORMAT;
pub use handle::{
    Delivery, EncodedBatch, Engine, EngineError, IdFormat, PeekedMessage, Receive, Sent,
};
pub use history::{History, QueueSample, SAMPLE_EVERY};
pub use housekeeping::DiskFacts;
pub use open::{OpenError, Running, Settings};
pub use stepwise::Stepwise;
pub use transaction::Transaction;
