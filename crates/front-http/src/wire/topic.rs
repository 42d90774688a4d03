//! Topics, subscriptions and the rules between them.

use malote_engine::{Binding, TopicFacts};
use malote_model::{Dedup, QueueName, TopicKind, TopicSpec};
use serde::{Deserialize, Serialize};

use super::message::Received;
use super::queue::QueueOut;
use super::receive::range;
use super::rule::{RuleIn, RuleOut};
use super::spec::{DedupIn, SpecIn, StatusWord, present};
use crate::limits::{PAGE_DEFAULT, PAGE_MAX};
use crate::problem::{Code, Problem};

/// A specification as written: what is absent stays as it is, or is the default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSpecIn {
    kind: Option<KindWord>,
    auto_delete: Option<bool>,
    internal: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    dedup: Option<Option<DedupIn>>,
    status: Option<StatusWord>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum KindWord {
    Filter,
    Direct,
    Fanout,
    Topic,
    Headers,
}

impl TopicSpecIn {
    /// `base` with what was written laid over it.
    pub fn over(self, base: TopicSpec) -> TopicSpec {
        let TopicSpecIn { kind, auto_delete, internal, dedup, status } = self;
        let kind = kind.map(|word| match word {
            KindWord::Filter => TopicKind::Filter,
            KindWord::Direct => TopicKind::Direct,
            KindWord::Fanout => TopicKind::Fanout,
            KindWord::Topic => TopicKind::Topic,
            KindWord::Headers => TopicKind::Headers,
        });
        TopicSpec {
            kind: kind.unwrap_or(base.kind),
            auto_delete: auto_delete.unwrap_or(base.auto_delete),
            internal: internal.unwrap_or(base.internal),
            dedup: dedup.map_or(base.dedup, |dedup| dedup.map(Dedup::from)),
            status: status.map_or(base.status, Into::into),
        }
    }
}

/// A specification as it is.
#[derive(Debug, Serialize)]
struct TopicSpecOut {
    kind: KindWord,
    auto_delete: bool,
    internal: bool,
    dedup: Option<DedupIn>,
    status: StatusWord,
}

impl From<TopicSpec> for TopicSpecOut {
    fn from(spec: TopicSpec) -> Self {
        let TopicSpec { kind, auto_delete, internal, dedup, status } = spec;
        let kind = match kind {
            TopicKind::Filter => KindWord::Filter,
            TopicKind::Direct => KindWord::Direct,
            TopicKind::Fanout => KindWord::Fanout,
            TopicKind::Topic => KindWord::Topic,
            TopicKind::Headers => KindWord::Headers,
        };
        let (dedup, status) = (dedup.map(DedupIn::from), status.into());
        Self { kind, auto_delete, internal, dedup, status }
    }
}

/// What a topic is and does.
#[derive(Debug, Serialize)]
pub struct TopicOut {
    name: String,
    created_at: u64,
    spec: TopicSpecOut,
    queues: u64,
    rules: u64,
    scheduled: u64,
    waiting: u64,
    totals: TopicTotalsOut,
}

#[derive(Debug, Serialize)]
struct TopicTotalsOut {
    copies: u64,
}

impl From<TopicFacts> for TopicOut {
    fn from(facts: TopicFacts) -> Self {
        let TopicFacts {
            name, spec, created_at, queues, rules, scheduled, waiting, totals, ..
        } = facts;
        Self {
            name: name.as_str().to_owned(),
            created_at: created_at.0,
            spec: spec.into(),
            queues,
            rules,
            scheduled,
            waiting,
            totals: TopicTotalsOut { copies: totals.copies },
        }
    }
}

/// Every topic that the caller may see; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct TopicsOut {
    /// By name.
    pub topics: Vec<TopicOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// A subscription as asked: its queue, and its rules.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubscribeIn {
    /// What its queue is to be.
    pub spec: SpecIn,
    /// What it takes; everything if absent, where the topic's kind has such a rule.
    pub rules: Option<Vec<RuleIn>>,
}

/// A subscription and the first of its rules.
#[derive(Debug, Serialize)]
pub struct SubscriptionOut {
    topic: String,
    name: String,
    queue: QueueOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<RuleOut>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
}

impl SubscriptionOut {
    /// Its queue, and, if it is shown alone, its rules and where they go on.
    pub fn new(topic: String, name: String, queue: QueueOut, rules: Option<RulesOut>) -> Self {
        let (rules, next) = match rules {
            Some(RulesOut { rules, next }) => {
                (Some(rules.into_iter().map(|bound| bound.rule).collect()), next)
            }
            None => (None, None),
        };
        Self { topic, name, queue, rules, next }
    }
}

/// Every subscription of a topic that the caller may see.
#[derive(Debug, Serialize)]
pub struct SubscriptionsOut {
    /// By name.
    pub subscriptions: Vec<SubscriptionOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// A page of rules.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulesQuery {
    /// Only those of this queue.
    pub queue: Option<String>,
    /// From after the rule of this queue …
    pub after_queue: Option<String>,
    /// … with this name.
    pub after_rule: Option<String>,
    /// At most so many.
    pub max: Option<u64>,
}

impl RulesQuery {
    /// Which queue, from after which rule, how many.
    #[allow(clippy::type_complexity)]
    pub fn read(self) -> Result<(Option<QueueName>, Option<(QueueName, String)>, usize), Problem> {
        let max = self.max.unwrap_or(PAGE_DEFAULT as u64);
        range("max", max, 1, PAGE_MAX as u64)?;
        let after = match (self.after_queue, self.after_rule) {
            (None, None) => None,
            (Some(queue), Some(rule)) => Some((QueueName::new(&queue)?, rule)),
            _ => {
                let why = "after_queue and after_rule stand together: `next` of a page has both";
                return Err(Problem::new(Code::BadQuery, why));
            }
        };
        Ok((self.queue.as_deref().map(QueueName::new).transpose()?, after, max as usize))
    }
}

/// Rules of a topic, by queue and name.
#[derive(Debug, Serialize)]
pub struct RulesOut {
    /// In order.
    pub rules: Vec<BoundOut>,
    /// Where to go on.
    pub next: Option<Next>,
}

/// A rule and the queue that it leads to.
#[derive(Debug, Serialize)]
pub struct BoundOut {
    queue: String,
    #[serde(flatten)]
    rule: RuleOut,
}

/// The `after_queue` and `after_rule` of the next page.
#[derive(Debug, Serialize)]
pub struct Next {
    queue: String,
    rule: String,
}

impl RulesOut {
    /// A page, of which some are shown; a full one may be followed by another.
    pub fn page(bindings: &[Binding], max: usize, shown: impl Fn(&QueueName) -> bool) -> Self {
        let last = bindings.last().filter(|_| bindings.len() >= max);
        let next = last.map(|last| Next {
            queue: last.queue.as_str().to_owned(),
            rule: last.rule.name.clone(),
        });
        let bound = |binding: &Binding| BoundOut {
            queue: binding.queue.as_str().to_owned(),
            rule: (&binding.rule).into(),
        };
        let shown = bindings.iter().filter(|binding| shown(&binding.queue));
        Self { rules: shown.map(bound).collect(), next }
    }
}

/// Whether a rule takes a message, and what becomes of the copy.
#[derive(Debug, Serialize)]
pub struct TestOut {
    /// Whether it does.
    pub matches: bool,
    /// The copy, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Received>,
}
