//! The settings of a queue: one type for declarations, updates, answers and topology files.
//!
//! To add a queue property to the native API, add a field to [`QueueSettings`] and a line to each of its two
//! conversions. The server, the connector, the OpenAPI document and topology files follow.

use std::fmt;

use malote_model::{
    Address, DeadLetterTarget, Dedup, Durability, OnExpiry, Overflow, QueueName, QueueSpec,
    Refusal, RetryOrder, SessionId, Sessions, Status, TopicName,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

optional_fields! {
    /// Settings of a queue. In a declaration, an absent field has the default value. In an update, an absent field is
    /// not changed. An answer has every field.
    #[cfg_attr(feature = "schema", schemars(rename = "Spec"))]
    #[serde(deny_unknown_fields)]
    pub struct QueueSettings {
        /// `none`, `dynamic` or a list of session ids
        sessions: SessionsSetting,
        /// The field of a message that contains its session id: `key`, `correlation_id` or `property:NAME`; null: the
        /// sender's session id
        #[serde(deserialize_with = "nullable")]
        session_from: Option<String>,
        /// Duration of a lease in milliseconds
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 43_200_000)))]
        lock_ms: u64,
        /// Failed deliveries before a message is dead-lettered; null: no limit
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        failed_max: Option<u32>,
        /// Deliveries before a message is dead-lettered; null: no limit
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        receives_max: Option<u32>,
        /// Where dead letters go
        dead_letter: DeadLetterSetting,
        /// The time to live of a dead letter starts when the message was enqueued here, not when it was dead-lettered
        dead_letters_keep_age: bool,
        /// Fair delivery in a queue without sessions and priorities: session ids name tenants, and tenants with many
        /// leased messages are served after the others
        fair: bool,
        /// Whether clients may send and receive
        status: StatusWord,
        /// Whether a send is answered after the message is on disk
        durability: DurabilityWord,
        /// Whether a session waits for a delayed retry
        retry: RetryOrderWord,
        /// Default delay of messages in milliseconds
        delay_ms: u64,
        /// Maximum size of a message, body and headers
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        message_bytes_max: u64,
        /// Health warns above this number of messages
        backlog_warning: u64,
        /// Messages expire after this number of milliseconds; null: messages do not expire
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        ttl_ms: Option<u64>,
        /// What happens to expired messages
        on_expiry: OnExpiryWord,
        /// The highest priority; 0: no priorities
        priority_max: u8,
        /// De-duplication; null: none
        #[serde(deserialize_with = "nullable")]
        dedup: Option<DedupSetting>,
        /// Maximum number of ready messages; null: no limit
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        length_max: Option<u64>,
        /// Maximum number of bytes of ready messages; null: no limit
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        bytes_max: Option<u64>,
        /// What happens when a queue reaches one of these limits
        overflow: OverflowWord,
        /// The queue is deleted when its last consumer stops
        auto_delete: bool,
        /// The queue is deleted after this number of milliseconds without use; null: never
        #[serde(deserialize_with = "nullable")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        idle_ms_max: Option<u64>,
        /// Only the native connection that declares the queue can receive from it; the queue is deleted when the
        /// connection ends
        exclusive: bool,
        /// Only one consumer receives at a time; the next one takes over when it leaves
        single_active: bool,
        /// The queue does not survive a restart of the broker
        transient: bool,
        /// Dead letters without a destination are deleted, instead of kept in the queue's own set
        discard_unroutable: bool,
        /// Messages are forwarded to this queue or topic; null: not forwarded
        #[serde(deserialize_with = "nullable")]
        forward_to: Option<ForwardSetting>,
    }
}

/// Reads `null` as a value (`Some(None)`), which differs from an absent field (`None`).
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

words! {
    /// What happens to expired messages.
    pub enum OnExpiryWord for OnExpiry {
        Drop "drop",
        DeadLetter "dead_letter",
    }
}

words! {
    /// Whether clients may send to a queue or topic and receive from it.
    pub enum StatusWord for Status {
        Active "active",
        SendDisabled "send_disabled",
        ReceiveDisabled "receive_disabled",
        Disabled "disabled",
    }
}

words! {
    /// What happens when a queue is full.
    pub enum OverflowWord for Overflow {
        Reject "reject",
        DropOldest "drop_oldest",
        DeadLetterOldest "dead_letter_oldest",
        DeadLetterNewest "dead_letter_newest",
    }
}

words! {
    /// Whether a send is answered after the message is on disk, or after it is written.
    pub enum DurabilityWord for Durability {
        Fsync "fsync",
        Relaxed "relaxed",
    }
}

words! {
    /// Whether a session waits for a delayed retry.
    pub enum RetryOrderWord for RetryOrder {
        Hold "hold",
        Skip "skip",
    }
}

/// De-duplication of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Dedup"))]
#[serde(deny_unknown_fields)]
pub struct DedupSetting {
    /// How long the broker remembers a key, in milliseconds
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800_000)))]
    pub window_ms: u64,
    /// Keys are compared only within a session
    #[serde(default)]
    pub per_session: bool,
    /// If a message has neither `dedup_id` nor `id`, a hash of its body is its key
    #[serde(default)]
    pub content: bool,
}

impl From<DedupSetting> for Dedup {
    fn from(DedupSetting { window_ms, per_session, content }: DedupSetting) -> Self {
        Self { window_ms, per_session, content }
    }
}

impl From<Dedup> for DedupSetting {
    fn from(Dedup { window_ms, per_session, content }: Dedup) -> Self {
        Self { window_ms, per_session, content }
    }
}

/// The sessions of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(untagged, expecting = "sessions must be \"none\", \"dynamic\" or a list of ids")]
pub enum SessionsSetting {
    /// `none` or `dynamic`
    Word(SessionsWord),
    /// Only these session ids
    Fixed(Vec<String>),
}

/// The sessions of a queue without a fixed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum SessionsWord {
    /// Messages have no sessions
    None,
    /// Any session id
    Dynamic,
}

impl From<SessionsWord> for SessionsSetting {
    fn from(word: SessionsWord) -> Self {
        Self::Word(word)
    }
}

impl fmt::Display for SessionsWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Dynamic => "dynamic",
        })
    }
}

/// Where dead letters go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(
    untagged,
    expecting = "dead_letter must be \"own\", \"drop\", {\"queue\": name} or {\"topic\": name, \"key\": key}"
)]
pub enum DeadLetterSetting {
    /// `own` or `drop`
    Word(DeadLetterWord),
    /// To another queue
    Queue(QueueTarget),
    /// To a topic
    Topic(KeyedTopicTarget),
}

/// Where dead letters go, unless they go to another queue or topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterWord {
    /// To the dead-letter queue of the queue
    Own,
    /// Dead letters are deleted
    Drop,
}

/// A queue by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(deny_unknown_fields)]
pub struct QueueTarget {
    /// The name of the queue
    pub queue: String,
}

/// A topic by name, and the key under which messages are sent to it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(deny_unknown_fields)]
pub struct KeyedTopicTarget {
    /// The name of the topic
    pub topic: String,
    /// The key; the message's own key if absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A topic by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(deny_unknown_fields)]
pub struct TopicTarget {
    /// The name of the topic
    pub topic: String,
}

/// The queue or topic that messages are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(untagged, expecting = "forward_to must be {\"queue\": name} or {\"topic\": name}")]
pub enum ForwardSetting {
    /// A queue of this broker
    Queue(QueueTarget),
    /// A topic of this broker
    Topic(TopicTarget),
}

impl fmt::Display for ForwardSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(to) => write!(f, "queue {}", to.queue),
            Self::Topic(to) => write!(f, "topic {}", to.topic),
        }
    }
}

impl SessionsSetting {
    fn sessions(self) -> Result<Sessions, Refusal> {
        Ok(match self {
            Self::Word(SessionsWord::None) => Sessions::None,
            Self::Word(SessionsWord::Dynamic) => Sessions::Dynamic,
            Self::Fixed(ids) => {
                Sessions::Fixed(ids.iter().map(|id| SessionId::new(id)).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl From<Sessions> for SessionsSetting {
    fn from(sessions: Sessions) -> Self {
        match sessions {
            Sessions::None => Self::Word(SessionsWord::None),
            Sessions::Dynamic => Self::Word(SessionsWord::Dynamic),
            Sessions::Fixed(ids) => {
                Self::Fixed(ids.iter().map(|id| id.as_str().to_owned()).collect())
            }
        }
    }
}

impl DeadLetterSetting {
    fn target(self) -> Result<DeadLetterTarget, Refusal> {
        Ok(match self {
            Self::Word(DeadLetterWord::Own) => DeadLetterTarget::Own,
            Self::Word(DeadLetterWord::Drop) => DeadLetterTarget::Drop,
            Self::Queue(to) => DeadLetterTarget::Queue(QueueName::new(&to.queue)?),
            Self::Topic(KeyedTopicTarget { topic, key }) => {
                DeadLetterTarget::Topic { topic: TopicName::new(&topic)?, key }
            }
        })
    }
}

impl From<DeadLetterTarget> for DeadLetterSetting {
    fn from(target: DeadLetterTarget) -> Self {
        match target {
            DeadLetterTarget::Own => Self::Word(DeadLetterWord::Own),
            DeadLetterTarget::Drop => Self::Word(DeadLetterWord::Drop),
            DeadLetterTarget::Queue(queue) => {
                Self::Queue(QueueTarget { queue: queue.as_str().to_owned() })
            }
            DeadLetterTarget::Topic { topic, key } => {
                Self::Topic(KeyedTopicTarget { topic: topic.as_str().to_owned(), key })
            }
        }
    }
}

impl ForwardSetting {
    fn address(self) -> Result<Address, Refusal> {
        Ok(match self {
            Self::Queue(to) => QueueName::new(&to.queue)?.into(),
            Self::Topic(to) => TopicName::new(&to.topic)?.into(),
        })
    }
}

impl From<Address> for ForwardSetting {
    fn from(address: Address) -> Self {
        match address {
            Address::Queue(name) => Self::Queue(QueueTarget { queue: name.as_str().to_owned() }),
            Address::Topic(name) => Self::Topic(TopicTarget { topic: name.as_str().to_owned() }),
        }
    }
}

impl QueueSettings {
    /// `base` with the given fields replaced.
    pub fn apply_to(self, base: QueueSpec) -> Result<QueueSpec, Refusal> {
        fn or<T: From<U>, U>(given: Option<U>, base: T) -> T {
            given.map_or(base, T::from)
        }
        let sessions = self.sessions.map(SessionsSetting::sessions).transpose()?;
        let dead_letter = self.dead_letter.map(DeadLetterSetting::target).transpose()?;
        let session_from = self.session_from.map(|from| from.map(|from| from.parse()).transpose());
        let forward_to = self.forward_to.map(|to| to.map(ForwardSetting::address).transpose());
        Ok(QueueSpec {
            sessions: or(sessions, base.sessions),
            session_from: or(session_from.transpose()?, base.session_from),
            lock_ms: or(self.lock_ms, base.lock_ms),
            failed_max: or(self.failed_max, base.failed_max),
            receives_max: or(self.receives_max, base.receives_max),
            dead_letter: or(dead_letter, base.dead_letter),
            dead_letters_keep_age: or(self.dead_letters_keep_age, base.dead_letters_keep_age),
            fair: or(self.fair, base.fair),
            status: or(self.status, base.status),
            durability: or(self.durability, base.durability),
            retry: or(self.retry, base.retry),
            delay_ms: or(self.delay_ms, base.delay_ms),
            message_bytes_max: or(self.message_bytes_max, base.message_bytes_max),
            backlog_warning: or(self.backlog_warning, base.backlog_warning),
            ttl_ms: or(self.ttl_ms, base.ttl_ms),
            on_expiry: or(self.on_expiry, base.on_expiry),
            priority_max: or(self.priority_max, base.priority_max),
            dedup: self.dedup.map_or(base.dedup, |dedup| dedup.map(Dedup::from)),
            length_max: or(self.length_max, base.length_max),
            bytes_max: or(self.bytes_max, base.bytes_max),
            overflow: or(self.overflow, base.overflow),
            auto_delete: or(self.auto_delete, base.auto_delete),
            idle_ms_max: or(self.idle_ms_max, base.idle_ms_max),
            exclusive: or(self.exclusive, base.exclusive),
            single_active: or(self.single_active, base.single_active),
            transient: or(self.transient, base.transient),
            discard_unroutable: or(self.discard_unroutable, base.discard_unroutable),
            forward_to: or(forward_to.transpose()?, base.forward_to),
            labels: base.labels,
        })
    }
}

impl From<QueueSpec> for QueueSettings {
    /// Every field, so that the result declares the same queue.
    fn from(spec: QueueSpec) -> Self {
        Self {
            sessions: Some(spec.sessions.into()),
            session_from: Some(spec.session_from.map(|from| from.to_string())),
            lock_ms: Some(spec.lock_ms),
            failed_max: Some(spec.failed_max),
            receives_max: Some(spec.receives_max),
            dead_letter: Some(spec.dead_letter.into()),
            dead_letters_keep_age: Some(spec.dead_letters_keep_age),
            fair: Some(spec.fair),
            status: Some(spec.status.into()),
            durability: Some(spec.durability.into()),
            retry: Some(spec.retry.into()),
            delay_ms: Some(spec.delay_ms),
            message_bytes_max: Some(spec.message_bytes_max),
            backlog_warning: Some(spec.backlog_warning),
            ttl_ms: Some(spec.ttl_ms),
            on_expiry: Some(spec.on_expiry.into()),
            priority_max: Some(spec.priority_max),
            dedup: Some(spec.dedup.map(DedupSetting::from)),
            length_max: Some(spec.length_max),
            bytes_max: Some(spec.bytes_max),
            overflow: Some(spec.overflow.into()),
            auto_delete: Some(spec.auto_delete),
            idle_ms_max: Some(spec.idle_ms_max),
            exclusive: Some(spec.exclusive),
            single_active: Some(spec.single_active),
            transient: Some(spec.transient),
            discard_unroutable: Some(spec.discard_unroutable),
            forward_to: Some(spec.forward_to.map(ForwardSetting::from)),
        }
    }
}

/// Whether a setting can be null.
pub fn is_nullable<T: DeserializeOwned + Serialize>(name: &str) -> bool {
    let null = Value::Object(Map::from_iter([(name.to_owned(), Value::Null)]));
    // A setting that cannot be null reads `null` as absent, and is not written again.
    let read = serde_json::from_value::<T>(null.clone()).ok();
    read.is_some_and(|read| serde_json::to_value(read).is_ok_and(|written| written == null))
}

/// Reads the settings in an answer. Fields and values that this version does not have are ignored.
pub fn known_settings<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let mut fields = Map::<String, Value>::deserialize(deserializer)?;
    fields.retain(|name, value| {
        let one = Map::from_iter([(name.clone(), value.clone())]);
        serde_json::from_value::<T>(Value::Object(one)).is_ok()
    });
    serde_json::from_value(Value::Object(fields)).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> QueueSpec {
        serde_json::from_str::<QueueSettings>(json).unwrap().apply_to(QueueSpec::default()).unwrap()
    }

    #[test]
    fn absent_is_default_and_null_is_no_limit() {
        assert_eq!(spec("{}"), QueueSpec::default());
        assert_eq!(spec(r#"{"failed_max":null}"#).failed_max, None);
        assert_eq!(spec(r#"{"lock_ms":5,"sessions":"dynamic"}"#).sessions, Sessions::Dynamic);
    }

    #[test]
    fn an_answer_declares_the_same_queue_again() {
        let asked = r#"{"sessions":["a","b"],"lock_ms":5,"failed_max":null,"receives_max":3,"retry":"skip",
            "dead_letter":{"queue":"graveyard"},"durability":"relaxed","delay_ms":1,"message_bytes_max":2,
            "backlog_warning":3,"ttl_ms":9,"on_expiry":"dead_letter","length_max":7,"bytes_max":8,
            "overflow":"drop_oldest","auto_delete":true,"idle_ms_max":5,"exclusive":true,
            "dedup":{"window_ms":1000,"per_session":true,"content":true}}"#;
        for asked in [
            asked,
            r#"{"priority_max":9,"overflow":"dead_letter_oldest"}"#,
            "{}",
            r#"{"dead_letter":"drop"}"#,
            r#"{"dead_letter":{"topic":"t","key":"k"},"forward_to":{"topic":"t"}}"#,
            r#"{"forward_to":{"queue":"q"}}"#,
            r#"{"dead_letters_keep_age":true,"fair":true,"status":"send_disabled"}"#,
            r#"{"status":"receive_disabled"}"#,
            r#"{"status":"disabled"}"#,
        ] {
            let first = spec(asked);
            let shown = serde_json::to_string(&QueueSettings::from(first.clone())).unwrap();
            assert_eq!(spec(&shown), first);
        }
    }

    #[test]
    fn an_answer_has_every_field() {
        let all = serde_json::to_value(QueueSettings::from(QueueSpec::default())).unwrap();
        let names = crate::fields::field_names::<QueueSettings>();
        assert!(names.len() > 20);
        assert!(names.iter().all(|name| all.get(name).is_some()), "{all}");
    }

    #[test]
    fn wrong_words_are_explained() {
        for (json, says) in [
            (r#"{"sessions":"fixed"}"#, "\"none\", \"dynamic\""),
            (r#"{"dead_letter":{"que":"x"}}"#, "\"own\", \"drop\""),
            (r#"{"durability":"async"}"#, "`fsync` or `relaxed`"),
            (r#"{"overflow":"drop"}"#, "`drop_oldest`"),
            (r#"{"status":"off"}"#, "`send_disabled`"),
            (r#"{"dedup":5}"#, "DedupSetting"),
            (r#"{"lock":1}"#, "unknown field `lock`"),
            (r#"{"lock_ms":-1}"#, "-1"),
        ] {
            let error = serde_json::from_str::<QueueSettings>(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn settings_of_a_newer_server_are_left_out() {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(deserialize_with = "known_settings")]
            spec: QueueSettings,
        }
        let json = r#"{"spec":{"lock_ms":5,"colour":"red","overflow":"explode","ttl_ms":null}}"#;
        let Answer { spec } = serde_json::from_str(json).unwrap();
        let known =
            QueueSettings { lock_ms: Some(5), ttl_ms: Some(None), ..QueueSettings::default() };
        assert_eq!(spec, known);
    }

    #[test]
    fn limits_are_nullable_and_words_are_not() {
        assert!(is_nullable::<QueueSettings>("ttl_ms") && is_nullable::<QueueSettings>("dedup"));
        assert!(!is_nullable::<QueueSettings>("sessions") && !is_nullable::<QueueSettings>("x"));
    }
}
