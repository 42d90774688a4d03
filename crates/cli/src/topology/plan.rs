//! The changes that turn the current objects into the desired ones.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::{QueueName, TopicName};
use serde::Serialize;
use serde_json::Value;

use super::{Fields, Rules, Subscription, Topology};
use crate::output::Row;

/// Fields of a queue that an update cannot change.
const FIXED: [&str; 3] = ["sessions", "priority_max", "exclusive"];

/// All changes, in an order in which they can be applied.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    pub change: ChangeKind,
    pub kind: ObjectKind,
    pub name: String,
    /// Details for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
    #[serde(skip)]
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChangeKind {
    Create,
    Update,
    Remove,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObjectKind {
    Queue,
    Topic,
    Subscription,
    Rule,
}

/// A call to the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The change is refused.
    None,
    CreateTopic(TopicName, Fields),
    RemoveTopic(TopicName),
    CreateQueue(QueueName, Fields),
    Subscribe(QueueName, Fields, Rules),
    /// Changes only these fields.
    UpdateQueue(QueueName, Fields),
    /// Deletes a queue or a subscription.
    RemoveQueue(QueueName),
    AddRule(TopicName, QueueName, String, Fields),
    ReplaceRule(TopicName, QueueName, String, Fields),
    RemoveRule(TopicName, QueueName, String),
}

impl Change {
    pub(super) fn is_refused(&self) -> bool {
        self.change == ChangeKind::Refused
    }

    pub(super) fn is_removal(&self) -> bool {
        self.change == ChangeKind::Remove
    }
}

impl Row for Change {
    const HEAD: &'static [&'static str] = &["CHANGE", "KIND", "NAME", "WHAT"];

    fn row(&self) -> Vec<String> {
        let change = match self.change {
            ChangeKind::Create => "create",
            ChangeKind::Update => "update",
            ChangeKind::Remove => "remove",
            ChangeKind::Refused => "refused",
        };
        let kind = match self.kind {
            ObjectKind::Queue => "queue",
            ObjectKind::Topic => "topic",
            ObjectKind::Subscription => "subscription",
            ObjectKind::Rule => "rule",
        };
        vec![change.to_owned(), kind.to_owned(), self.name.clone(), self.what.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// A queue or subscription of the file.
struct DesiredQueue<'a> {
    kind: ObjectKind,
    queue: QueueName,
    spec: &'a Fields,
    rules: Option<&'a Rules>,
    current: Option<&'a Fields>,
}

impl Plan {
    pub(super) fn between(
        current: &Topology,
        desired: &Topology,
        prune: bool,
    ) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        plan.topics(current, desired)?;
        plan.queues(current, desired)?;
        plan.rules(current, desired, prune)?;
        if prune {
            plan.removals(current, desired)?;
        }
        Ok(plan)
    }

    fn push(&mut self, change: ChangeKind, kind: ObjectKind, name: &str, what: String, step: Step) {
        self.changes.push(Change { change, kind, name: name.to_owned(), what, step });
    }

    fn topics(&mut self, current: &Topology, desired: &Topology) -> anyhow::Result<()> {
        for (name, topic) in &desired.topics {
            let id = TopicName::new(name)?;
            match current.topics.get(name) {
                None => {
                    let step = Step::CreateTopic(id, topic.spec.clone());
                    self.push(ChangeKind::Create, ObjectKind::Topic, name, String::new(), step);
                }
                Some(existing) => {
                    for (field, is, asked) in differences(&existing.spec, &topic.spec) {
                        let what = format!("{field} is {is}, not {asked}: remove it first");
                        self.push(ChangeKind::Refused, ObjectKind::Topic, name, what, Step::None);
                    }
                }
            }
        }
        Ok(())
    }

    /// Queues and subscriptions. The target of dead letters comes before the queues that use it.
    fn queues(&mut self, current: &Topology, desired: &Topology) -> anyhow::Result<()> {
        let mut left: BTreeMap<String, DesiredQueue<'_>> = BTreeMap::new();
        for (name, spec) in &desired.queues {
            let queue = QueueName::new(name)?;
            let current = current.queues.get(name);
            left.insert(
                name.clone(),
                DesiredQueue { kind: ObjectKind::Queue, queue, spec, rules: None, current },
            );
        }
        for (topic, found) in &desired.topics {
            let id = TopicName::new(topic)?;
            for (name, Subscription { spec, rules }) in &found.subscriptions {
                let queue = QueueName::subscription(&id, name)?;
                let existing =
                    current.topics.get(topic).and_then(|topic| topic.subscriptions.get(name));
                let current = existing.map(|existing| &existing.spec);
                let kind = ObjectKind::Subscription;
                let rules = Some(rules);
                left.insert(
                    queue.as_str().to_owned(),
                    DesiredQueue { kind, queue, spec, rules, current },
                );
            }
        }
        let mut late = Vec::new();
        while !left.is_empty() {
            let waits = |desired: &DesiredQueue<'_>| {
                let target = desired.spec.get("dead_letter").and_then(|to| to["queue"].as_str());
                target.is_some_and(|target| {
                    target != desired.queue.as_str() && left.contains_key(target)
                })
            };
            let ready =
                left.iter().find(|(_, desired)| !waits(desired)).map(|(name, _)| name.clone());
            // In a cycle, one queue is created without its target and gets it at the end.
            let in_cycle = ready.is_none();
            let Some(next) = ready.or_else(|| left.keys().next().cloned()) else { break };
            let Some(desired) = left.remove(&next) else { break };
            late.extend(self.queue(&desired, in_cycle));
        }
        self.changes.extend(late);
        Ok(())
    }

    fn queue(&mut self, desired: &DesiredQueue<'_>, in_cycle: bool) -> Option<Change> {
        let DesiredQueue { kind, queue, spec, rules, current } = desired;
        let name = queue.as_str();
        let Some(current) = current else {
            let mut first = (*spec).clone();
            let target = first.get("dead_letter").cloned().filter(|_| in_cycle);
            if target.is_some() {
                first.insert("dead_letter".into(), "own".into());
            }
            let step = match rules {
                Some(rules) => Step::Subscribe(queue.clone(), first, (*rules).clone()),
                None => Step::CreateQueue(queue.clone(), first),
            };
            self.push(ChangeKind::Create, *kind, name, String::new(), step);
            return target.map(|target| {
                let what = format!("dead_letter: own → {}", text(&target));
                let fields = Fields::from_iter([("dead_letter".to_owned(), target)]);
                let step = Step::UpdateQueue(queue.clone(), fields);
                Change {
                    change: ChangeKind::Update,
                    kind: *kind,
                    name: name.to_owned(),
                    what,
                    step,
                }
            });
        };
        let mut fields = Fields::new();
        let mut what = Vec::new();
        for (field, is, asked) in differences(current, spec) {
            if FIXED.contains(&field.as_str()) {
                let what = format!("{field} is {is}, not {asked}, and cannot be changed");
                self.push(ChangeKind::Refused, *kind, name, what, Step::None);
                continue;
            }
            what.push(format!("{field}: {is} → {asked}"));
            fields.insert(field.clone(), spec.get(&field).cloned().unwrap_or(Value::Null));
        }
        if !fields.is_empty() {
            let step = Step::UpdateQueue(queue.clone(), fields);
            self.push(ChangeKind::Update, *kind, name, what.join(", "), step);
        }
        None
    }

    /// Rules of existing subscriptions, and of bound queues.
    fn rules(&mut self, current: &Topology, desired: &Topology, prune: bool) -> anyhow::Result<()> {
        let none = Rules::new();
        for (name, topic) in &desired.topics {
            let id = TopicName::new(name)?;
            let existing = current.topics.get(name);
            for (subscription, Subscription { rules, .. }) in &topic.subscriptions {
                // A new subscription is created with its rules.
                let found = existing.and_then(|topic| topic.subscriptions.get(subscription));
                if let Some(found) = found {
                    let queue = QueueName::subscription(&id, subscription)?;
                    self.rules_of(&id, &queue, &found.rules, rules, prune);
                }
            }
            for (queue, rules) in &topic.bindings {
                let found = existing.and_then(|topic| topic.bindings.get(queue)).unwrap_or(&none);
                self.rules_of(&id, &QueueName::new(queue)?, found, rules, prune);
            }
            let bound = existing.map(|topic| &topic.bindings).into_iter().flatten();
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
        current: &Rules,
        desired: &Rules,
        prune: bool,
    ) {
        let at = |rule: &str| format!("{topic} → {queue}: {rule}");
        for (name, rule) in desired {
            let (topic, queue, of) = (topic.clone(), queue.clone(), name.clone());
            let shown = text(&Value::Object(rule.clone()));
            match current.get(name) {
                None => {
                    let step = Step::AddRule(topic, queue, of, rule.clone());
                    self.push(ChangeKind::Create, ObjectKind::Rule, &at(name), shown, step);
                }
                Some(existing) if existing != rule => {
                    let was = text(&Value::Object(existing.clone()));
                    let step = Step::ReplaceRule(topic, queue, of, rule.clone());
                    let what = format!("{was} → {shown}");
                    self.push(ChangeKind::Update, ObjectKind::Rule, &at(name), what, step);
                }
                Some(_) => {}
            }
        }
        for name in current.keys().filter(|name| prune && !desired.contains_key(*name)) {
            let step = Step::RemoveRule(topic.clone(), queue.clone(), name.clone());
            self.push(ChangeKind::Remove, ObjectKind::Rule, &at(name), String::new(), step);
        }
    }

    fn removals(&mut self, current: &Topology, desired: &Topology) -> anyhow::Result<()> {
        for (name, topic) in &current.topics {
            let id = TopicName::new(name)?;
            let Some(desired_topic) = desired.topics.get(name) else {
                let what = match topic.subscriptions.len() {
                    0 => String::new(),
                    n => format!("with its subscriptions: {n}"),
                };
                self.push(ChangeKind::Remove, ObjectKind::Topic, name, what, Step::RemoveTopic(id));
                continue;
            };
            let existing = topic.subscriptions.keys();
            for subscription in
                existing.filter(|name| !desired_topic.subscriptions.contains_key(*name))
            {
                let queue = QueueName::subscription(&id, subscription)?;
                let step = Step::RemoveQueue(queue.clone());
                self.push(
                    ChangeKind::Remove,
                    ObjectKind::Subscription,
                    queue.as_str(),
                    String::new(),
                    step,
                );
            }
        }
        // A queue is deleted before the target of its dead letters.
        let removed = current.queues.keys().filter(|name| !desired.queues.contains_key(*name));
        let mut left: BTreeSet<&String> = removed.collect();
        while !left.is_empty() {
            let needed = |name: &str| {
                left.iter().any(|other| {
                    let to = current.queues.get(*other).and_then(|spec| spec.get("dead_letter"));
                    other.as_str() != name && to.is_some_and(|to| to["queue"] == name)
                })
            };
            let free = left.iter().find(|name| !needed(name)).copied();
            let Some(next) = free.or_else(|| left.first().copied()) else { break };
            left.remove(next);
            let step = Step::RemoveQueue(QueueName::new(next)?);
            self.push(ChangeKind::Remove, ObjectKind::Queue, next, String::new(), step);
        }
        Ok(())
    }
}

/// The fields that differ: name, current value, desired value.
fn differences(current: &Fields, desired: &Fields) -> Vec<(String, String, String)> {
    let differs = |(name, _): &(&String, &Value)| current.get(*name) != desired.get(*name);
    let of = |(name, asked): (&String, &Value)| {
        (name.clone(), current.get(name).map_or_else(|| "absent".into(), text), text(asked))
    };
    desired.iter().filter(differs).map(of).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
