//! Answers about the whole broker: sums over queues, a sorted page of queues, and what needs attention.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::about::DiskUsage;
use crate::queue::QueueCounts;

/// Which queues an overview shows.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverviewQuery {
    /// Only this queue
    pub queue: Option<String>,
    /// Only names that match this pattern: `*` stands for any text; without `*`, names that contain the text
    pub search: Option<String>,
    /// The column to sort by
    pub sort: Option<SortWord>,
    /// Largest values first
    pub descending: Option<bool>,
    /// Number of queues to skip
    pub offset: Option<usize>,
    /// Maximum number of queues
    pub max: Option<usize>,
}

/// A column of the list of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names of the columns
pub enum SortWord {
    #[default]
    Name,
    Ready,
    Locked,
    Later,
    Deferred,
    DeadLettered,
    Sessions,
    Consumers,
    In,
    Out,
    Oldest,
}

impl SortWord {
    /// In the order of the table.
    pub const ALL: &'static [Self] = &[
        Self::Name,
        Self::Ready,
        Self::Locked,
        Self::Later,
        Self::Deferred,
        Self::DeadLettered,
        Self::Sessions,
        Self::Consumers,
        Self::In,
        Self::Out,
        Self::Oldest,
    ];
}

/// The state of the broker: of all queues that the caller may see, and a page of them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Overview {
    /// When the queues were read, in milliseconds since 1970. They are read at most once a second
    pub at: u64,
    /// The version of the server
    pub version: String,
    /// Whether the server works without credentials
    pub open: bool,
    /// The name of the caller; absent if it is anonymous
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The ports of the server
    pub endpoints: Vec<Endpoint>,
    /// Open connections by protocol
    pub connections: BTreeMap<String, u64>,
    /// Bytes used and free, and whether sends are accepted
    pub disk: DiskUsage,
    /// Number of queues
    pub queues: u64,
    /// Sums over these queues
    pub counts: QueueCounts,
    /// Sums over these queues
    pub rates: QueueRates,
    /// What needs attention, most urgent first
    pub attention: Vec<AttentionItem>,
    /// Number of further items
    pub attention_more: u64,
    /// Number of queues that match the query
    pub matched: u64,
    /// A page of these queues
    pub rows: Vec<OverviewRow>,
}

/// A port of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    /// `http`, `sqs`, `amqp`, `amqps`, `servicebus-admin` or `rabbitmq-management`
    pub protocol: String,
    /// Address and port
    pub address: String,
    /// Whether clients must use TLS
    pub tls: bool,
}

/// Messages per second over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Rates"))]
#[serde(default)]
pub struct QueueRates {
    /// Messages sent to the queue or queues per second
    pub sent: f64,
    /// Messages delivered to consumers per second
    pub delivered: f64,
    /// Messages completed by consumers per second
    pub completed: f64,
    /// Messages dead-lettered per second
    pub dead_lettered: f64,
}

/// A queue in an overview.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OverviewRow {
    /// The name of the queue
    pub name: String,
    /// Whether delivery is stopped
    pub paused: bool,
    /// Whether clients may send and receive, unless both are allowed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Whether the queue has sessions
    pub with_sessions: bool,
    /// Messages by state, sessions and consumers
    pub counts: QueueCounts,
    /// Messages per second
    pub rates: QueueRates,
}

/// Something that an operator should look at.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttentionItem {
    /// What it is
    pub kind: AttentionKind,
    /// The queue that is concerned; absent if it is the whole broker
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Number of messages, or of damaged parts of the journal
    pub count: u64,
}

/// Why something needs attention. Most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// The disk is too full to send
    DiskFull,
    /// A replay of the journal gave another state
    Diverged,
    /// Parts of the journal are damaged
    Damaged,
    /// Dead letters are being added
    DeadLettersGrow,
    /// Messages are ready for more than a minute and none is delivered
    Stuck,
    /// More ready and leased messages than `backlog_warning`
    Backlog,
    /// Delivery is paused and messages wait
    Paused,
    /// The queue has dead letters
    DeadLetters,
}

/// Which dead letters to group.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterGroupsQuery {
    /// Only dead letters of this queue
    pub queue: Option<String>,
    /// Maximum number of dead letters to read
    pub max: Option<u64>,
}

/// Dead letters of all queues that the caller may receive from, grouped by queue, reason and text.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeadLetterGroups {
    /// The groups, largest first
    pub groups: Vec<DeadLetterGroup>,
    /// Number of dead letters that were read
    pub read: u64,
    /// Number of dead letters in these queues
    pub total: u64,
    /// Number of queues with dead letters that the caller may not receive from
    pub hidden_queues: u64,
}

/// Dead letters of one queue with the same reason and, apart from digits, the same text.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeadLetterGroup {
    /// The queue that dead-lettered them
    pub queue: String,
    /// Why they were dead-lettered
    pub reason: String,
    /// The text of the newest one
    pub text: String,
    /// When the oldest one was dead-lettered, in milliseconds since 1970
    pub first_at: u64,
    /// When the newest one was dead-lettered
    pub last_at: u64,
    /// Their sequence numbers
    pub seqs: Vec<u64>,
}
