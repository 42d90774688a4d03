//! Topics and subscriptions.

use malote_model::{Dedup, HashOn, Refusal, TopicKind, TopicName, TopicSpec};
use serde::{Deserialize, Serialize};

use crate::queue::QueueInfo;
use crate::rule::NamedRule;
use crate::settings::{DedupSetting, QueueSettings, StatusWord, known_settings, nullable};

optional_fields! {
    /// Settings of a topic. In a declaration, an absent field has the default value. In an update, an absent field is
    /// not changed. An answer has every field.
    #[cfg_attr(feature = "schema", schemars(rename = "TopicSpec"))]
    #[serde(deny_unknown_fields)]
    pub struct TopicSettings {
        /// Which rules the topic has
        kind: TopicKindWord,
        /// The topic is deleted when its last rule is removed
        auto_delete: bool,
        /// The topic accepts messages only from other topics and queues
        internal: bool,
        /// De-duplication; null: none
        #[serde(deserialize_with = "nullable")]
        dedup: Option<DedupSetting>,
        /// Whether clients may send
        status: StatusWord,
        /// The topic does not survive a restart of the broker
        transient: bool,
        /// The topic that gets messages without a matching rule; null: none
        #[serde(deserialize_with = "nullable")]
        alternate: Option<String>,
        /// What a hash topic hashes: `key`, `message_id`, `correlation_id` or `property:NAME`
        hash_on: String,
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
        Hash "hash",
        Queue "queue",
    }
}

impl TopicSettings {
    /// `base` with the given fields replaced. Refused if the name of a topic is invalid.
    pub fn apply_to(self, base: TopicSpec) -> Result<TopicSpec, Refusal> {
        let TopicSettings { kind, auto_delete, internal, dedup, status, .. } = self;
        let alternate = self.alternate.map(|name| name.as_deref().map(TopicName::new).transpose());
        let hash_on = self.hash_on.as_deref().map(hash_on);
        Ok(TopicSpec {
            kind: kind.map_or(base.kind, Into::into),
            auto_delete: auto_delete.unwrap_or(base.auto_delete),
            internal: internal.unwrap_or(base.internal),
            dedup: dedup.map_or(base.dedup, |dedup| dedup.map(Dedup::from)),
            status: status.map_or(base.status, Into::into),
            transient: self.transient.unwrap_or(base.transient),
            alternate: alternate.transpose()?.unwrap_or(base.alternate),
            hash_on: hash_on.transpose()?.unwrap_or(base.hash_on),
        })
    }
}

fn hash_on(text: &str) -> Result<HashOn, Refusal> {
    Ok(match text {
        "key" => HashOn::Key,
        "message_id" => HashOn::MessageId,
        "correlation_id" => HashOn::CorrelationId,
        other => match other.strip_prefix("property:") {
            Some(name) => HashOn::Property(name.to_owned()),
            None => {
                let why = "must be key, message_id, correlation_id or property:NAME".into();
                return Err(Refusal::BadSpec { field: "hash_on", why });
            }
        },
    })
}

fn hash_word(on: HashOn) -> String {
    match on {
        HashOn::Key => "key".into(),
        HashOn::MessageId => "message_id".into(),
        HashOn::CorrelationId => "correlation_id".into(),
        HashOn::Property(name) => format!("property:{name}"),
    }
}

impl From<TopicSpec> for TopicSettings {
    fn from(spec: TopicSpec) -> Self {
        let TopicSpec { kind, auto_delete, internal, dedup, status, .. } = spec;
        Self {
            kind: Some(kind.into()),
            auto_delete: Some(auto_delete),
            internal: Some(internal),
            dedup: Some(dedup.map(DedupSetting::from)),
            status: Some(status.into()),
            transient: Some(spec.transient),
            alternate: Some(spec.alternate.map(|topic| topic.to_string())),
            hash_on: Some(hash_word(spec.hash_on)),
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
    /// All settings of the topic, also those with default values
    #[serde(deserialize_with = "known_settings")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Complete<TopicSettings>"))]
    pub spec: TopicSettings,
    /// Number of queues with rules
    pub queues: u64,
    /// Number of rules of all queues
    pub rules: u64,
    /// Scheduled messages: each is routed when it is due
    pub scheduled: u64,
    /// Messages that are being routed now
    pub waiting: u64,
    /// Counters since the topic was declared
    pub totals: TopicCounters,
}

/// Counters of a topic since it was declared.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TopicTotals"))]
pub struct TopicCounters {
    /// Number of copies that were stored in queues
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
    /// The rules. Absent: on a topic of kind filter or fanout, one rule that selects all messages; on others, none
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<NamedRule>>,
}

/// A subscription with its settings and counts.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Subscription"))]
pub struct SubscriptionInfo {
    /// Name of the topic
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
    /// Only rules after the rule `after_rule` of this topic
    pub after_topic: Option<String>,
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
    /// The queue that receives the copies; empty if the rule copies to a topic
    pub queue: String,
    /// The topic that the rule leads to
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_topic: Option<String>,
    /// The filter and the action of the rule
    #[serde(flatten)]
    pub rule: NamedRule,
}

/// `after_queue` and `after_rule` of the next page.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleCursor {
    /// The queue; empty if the rule leads to a topic
    pub queue: String,
    /// The topic that the rule leads to: `after_topic` instead of `after_queue`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_topic: Option<String>,
    /// The name of the rule
    pub rule: String,
}
