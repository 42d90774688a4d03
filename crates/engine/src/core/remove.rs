//! How queues and topics go, and what goes with them: subscriptions with their topic, and a topic that wants it so
//! with its last rule. All of it is one journal group: after a crash nothing is left of it, or all.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::{QueueName, Refusal};

use super::topic::Topic;
use super::{Core, FRAME_ROOM, SMALL_ROOM, Turn};
use crate::event::{Event, QueueId};

/// What goes together.
#[derive(Debug, Default)]
struct Going {
    queues: Vec<QueueId>,
    topics: Vec<QueueId>,
}

impl Core {
    /// What goes with these, and with that, and so on.
    fn with_all(&self, going: Going) -> Going {
        let Going { mut queues, mut topics } = going;
        let mut known: BTreeSet<QueueId> = queues.iter().chain(&topics).copied().collect();
        let (mut queues_seen, mut topics_seen) = (0, 0);
        loop {
            if let Some(topic) = topics.get(topics_seen).and_then(|topic| self.topics.get(topic)) {
                topics_seen += 1;
                let own = self.subscriptions(topic);
                queues.extend(own.into_iter().filter(|&queue| known.insert(queue)));
            } else if let Some(queue) = queues.get(queues_seen).and_then(|id| self.queues.get(id)) {
                queues_seen += 1;
                let left = |id: &QueueId| {
                    self.topics.get(id).is_some_and(|topic| {
                        topic.goes_with_last() && topic.router.targets().all(|q| known.contains(&q))
                    })
                };
                let left: Vec<_> = queue.bound_to.iter().copied().filter(left).collect();
                topics.extend(left.into_iter().filter(|&topic| known.insert(topic)));
            } else {
                return Going { queues, topics };
            }
        }
    }

    /// Found by name: one may have no rule.
    fn subscriptions(&self, topic: &Topic) -> Vec<QueueId> {
        let prefix = format!("{}/", topic.name);
        let named = self.names.range(QueueName::inbox(&topic.name)..);
        let named = named.take_while(|(name, _)| name.as_str().starts_with(&prefix));
        let own = |name: &QueueName| name.subscription_of().is_some_and(|(of, _)| of == topic.name);
        named.filter(|(name, _)| own(name)).map(|(_, &id)| id).collect()
    }
}

impl Turn<'_> {
    /// Removes a queue, whoever wants it so.
    pub(super) fn remove_queue(&mut self, queue: QueueId) -> Result<(), Refusal> {
        if !self.core.queues.contains_key(&queue) {
            return Ok(());
        }
        self.remove(Going { queues: vec![queue], ..Going::default() }, None)
    }

    pub(super) fn remove_topic(&mut self, topic: QueueId) -> Result<(), Refusal> {
        self.remove(Going { topics: vec![topic], ..Going::default() }, None)
    }

    /// Takes a rule away, and the topic with it if it was the last.
    pub(super) fn remove_rule(
        &mut self,
        topic: QueueId,
        queue: QueueId,
        rule: &str,
    ) -> Result<(), Refusal> {
        let left = |t: &Topic| t.goes_with_last() && t.router.len() == 1;
        let left = self.core.topics.get(&topic).is_some_and(|t| left(t));
        let topics = if left { vec![topic] } else { Vec::new() };
        let rule = Event::Unbound { topic, queue, rule: rule.to_owned() };
        self.remove(Going { topics, ..Going::default() }, Some(rule))
    }

    /// Topics whose last rule went just before a crash of a version that said so in two records.
    pub(super) fn remove_left_topics(&mut self) -> Result<(), Refusal> {
        let left = |t: &Topic| t.goes_with_last() && t.router.is_empty();
        let left = self.core.topics.iter().filter(|(_, topic)| left(topic));
        let mut topics: Vec<_> = left.map(|(&id, _)| id).collect();
        topics.sort_unstable();
        topics.into_iter().try_for_each(|topic| self.remove_topic(topic))
    }

    /// Removes these and what goes with them; consumers are told.
    fn remove(&mut self, going: Going, first: Option<Event>) -> Result<(), Refusal> {
        let Going { queues, topics } = self.core.with_all(going);
        self.begin(FRAME_ROOM + SMALL_ROOM * (queues.len() + topics.len()))?;
        let mut names: BTreeMap<QueueId, QueueName> = BTreeMap::new();
        for id in &queues {
            let Some(q) = self.core.queues.get(id) else { continue };
            names.extend([(*id, q.name.clone()), (q.dead, q.name.clone())]);
        }
        let consumed = |id: &QueueId| self.core.queues.get(id).is_some_and(|q| q.consumers > 0);
        let mut orphans: Vec<_> = Vec::new();
        // Most have none: then not all consumers there are need to be looked at.
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
