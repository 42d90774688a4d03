//! The durable engine of Malote: queues with FIFO sessions, leases, dead letters, delays and schedules.
//!
//! What it promises: an answered send is on disk (`fsync`, unless the queue is `relaxed`); nothing is delivered before
//! its send is durable; order within a session never breaks; a message and a session have one holder, fenced by its
//! token; a restart loses nothing that was answered and forgets no free-standing lease.
//!
//! Read in this order: [`handle`] (what callers hold) → `mailbox` → `shard` (the loop) → `core` (decide and apply) →
//! [`topic`] (who gets a copy) → `codec` (bytes) → [`journal`] → [`disk`]. Time comes in through [`clock`], chance through [`chance`].

pub mod chance;
pub mod clock;
mod codec;
pub mod command;
pub mod compact;
pub mod connection;
pub mod core;
mod deliver;
pub mod disk;
pub mod event;
mod failure;
pub mod format;
pub mod handle;
pub mod handover;
mod housekeeping;
pub mod journal;
mod look;
mod mailbox;
mod open;
pub mod reads;
mod remove;
mod room;
mod shard;
mod stepwise;
pub mod topic;
mod topics;
mod transaction;

pub use codec::{
    DeadLetter, Outgoing, Stored, Unreadable, decode_rule, decode_topic_spec, encode_rule,
    encode_topic_spec, read_state,
};
pub use command::{
    Binding, ConsumerId, Held, MessageState, Moving, Noisy, Peek, QueueFacts, Resolution,
    SessionFacts, StateChange, TopicFacts, TopicTotals, Totals, Wants,
};
pub use connection::{Connection, Consume, Outbound, Outbox};
pub use failure::Failure;
pub use format::FORMAT;
pub use handle::{Delivery, Engine, EngineError, IdFormat, Parcel, Receive, Seen, Sent, Which};
pub use housekeeping::DiskFacts;
pub use open::{OpenError, Running, Settings};
pub use room::RoomSizes;
pub use stepwise::Stepwise;
pub use transaction::Transaction;
