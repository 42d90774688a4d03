//! A transaction in one request: everything that happens together.

use serde::Deserialize;

use super::message::NewMessage;
use super::settle::{SettleIn, StateIn};

/// All of it, or nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransactionIn {
    /// Each names its `queue` or `topic`.
    pub send: Vec<NewMessage>,
    /// Leases to end. One that is over refuses everything.
    pub settle: Vec<SettleOf>,
    /// States of held sessions.
    pub state: Vec<StateOf>,
}

/// Leases of one queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleOf {
    /// Which.
    pub queue: String,
    /// How they end.
    pub items: Vec<SettleIn>,
}

/// The state of a session of one queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateOf {
    /// Which.
    pub queue: String,
    /// What it becomes.
    pub change: StateIn,
}
