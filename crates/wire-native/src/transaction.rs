//! Transactions that are one request.

use serde::{Deserialize, Serialize};

use crate::message::NewMessage;
use crate::settle::{SessionStateChange, SettleRequest};

/// Sends, settlements and session states that happen together or not at all.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Transaction"))]
#[serde(deny_unknown_fields, default)]
pub struct TransactionRequest {
    /// Messages; each names its `queue` or `topic`
    pub send: Vec<NewMessage>,
    /// Leases to settle; if one is lost, the transaction is refused
    pub settle: Vec<QueueSettlements>,
    /// States of held sessions
    pub state: Vec<QueueStateChange>,
}

/// Leases of one queue to settle.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueSettlements {
    /// Name of the queue
    pub queue: String,
    /// Leases and their outcomes
    pub items: Vec<SettleRequest>,
}

/// The state of a held session of one queue.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueStateChange {
    /// Name of the queue
    pub queue: String,
    /// The new state
    pub change: SessionStateChange,
}
