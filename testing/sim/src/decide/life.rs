//! Queues that delete themselves, and their use. This state does not survive a restart.

use malote_engine::ConsumerId;
use malote_model::{QueueName, TopicName};

use super::journal::Trigger;
use super::{Consumer, Group, Model};
use crate::model::Ev;

/// How a queue was used since the last start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// When a consumer last used it or a client declared it.
    pub used_at: u64,
    /// Whether it had a consumer other than a single receive.
    pub had_consumer: bool,
    /// The connection that owns it.
    pub connection: Option<u64>,
}

impl Life {
    pub(super) fn new(used_at: u64, connection: Option<u64>) -> Self {
        Self { used_at, had_consumer: false, connection }
    }
}

impl Model {
    /// The broker started at `now`.
    pub(super) fn begin_lives(&mut self, now: u64) {
        let queues = self.state.queues.iter().filter(|(_, q)| q.owner.is_none());
        self.lives = queues.map(|(name, _)| (name.clone(), Life::new(now, None))).collect();
        self.leaving.clear();
        self.expired_at = now;
    }

    /// A client declares a queue that may exist.
    pub(super) fn asked_for(&mut self, name: &QueueName, connection: Option<u64>) {
        let exclusive = self.state.queues.get(name).is_some_and(|q| q.spec.exclusive);
        if let Some(life) = self.lives.get_mut(name)
            && (!exclusive || life.connection == connection)
        {
            life.used_at = self.now;
        }
    }

    pub(super) fn add_consumer(&mut self, id: ConsumerId, consumer: Consumer) {
        if let Some(life) = self.lives.get_mut(&consumer.queue) {
            life.used_at = self.now;
            life.had_consumer |= consumer.once.is_none();
        }
        self.consumers.insert(id, consumer);
    }

    /// A consumer ended, which may delete its queue.
    pub(super) fn forget(&mut self, id: ConsumerId) {
        let Some(Consumer { queue, .. }) = self.consumers.remove(&id) else { return };
        let alone = !self.is_consumed(&queue);
        let Some(life) = self.lives.get_mut(&queue) else { return };
        life.used_at = self.now;
        let auto_delete = self.state.queues.get(&queue).is_some_and(|q| q.spec.auto_delete);
        if auto_delete && life.had_consumer && alone {
            self.leaving.insert(queue);
        }
    }

    pub(super) fn is_consumed(&self, queue: &QueueName) -> bool {
        self.consumers.values().any(|c| c.queue == *queue)
    }

    /// A queue is deleted, together with its dependents.
    pub(super) fn delete(&mut self, name: &QueueName) {
        self.delete_one(name);
        self.fall();
    }

    /// A topic is deleted with its subscriptions; queues that were only bound remain.
    pub(super) fn delete_topic(&mut self, name: &TopicName) {
        for queue in self.state.subscriptions(name) {
            self.delete_one(&queue);
        }
        self.note(Ev::DeleteTopic { name: name.clone() });
        self.fall();
    }

    /// Deletes auto-delete topics that lost their last rule.
    pub(super) fn fall(&mut self) {
        if let Some(name) = self.state.falling() {
            self.met.count("topics deleted with their last rule", 1);
            self.delete_topic(&name);
        }
    }

    /// Its consumers must be notified.
    fn delete_one(&mut self, name: &QueueName) {
        let dead = name.dead_letters();
        let of = |c: &Consumer| c.queue == *name || c.queue == dead;
        let ended: Vec<_> =
            self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id).collect();
        self.ended.extend(ended);
        self.lives.remove(name);
        self.leaving.remove(name);
        self.note(Ev::Delete { name: name.clone() });
    }

    /// Queues that were not used for too long.
    pub(super) fn idle(&self) -> Vec<QueueName> {
        let idle = |name: &QueueName, life: &Life| {
            let idle_ms_max = self.state.queues.get(name).and_then(|q| q.spec.idle_ms_max);
            idle_ms_max.is_some_and(|ms| life.used_at + ms <= self.now) && !self.is_consumed(name)
        };
        let lives = self.lives.iter().filter(|(name, life)| idle(name, life));
        lives.map(|(name, _)| name.clone()).collect()
    }

    /// Before deliveries, auto-delete queues without consumers are deleted.
    pub fn leave(&mut self, now: u64, groups: &[Group], room: bool) {
        let auto_delete = |name: &QueueName| {
            self.state.queues.get(name).is_some_and(|q| q.spec.auto_delete)
                && !self.is_consumed(name)
        };
        let mut left = self.leaving.clone();
        left.retain(auto_delete);
        for group in groups.iter().filter(|group| group.is_deletion()) {
            self.begin(now, group.end);
            let Trigger::Gone(name) = self.trigger(group) else { continue };
            assert!(left.remove(&name), "{name} was deleted while in use");
            self.met.count("queues deleted with their last consumer", 1);
            self.delete(&name);
        }
        left.retain(|name| self.state.queues.contains_key(name));
        assert!(!room || left.is_empty(), "not deleted after their last consumers: {left:?}");
        self.leaving = left;
    }

    /// Whether the queue belongs to this connection.
    pub(super) fn is_exclusive_to(&self, name: &QueueName, connection: u64) -> bool {
        self.lives.get(name).is_some_and(|life| life.connection == Some(connection))
    }

    pub(super) fn exclusive_of(&self, connection: u64) -> Vec<QueueName> {
        let own = self.lives.keys().filter(|name| self.is_exclusive_to(name, connection));
        own.cloned().collect()
    }
}
