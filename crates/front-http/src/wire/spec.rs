//! What queues are asked to be, and are.

use malote_model::{
    Address, DeadLetterTarget, Dedup, Durability, OnExpiry, Overflow, QueueName, QueueSpec,
    RetryOrder, SessionId, Sessions, Status, TopicName,
};
use serde::{Deserialize, Deserializer, Serialize};

use crate::problem::Problem;

/// A specification as written: what is absent stays as it is, or is the default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecIn {
    sessions: Option<SessionsIn>,
    lock_ms: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    failed_max: Option<Option<u32>>,
    #[serde(default, deserialize_with = "present")]
    receives_max: Option<Option<u32>>,
    #[serde(default, deserialize_with = "present")]
    ttl_ms: Option<Option<u64>>,
    on_expiry: Option<ExpiryWord>,
    priority_max: Option<u8>,
    #[serde(default, deserialize_with = "present")]
    dedup: Option<Option<DedupIn>>,
    #[serde(default, deserialize_with = "present")]
    length_max: Option<Option<u64>>,
    #[serde(default, deserialize_with = "present")]
    bytes_max: Option<Option<u64>>,
    overflow: Option<OverflowWord>,
    auto_delete: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    idle_ms_max: Option<Option<u64>>,
    exclusive: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    forward_to: Option<Option<ForwardIn>>,
    dead_letter: Option<DeadLetterIn>,
    dead_letters_keep_age: Option<bool>,
    fair: Option<bool>,
    status: Option<StatusWord>,
    durability: Option<DurabilityWord>,
    retry: Option<RetryWord>,
    delay_ms: Option<u64>,
    message_bytes_max: Option<u64>,
    backlog_warning: Option<u64>,
}

/// `null` is a value here: no limit.
pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum ExpiryWord {
    Drop,
    DeadLetter,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusWord {
    #[default]
    Active,
    SendDisabled,
    ReceiveDisabled,
    Disabled,
}

impl From<StatusWord> for Status {
    fn from(word: StatusWord) -> Self {
        match word {
            StatusWord::Active => Self::Active,
            StatusWord::SendDisabled => Self::SendDisabled,
            StatusWord::ReceiveDisabled => Self::ReceiveDisabled,
            StatusWord::Disabled => Self::Disabled,
        }
    }
}

impl From<Status> for StatusWord {
    fn from(status: Status) -> Self {
        match status {
            Status::Active => Self::Active,
            Status::SendDisabled => Self::SendDisabled,
            Status::ReceiveDisabled => Self::ReceiveDisabled,
            Status::Disabled => Self::Disabled,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum OverflowWord {
    Reject,
    DropOldest,
    DeadLetterOldest,
}

/// What counts as sent before.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DedupIn {
    window_ms: u64,
    #[serde(default)]
    per_session: bool,
    #[serde(default)]
    content: bool,
}

impl From<DedupIn> for Dedup {
    fn from(DedupIn { window_ms, per_session, content }: DedupIn) -> Self {
        Self { window_ms, per_session, content }
    }
}

impl From<Dedup> for DedupIn {
    fn from(Dedup { window_ms, per_session, content }: Dedup) -> Self {
        Self { window_ms, per_session, content }
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "sessions must be \"none\", \"dynamic\" or a list of ids")]
enum SessionsIn {
    Word(SessionsWord),
    Fixed(Vec<String>),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum SessionsWord {
    None,
    Dynamic,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "dead_letter must be \"own\", \"drop\", {\"queue\": name} or {\"topic\": name, \"key\": key}"
)]
enum DeadLetterIn {
    Word(DeadLetterWord),
    Queue(ToQueue),
    Topic(ToTopic),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum DeadLetterWord {
    Own,
    Drop,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ToQueue {
    queue: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ToTopic {
    topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "forward_to must be {\"queue\": name} or {\"topic\": name}")]
enum ForwardIn {
    Queue(ToQueue),
    Topic(OnlyTopic),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OnlyTopic {
    topic: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum DurabilityWord {
    Fsync,
    Relaxed,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum RetryWord {
    Hold,
    Skip,
}

impl SpecIn {
    /// `base` with what was written laid over it.
    pub fn over(self, mut base: QueueSpec) -> Result<QueueSpec, Problem> {
        if let Some(sessions) = self.sessions {
            base.sessions = match sessions {
                SessionsIn::Word(SessionsWord::None) => Sessions::None,
                SessionsIn::Word(SessionsWord::Dynamic) => Sessions::Dynamic,
                SessionsIn::Fixed(ids) => Sessions::Fixed(
                    ids.iter().map(|id| SessionId::new(id)).collect::<Result<_, _>>()?,
                ),
            };
        }
        if let Some(target) = self.dead_letter {
            base.dead_letter = match target {
                DeadLetterIn::Word(DeadLetterWord::Own) => DeadLetterTarget::Own,
                DeadLetterIn::Word(DeadLetterWord::Drop) => DeadLetterTarget::Drop,
                DeadLetterIn::Queue(to) => DeadLetterTarget::Queue(QueueName::new(&to.queue)?),
                DeadLetterIn::Topic(ToTopic { topic, key }) => {
                    DeadLetterTarget::Topic { topic: TopicName::new(&topic)?, key }
                }
            };
        }
        if let Some(to) = self.forward_to {
            base.forward_to = match to {
                None => None,
                Some(ForwardIn::Queue(to)) => Some(QueueName::new(&to.queue)?.into()),
                Some(ForwardIn::Topic(to)) => Some(TopicName::new(&to.topic)?.into()),
            };
        }
        if let Some(durability) = self.durability {
            base.durability = match durability {
                DurabilityWord::Fsync => Durability::Fsync,
                DurabilityWord::Relaxed => Durability::Relaxed,
            };
        }
        if let Some(retry) = self.retry {
            base.retry = match retry {
                RetryWord::Hold => RetryOrder::Hold,
                RetryWord::Skip => RetryOrder::Skip,
            };
        }
        if let Some(word) = self.on_expiry {
            base.on_expiry = match word {
                ExpiryWord::Drop => OnExpiry::Drop,
                ExpiryWord::DeadLetter => OnExpiry::DeadLetter,
            };
        }
        if let Some(word) = self.overflow {
            base.overflow = match word {
                OverflowWord::Reject => Overflow::Reject,
                OverflowWord::DropOldest => Overflow::DropOldest,
                OverflowWord::DeadLetterOldest => Overflow::DeadLetterOldest,
            };
        }
        if let Some(word) = self.status {
            base.status = word.into();
        }
        if let Some(dedup) = self.dedup {
            base.dedup = dedup.map(Dedup::from);
        }
        let QueueSpec {
            ttl_ms,
            priority_max,
            length_max,
            bytes_max,
            auto_delete,
            idle_ms_max,
            exclusive,
            lock_ms,
            failed_max,
            receives_max,
            dead_letters_keep_age,
            fair,
            delay_ms,
            message_bytes_max,
            backlog_warning,
            ..
        } = &mut base;
        *ttl_ms = self.ttl_ms.unwrap_or(*ttl_ms);
        *priority_max = self.priority_max.unwrap_or(*priority_max);
        *length_max = self.length_max.unwrap_or(*length_max);
        *bytes_max = self.bytes_max.unwrap_or(*bytes_max);
        *auto_delete = self.auto_delete.unwrap_or(*auto_delete);
        *idle_ms_max = self.idle_ms_max.unwrap_or(*idle_ms_max);
        *exclusive = self.exclusive.unwrap_or(*exclusive);
        *lock_ms = self.lock_ms.unwrap_or(*lock_ms);
        *failed_max = self.failed_max.unwrap_or(*failed_max);
        *receives_max = self.receives_max.unwrap_or(*receives_max);
        *fair = self.fair.unwrap_or(*fair);
        *dead_letters_keep_age = self.dead_letters_keep_age.unwrap_or(*dead_letters_keep_age);
        *delay_ms = self.delay_ms.unwrap_or(*delay_ms);
        *message_bytes_max = self.message_bytes_max.unwrap_or(*message_bytes_max);
        *backlog_warning = self.backlog_warning.unwrap_or(*backlog_warning);
        Ok(base)
    }
}

/// A specification as it is: every field, in the words in which it can be declared again.
#[derive(Debug, Serialize)]
pub struct SpecOut {
    sessions: SessionsIn,
    lock_ms: u64,
    failed_max: Option<u32>,
    receives_max: Option<u32>,
    dead_letter: DeadLetterIn,
    dead_letters_keep_age: bool,
    fair: bool,
    status: StatusWord,
    durability: DurabilityWord,
    retry: RetryWord,
    delay_ms: u64,
    message_bytes_max: u64,
    backlog_warning: u64,
    ttl_ms: Option<u64>,
    on_expiry: ExpiryWord,
    priority_max: u8,
    dedup: Option<DedupIn>,
    length_max: Option<u64>,
    bytes_max: Option<u64>,
    overflow: OverflowWord,
    auto_delete: bool,
    idle_ms_max: Option<u64>,
    exclusive: bool,
    forward_to: Option<ForwardIn>,
}

impl From<QueueSpec> for SpecOut {
    fn from(spec: QueueSpec) -> Self {
        Self {
            sessions: match spec.sessions {
                Sessions::None => SessionsIn::Word(SessionsWord::None),
                Sessions::Dynamic => SessionsIn::Word(SessionsWord::Dynamic),
                Sessions::Fixed(ids) => {
                    SessionsIn::Fixed(ids.iter().map(|id| id.as_str().to_owned()).collect())
                }
            },
            lock_ms: spec.lock_ms,
            failed_max: spec.failed_max,
            receives_max: spec.receives_max,
            dead_letter: match spec.dead_letter {
                DeadLetterTarget::Own => DeadLetterIn::Word(DeadLetterWord::Own),
                DeadLetterTarget::Drop => DeadLetterIn::Word(DeadLetterWord::Drop),
                DeadLetterTarget::Queue(name) => {
                    DeadLetterIn::Queue(ToQueue { queue: name.as_str().to_owned() })
                }
                DeadLetterTarget::Topic { topic, key } => {
                    DeadLetterIn::Topic(ToTopic { topic: topic.as_str().to_owned(), key })
                }
            },
            dead_letters_keep_age: spec.dead_letters_keep_age,
            fair: spec.fair,
            status: spec.status.into(),
            forward_to: spec.forward_to.map(|to| match to {
                Address::Queue(name) => {
                    ForwardIn::Queue(ToQueue { queue: name.as_str().to_owned() })
                }
                Address::Topic(name) => {
                    ForwardIn::Topic(OnlyTopic { topic: name.as_str().to_owned() })
                }
            }),
            durability: match spec.durability {
                Durability::Fsync => DurabilityWord::Fsync,
                Durability::Relaxed => DurabilityWord::Relaxed,
            },
            retry: match spec.retry {
                RetryOrder::Hold => RetryWord::Hold,
                RetryOrder::Skip => RetryWord::Skip,
            },
            delay_ms: spec.delay_ms,
            message_bytes_max: spec.message_bytes_max,
            backlog_warning: spec.backlog_warning,
            ttl_ms: spec.ttl_ms,
            on_expiry: match spec.on_expiry {
                OnExpiry::Drop => ExpiryWord::Drop,
                OnExpiry::DeadLetter => ExpiryWord::DeadLetter,
            },
            priority_max: spec.priority_max,
            dedup: spec.dedup.map(DedupIn::from),
            length_max: spec.length_max,
            bytes_max: spec.bytes_max,
            overflow: match spec.overflow {
                Overflow::Reject => OverflowWord::Reject,
                Overflow::DropOldest => OverflowWord::DropOldest,
                Overflow::DeadLetterOldest => OverflowWord::DeadLetterOldest,
            },
            auto_delete: spec.auto_delete,
            idle_ms_max: spec.idle_ms_max,
            exclusive: spec.exclusive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> QueueSpec {
        serde_json::from_str::<SpecIn>(json).unwrap().over(QueueSpec::default()).unwrap()
    }

    #[test]
    fn absent_is_default_and_null_is_no_limit() {
        assert_eq!(spec("{}"), QueueSpec::default());
        assert_eq!(spec(r#"{"failed_max":null}"#).failed_max, None);
        assert_eq!(spec(r#"{"lock_ms":5,"sessions":"dynamic"}"#).sessions, Sessions::Dynamic);
    }

    #[test]
    fn what_is_shown_declares_the_same_again() {
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
            r#"{"dead_letters_keep_age":true,"fair":true,"status":"send_disabled"}"#,
            r#"{"status":"receive_disabled"}"#,
            r#"{"status":"disabled"}"#,
        ] {
            let first = spec(asked);
            let shown = serde_json::to_string(&SpecOut::from(first.clone())).unwrap();
            assert_eq!(spec(&shown), first);
        }
    }

    #[test]
    fn wrong_words_are_explained() {
        for (json, says) in [
            (r#"{"sessions":"fixed"}"#, "\"none\", \"dynamic\""),
            (r#"{"dead_letter":{"que":"x"}}"#, "\"own\", \"drop\""),
            (r#"{"durability":"async"}"#, "`fsync` or `relaxed`"),
            (r#"{"overflow":"drop"}"#, "`drop_oldest`"),
            (r#"{"status":"off"}"#, "`send_disabled`"),
            (r#"{"dedup":5}"#, "DedupIn"),
            (r#"{"lock":1}"#, "unknown field `lock`"),
            (r#"{"lock_ms":-1}"#, "-1"),
        ] {
            let error = serde_json::from_str::<SpecIn>(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
