//! Topics and their rules. Routing is in `route`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use malote_model::{
    Address, Filter, QueueName, QueueSpec, Refusal, Rule, Timestamp, TopicKind, TopicName,
    TopicSpec, limits,
};

use super::admin::spec_room;
use super::dedup::DedupWindow;
use super::queue::Queue;
use super::{Core, Decided, FRAME_ROOM, Turn, WaitFor};
use crate::codec::encode_rule;
use crate::command::{Binding, Reply};
use crate::event::{Event, QueueId};
use crate::facts::{TopicFacts, TopicTotals};
use crate::topic::TopicRouter;

/// A topic. Changed only by `apply`, except for the fields from `routing` on.
#[derive(Debug)]
pub(super) struct Topic {
    pub name: TopicName,
    pub spec: TopicSpec,
    pub created_at: Timestamp,
    pub router: TopicRouter<QueueId>,
    pub had_rule: bool,
    pub seen: Option<Box<DedupWindow>>,
    pub totals: TopicTotals,
    /// Messages of its inbox are being read for routing.
    pub routing: bool,
    /// Messages of its inbox that cannot be read. They stay there; the others are routed.
    pub unreadable: BTreeSet<u64>,
}

/// The default rule of a new subscription.
fn default_rule() -> Rule {
    Rule { name: "$Default".into(), filter: Filter::All, action: None }
}

impl Core {
    pub(super) fn topic(&self, name: &TopicName) -> Result<(QueueId, &Topic), Refusal> {
        let missing = || Refusal::TopicNotFound { topic: name.clone() };
        let id = *self.topic_names.get(name).ok_or_else(missing)?;
        Ok((id, self.topics.get(&id).ok_or_else(missing)?))
    }

    pub(super) fn topic_declared(
        &mut self,
        id: QueueId,
        name: &TopicName,
        spec: &TopicSpec,
        at: Timestamp,
    ) {
        self.advance_time(at.0);
        self.next_queue = self.next_queue.max(id.0 + 1);
        self.put_topic(id, Topic::new(name.clone(), spec.clone(), at, self.hash_seed));
        let inbox =
            Queue::new(QueueName::inbox(name), QueueSpec::default(), id, at, self.hash_seed);
        self.queues.insert(id, Box::new(inbox));
    }

    pub(super) fn topic_updated(&mut self, id: QueueId, spec: &TopicSpec) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        self.dedup_keys -= topic.seen.as_ref().map_or(0, |seen| seen.len());
        DedupWindow::respecify(&mut topic.seen, topic.spec.dedup, spec.dedup, self.last_at);
        self.dedup_keys += topic.seen.as_ref().map_or(0, |seen| seen.len());
        topic.spec = spec.clone();
        // The window may end earlier now.
        self.arm_topic(id);
    }

    pub(super) fn put_topic(&mut self, id: QueueId, topic: Topic) {
        self.dedup_keys += topic.seen.as_ref().map_or(0, |seen| seen.len());
        self.rules += topic.router.len();
        self.topic_names.insert(topic.name.clone(), id);
        self.topics.insert(id, Box::new(topic));
    }

    pub(super) fn drop_topic(&mut self, id: QueueId) {
        let Some(topic) = self.topics.remove(&id) else { return };
        self.topic_names.remove(&topic.name);
        self.dedup_keys -= topic.seen.as_ref().map_or(0, |seen| seen.len());
        self.rules -= topic.router.len();
        for queue in topic.router.targets() {
            if let Some(q) = self.queues.get_mut(&queue) {
                q.bound_to.remove(&id);
            }
        }
        self.drop_queue(id);
        self.free_topic(topic);
    }

    pub(super) fn bound(&mut self, topic: QueueId, queue: QueueId, rule: &Rule) {
        if let (Some(t), Some(q)) = (self.topics.get_mut(&topic), self.queues.get_mut(&queue)) {
            self.rules += usize::from(t.router.insert(queue, rule.clone()).is_none());
            t.had_rule = true;
            q.bound_to.insert(topic);
        }
    }

    pub(super) fn unbound(&mut self, topic: QueueId, queue: QueueId, rule: &str) {
        let Some(t) = self.topics.get_mut(&topic) else { return };
        self.rules -= usize::from(t.router.remove(queue, rule).is_some());
        if t.router.rules(queue).next().is_none()
            && let Some(q) = self.queues.get_mut(&queue)
        {
            q.bound_to.remove(&topic);
        }
    }

    /// Removes all rules for a deleted queue.
    pub(super) fn forget_bindings(&mut self, q: &Queue, id: QueueId) {
        for topic in &q.bound_to {
            if let Some(t) = self.topics.get_mut(topic) {
                self.rules -= t.router.remove_target(id);
            }
        }
    }
}

impl Topic {
    pub(super) fn new(name: TopicName, spec: TopicSpec, created_at: Timestamp, seed: u64) -> Self {
        let seen = spec.dedup.map(|_| Box::default());
        let (totals, router) = (TopicTotals::default(), TopicRouter::new(seed));
        Self {
            name,
            spec,
            created_at,
            router,
            had_rule: false,
            seen,
            totals,
            routing: false,
            unreadable: BTreeSet::new(),
        }
    }

    /// Whether the topic is deleted with its last rule.
    pub(super) fn deletes_with_last_rule(&self) -> bool {
        self.spec.auto_delete && self.had_rule
    }
}

impl Turn<'_> {
    pub(super) fn declare_topic(&mut self, name: TopicName, spec: Box<TopicSpec>) -> Decided {
        if let Ok((_, topic)) = self.core.topic(&name) {
            return match topic.spec.difference(&spec) {
                None => Ok(Some((Reply::Declared { created: false }, WaitFor::Settled))),
                Some((field, is, asked)) => {
                    Err(Refusal::TopicDiffers { topic: name, field, is, asked })
                }
            };
        }
        spec.check()?;
        if self.core.topics.len() >= limits::TOPICS_MAX {
            return Err(Refusal::BoundReached { what: "topics", limit: limits::TOPICS_MAX as u64 });
        }
        let topic = QueueId(self.core.next_queue);
        self.begin(FRAME_ROOM)?;
        self.commit(Event::TopicDeclared { topic, name, spec, at: self.now }, false);
        Ok(Some((Reply::Declared { created: true }, WaitFor::Durable)))
    }

    /// Changes the settings, except for the kind: the rules may not fit another kind.
    pub(super) fn update_topic(&mut self, name: TopicName, spec: Box<TopicSpec>) -> Decided {
        let (topic, t) = self.core.topic(&name)?;
        if t.spec.kind != spec.kind {
            let (is, asked) = (t.spec.kind.word().to_owned(), spec.kind.word().to_owned());
            return Err(Refusal::TopicDiffers { topic: name, field: "kind", is, asked });
        }
        spec.check()?;
        self.begin(FRAME_ROOM)?;
        self.commit(Event::TopicUpdated { topic, spec, at: self.now }, false);
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    /// The labels of a topic are stored with its inbox, which is a queue.
    pub(super) fn label_topic(
        &mut self,
        name: &TopicName,
        labels: BTreeMap<String, String>,
    ) -> Decided {
        let (id, _) = self.core.topic(name)?;
        let spec = Box::new(QueueSpec { labels, ..QueueSpec::default() });
        spec.check()?;
        self.begin(FRAME_ROOM + spec_room(&spec))?;
        self.commit(Event::Updated { queue: id, spec, at: self.now }, false);
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    /// Deletes a topic with its subscriptions. Other bound queues stay.
    pub(super) fn delete_topic(&mut self, name: &TopicName) -> Decided {
        let (id, _) = self.core.topic(name)?;
        self.remove_topic(id)?;
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    /// Creates a subscription: a queue and its rules, atomically. An existing one keeps its rules.
    pub(super) fn subscribe(
        &mut self,
        name: QueueName,
        spec: Box<QueueSpec>,
        rules: Option<Vec<Rule>>,
    ) -> Decided {
        let Some((topic_name, _)) = name.subscription_of() else {
            let why = "is not of the form topic/Subscriptions/subscription";
            return Err(Refusal::BadName { name: name.as_str().to_owned(), why });
        };
        let (topic, t) = self.core.topic(&topic_name)?;
        if let Ok((_, q)) = self.core.queue(&name) {
            return match q.spec.difference(&spec) {
                None => Ok(Some((Reply::Declared { created: false }, WaitFor::Settled))),
                Some((field, is, asked)) => {
                    Err(Refusal::QueueDiffers { queue: name, field, is, asked })
                }
            };
        }
        let rules = rules.unwrap_or_else(|| default_rules(t.spec.kind));
        let mut room = 0;
        for (i, rule) in rules.iter().enumerate() {
            t.spec.check_rule(rule)?;
            if rules[..i].iter().any(|other| other.name == rule.name) {
                return Err(Refusal::RuleDiffers {
                    topic: topic_name,
                    target: name.into(),
                    rule: rule.name.clone(),
                });
            }
            room += encode_rule(rule)?.len() + FRAME_ROOM;
        }
        self.check_rules(t, rules.len())?;
        let queue = self.make_queue(name, spec, None, room)?;
        for rule in rules {
            self.commit(Event::Bound { topic, queue, rule: Box::new(rule) }, false);
        }
        self.end();
        self.made_queue(queue, None);
        Ok(Some((Reply::Declared { created: true }, WaitFor::Durable)))
    }

    fn check_rules(&self, topic: &Topic, more: usize) -> Result<(), Refusal> {
        let most = match topic.spec.kind {
            TopicKind::Hash => limits::HASH_RULES_MAX,
            _ => limits::RULES_PER_TOPIC_MAX,
        };
        let bounds = [
            ("rules of a topic", topic.router.len(), most),
            ("rules", self.core.rules, limits::RULES_MAX),
        ];
        match bounds.into_iter().find(|&(_, have, most)| have + more > most) {
            Some((what, _, most)) => Err(Refusal::BoundReached { what, limit: most as u64 }),
            None => Ok(()),
        }
    }

    /// The queue that a rule copies to. For a topic, it is the topic's inbox, which has the same id.
    fn rule_target(&self, target: &Address) -> Result<QueueId, Refusal> {
        match target {
            Address::Queue(name) => self.core.queue(name).map(|(id, _)| id),
            Address::Topic(name) => self.core.topic(name).map(|(id, _)| id),
        }
    }

    /// Adds a rule. Adding the same rule again changes nothing.
    pub(super) fn bind_rule(
        &mut self,
        topic_name: &TopicName,
        target: Address,
        rule: Box<Rule>,
    ) -> Decided {
        let (topic, t) = self.core.topic(topic_name)?;
        let queue = self.rule_target(&target)?;
        if let Address::Queue(name) = &target
            && name.is_dead_letters()
        {
            let why = "bind the queue itself";
            return Err(Refusal::DeadLetterSet { queue: name.clone(), why });
        }
        if matches!(target, Address::Topic(_)) && rule.action.is_some() {
            let why = "is only allowed in rules that copy to a queue".into();
            return Err(Refusal::BadSpec { field: "action", why });
        }
        t.spec.check_rule(&rule)?;
        match t.router.rule(queue, &rule.name) {
            Some(have) if *have == *rule => {
                return Ok(Some((Reply::Declared { created: false }, WaitFor::Settled)));
            }
            Some(_) => {
                return Err(Refusal::RuleDiffers {
                    topic: topic_name.clone(),
                    target,
                    rule: rule.name,
                });
            }
            None => {}
        }
        self.check_rules(t, 1)?;
        self.begin(encode_rule(&rule)?.len() + FRAME_ROOM)?;
        self.commit(Event::Bound { topic, queue, rule }, false);
        Ok(Some((Reply::Declared { created: true }, WaitFor::Durable)))
    }

    /// Replaces a rule atomically.
    pub(super) fn rebind_rule(
        &mut self,
        topic_name: &TopicName,
        target: Address,
        rule: Box<Rule>,
    ) -> Decided {
        let (topic, t) = self.core.topic(topic_name)?;
        let queue = self.rule_target(&target)?;
        t.spec.check_rule(&rule)?;
        if t.router.rule(queue, &rule.name).is_none() {
            return Err(Refusal::RuleNotFound {
                topic: topic_name.clone(),
                target,
                rule: rule.name,
            });
        }
        self.begin(encode_rule(&rule)?.len() + FRAME_ROOM)?;
        self.commit(Event::Bound { topic, queue, rule }, false);
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    pub(super) fn unbind_rule(
        &mut self,
        topic_name: &TopicName,
        target: Address,
        rule: &str,
    ) -> Decided {
        let (topic, t) = self.core.topic(topic_name)?;
        let queue = self.rule_target(&target)?;
        if t.router.rule(queue, rule).is_none() {
            return Err(Refusal::RuleNotFound {
                topic: topic_name.clone(),
                target,
                rule: rule.to_owned(),
            });
        }
        self.remove_rule(topic, queue, rule)?;
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    pub(super) fn describe_topic(&self, name: &TopicName) -> Decided {
        let (id, topic) = self.core.topic(name)?;
        Ok(Some((Reply::Topics(vec![self.topic_facts(id, topic)]), WaitFor::Settled)))
    }

    /// Returns a page, so that a turn does not grow with the number of topics.
    pub(super) fn list_topics(&self, after: Option<&TopicName>, max: usize) -> Reply {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.core.topic_names.range::<TopicName, _>((from, Bound::Unbounded));
        let topics = names.filter_map(|(_, &id)| Some((id, self.core.topics.get(&id)?)));
        let facts = topics.map(|(id, topic)| self.topic_facts(id, topic));
        Reply::Topics(facts.take(max.min(limits::LIST_MAX)).collect())
    }

    fn topic_facts(&self, id: QueueId, topic: &Topic) -> TopicFacts {
        let inbox = self.core.queues.get(&id);
        TopicFacts {
            name: topic.name.clone(),
            spec: topic.spec.clone(),
            created_at: topic.created_at,
            queues: topic.router.targets().len() as u64,
            rules: topic.router.len() as u64,
            correlations: topic.router.correlations() as u64,
            scheduled: inbox.map_or(0, |inbox| inbox.scheduled),
            waiting: inbox.map_or(0, |inbox| inbox.ready()),
            bytes: inbox.map_or(0, |inbox| inbox.index.bytes()),
            labels: inbox.map(|inbox| inbox.spec.labels.clone()).unwrap_or_default(),
            totals: topic.totals,
        }
    }

    /// Lists rules of a topic, of all targets or of one, after a given rule.
    pub(super) fn list_rules(
        &self,
        name: &TopicName,
        target: Option<&Address>,
        after: Option<&(Address, String)>,
        max: usize,
    ) -> Decided {
        let (_, topic) = self.core.topic(name)?;
        let only = target.map(|target| self.rule_target(target)).transpose()?;
        // The names in `after` need not exist any more; the order is by name.
        let targets = topic.router.targets().filter(|&id| only.is_none_or(|only| only == id));
        let address = |id: QueueId| match self.core.topics.get(&id) {
            Some(topic) => Some(Address::Topic(topic.name.clone())),
            None => Some(Address::Queue(self.core.queues.get(&id)?.name.clone())),
        };
        let mut targets: Vec<_> = targets.filter_map(|id| Some((address(id)?, id))).collect();
        targets.sort_unstable();
        let from =
            after.map_or(0, |(target, _)| targets.partition_point(|(name, _)| name < target));
        let past = |target: &Address, rule: &Rule| {
            after.is_none_or(|(t, r)| target > t || target == t && rule.name > *r)
        };
        let all = targets[from..]
            .iter()
            .flat_map(|(name, id)| topic.router.rules(*id).map(move |rule| (name.clone(), rule)));
        let some = all.filter(|(target, rule)| past(target, rule));
        let some = some.take(max.min(limits::RECEIVE_BATCH_MAX));
        let some = some.map(|(target, rule)| Binding { target, rule: rule.clone() }).collect();
        Ok(Some((Reply::Rules(some), WaitFor::Settled)))
    }
}

/// The default rules of a subscription of this kind of topic.
fn default_rules(kind: TopicKind) -> Vec<Rule> {
    match kind {
        TopicKind::Filter | TopicKind::Fanout => vec![default_rule()],
        TopicKind::Direct
        | TopicKind::Topic
        | TopicKind::Headers
        | TopicKind::Hash
        | TopicKind::Queue => Vec::new(),
    }
}
