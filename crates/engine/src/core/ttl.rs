//! Expiring messages, and dropping messages from full queues.
//!
//! A queue's time to live needs no timer per message: only the oldest message is checked. Messages with their own time
//! to live are also in an ordered set.

use malote_model::{DeadReason, OnExpiry, Overflow, SessionId};
use xxhash_rust::xxh3::xxh3_128;

use super::background::BackgroundWork;
use super::dedup::FirstSend;
use super::tracked::MessageStatus;
use super::{Core, FRAME_ROOM, Timer, Turn};
use crate::event::{Event, QueueId, Removal};

/// Messages that expire in one turn. The rest follows in the next turn, which then begins at once.
const EXPIRE_MAX: usize = 512;

impl Core {
    /// Sets the expiry timer of a queue, unless an earlier one is set.
    pub(super) fn arm_expiry(&mut self, id: QueueId) {
        let Some(q) = self.queues.get(&id).filter(|_| self.live.is_some()) else { return };
        if q.spec.ttl_ms.is_none() && q.expiring.is_empty() && q.seen.is_none() {
            return;
        }
        if let Some(next) = q.next_expiry() {
            self.arm_expiry_at(id, next);
        }
    }

    /// Sets the timer for dropping de-duplication keys of a topic. It is the expiry timer of its inbox.
    pub(super) fn arm_topic(&mut self, id: QueueId) {
        let Some(t) = self.topics.get(&id).filter(|_| self.live.is_some()) else { return };
        let seen = t.seen.as_ref().zip(t.spec.dedup);
        if let Some(at) = seen.and_then(|(seen, dedup)| seen.forget_at(dedup.window_ms)) {
            self.arm_expiry_at(id, at);
        }
    }

    fn arm_expiry_at(&mut self, id: QueueId, next: u64) {
        let (Some(live), Some(q)) = (self.live.as_mut(), self.queues.get_mut(&id)) else { return };
        if let Some((at, timer)) = q.expiry {
            if at <= next {
                return;
            }
            live.timers.cancel(timer);
        }
        q.expiry = Some((next, live.timers.set(next, Timer::Expiry(id))));
    }

    /// Remembers a de-duplication key of a queue.
    pub(super) fn remember(
        &mut self,
        id: QueueId,
        key: u128,
        session: Option<&SessionId>,
        first: FirstSend,
        at: u64,
    ) {
        let Some(q) = self.queues.get_mut(&id) else { return };
        let (Some(dedup), Some(seen)) = (q.spec.dedup, q.seen.as_mut()) else { return };
        self.dedup_keys -= seen.forget(at, dedup.window_ms);
        let key = scoped(key, session.filter(|_| dedup.per_session));
        let more = seen.insert(key, first, at, dedup.window_ms);
        self.dedup_keys += usize::from(more || cfg!(feature = "mutate-miscounted-keys"));
    }

    /// The first message with this key within the queue's window.
    pub(super) fn seen(
        &self,
        id: QueueId,
        key: u128,
        session: Option<&SessionId>,
        now: u64,
    ) -> Option<FirstSend> {
        let q = self.queues.get(&id)?;
        let dedup = q.spec.dedup?;
        let key = scoped(key, session.filter(|_| dedup.per_session));
        q.seen.as_ref()?.find(key, now, dedup.window_ms)
    }
}

/// Keeps keys of different sessions apart, if so declared.
fn scoped(key: u128, session: Option<&SessionId>) -> u128 {
    session.map_or(key, |session| key ^ xxh3_128(session.as_str().as_bytes()))
}

impl Turn<'_> {
    /// Removes expired messages of a queue, a bounded number at a time. Returns false if the journal had no room.
    pub(super) fn expiry_due(&mut self, id: QueueId) -> bool {
        let now = self.now.0;
        let Some(q) = self.core.queues.get_mut(&id) else { return true };
        if let (Some(dedup), Some(seen)) = (q.spec.dedup, q.seen.as_mut()) {
            self.core.dedup_keys -= seen.forget(now, dedup.window_ms);
        }
        if let Some(t) = self.core.topics.get_mut(&id)
            && let (Some(dedup), Some(seen)) = (t.spec.dedup, t.seen.as_mut())
        {
            self.core.dedup_keys -= seen.forget(now, dedup.window_ms);
        }
        if self.core.queues.get(&id).is_some_and(|q| !q.is_prepared()) {
            return true; // the timer is set again when it is prepared
        }
        let mut done = 0;
        while done < EXPIRE_MAX {
            let expired = self.expired_messages(id);
            done += expired.len();
            self.left = self.left.saturating_sub(expired.len());
            if expired.is_empty() {
                break;
            }
            if !self.expire_messages(id, expired) {
                return false;
            }
            // Messages behind them may be deliverable now.
            self.core.mark_dirty(id);
        }
        self.core.arm_expiry(id);
        self.core.arm_topic(id);
        true
    }

    /// The number of messages that may be removed in one group.
    pub(super) fn removals_max(&self) -> usize {
        (self.log.group_bytes_max() / FRAME_ROOM).saturating_sub(2).clamp(1, EXPIRE_MAX)
    }

    fn expired_messages(&mut self, id: QueueId) -> Vec<u64> {
        let (now, most) = (self.now.0, self.removals_max());
        let mut expired = Vec::new();
        let Some(q) = self.core.queues.get_mut(&id) else { return expired };
        while expired.len() < most
            && let Some(&(_, seq)) = q.expiring.first().filter(|&&(at, _)| at <= now)
        {
            // A leased message is checked when it is returned.
            q.expiring.pop_first();
            if !matches!(q.status(seq), MessageStatus::Locked(_)) {
                expired.push(seq);
            }
        }
        while q.spec.ttl_ms.is_some()
            && expired.len() < most
            && let Some(seq) = q.index.next(q.expire_from)
            && q.index.expires_at(seq, q.spec.ttl_ms).is_some_and(|at| at <= now)
        {
            q.expire_from = seq + 1;
            // A scheduled message is not enqueued yet.
            if !matches!(q.status(seq), MessageStatus::Locked(_) | MessageStatus::Scheduled) {
                expired.push(seq);
            }
        }
        expired.sort_unstable();
        expired.dedup();
        expired
    }

    fn expire_messages(&mut self, id: QueueId, expired: Vec<u64>) -> bool {
        if self.begin(expired.len() * FRAME_ROOM + FRAME_ROOM).is_err() {
            let Some(q) = self.core.queues.get_mut(&id) else { return true };
            // Retry when there is room.
            for seq in expired {
                q.expire_from = q.expire_from.min(seq);
                if let Some(at) = q.index.expires_at(seq, None) {
                    q.expiring.insert((at, seq));
                }
            }
            return false;
        }
        self.drop_or_dead_letter(id, expired, true);
        self.end();
        true
    }

    /// Removes a message that has expired, instead of returning it. The group must be open.
    pub(super) fn expire_instead(&mut self, id: QueueId, seq: u64) -> bool {
        let Some(q) = self.core.queues.get(&id) else { return false };
        let over = q.expired(seq, self.now.0);
        if over {
            self.drop_or_dead_letter(id, vec![seq], true);
        }
        over
    }

    /// Drops or dead-letters messages that expired or exceed a limit. The group must be open.
    fn drop_or_dead_letter(&mut self, id: QueueId, seqs: Vec<u64>, expired: bool) {
        let Some(q) = self.core.queues.get(&id) else { return };
        let (drop, why, reason) = if expired {
            (q.spec.on_expiry == OnExpiry::Drop, Removal::Expired, DeadReason::Expired)
        } else {
            let drop = q.spec.overflow == Overflow::DropOldest;
            (drop, Removal::Overflowed, DeadReason::Overflowed)
        };
        if drop {
            let lazy = expired || !q.durable();
            self.commit(Event::Removed { queue: id, why, session: None, seqs }, lazy);
        } else {
            for seq in seqs {
                self.dead_letter_unleased(id, seq, reason.clone());
            }
        }
    }

    /// Drops messages from queues that exceed their limits. The new messages are already journaled: this is another
    /// group.
    pub(super) fn enforce_limits(&mut self) {
        while let Some(id) = self.core.live().over_limit.pop() {
            while let Some(seqs) = self.messages_over_limit(id) {
                if self.left == 0 {
                    self.core.add_background_work(BackgroundWork::MakeRoom(id));
                    break;
                }
                self.left = self.left.saturating_sub(seqs.len());
                if self.begin(seqs.len() * FRAME_ROOM + FRAME_ROOM).is_err() {
                    break; // the next message tries again
                }
                self.drop_or_dead_letter(id, seqs, false);
                self.end();
            }
        }
    }

    /// The messages that exceed the limits, a bounded number at a time.
    fn messages_over_limit(&mut self, id: QueueId) -> Option<Vec<u64>> {
        let most = self.removals_max();
        let q = self.core.queues.get_mut(&id).filter(|q| q.is_prepared())?;
        let over = |have: u64, max: Option<u64>| have.saturating_sub(max.unwrap_or(u64::MAX));
        let mut many = over(q.ready(), q.spec.length_max);
        let mut bytes = over(q.limited_bytes(), q.spec.bytes_max);
        let mut seqs = Vec::new();
        if !q.lanes.is_empty() {
            // The oldest of the lowest priority first.
            for &seq in q.lanes.iter().flatten().take(most) {
                if many == 0 && bytes == 0 {
                    break;
                }
                many = many.saturating_sub(1);
                bytes = bytes.saturating_sub(q.index.size(seq));
                seqs.push(seq);
            }
            return (!seqs.is_empty()).then_some(seqs);
        }
        while (many > 0 || bytes > 0)
            && seqs.len() < most
            && let Some(seq) = q.next_to_drop(seqs.last().copied())
        {
            many = many.saturating_sub(1);
            bytes = bytes.saturating_sub(q.index.size(seq));
            seqs.push(seq);
        }
        (!seqs.is_empty()).then_some(seqs)
    }
}
