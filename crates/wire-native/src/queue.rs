//! Answers about queues: settings, counts and totals.

use serde::{Deserialize, Serialize};

use crate::settings::{QueueSettings, known_settings};

/// A queue: settings, contents and history.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Queue"))]
pub struct QueueInfo {
    /// The name of the queue
    pub name: String,
    /// Creation time in milliseconds since 1970
    pub created_at: u64,
    /// Whether delivery is stopped
    pub paused: bool,
    /// All settings of the queue, also those with default values
    #[serde(deserialize_with = "known_settings")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Complete<QueueSettings>"))]
    pub spec: QueueSettings,
    /// Counts of the messages in the queue
    pub counts: QueueCounts,
    /// Counters since the queue was declared
    pub totals: QueueTotals,
}

/// A list of queues, by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Queues"))]
pub struct QueueList {
    /// The queues that the caller may see
    pub queues: Vec<QueueInfo>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// Current contents of a queue.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Counts"))]
#[serde(default)]
pub struct QueueCounts {
    /// Messages that can be received now
    pub ready: u64,
    /// Number of leased messages
    pub locked: u64,
    /// Messages that are not due yet and keep their position in the queue
    pub delayed: u64,
    /// Scheduled messages: each is enqueued when it is due
    pub scheduled: u64,
    /// Number of deferred messages
    pub deferred: u64,
    /// Messages in the dead-letter queue of this queue
    pub dead_lettered: u64,
    /// Bytes of all messages
    pub bytes: u64,
    /// Send time of the oldest message
    pub oldest_at: Option<u64>,
    /// Consumers that wait for messages
    pub consumers: u64,
    /// Sessions with messages or state
    pub sessions: u64,
    /// Sessions held by a receiver
    pub sessions_held: u64,
    /// Sessions with messages that can be received now
    pub sessions_ready: u64,
}

/// Counters of a queue since it was declared.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Totals"))]
#[serde(default)]
#[allow(missing_docs)] // the names of the engine's totals
pub struct QueueTotals {
    pub sent: u64,
    pub delivered: u64,
    pub redelivered: u64,
    pub completed: u64,
    pub abandoned: u64,
    pub dead_lettered: u64,
    pub deferred: u64,
    pub expired: u64,
    pub lost: u64,
    pub sessions_lost: u64,
}

/// The number of messages that an operation removed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Removed"))]
pub struct RemovedCount {
    /// Number of messages
    pub removed: u64,
}

/// The load of a queue, for scaling workers: an answer of the native connection.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueDepth {
    /// Messages that can be received now
    pub ready: u64,
    /// Delayed and scheduled messages
    pub delayed: u64,
    /// Number of leased messages
    pub in_flight: u64,
    /// Age of the oldest message in milliseconds
    pub oldest_ms: u64,
    /// Messages sent since the queue was declared
    #[serde(default)]
    pub sent: Option<u64>,
    /// Whether delivery is stopped
    #[serde(default)]
    pub paused: bool,
    /// Sessions, if the queue has them
    #[serde(default)]
    pub sessions: Option<SessionCounts>,
}

/// Sessions of a queue by state.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionCounts {
    /// Sessions with messages that can be received now
    pub runnable: u64,
    /// Sessions held by a receiver
    pub held: u64,
    /// Sessions that are neither ready nor held: delayed, or with a state only
    #[serde(default)]
    pub other: u64,
}

/// The load of a queue, for scalers over HTTP.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Scale"))]
pub struct QueueScale {
    /// Ready and leased messages. Leased ones count, so that a scaler does not stop workers that are busy
    pub backlog: u64,
    /// Number of leased messages
    pub in_flight: u64,
    /// Sessions with messages
    pub sessions: u64,
}

/// The session of a fixed list that a key belongs to.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Partition"))]
pub struct KeyPartition {
    /// The session id
    pub session: String,
    /// Its index in the list
    pub index: u32,
    /// The length of the list
    pub of: u32,
}

/// Which queues, topics or subscriptions to list.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only names with this prefix
    pub prefix: Option<String>,
    /// Only names after this one
    pub after: Option<String>,
    /// Maximum number of results; no limit if absent
    pub max: Option<usize>,
}

/// Which key to map to a session.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionQuery {
    /// The key: any text
    pub key: String,
}
