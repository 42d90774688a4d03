//! Queues with `forward_to`: their messages move on to another queue or topic as soon as they are ready.

use malote_model::{Address, DeadReason, Timestamp, limits};
use smallvec::smallvec;

use super::consume::FORWARD_WORK;
use super::enqueue::{MessageMove, accepts_session};
use super::send::FillLevels;
use super::tracked::CarriedAttributes;
use super::{FRAME_ROOM, Timer, Turn};
use crate::event::{MessageRef, MoveReason, Placement, QueueId};

/// Messages that a queue forwards in one journal group.
const FORWARD_MAX: usize = 256;

/// Delay before another attempt, if the target does not exist, is full, or the journal has no room.
const RETRY_MS: u64 = 1000;

impl Turn<'_> {
    /// Forwards the ready messages of a queue.
    pub(super) fn forward(&mut self, id: QueueId) {
        while let Some(q) = self.core.queues.get(&id).filter(|q| !q.paused && q.is_prepared()) {
            if self.left == 0 {
                return self.core.mark_dirty(id);
            }
            let Some(to) = &q.spec.forward_to else { return };
            let target = match to {
                Address::Queue(name) => self.core.names.get(name),
                Address::Topic(name) => self.core.topic_names.get(name),
            };
            let most = self.removals_max().min(FORWARD_MAX);
            let seqs = q.ready_batch(most, limits::DELIVERY_BYTES_MAX, false, self.now.0);
            if seqs.is_empty() {
                return;
            }
            self.left = self.left.saturating_sub(FORWARD_WORK * seqs.len());
            let target = target.copied().filter(|&target| target != id);
            let Some(target) = target else { return self.retry_later(id) };
            if self.begin(seqs.len() * FRAME_ROOM).is_err() {
                return self.retry_later(id);
            }
            let full = seqs.into_iter().any(|seq| !self.forward_one(id, seq, target));
            self.end();
            if full {
                return self.retry_later(id);
            }
        }
    }

    /// Forwards one message. Returns false if the target has no room.
    fn forward_one(&mut self, id: QueueId, seq: u64, target: QueueId) -> bool {
        let (Some(q), Some(to)) = (self.core.queues.get(&id), self.core.queues.get(&target)) else {
            return true;
        };
        let (Some(record), Some((_, size))) = (q.pos(seq), q.index.get(seq)) else { return true };
        // A message that arrived before `forward_to` was set has no carried attributes.
        let indexed = || {
            let (session, priority) = (self.session_of(id, seq), q.index.priority(seq));
            CarriedAttributes { session, priority, ..CarriedAttributes::default() }
        };
        let mut carried = q.carried.get(&seq).cloned().unwrap_or_else(indexed);
        carried.history.hops = carried.history.hops.saturating_add(1);
        if carried.history.hops > limits::HOPS_MAX {
            self.dead_letter_unleased(id, seq, DeadReason::TooManyHops);
            return true;
        }
        if !accepts_session(to, carried.session.as_ref()) {
            self.dead_letter_unleased(id, seq, DeadReason::NoSession);
            return true;
        }
        if !matches!(FillLevels::default().add(target, to, u64::from(size)), Ok(false)) {
            return false;
        }
        let lazy = !(q.durable() || to.durable());
        let places = smallvec![Placement { queue: target, seq: to.next_seq, due: Timestamp(0) }];
        let source = MessageRef { queue: id, seq };
        let (why, message_id) = (MoveReason::Forwarded, None);
        let moving = MessageMove { source, record, places, size, carried, why, message_id };
        self.commit_moved(moving, lazy);
        true
    }

    /// Schedules another attempt for a queue.
    pub(super) fn retry_later(&mut self, id: QueueId) {
        let at = self.now.0 + RETRY_MS;
        if let (Some(live), Some(q)) = (self.core.live.as_mut(), self.core.queues.get_mut(&id))
            && q.retry.is_none()
        {
            q.retry = Some(live.timers.set(at, Timer::Retry(id)));
        }
    }
}
