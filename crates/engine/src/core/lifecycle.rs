//! Queues that are deleted automatically: with their last consumer, with their connection, or when they are idle.

use malote_model::{QueueName, Refusal, Timestamp};

use super::queue::Queue;
use super::{Core, Timer, Turn};
use crate::command::ConnectionId;
use crate::event::QueueId;

impl Core {
    /// Sets the idle timer of a queue. When it fires, it checks whether the queue was used since.
    pub(super) fn arm_idle(&mut self, id: QueueId) {
        let (Some(live), Some(q)) = (self.live.as_mut(), self.queues.get_mut(&id)) else { return };
        if let Some(timer) = q.idle.take() {
            live.timers.cancel(timer);
        }
        if let Some(idle_ms_max) = q.spec.idle_ms_max {
            let at = q.used_at.saturating_add(idle_ms_max);
            q.idle = Some(live.timers.set(at, Timer::Idle(id)));
        }
    }

    /// Records that the queue was used.
    pub(super) fn used(&mut self, id: QueueId, now: Timestamp) {
        if let Some(q) = self.queues.get_mut(&id) {
            q.used_at = now.0;
        }
    }
}

impl Turn<'_> {
    /// Handles the idle timer. Returns false if the journal had no room to delete the queue.
    pub(super) fn idle_due(&mut self, id: QueueId) -> bool {
        let Some(q) = self.core.queues.get_mut(&id) else { return true };
        let Some(idle_ms_max) = q.spec.idle_ms_max else { return true };
        if q.consumers > 0 {
            q.used_at = self.now.0;
        }
        if q.used_at.saturating_add(idle_ms_max) > self.now.0 {
            self.core.arm_idle(id);
            return true;
        }
        self.remove_queue(id).is_ok()
    }

    /// Records that a consumer left; its queue may be deleted.
    pub(super) fn consumer_left(&mut self, id: QueueId) {
        let Some(q) = self.core.queues.get_mut(&id) else { return };
        q.used_at = self.now.0;
        if q.spec.auto_delete && q.had_consumer && q.consumers == 0 {
            self.core.live().unused.push(id);
        }
    }

    /// Deletes queues whose last consumer left in this turn, unless a new one was attached.
    pub(super) fn remove_unused_queues(&mut self) {
        for id in std::mem::take(&mut self.core.live().unused) {
            let q = self.core.queues.get(&id);
            let left = q.is_some_and(|q| q.spec.auto_delete && q.consumers == 0);
            if left && self.remove_queue(id).is_err() {
                self.core.live().unused.push(id);
            }
        }
    }

    /// Deletes what does not survive a start: exclusive queues, whose connections are gone, and transient queues and
    /// topics.
    pub(super) fn remove_temporary(&mut self) -> Result<(), Refusal> {
        let gone = |q: &Queue| q.spec.exclusive || q.spec.transient && q.owner.is_none();
        let queues = self.core.queues.iter().filter(|(_, q)| gone(q));
        let mut ids: Vec<_> = queues.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids.into_iter().try_for_each(|id| self.remove_queue(id))?;
        let topics = self.core.topics.iter().filter(|(_, topic)| topic.spec.transient);
        let mut ids: Vec<_> = topics.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        for id in ids {
            if self.core.topics.contains_key(&id) {
                self.remove_topic(id)?;
            }
        }
        self.remove_topics_without_rules()
    }

    /// Returns a refusal if the queue is exclusive to another connection.
    pub(super) fn check_exclusive(
        &self,
        name: &QueueName,
        connection: Option<ConnectionId>,
    ) -> Result<(), Refusal> {
        let (_, q) = self.core.queue(name)?;
        if q.spec.exclusive && q.connection != connection {
            return Err(Refusal::QueueExclusive { queue: name.clone() });
        }
        Ok(())
    }

    /// Returns a refusal if this connection cannot add a consumer to the queue.
    pub(super) fn check_consumer(
        &self,
        name: &QueueName,
        connection: Option<ConnectionId>,
    ) -> Result<(), Refusal> {
        self.check_exclusive(name, connection)?;
        let (_, q) = self.core.queue(name)?;
        if q.exclusive_consumer {
            let why = "has an exclusive consumer: receive from it once that consumer has ended";
            return Err(Refusal::ConsumerExclusive { queue: name.clone(), why });
        }
        Ok(())
    }
}
