//! The topics of a world, and what is asked of them.

use std::rc::Rc;
use std::sync::Arc;

use malote_model::{
    Address, Correlation, DeadLetterTarget, Dedup, Filter, QueueName, Rule, Seq, Sessions,
    SqlAction, SqlFilter, TopicKind, TopicName, TopicSpec,
};

use super::specs::spec;
use super::{Clients, SESSIONS, name, pick, session};
use crate::decide::TopicAsk;
use crate::model::{Letter, Place, State};
use crate::rng::Rng;

pub(super) const SUBJECT: &str = "red";

const TOPICS: [(&str, TopicKind); 3] =
    [("fan", TopicKind::Fanout), ("direct", TopicKind::Direct), ("filter", TopicKind::Filter)];

const KEYS: [&str; 3] = ["k1", "k2", "k3"];

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// A routing key, of few.
pub(super) fn key(rng: &mut Rng) -> Option<String> {
    rng.chance(60).then(|| KEYS[rng.below(3) as usize].to_owned())
}

/// Dead letters go through one of them, under their own key or another.
pub(super) fn dead_letter(rng: &mut Rng) -> DeadLetterTarget {
    let topic = topic(TOPICS[rng.below(3) as usize].0);
    DeadLetterTarget::Topic { topic, key: key(rng).filter(|_| rng.chance(50)) }
}

fn topic_spec(rng: &mut Rng, kind: TopicKind) -> TopicSpec {
    let window_ms = [100, 2000, 20_000][rng.below(3) as usize];
    let dedup = Dedup { window_ms, per_session: false, content: rng.chance(50) };
    TopicSpec { kind, dedup: rng.chance(30).then_some(dedup), ..TopicSpec::default() }
}

/// A rule that a topic of this kind takes.
fn rule(rng: &mut Rng, kind: TopicKind) -> Rule {
    let sql = |text: &str| {
        Filter::Sql(SqlFilter::new(text, Vec::new()).unwrap_or_else(|refusal| panic!("{refusal}")))
    };
    let filter = match (kind, rng.below(4)) {
        (TopicKind::Fanout, _) | (TopicKind::Filter, 0) => Filter::All,
        (TopicKind::Direct, _) => Filter::Key(KEYS[rng.below(3) as usize].into()),
        (_, 1) => sql("p0 > 10 OR sys.Label = 'red'"),
        (_, 2) => sql("p1 IS NULL"),
        _ => {
            let subject = Some(SUBJECT.to_owned());
            Filter::Correlation(Arc::new(Correlation { subject, ..Correlation::default() }))
        }
    };
    let text = ["SET p0 = 1; SET by = 'a rule'", "REMOVE p1; SET sys.Label = 'blue'"];
    let action = (kind == TopicKind::Filter && rng.chance(40)).then(|| {
        let action = SqlAction::new(text[rng.below(2) as usize], Vec::new());
        action.unwrap_or_else(|refusal| panic!("{refusal}"))
    });
    Rule { name: format!("r{}", rng.below(4)), filter, action }
}

fn subscription(topic: &str, of: &str) -> QueueName {
    name(&format!("{topic}/Subscriptions/{of}"))
}

fn subscribe(rng: &mut Rng, topic: &str, of: &str, kind: TopicKind) -> TopicAsk {
    let sessions = match rng.below(4) {
        0 | 1 => Sessions::None,
        2 => Sessions::Dynamic,
        _ => Sessions::Fixed(SESSIONS[..2].iter().map(|id| session(id)).collect()),
    };
    let mut rules = None;
    if kind == TopicKind::Direct || rng.chance(40) {
        let mut some: Vec<_> = (0..1 + rng.below(2)).map(|_| rule(rng, kind)).collect();
        some.dedup_by(|a, b| a.name == b.name);
        rules = Some(some);
    }
    TopicAsk::Subscribe { name: subscription(topic, of), spec: spec(rng, sessions), rules }
}

/// The topics that a world begins with: two or three, with subscriptions and queues that are bound.
pub(crate) fn begin(rng: &mut Rng) -> Vec<TopicAsk> {
    let mut asks = Vec::new();
    for (of, kind) in TOPICS {
        if rng.chance(15) {
            continue;
        }
        asks.push(TopicAsk::Declare { name: topic(of), spec: topic_spec(rng, kind) });
        for subscription in ["a", "b"].iter().take(1 + rng.below(2) as usize) {
            asks.push(subscribe(rng, of, subscription, kind));
        }
        for queue in ["plain", "dynamic", "other"] {
            if rng.chance(30) {
                let (topic, rule) = (topic(of), rule(rng, kind));
                asks.push(TopicAsk::Bind { topic, queue: name(queue), rule });
            }
        }
    }
    asks
}

impl Clients {
    /// Where a message goes.
    pub(super) fn address(&self, rng: &mut Rng) -> Address {
        match rng.chance(30) {
            true => topic(TOPICS[rng.below(3) as usize].0).into(),
            false => self.queue(rng).into(),
        }
    }

    /// A message for a topic.
    pub(super) fn publication(
        &mut self,
        rng: &mut Rng,
        topic: &TopicName,
        state: &State,
        now: u64,
    ) -> Rc<Letter> {
        let known = state.topics.get(topic).is_some_and(|t| t.spec.dedup.is_some());
        let wants = rng.chance(70);
        self.letter(rng, wants, known, now)
    }

    /// Something about topics.
    pub(super) fn topic(&mut self, rng: &mut Rng, state: &State) -> Option<TopicAsk> {
        let (of, kind) = TOPICS[rng.below(3) as usize];
        let name = topic(of);
        let Some(t) = state.topics.get(&name) else {
            return Some(TopicAsk::Declare { name, spec: topic_spec(rng, kind) });
        };
        Some(match rng.below(10) {
            0 => {
                let spec = if rng.chance(70) { t.spec.clone() } else { topic_spec(rng, kind) };
                TopicAsk::Declare { name, spec }
            }
            1 | 2 => {
                let subscription = ["a", "b", "c"][rng.below(3) as usize];
                subscribe(rng, of, subscription, kind)
            }
            3..6 => {
                let kind = if rng.chance(5) { TopicKind::Filter } else { kind };
                TopicAsk::Bind { topic: name, queue: self.queue(rng), rule: rule(rng, kind) }
            }
            6 | 7 => {
                let all = t.rules.iter().flat_map(|(q, rules)| rules.keys().map(move |r| (q, r)));
                let all: Vec<_> = all.collect();
                let (queue, rule) = *pick(rng, &all)?;
                TopicAsk::Unbind { topic: name, queue: queue.clone(), rule: rule.clone() }
            }
            8 if rng.chance(30) => TopicAsk::Delete { name },
            _ => {
                let inbox = state.queue(&QueueName::inbox(&name));
                let later =
                    inbox.msgs.iter().filter(|(_, m)| matches!(m.place, Place::Scheduled { .. }));
                let mut seqs: Vec<_> = later.map(|(&seq, _)| Seq(seq)).take(2).collect();
                if rng.chance(10) {
                    seqs.push(Seq(1));
                }
                TopicAsk::Cancel { topic: name, seqs }
            }
        })
    }
}
