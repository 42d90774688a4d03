//! Deleting queues and topics with their dependents: subscriptions with their topic, and auto-delete topics with their
//! last rule. One journal group contains all of it, so a crash leaves either everything or nothing.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::{QueueName, Refusal};

use super::topic::Topic;
use super::{Core, FRAME_ROOM, SMALL_ROOM, Turn};
use crate::event::{Event, QueueId};

/// Queues and topics that are deleted together.
#[derive(Debug, Default)]
struct RemovalSet {
    queues: Vec<QueueId>,
    topics: Vec<QueueId>,
}

impl Core {
    /// Adds all dependents, transitively.
    fn with_all(&self, going: RemovalSet) -> RemovalSet {
        let RemovalSet { mut queues, mut topics } = going;
        let mut known: BTreeSet<QueueId> = queues.iter().chain(&topics).copied().collect();
        let (mut queues_seen, mut topics_seen) = (0, 0);
        loop {
            if let Some(topic) = topics.get(topics_seen).and_then(|topic| self.topics.get(topic)) {
                topics_seen += 1;
                let own = self.subscriptions(topic);
                queues.extend(own.into_iter().filter(|&queue| known.insert(queue)));
                let id = topics[topics_seen - 1];
                let left = self.left_without(id, &known);
                topics.extend(left.into_iter().filter(|&topic| known.insert(topic)));
            } else if let Some(&queue) = queues.get(queues_seen) {
                queues_seen += 1;
                let left = self.left_without(queue, &known);
                topics.extend(left.into_iter().filter(|&topic| known.insert(topic)));
            } else {
                return RemovalSet { queues, topics };
            }
        }
    }

    /// Auto-delete topics that lose their last rule with this queue or topic, and with the others that are deleted.
    fn left_without(&self, target: QueueId, known: &BTreeSet<QueueId>) -> Vec<QueueId> {
        let Some(q) = self.queues.get(&target) else { return Vec::new() };
        let left = |id: &QueueId| {
            self.topics.get(id).is_some_and(|topic| {
                topic.deletes_with_last_rule()
                    && topic.router.targets().all(|target| known.contains(&target))
            })
        };
        q.bound_to.iter().copied().filter(left).collect()
    }

    /// Subscriptions are found by name, because one may have no rules.
    fn subscriptions(&self, topic: &Topic) -> Vec<QueueId> {
        let prefix = format!("{}/", topic.name);
        let named = self.names.range(QueueName::inbox(&topic.name)..);
        let named = named.take_while(|(name, _)| name.as_str().starts_with(&prefix));
        let own = |name: &QueueName| name.subscription_of().is_some_and(|(of, _)| of == topic.name);
        named.filter(|(name, _)| own(name)).map(|(_, &id)| id).collect()
    }
}

impl Turn<'_> {
    /// Deletes a queue, if it exists.
    pub(super) fn remove_queue(&mut self, queue: QueueId) -> Result<(), Refusal> {
        if !self.core.queues.contains_key(&queue) {
            return Ok(());
        }
        self.remove(RemovalSet { queues: vec![queue], ..RemovalSet::default() }, None)
    }

    pub(super) fn remove_topic(&mut self, topic: QueueId) -> Result<(), Refusal> {
        self.remove(RemovalSet { topics: vec![topic], ..RemovalSet::default() }, None)
    }

    /// Removes a rule, and with the last rule an auto-delete topic.
    pub(super) fn remove_rule(
        &mut self,
        topic: QueueId,
        queue: QueueId,
        rule: &str,
    ) -> Result<(), Refusal> {
        let left = |t: &Topic| t.deletes_with_last_rule() && t.router.len() == 1;
        let left = self.core.topics.get(&topic).is_some_and(|t| left(t));
        let topics = if left { vec![topic] } else { Vec::new() };
        let rule = Event::Unbound { topic, queue, rule: rule.to_owned() };
        self.remove(RemovalSet { topics, ..RemovalSet::default() }, Some(rule))
    }

    /// Deletes topics whose last rule was removed just before a crash. Older versions used two records for this.
    pub(super) fn remove_topics_without_rules(&mut self) -> Result<(), Refusal> {
        let left = |t: &Topic| t.deletes_with_last_rule() && t.router.is_empty();
        let left = self.core.topics.iter().filter(|(_, topic)| left(topic));
        let mut topics: Vec<_> = left.map(|(&id, _)| id).collect();
        topics.sort_unstable();
        topics.into_iter().try_for_each(|topic| self.remove_topic(topic))
    }

    /// Deletes queues and topics with their dependents, and ends their consumers.
    fn remove(&mut self, going: RemovalSet, first: Option<Event>) -> Result<(), Refusal> {
        let RemovalSet { queues, topics } = self.core.with_all(going);
        self.begin(FRAME_ROOM + SMALL_ROOM * (queues.len() + topics.len()))?;
        let mut names: BTreeMap<QueueId, QueueName> = BTreeMap::new();
        for id in &queues {
            let Some(q) = self.core.queues.get(id) else { continue };
            names.extend([(*id, q.name.clone()), (q.dead, q.name.clone())]);
        }
        let consumed = |id: &QueueId| self.core.queues.get(id).is_some_and(|q| q.consumers > 0);
        let mut orphans: Vec<_> = Vec::new();
        // Most queues have no consumers. Then there is no need to search all of them.
        if names.keys().any(consumed) {
            let consumers = self.core.live().consumers.iter();
            let of_it = consumers.filter_map(|(&id, c)| Some((id, names.get(&c.queue)?.clone())));
            orphans.extend(of_it);
        }
        orphans.sort_unstable();
        if let Some(first) = first {
            self.commit(first, false);
        }
        for queue in queues {
            self.commit(Event::Deleted { queue }, false);
        }
        for topic in topics {
            self.commit(Event::TopicDeleted { topic }, false);
        }
        self.end();
        for (orphan, queue) in orphans {
            self.end_consumer(orphan, Refusal::QueueNotFound { queue });
        }
        Ok(())
    }
}
