//! Sessions: accepting, releasing and listing them.

use serde::{Deserialize, Serialize};

/// Accepts a session.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Accept"))]
#[serde(deny_unknown_fields, default)]
pub struct AcceptRequest {
    /// The session id; if absent, the next session with messages
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How long to wait for a session, in milliseconds
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 20_000)))]
    pub wait_ms: u64,
    /// Duration of the hold in milliseconds; the queue's `lock_ms` if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
}

/// A session that the caller holds.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Held"))]
pub struct HeldSession {
    /// The session id
    pub session: String,
    /// The token of the hold
    pub token: String,
    /// When the hold ends, in milliseconds since 1970
    pub until: u64,
}

/// Renews or releases a held session.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Token"))]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The token of the hold
    pub token: String,
    /// Only to renew: the new duration; the queue's `lock_ms` if absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
}

/// The new end of a hold.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Until"))]
pub struct HeldUntil {
    /// Milliseconds since 1970
    pub until: u64,
}

/// Which sessions to list.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsQuery {
    /// `next` of the previous page
    pub after: Option<String>,
    /// Maximum number of sessions
    pub max: Option<u64>,
}

/// A list of sessions, in no particular order.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Sessions"))]
pub struct SessionList {
    /// The sessions of this page
    pub sessions: Vec<SessionInfo>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// A session: contents and hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Session"))]
#[serde(default)]
pub struct SessionInfo {
    /// The session id
    pub session: String,
    /// Number of messages
    pub messages: u64,
    /// Number of leased messages
    pub locked: u64,
    /// When the current hold ends
    pub held_until: Option<u64>,
    /// Size of the session state
    pub state_bytes: u64,
    /// Sequence number of the first message
    pub first: Option<u64>,
    /// When the delayed retry that blocks the session is due
    pub delayed_until: Option<u64>,
}
