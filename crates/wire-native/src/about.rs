//! Answers about the server: version, disk, health, history.

use serde::{Deserialize, Serialize};

/// The version of the server.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Version"))]
pub struct ServerVersion {
    /// The name of the product: always `malote`
    #[serde(default)]
    pub name: String,
    /// The version of the server
    pub version: String,
    /// The version of the API
    #[serde(default)]
    pub api: String,
}

/// File sizes and free space in bytes, and counters of compaction and verification since the start.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Disk"))]
#[serde(default)]
pub struct DiskUsage {
    /// Journal segments in use
    pub journal_bytes: u64,
    /// Live bytes in these segments at the last snapshot, approximately
    pub live_bytes: u64,
    /// Segment files that are kept for reuse
    pub spare_bytes: u64,
    /// Bytes of the snapshots on disk
    pub snapshot_bytes: u64,
    /// Free space on the disk; 0 if unknown
    pub free_bytes: u64,
    /// Whether free space suffices to accept messages
    pub publish_allowed: bool,
    /// Number of records copied by compaction
    pub copied: u64,
    /// Number of segment files reused
    pub recycled: u64,
    /// Bytes of the journal read again and verified
    pub scrubbed_bytes: u64,
    /// Number of damaged parts of the journal
    pub damaged: u64,
    /// Number of replays of the journal whose result differed from the live state
    pub diverged: u64,
}

/// The health of a queue, or of the worst queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Health"))]
pub struct HealthReport {
    /// `OK`, `Warning` or `Error`
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["OK", "Warning", "Error"])))]
    pub status: String,
    /// The reason, unless the status is OK
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Ready and leased messages
    #[serde(rename = "messageCount", default, skip_serializing_if = "Option::is_none")]
    pub message_count: Option<u64>,
}

/// The history of a queue over the last hour.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "History"))]
pub struct QueueHistory {
    /// Milliseconds between two points
    pub step_ms: u64,
    /// The points, oldest first
    pub points: Vec<HistoryPoint>,
}

/// A queue at one moment.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryPoint {
    /// Milliseconds since 1970
    pub at: u64,
    /// Messages that can be received now
    pub ready: u64,
    /// Number of leased messages
    pub locked: u64,
    /// Messages that are not due yet
    pub delayed: u64,
    /// Number of scheduled messages
    pub scheduled: u64,
    /// Number of deferred messages
    pub deferred: u64,
    /// Messages in the dead-letter queue of this queue
    pub dead_lettered: u64,
    /// Age of the oldest ready message
    pub oldest_age_ms: Option<u64>,
    /// Messages sent per second since the previous point
    pub in_per_s: f64,
    /// Messages completed per second since the previous point
    pub out_per_s: f64,
}

/// A queue in the terms of job queue dashboards.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueMetrics {
    /// The name of the queue
    pub queue: String,
    /// Number of messages that can be delivered now
    pub waiting: u64,
    /// Number of leased messages
    pub active: u64,
    /// Completed messages since the queue was declared
    pub completed: u64,
    /// Messages in the dead-letter queue of this queue
    pub failed: u64,
    /// Delayed and scheduled messages
    pub delayed: u64,
}
