//! Queues: what they are asked to be, and what they are.

use malote_engine::{QueueFacts, Totals};
use malote_model::{
    DeadLetterTarget, Durability, QueueName, QueueSpec, RetryOrder, SessionId, Sessions,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
    dead_letter: Option<DeadLetterIn>,
    durability: Option<DurabilityWord>,
    retry: Option<RetryWord>,
    delay_ms: Option<u64>,
    message_bytes_max: Option<u64>,
    backlog_warning: Option<u64>,
}

/// `null` is a value here: no limit.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::<u32>::deserialize(deserializer).map(Some)
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
#[serde(untagged, expecting = "dead_letter must be \"own\", \"drop\" or {\"queue\": name}")]
enum DeadLetterIn {
    Word(DeadLetterWord),
    Queue(ToQueue),
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
        let QueueSpec {
            lock_ms,
            failed_max,
            receives_max,
            delay_ms,
            message_bytes_max,
            backlog_warning,
            ..
        } = &mut base;
        *lock_ms = self.lock_ms.unwrap_or(*lock_ms);
        *failed_max = self.failed_max.unwrap_or(*failed_max);
        *receives_max = self.receives_max.unwrap_or(*receives_max);
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
    durability: DurabilityWord,
    retry: RetryWord,
    delay_ms: u64,
    message_bytes_max: u64,
    backlog_warning: u64,
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
            },
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
        }
    }
}

/// What a queue is and holds.
#[derive(Debug, Serialize)]
pub struct QueueOut {
    name: String,
    created_at: u64,
    paused: bool,
    spec: SpecOut,
    counts: CountsOut,
    totals: TotalsOut,
}

/// What it holds now.
#[derive(Debug, Serialize)]
struct CountsOut {
    ready: u64,
    locked: u64,
    delayed: u64,
    scheduled: u64,
    deferred: u64,
    dead_lettered: u64,
    bytes: u64,
    oldest_at: Option<u64>,
    consumers: u64,
    sessions: u64,
    sessions_held: u64,
    sessions_ready: u64,
}

/// What has happened since it was declared.
#[derive(Debug)]
struct TotalsOut(Totals);

impl Serialize for TotalsOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Totals::NAMES.iter().zip(self.0.values()))
    }
}

impl From<QueueFacts> for QueueOut {
    fn from(facts: QueueFacts) -> Self {
        Self {
            name: facts.name.as_str().to_owned(),
            created_at: facts.created_at.0,
            paused: facts.paused,
            spec: facts.spec.into(),
            counts: CountsOut {
                ready: facts.ready,
                locked: facts.locked,
                delayed: facts.delayed,
                scheduled: facts.scheduled,
                deferred: facts.deferred,
                dead_lettered: facts.dead_lettered,
                bytes: facts.bytes,
                oldest_at: facts.oldest_at.map(|at| at.0),
                consumers: facts.consumers,
                sessions: facts.sessions,
                sessions_held: facts.sessions_held,
                sessions_ready: facts.sessions_ready,
            },
            totals: TotalsOut(facts.totals),
        }
    }
}

/// Which queues to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuesQuery {
    /// Only names that begin so.
    pub prefix: Option<String>,
    /// From after this name.
    pub after: Option<String>,
    /// At most so many; all if absent.
    pub max: Option<usize>,
}

/// Every queue that the caller may see; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct QueuesOut {
    /// By name.
    pub queues: Vec<QueueOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// How many messages an operation took away.
#[derive(Debug, Serialize)]
pub struct Removed {
    /// So many.
    pub removed: u64,
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
            "backlog_warning":3}"#;
        for asked in [asked, "{}", r#"{"dead_letter":"drop"}"#] {
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
            (r#"{"lock":1}"#, "unknown field `lock`"),
            (r#"{"lock_ms":-1}"#, "-1"),
        ] {
            let error = serde_json::from_str::<SpecIn>(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
