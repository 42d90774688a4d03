//! Receiving and peeking; deferred and scheduled messages.

use serde::{Deserialize, Serialize};

use crate::received::ReceivedMessage;

/// A request to receive messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Receive"))]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveRequest {
    /// Maximum number of messages
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub max: u32,
    /// How long to wait for the first message, in milliseconds
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 20_000)))]
    pub wait_ms: u64,
    /// Duration of the leases; the queue's `lock_ms` if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
    /// What happens to received messages
    #[serde(skip_serializing_if = "ReceiveMode::is_lock")]
    pub mode: ReceiveMode,
    /// Only messages of the session that is held with this token
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_token: Option<String>,
    /// Maximum number of messages of one session, in a queue with sessions and without a token
    #[serde(skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub per_session: u32,
}

impl Default for ReceiveRequest {
    fn default() -> Self {
        Self {
            max: 1,
            wait_ms: 0,
            lock_ms: None,
            mode: ReceiveMode::Lock,
            session_token: None,
            per_session: 1,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
pub(crate) fn is_one(count: &u32) -> bool {
    *count == 1
}

/// What happens to received messages.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum ReceiveMode {
    /// Messages are leased, and settled later
    #[default]
    Lock,
    /// Messages are deleted: at-most-once delivery
    Delete,
}

impl ReceiveMode {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
    pub(crate) fn is_lock(&self) -> bool {
        *self == Self::Lock
    }
}

/// Receives deferred messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReceiveDeferred"))]
#[serde(deny_unknown_fields)]
pub struct ReceiveDeferredRequest {
    /// Sequence numbers; if one does not exist, the request is refused
    pub seqs: Vec<u64>,
    /// The token of the held session, in a queue with sessions
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<String>,
    /// Duration of the leases; the queue's `lock_ms` if absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
    /// What happens to received messages
    #[serde(default, skip_serializing_if = "ReceiveMode::is_lock")]
    pub mode: ReceiveMode,
}

/// Cancels scheduled messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Cancel"))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Sequence numbers; if one does not exist, the request is refused
    pub seqs: Vec<u64>,
}

/// The number of cancelled messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Cancelled"))]
pub struct CancelledCount {
    /// Number of messages
    pub cancelled: u64,
}

/// Received messages, possibly none.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Received"))]
pub struct ReceivedBatch {
    /// The messages, in order
    pub messages: Vec<ReceivedMessage>,
}

/// Which messages to peek at.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PeekQuery {
    /// The first sequence number
    pub from: Option<u64>,
    /// Maximum number of messages
    pub max: Option<u64>,
    /// Only messages of this session
    pub session: Option<String>,
    /// Only messages in this state
    pub state: Option<MessageStateWord>,
}

/// The state of a message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum MessageStateWord {
    /// Can be received now
    Ready,
    /// Leased to a receiver
    Locked,
    /// Not due yet; keeps its position in the queue
    Delayed,
    /// Enqueued when it is due
    Scheduled,
    /// Deferred: can only be received by its sequence number
    Deferred,
}

impl MessageStateWord {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Locked => "locked",
            Self::Delayed => "delayed",
            Self::Scheduled => "scheduled",
            Self::Deferred => "deferred",
        }
    }
}

/// The answer with peeked messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Peeked"))]
pub struct PeekedMessages {
    /// The messages, in order
    pub messages: Vec<ReceivedMessage>,
    /// `from` of the next page
    #[serde(default)]
    pub next: Option<u64>,
}
