//! Operations on dead letters.

use serde::{Deserialize, Serialize};

use crate::message::NewMessage;

/// Moves dead letters.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Redrive"))]
#[serde(deny_unknown_fields, default)]
pub struct RedriveRequest {
    /// Sequence numbers; all, up to `limit`, if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seqs: Option<Vec<u64>>,
    /// The queue to move to; the queue that each message came from if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Maximum number of messages, oldest first
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Count the messages and move none
    pub dry_run: bool,
}

/// The number of dead letters that were moved, or would be.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Redriven"))]
pub struct RedriveResult {
    /// Number of messages that were moved
    pub moved: u64,
    /// Number of messages that were not moved, because of the limit
    pub left: u64,
}

/// Replaces a dead letter by a corrected message.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Resend"))]
#[serde(deny_unknown_fields)]
pub struct ResendRequest {
    /// The corrected message
    pub message: NewMessage,
    /// The queue to send to; the queue that the dead letter came from if absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}
