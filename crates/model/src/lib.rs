//! The types of Malote: messages, queues, sessions, leases and refusals.
//!
//! This crate does no I/O and knows no engine and no protocol. Every front end translates its protocol to these types,
//! and every refusal of the engine is a variant of [`Refusal`].

pub mod access;
pub mod audit;
pub mod facts;
pub mod filter;
pub mod ids;
pub mod limits;
pub mod message;
pub mod partition;
pub mod queue;
pub mod refusal;
pub mod session_from;
pub mod settlement;
pub mod sql;
pub mod topic;
pub mod web;

pub use access::{
    Access, Action, CredentialId, Denied, PeerMark, Principal, Resource, SignInRequired,
};
pub use audit::{
    Audit, AuditAction, AuditEntry, AuditOutcome, AuditPending, AuditProtocol, CallerKind,
};
pub use facts::Facts;
pub use filter::{Correlation, Filter, Headers, HeadersMatch, Rule};
pub use ids::{LeaseToken, QueueName, Seq, SessionId, Timestamp, TopicName};
pub use message::When;
pub use message::{Body, BodyKind, Message, Native, Properties, Value};
pub use queue::{
    DeadLetterTarget, Dedup, Durability, OnExpiry, Overflow, QueueSpec, RetryOrder, Sessions,
    Status,
};
pub use refusal::Refusal;
pub use session_from::SessionFrom;
pub use settlement::{Changes, DeadReason, Settlement};
pub use sql::{SqlAction, SqlFilter};
pub use topic::{Address, HashOn, TopicKind, TopicSpec};
pub use web::{Foreign, WebGuard};
