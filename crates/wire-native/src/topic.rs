//! Topics and subscriptions.

use malote_model::{Dedup, TopicKind, TopicSpec};
use serde::{Deserialize, Serialize};

use crate::queue::QueueInfo;
use crate::rule::NamedRule;
use crate::settings::{DedupSetting, QueueSettings, StatusWord, known_settings, nullable};

optional_fields! {
    /// Settings of a topic. In a declaration, an absent field is the default; in an update, it stays as it is. An
    /// answer has every field.
    #[cfg_attr(feature = "schema", schemars(rename = "TopicSpec"))]
    #[serde(deny_unknown_fields)]
    pub struct TopicSettings {
        /// Which rules the topic has
        kind: TopicKindWord,
        /// The topic is deleted with its last rule
        auto_delete: bool,
        /// The topic accepts messages only from other topics and queues
        internal: bool,
        /// De-duplication; null: none
        #[serde(deserialize_with = "nullable")]
        dedup: Option<DedupSetting>,
        /// Whether clients may send
        status: StatusWord,
    }
}

words! {
    /// Which rules a topic has.
    pub enum TopicKindWord for TopicKind {
        Filter "filter",
        Direct "direct",
        Fanout "fanout",
        Topic "topic",
        Headers "headers",
    }
}

impl TopicSettings {
    /// `base` with the given fields replaced.
    pub fn apply_to(self, base: TopicSpec) -> TopicSpec {
        let TopicSettings { kind, auto_delete, internal, dedup, status } = self;
        TopicSpec {
            kind: kind.map_or(base.kind, Into::into),
            auto_delete: auto_delete.unwrap_or(base.auto_delete),
            internal: internal.unwrap_or(base.internal),
            dedup: dedup.map_or(base.dedup, |dedup| dedup.map(Dedup::from)),
            status: status.map_or(base.status, Into::into),
        }
    }
}

impl From<TopicSpec> for TopicSettings {
    fn from(spec: TopicSpec) -> Self {
        let TopicSpec { kind, auto_delete, internal, dedup, status } = spec;
        Self {
            kind: Some(kind.into()),
            auto_delete: Some(auto_delete),
            internal: Some(internal),
            dedup: Some(dedup.map(DedupSetting::from)),
            status: Some(status.into()),
        }
    }
}

/// A topic: settings and counters.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Topic"))]
pub struct TopicInfo {
    /// The name of the topic
    pub name: String,
    /// Creation time in milliseconds since 1970
    pub created_at: u64,
    /// All settings
    #[serde(deserialize_with = "known_settings")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Complete<TopicSettings>"))]
    pub spec: TopicSettings,
    /// Queues with rules
    pub queues: u64,
    /// Rules of all queues
    pub rules: u64,
    /// Messages that are routed later
    pub scheduled: u64,
    /// Messages that are being routed
    pub waiting: u64,
    /// Counters since the topic was declared
    pub totals: TopicCounters,
}

/// Counters of a topic since it was declared.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TopicTotals"))]
pub struct TopicCounters {
    /// Copies made
    pub copies: u64,
}

/// A list of topics, by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Topics"))]
pub struct TopicList {
    /// The topics that the caller may see
    pub topics: Vec<TopicInfo>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// Declares a subscription: its queue and its rules.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Subscribe"))]
#[serde(deny_unknown_fields, default)]
pub struct SubscribeRequest {
    /// Settings of the queue of the subscription
    pub spec: QueueSettings,
    /// Absent: all messages, on a topic of kind filter or fanout; otherwise none
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<NamedRule>>,
}

/// A subscription.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Subscription"))]
pub struct SubscriptionInfo {
    /// The topic
    pub topic: String,
    /// The name of the subscription
    pub name: String,
    /// The queue of the subscription
    pub queue: QueueInfo,
    /// The first page of rules; absent in a list of subscriptions
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<NamedRule>>,
    /// Start of the next page of rules
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RuleCursor>,
}

/// A list of subscriptions, by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Subscriptions"))]
pub struct SubscriptionList {
    /// The subscriptions that the caller may see
    pub subscriptions: Vec<SubscriptionInfo>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// Which rules to list.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RulesQuery {
    /// Only rules of this queue
    pub queue: Option<String>,
    /// Only rules after the rule `after_rule` of this queue
    pub after_queue: Option<String>,
    /// Only rules after this one
    pub after_rule: Option<String>,
    /// Maximum number of rules
    pub max: Option<u64>,
}

/// A list of rules, by queue and name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Rules"))]
pub struct RuleList {
    /// The rules that the caller may see
    pub rules: Vec<BoundRule>,
    /// Start of the next page
    #[serde(default)]
    pub next: Option<RuleCursor>,
}

/// A rule and its queue.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoundRule {
    /// The queue that gets copies
    pub queue: String,
    /// The rule
    #[serde(flatten)]
    pub rule: NamedRule,
}

/// `after_queue` and `after_rule` of the next page.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleCursor {
    /// The queue
    pub queue: String,
    /// The name of the rule
    pub rule: String,
}
