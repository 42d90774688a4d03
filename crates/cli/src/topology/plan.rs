//! What has to change so that what is there becomes what is wanted.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::{QueueName, TopicName};
use serde::Serialize;
use serde_json::Value;

use super::{Fields, Rules, Subscription, Topology};
use crate::output::Row;

/// Fields of a queue that an update cannot change.
const FIXED: [&str; 3] = ["sessions", "priority_max", "exclusive"];

/// All changes, in the order in which they can be made.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    pub change: Word,
    pub kind: Kind,
    pub name: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
    #[serde(skip)]
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    Create,
    Update,
    Remove,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Queue,
    Topic,
    Subscription,
    Rule,
}

/// What is asked of the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// It cannot be.
    Nothing,
    MakeTopic(TopicName, Fields),
    RemoveTopic(TopicName),
    MakeQueue(QueueName, Fields),
    Subscribe(QueueName, Fields, Rules),
    /// Only these fields.
    Change(QueueName, Fields),
    /// Of a queue or of a subscription.
    RemoveQueue(QueueName),
    AddRule(TopicName, QueueName, String, Fields),
    ReplaceRule(TopicName, QueueName, String, Fields),
    RemoveRule(TopicName, QueueName, String),
}

impl Change {
    pub(super) fn is_refused(&self) -> bool {
        self.change == Word::Refused
    }

    pub(super) fn is_removal(&self) -> bool {
        self.change == Word::Remove
    }
}

impl Row for Change {
    const HEAD: &'static [&'static str] = &["CHANGE", "KIND", "NAME", "WHAT"];

    fn row(&self) -> Vec<String> {
        let change = match self.change {
            Word::Create => "create",
            Word::Update => "update",
            Word::Remove => "remove",
            Word::Refused => "refused",
        };
        let kind = match self.kind {
            Kind::Queue => "queue",
            Kind::Topic => "topic",
            Kind::Subscription => "subscription",
            Kind::Rule => "rule",
        };
        vec![change.to_owned(), kind.to_owned(), self.name.clone(), self.what.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Something with a queue's specification.
struct Wanted<'a> {
    kind: Kind,
    queue: QueueName,
    spec: &'a Fields,
    rules: Option<&'a Rules>,
    have: Option<&'a Fields>,
}

impl Plan {
    pub(super) fn between(have: &Topology, wanted: &Topology, prune: bool) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        plan.topics(have, wanted)?;
        plan.queues(have, wanted)?;
        plan.rules(have, wanted, prune)?;
        if prune {
            plan.removals(have, wanted)?;
        }
        Ok(plan)
    }

    fn push(&mut self, change: Word, kind: Kind, name: &str, what: String, step: Step) {
        self.changes.push(Change { change, kind, name: name.to_owned(), what, step });
    }

    fn topics(&mut self, have: &Topology, wanted: &Topology) -> anyhow::Result<()> {
        for (name, topic) in &wanted.topics {
            let id = TopicName::new(name)?;
            match have.topics.get(name) {
                None => {
                    let step = Step::MakeTopic(id, topic.spec.clone());
                    self.push(Word::Create, Kind::Topic, name, String::new(), step);
                }
                Some(there) => {
                    for (field, is, asked) in differences(&there.spec, &topic.spec) {
                        let what = format!("{field} is {is}, not {asked}: remove it first");
                        self.push(Word::Refused, Kind::Topic, name, what, Step::Nothing);
                    }
                }
            }
        }
        Ok(())
    }

    /// Queues and subscriptions; what dead letters go to stands before what sends them there.
    fn queues(&mut self, have: &Topology, wanted: &Topology) -> anyhow::Result<()> {
        let mut left: BTreeMap<String, Wanted<'_>> = BTreeMap::new();
        for (name, spec) in &wanted.queues {
            let queue = QueueName::new(name)?;
            let have = have.queues.get(name);
            left.insert(name.clone(), Wanted { kind: Kind::Queue, queue, spec, rules: None, have });
        }
        for (topic, found) in &wanted.topics {
            let id = TopicName::new(topic)?;
            for (name, Subscription { spec, rules }) in &found.subscriptions {
                let queue = QueueName::subscription(&id, name)?;
                let there = have.topics.get(topic).and_then(|topic| topic.subscriptions.get(name));
                let have = there.map(|there| &there.spec);
                let kind = Kind::Subscription;
                let rules = Some(rules);
                left.insert(queue.as_str().to_owned(), Wanted { kind, queue, spec, rules, have });
            }
        }
        let mut late = Vec::new();
        while !left.is_empty() {
            let waits = |wanted: &Wanted<'_>| {
                let target = wanted.spec.get("dead_letter").and_then(|to| to["queue"].as_str());
                target.is_some_and(|target| {
                    target != wanted.queue.as_str() && left.contains_key(target)
                })
            };
            let ready =
                left.iter().find(|(_, wanted)| !waits(wanted)).map(|(name, _)| name.clone());
            // A circle: one of it is made without its target, and gets it at the end.
            let circle = ready.is_none();
            let Some(next) = ready.or_else(|| left.keys().next().cloned()) else { break };
            let Some(wanted) = left.remove(&next) else { break };
            late.extend(self.queue(&wanted, circle));
        }
        self.changes.extend(late);
        Ok(())
    }

    fn queue(&mut self, wanted: &Wanted<'_>, circle: bool) -> Option<Change> {
        let Wanted { kind, queue, spec, rules, have } = wanted;
        let name = queue.as_str();
        let Some(have) = have else {
            let mut first = (*spec).clone();
            let target = first.get("dead_letter").cloned().filter(|_| circle);
            if target.is_some() {
                first.insert("dead_letter".into(), "own".into());
            }
            let step = match rules {
                Some(rules) => Step::Subscribe(queue.clone(), first, (*rules).clone()),
                None => Step::MakeQueue(queue.clone(), first),
            };
            self.push(Word::Create, *kind, name, String::new(), step);
            return target.map(|target| {
                let what = format!("dead_letter: own → {}", text(&target));
                let fields = Fields::from_iter([("dead_letter".to_owned(), target)]);
                let step = Step::Change(queue.clone(), fields);
                Change { change: Word::Update, kind: *kind, name: name.to_owned(), what, step }
            });
        };
        let mut fields = Fields::new();
        let mut what = Vec::new();
        for (field, is, asked) in differences(have, spec) {
            if FIXED.contains(&field.as_str()) {
                let what = format!("{field} is {is}, not {asked}, and cannot be changed");
                self.push(Word::Refused, *kind, name, what, Step::Nothing);
                continue;
            }
            what.push(format!("{field}: {is} → {asked}"));
            fields.insert(field.clone(), spec.get(&field).cloned().unwrap_or(Value::Null));
        }
        if !fields.is_empty() {
            let step = Step::Change(queue.clone(), fields);
            self.push(Word::Update, *kind, name, what.join(", "), step);
        }
        None
    }

    /// Rules of what is there already, and of queues that are bound.
    fn rules(&mut self, have: &Topology, wanted: &Topology, prune: bool) -> anyhow::Result<()> {
        let none = Rules::new();
        for (name, topic) in &wanted.topics {
            let id = TopicName::new(name)?;
            let there = have.topics.get(name);
            for (subscription, Subscription { rules, .. }) in &topic.subscriptions {
                // A new one is made with its rules.
                let found = there.and_then(|topic| topic.subscriptions.get(subscription));
                if let Some(found) = found {
                    let queue = QueueName::subscription(&id, subscription)?;
                    self.rules_of(&id, &queue, &found.rules, rules, prune);
                }
            }
            for (queue, rules) in &topic.bindings {
                let found = there.and_then(|topic| topic.bindings.get(queue)).unwrap_or(&none);
                self.rules_of(&id, &QueueName::new(queue)?, found, rules, prune);
            }
            let bound = there.map(|topic| &topic.bindings).into_iter().flatten();
            for (queue, found) in bound.filter(|(q, _)| !topic.bindings.contains_key(*q)) {
                self.rules_of(&id, &QueueName::new(queue)?, found, &none, prune);
            }
        }
        Ok(())
    }

    fn rules_of(
        &mut self,
        topic: &TopicName,
        queue: &QueueName,
        have: &Rules,
        wanted: &Rules,
        prune: bool,
    ) {
        let at = |rule: &str| format!("{topic} → {queue}: {rule}");
        for (name, rule) in wanted {
            let (topic, queue, of) = (topic.clone(), queue.clone(), name.clone());
            let shown = text(&Value::Object(rule.clone()));
            match have.get(name) {
                None => {
                    let step = Step::AddRule(topic, queue, of, rule.clone());
                    self.push(Word::Create, Kind::Rule, &at(name), shown, step);
                }
                Some(there) if there != rule => {
                    let was = text(&Value::Object(there.clone()));
                    let step = Step::ReplaceRule(topic, queue, of, rule.clone());
                    let what = format!("{was} → {shown}");
                    self.push(Word::Update, Kind::Rule, &at(name), what, step);
                }
                Some(_) => {}
            }
        }
        for name in have.keys().filter(|name| prune && !wanted.contains_key(*name)) {
            let step = Step::RemoveRule(topic.clone(), queue.clone(), name.clone());
            self.push(Word::Remove, Kind::Rule, &at(name), String::new(), step);
        }
    }

    fn removals(&mut self, have: &Topology, wanted: &Topology) -> anyhow::Result<()> {
        for (name, topic) in &have.topics {
            let id = TopicName::new(name)?;
            let Some(kept) = wanted.topics.get(name) else {
                let what = match topic.subscriptions.len() {
                    0 => String::new(),
                    n => format!("with its subscriptions: {n}"),
                };
                self.push(Word::Remove, Kind::Topic, name, what, Step::RemoveTopic(id));
                continue;
            };
            let gone = topic.subscriptions.keys();
            for subscription in gone.filter(|name| !kept.subscriptions.contains_key(*name)) {
                let queue = QueueName::subscription(&id, subscription)?;
                let step = Step::RemoveQueue(queue.clone());
                self.push(Word::Remove, Kind::Subscription, queue.as_str(), String::new(), step);
            }
        }
        // Those that send their dead letters to others go before them.
        let gone = have.queues.keys().filter(|name| !wanted.queues.contains_key(*name));
        let mut left: BTreeSet<&String> = gone.collect();
        while !left.is_empty() {
            let needed = |name: &str| {
                left.iter().any(|other| {
                    let to = have.queues.get(*other).and_then(|spec| spec.get("dead_letter"));
                    other.as_str() != name && to.is_some_and(|to| to["queue"] == name)
                })
            };
            let free = left.iter().find(|name| !needed(name)).copied();
            let Some(next) = free.or_else(|| left.first().copied()) else { break };
            left.remove(next);
            let step = Step::RemoveQueue(QueueName::new(next)?);
            self.push(Word::Remove, Kind::Queue, next, String::new(), step);
        }
        Ok(())
    }
}

/// The fields that differ: name, what is, what is asked.
fn differences(have: &Fields, wanted: &Fields) -> Vec<(String, String, String)> {
    let differs = |(name, _): &(&String, &Value)| have.get(*name) != wanted.get(*name);
    let of = |(name, asked): (&String, &Value)| {
        (name.clone(), have.get(name).map_or_else(|| "absent".into(), text), text(asked))
    };
    wanted.iter().filter(differs).map(of).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
