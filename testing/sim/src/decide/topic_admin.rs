//! Declares, changes and deletes topics, subscriptions and rules.

use std::collections::BTreeSet;

use malote_engine::command::Reply;
use malote_model::{QueueName, QueueSpec, Refusal, Rule, Seq, TopicKind, TopicName, TopicSpec};

use super::life::Life;
use super::{Model, Need};
use crate::model::{Availability, End, Ev};

/// A client's request about topics.
#[derive(Clone, Debug)]
pub enum TopicAsk {
    Declare { name: TopicName, spec: TopicSpec },
    Update { name: TopicName, spec: TopicSpec },
    Delete { name: TopicName },
    Subscribe { name: QueueName, spec: QueueSpec, rules: Option<Vec<Rule>> },
    Bind { topic: TopicName, queue: QueueName, rule: Rule },
    Rebind { topic: TopicName, queue: QueueName, rule: Rule },
    Unbind { topic: TopicName, queue: QueueName, rule: String },
    Cancel { topic: TopicName, seqs: Vec<Seq> },
}

impl Model {
    pub(super) fn check_topic(&self, ask: &TopicAsk) -> Result<(), Refusal> {
        let state = &self.state;
        let topic = |name: &TopicName| {
            state.topics.get(name).ok_or(Refusal::TopicNotFound { topic: name.clone() })
        };
        // The inbox stands for a topic that the rule leads to.
        let queue = |name: &QueueName| match name.inbox_of() {
            Some(of) => topic(&of).map(|_| state.queue(name)),
            None => state.queues.get(name).ok_or(Refusal::QueueNotFound { queue: name.clone() }),
        };
        match ask {
            TopicAsk::Declare { name, spec } => match state.topics.get(name) {
                Some(t) if t.spec != *spec => Err(Refusal::TopicDiffers {
                    topic: name.clone(),
                    field: "",
                    is: String::new(),
                    asked: String::new(),
                }),
                _ => spec.check(),
            },
            TopicAsk::Update { name, spec } => match topic(name)?.spec.kind == spec.kind {
                true => spec.check(),
                false => Err(Refusal::TopicDiffers {
                    topic: name.clone(),
                    field: "",
                    is: String::new(),
                    asked: String::new(),
                }),
            },
            TopicAsk::Delete { name } => topic(name).map(drop),
            TopicAsk::Subscribe { name, spec, rules } => {
                let (of, _) = name.subscription_of().expect("the name of a subscription");
                let t = topic(&of)?;
                match state.queues.get(name) {
                    Some(q) if q.spec == *spec => Ok(()),
                    Some(_) => Err(Refusal::QueueDiffers {
                        queue: name.clone(),
                        field: "",
                        is: String::new(),
                        asked: String::new(),
                    }),
                    None => {
                        rules.iter().flatten().try_for_each(|rule| t.spec.check_rule(rule))?;
                        self.check_target(name, spec)
                    }
                }
            }
            TopicAsk::Bind { topic: of, queue: name, rule } => {
                let (t, q) = (topic(of)?, queue(name)?);
                if q.owner.is_some() {
                    return Err(Refusal::DeadLetterSet { queue: name.clone(), why: "" });
                }
                if name.is_inbox() && rule.action.is_some() {
                    return Err(Refusal::BadSpec { field: "action", why: String::new() });
                }
                t.spec.check_rule(rule)?;
                match t.rules.get(name).and_then(|rules| rules.get(&rule.name)) {
                    Some(have) if have != rule => Err(Refusal::RuleDiffers {
                        topic: of.clone(),
                        target: name.clone().into(),
                        rule: rule.name.clone(),
                    }),
                    _ => Ok(()),
                }
            }
            TopicAsk::Rebind { topic: of, queue: name, rule } => {
                let (t, _) = (topic(of)?, queue(name)?);
                t.spec.check_rule(rule)?;
                match t.rules.get(name).and_then(|rules| rules.get(&rule.name)) {
                    Some(_) => Ok(()),
                    None => Err(Refusal::RuleNotFound {
                        topic: of.clone(),
                        target: name.clone().into(),
                        rule: rule.name.clone(),
                    }),
                }
            }
            TopicAsk::Unbind { topic: of, queue: name, rule } => {
                let (t, _) = (topic(of)?, queue(name)?);
                match t.rules.get(name).and_then(|rules| rules.get(rule)) {
                    Some(_) => Ok(()),
                    None => Err(Refusal::RuleNotFound {
                        topic: of.clone(),
                        target: name.clone().into(),
                        rule: rule.clone(),
                    }),
                }
            }
            TopicAsk::Cancel { topic: of, seqs } => {
                topic(of)?;
                let inbox = QueueName::inbox(of);
                let msgs = &state.queue(&inbox).msgs;
                let there = |seq: &Seq| {
                    msgs.get(&seq.0)
                        .is_some_and(|m| matches!(m.availability, Availability::Scheduled { .. }))
                };
                match seqs.iter().find(|seq| !there(seq)) {
                    Some(&seq) => Err(Refusal::MessageNotFound { queue: inbox, seq, what: "" }),
                    None => Ok(()),
                }
            }
        }
    }

    pub(super) fn topic_effect(&mut self, ask: &TopicAsk, reply: &Reply) -> Need {
        let durable = |model: &Self| Need { durable: model.end, ..Need::default() };
        match (ask, reply) {
            (TopicAsk::Declare { name, spec }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.topics.contains_key(name), "declared {name}");
                if !created {
                    return Need { durable: self.state.topic(name).eager, ..Need::default() };
                }
                self.note(Ev::DeclareTopic { name: name.clone(), spec: spec.clone() });
                durable(self)
            }
            (TopicAsk::Update { name, spec }, Reply::Done) => {
                let (name, spec, at) = (name.clone(), spec.clone(), self.now);
                self.note(Ev::UpdateTopic { name, spec, at });
                durable(self)
            }
            (TopicAsk::Rebind { topic, queue, rule }, Reply::Done) => {
                let (topic, queue) = (topic.clone(), queue.clone());
                self.note(Ev::Bind { topic, queue, rule: Box::new(rule.clone()) });
                durable(self)
            }
            (TopicAsk::Delete { name }, Reply::Done) => {
                self.delete_topic(name);
                durable(self)
            }
            (TopicAsk::Subscribe { name, spec, rules }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.queues.contains_key(name), "subscribed {name}");
                if !created {
                    return self.eager(name);
                }
                self.note(Ev::Declare { name: name.clone(), spec: spec.clone() });
                self.lives.insert(name.clone(), Life::new(self.now, None));
                let (topic, _) = name.subscription_of().expect("the name of a subscription");
                let kind = self.state.topic(&topic).spec.kind;
                for rule in rules.clone().unwrap_or_else(|| default_rules(kind)) {
                    let (topic, queue) = (topic.clone(), name.clone());
                    self.note(Ev::Bind { topic, queue, rule: Box::new(rule) });
                }
                durable(self)
            }
            (TopicAsk::Bind { topic, queue, rule }, Reply::Declared { created }) => {
                let have = self.state.topic(topic).rules.get(queue);
                let have = have.is_some_and(|rules| rules.contains_key(&rule.name));
                assert_eq!(*created, !have, "bound {queue} to {topic}");
                if have {
                    return Need { durable: self.state.topic(topic).eager, ..Need::default() };
                }
                let (topic, queue) = (topic.clone(), queue.clone());
                self.note(Ev::Bind { topic, queue, rule: Box::new(rule.clone()) });
                durable(self)
            }
            (TopicAsk::Unbind { topic, queue, rule }, Reply::Done) => {
                let (topic, queue) = (topic.clone(), queue.clone());
                self.note(Ev::Unbind { topic, queue, rule: rule.clone() });
                self.fall();
                durable(self)
            }
            (TopicAsk::Cancel { topic, seqs }, Reply::Count(count)) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                assert_eq!(*count, seqs.len() as u64, "number of cancelled messages");
                let queue = QueueName::inbox(topic);
                for &seq in &seqs {
                    let (queue, end) = (queue.clone(), End::Cancelled);
                    self.note(Ev::Gone { queue, seq, end });
                }
                if seqs.is_empty() { Need::default() } else { durable(self) }
            }
            (ask, reply) => panic!("{ask:?} was answered with {reply:?}"),
        }
    }
}

/// The default rules of a subscription.
fn default_rules(kind: TopicKind) -> Vec<Rule> {
    let all = Rule { name: "$Default".into(), filter: malote_model::Filter::All, action: None };
    match kind {
        TopicKind::Filter | TopicKind::Fanout => vec![all],
        TopicKind::Direct
        | TopicKind::Topic
        | TopicKind::Headers
        | TopicKind::Hash
        | TopicKind::Queue => Vec::new(),
    }
}
