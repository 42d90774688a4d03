//! The topics of a world, and requests about them.

use std::rc::Rc;
use std::sync::Arc;

use malote_model::{
    Address, Correlation, DeadLetterTarget, Dedup, Filter, Headers, HeadersMatch, Properties,
    QueueName, Rule, Seq, Sessions, SqlAction, SqlFilter, TopicKind, TopicName, TopicSpec, Value,
};

use super::specs::spec;
use super::{Clients, PASSING, RELAYS, SESSIONS, name, pick, session};
use crate::decide::matching::{ACTIONS, CONDITIONS};
use crate::decide::{Ask, TopicAsk};
use crate::model::{Availability, SentMessage, State};
use crate::rng::Rng;

pub(super) const SUBJECT: &str = "red";

const TOPICS: [(&str, TopicKind); 7] = [
    ("fan", TopicKind::Fanout),
    ("direct", TopicKind::Direct),
    ("filter", TopicKind::Filter),
    ("words", TopicKind::Topic),
    ("heads", TopicKind::Headers),
    ("shares", TopicKind::Hash),
    // Twice, because it has the most kinds of rules.
    ("filter", TopicKind::Filter),
];

const KEYS: [&str; 4] = ["k1", "k2", "k2.a", "k2.a.b"];
const PATTERNS: [&str; 6] = ["#", "*", "k2.*", "k2.#", "#.a.*", "*.a"];
const COLOURS: [&str; 2] = ["red", "blue"];

fn any<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// One of few routing keys.
pub(super) fn key(rng: &mut Rng) -> Option<String> {
    rng.chance(60).then(|| any(rng, &KEYS).to_owned())
}

/// Properties that rules look for, in some messages.
pub(super) fn properties(rng: &mut Rng, properties: &mut Properties) {
    if rng.chance(50) {
        properties.set("colour", Value::String(any(rng, &COLOURS).into()));
    }
    if rng.chance(20) {
        properties.set("x-way", Value::String("up".into()));
    }
}

/// A target for forwarding: a queue or topic, which may not exist or may lead back.
pub(super) fn forward(rng: &mut Rng) -> Address {
    let queues = [RELAYS[0], RELAYS[1], RELAYS[0], RELAYS[1], "plain", "dynamic", "other", PASSING];
    match rng.chance(60) {
        true => name(any(rng, &queues)).into(),
        // This kind has actions that change messages, so cycles should include it.
        false if rng.chance(40) => topic(TOPICS[2].0).into(),
        false => topic(any(rng, &TOPICS).0).into(),
    }
}

/// A topic for dead letters, with the original routing key or another one.
pub(super) fn dead_letter(rng: &mut Rng) -> DeadLetterTarget {
    let topic = topic(any(rng, &TOPICS).0);
    DeadLetterTarget::Topic { topic, key: key(rng).filter(|_| rng.chance(50)) }
}

fn topic_spec(rng: &mut Rng, kind: TopicKind) -> TopicSpec {
    let window_ms = [100, 2000, 20_000][rng.below(3) as usize];
    let dedup = Dedup { window_ms, per_session: false, content: rng.chance(50) };
    TopicSpec {
        kind,
        dedup: rng.chance(30).then_some(dedup),
        auto_delete: rng.chance(30),
        internal: rng.chance(8),
        alternate: rng.chance(20).then(|| topic(any(rng, &TOPICS).0)),
        ..TopicSpec::default()
    }
}

/// A new specification for a topic. A different kind is rare, because it is refused.
fn updated(rng: &mut Rng, had: &TopicSpec, has_rules: bool) -> TopicSpec {
    let kind = if rng.chance(5) { TopicKind::Filter } else { had.kind };
    let mut spec = TopicSpec { kind, internal: rng.chance(8), ..had.clone() };
    if rng.chance(40) {
        spec.dedup = match had.dedup {
            Some(_) if rng.chance(50) => None,
            _ => topic_spec(rng, kind).dedup,
        };
    }
    // An auto-delete topic without rules would be deleted at once.
    if has_rules {
        spec.auto_delete = rng.chance(30);
    }
    spec
}

/// A rule that is valid for a topic of this kind.
fn rule(rng: &mut Rng, kind: TopicKind) -> Rule {
    let filter = match (kind, rng.below(12)) {
        (TopicKind::Fanout, _) | (TopicKind::Filter, 0) => Filter::All,
        (TopicKind::Direct, _) | (TopicKind::Filter, 1) => Filter::Key(any(rng, &KEYS).into()),
        (TopicKind::Topic, _) | (TopicKind::Filter, 2) => {
            Filter::Pattern(any(rng, &PATTERNS).into())
        }
        (TopicKind::Headers, _) | (TopicKind::Filter, 3) => Filter::Headers(headers(rng)),
        (TopicKind::Hash, _) => Filter::Weight(rng.below(3) as u32),
        (_, 4) => Filter::None,
        (_, 5..9) => {
            let (text, _) = any(rng, &CONDITIONS);
            let sql = SqlFilter::new(text, Vec::new());
            Filter::Sql(sql.unwrap_or_else(|refusal| panic!("{refusal}")))
        }
        _ => {
            let subject = rng.chance(60).then(|| SUBJECT.to_owned());
            let key = rng.chance(30).then(|| any(rng, &KEYS).to_owned());
            let colour = Value::String(any(rng, &COLOURS).into());
            let properties = if rng.chance(30) { vec![("colour".into(), colour)] } else { vec![] };
            let wanted = Correlation { subject, key, properties, ..Correlation::default() };
            Filter::Correlation(Arc::new(wanted))
        }
    };
    let action = (kind == TopicKind::Filter && rng.chance(40)).then(|| {
        let action = SqlAction::new(any(rng, &ACTIONS).0, Vec::new());
        action.unwrap_or_else(|refusal| panic!("{refusal}"))
    });
    Rule { name: format!("r{}", rng.below(4)), filter, action }
}

fn headers(rng: &mut Rng) -> Headers {
    let modes =
        [HeadersMatch::All, HeadersMatch::Any, HeadersMatch::AllWithX, HeadersMatch::AnyWithX];
    let colour = rng.chance(70).then(|| Value::String(any(rng, &COLOURS).into()));
    let mut values = vec![
        (String::from("colour"), colour),
        (String::from("x-way"), Some(Value::String("up".into()))),
        (String::from("p0"), None),
    ];
    values.retain(|_| rng.chance(60));
    Headers { mode: any(rng, &modes), values }
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
    let takes_all = matches!(kind, TopicKind::Filter | TopicKind::Fanout);
    let mut rules = None;
    if !takes_all || rng.chance(40) {
        let mut some: Vec<_> = (0..1 + rng.below(2)).map(|_| rule(rng, kind)).collect();
        some.dedup_by(|a, b| a.name == b.name);
        rules = Some(some);
    }
    let mut spec = spec(rng, sessions);
    if !spec.sessions.required() && rng.chance(20) {
        spec.forward_to = Some(forward(rng));
    }
    TopicAsk::Subscribe { name: subscription(topic, of), spec, rules }
}

/// The topics of a new world, with subscriptions and bound queues.
pub(crate) fn begin(rng: &mut Rng) -> Vec<TopicAsk> {
    let mut asks = Vec::new();
    for (of, kind) in TOPICS.into_iter().take(6) {
        if rng.chance(15) {
            continue;
        }
        asks.push(TopicAsk::Declare { name: topic(of), spec: topic_spec(rng, kind) });
        for subscription in ["a", "b"].iter().take(1 + rng.below(2) as usize) {
            asks.push(subscribe(rng, of, subscription, kind));
        }
        if rng.chance(25) {
            let queue = QueueName::inbox(&topic(any(rng, &TOPICS).0));
            let rule = Rule { action: None, ..rule(rng, kind) };
            asks.push(TopicAsk::Bind { topic: topic(of), queue, rule });
        }
        for queue in ["plain", "dynamic", "other", RELAYS[0], RELAYS[1]] {
            if rng.chance(30) {
                let (topic, rule) = (topic(of), rule(rng, kind));
                asks.push(TopicAsk::Bind { topic, queue: name(queue), rule });
            }
        }
    }
    asks
}

impl Clients {
    /// A random address for a message.
    pub(super) fn address(&self, rng: &mut Rng) -> Address {
        match rng.chance(35) {
            true => topic(any(rng, &TOPICS).0).into(),
            false => self.queue(rng).into(),
        }
    }

    pub(super) fn publication(
        &mut self,
        rng: &mut Rng,
        topic: &TopicName,
        state: &State,
        now: u64,
    ) -> Rc<SentMessage> {
        let known = state.topics.get(topic).is_some_and(|t| t.spec.dedup.is_some());
        let wants = rng.chance(70);
        self.sent_message(rng, wants, known, now)
    }

    /// Removes all rules of an auto-delete topic; instead of the last rule perhaps the subscription that has it.
    pub(super) fn last_rules(&self, rng: &mut Rng, state: &State) -> Option<Vec<(usize, Ask)>> {
        let auto = state.topics.iter().filter(|(_, t)| t.spec.auto_delete && !t.rules.is_empty());
        let auto: Vec<_> = auto.collect();
        let (name, t) = *pick(rng, &auto)?;
        let all = t.rules.iter().flat_map(|(queue, rules)| rules.keys().map(move |r| (queue, r)));
        let unbind = |(queue, rule): (&QueueName, &String)| {
            let (topic, queue, rule) = (name.clone(), queue.clone(), rule.clone());
            (0, Ask::Topic(TopicAsk::Unbind { topic, queue, rule }))
        };
        let mut asks: Vec<_> = all.map(unbind).collect();
        let last = t.rules.keys().next_back().filter(|queue| queue.subscription_of().is_some());
        if let Some(queue) = last.filter(|_| rng.chance(50)) {
            asks.pop();
            asks.push((0, Ask::Delete { name: queue.clone() }));
        }
        Some(asks)
    }

    /// A random request about topics.
    pub(super) fn topic(&mut self, rng: &mut Rng, state: &State) -> Option<TopicAsk> {
        let (of, kind) = any(rng, &TOPICS);
        let name = topic(of);
        let Some(t) = state.topics.get(&name) else {
            return Some(TopicAsk::Declare { name, spec: topic_spec(rng, kind) });
        };
        Some(match rng.below(10) {
            0 if rng.chance(30) => {
                let spec = if rng.chance(70) { t.spec.clone() } else { topic_spec(rng, kind) };
                TopicAsk::Declare { name, spec }
            }
            0..3 => {
                let subscription = ["a", "b", "c"][rng.below(3) as usize];
                subscribe(rng, of, subscription, kind)
            }
            3..5 => {
                let kind = if rng.chance(5) { TopicKind::Filter } else { kind };
                let queue = match rng.chance(25) {
                    true => QueueName::inbox(&topic(any(rng, &TOPICS).0)),
                    false => self.queue(rng),
                };
                TopicAsk::Bind { topic: name, queue, rule: rule(rng, kind) }
            }
            5 if rng.chance(70) => {
                // Replace a rule by one of the same name; sometimes the name does not exist.
                let all = t.rules.iter().flat_map(|(q, rules)| rules.keys().map(move |r| (q, r)));
                let all: Vec<_> = all.collect();
                let (queue, named) = *pick(rng, &all)?;
                let mut rule = rule(rng, kind);
                if rng.chance(90) {
                    rule.name = named.clone();
                }
                TopicAsk::Rebind { topic: name, queue: queue.clone(), rule }
            }
            6 if rng.chance(70) => {
                TopicAsk::Update { name, spec: updated(rng, &t.spec, !t.rules.is_empty()) }
            }
            5..8 => {
                let all = t.rules.iter().flat_map(|(q, rules)| rules.keys().map(move |r| (q, r)));
                let all: Vec<_> = all.collect();
                let (queue, rule) = *pick(rng, &all)?;
                TopicAsk::Unbind { topic: name, queue: queue.clone(), rule: rule.clone() }
            }
            8 if rng.chance(40) => TopicAsk::Delete { name },
            _ => {
                let inbox = state.queue(&QueueName::inbox(&name));
                let later = inbox
                    .msgs
                    .iter()
                    .filter(|(_, m)| matches!(m.availability, Availability::Scheduled { .. }));
                let mut seqs: Vec<_> = later.map(|(&seq, _)| Seq(seq)).take(2).collect();
                if rng.chance(10) {
                    seqs.push(Seq(1));
                }
                TopicAsk::Cancel { topic: name, seqs }
            }
        })
    }
}
