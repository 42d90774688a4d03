//! Applying events to the state. This never refuses and never fails: after damage on disk some events are missing, and
//! later events must still be applied as far as possible.

use std::collections::BTreeSet;

use malote_model::{DeadLetterTarget, DeadReason, QueueSpec, SessionId, Timestamp};

use super::dedup::FirstSend;
use super::leases::{Lease, LeaseTarget, NONE};
use super::sessions::StoredState;
use super::tracked::{Arrival, CarriedAttributes, MessageStatus, RemovedMessage, TrackedMessage};
use super::{BaseRecord, Core, Timer};
use crate::event::{
    Event, MessageRef, MoveReason, MovedEvent, Placement, QueueId, Removal, RouteHistory, SentEvent,
};
use crate::journal::Pos;

impl Core {
    /// Applies the event whose record is at `pos`.
    pub fn apply(&mut self, pos: Pos, event: &Event) {
        match event {
            Event::Booted { epoch, at } => {
                self.epoch = *epoch;
                self.advance_time(at.0);
                self.end_bound_leases();
            }
            Event::Declared { queue, dead, name, spec, at } => {
                self.advance_time(at.0);
                self.next_queue = self.next_queue.max(queue.0 + 1).max(dead.0 + 1);
                self.add_queue(*queue, *dead, name.clone(), spec, *at);
                self.set_dead_letter_target(*queue, &DeadLetterTarget::Own, &spec.dead_letter);
            }
            Event::Updated { queue, spec, at } => {
                self.advance_time(at.0);
                let Some(q) = self.queues.get_mut(queue) else { return };
                self.dedup_keys -= q.seen.as_ref().map_or(0, |seen| seen.len());
                let dead_letter_sources = q.spec.dead_letter.clone();
                q.respecify(spec, self.last_at);
                self.dedup_keys += q.seen.as_ref().map_or(0, |seen| seen.len());
                let dead = q.dead;
                self.set_dead_letter_target(*queue, &dead_letter_sources, &spec.dead_letter);
                // A topic's inbox has no dead-letter set: `dead` is its own id.
                if let Some(letters) = self.queues.get_mut(&dead).filter(|_| dead != *queue) {
                    letters.spec = dead_letter_set_spec(spec);
                }
                self.prepare(*queue);
                self.arm_expiry(*queue);
                self.arm_idle(*queue);
                self.may_overflow(*queue);
                // Its messages may now be forwarded or delivered.
                self.mark_dirty(*queue);
            }
            Event::Deleted { queue } => self.drop_queue(*queue),
            Event::Paused { queue, paused } => {
                if let Some(q) = self.queues.get_mut(queue) {
                    q.paused = *paused;
                }
                self.mark_dirty(*queue);
            }
            Event::Purged { queue, below, leased } => self.purge_queue(*queue, *below, *leased),
            Event::Sent(sent) => self.sent(pos, sent),
            Event::Removed { queue, why, session, seqs } => {
                self.removed(pos, *queue, *why, session.as_ref(), seqs)
            }
            Event::Leased(leased) => self.leased(leased),
            Event::Renewed { leases, until } => {
                for token in leases {
                    if self.leases.find(*token).is_some() {
                        self.leases.renew(token.slot, until.0);
                        self.arm(token.slot);
                    }
                }
            }
            Event::Returned(returned) => self.returned(pos, returned),
            Event::Deferred { queue, seq, overlay } => {
                self.deferred(pos, *queue, *seq, overlay.as_ref())
            }
            Event::Moved(moved) => self.moved(pos, moved),
            Event::Held { token, .. } if !self.leases.plausible(token.slot) => {}
            Event::Held { queue, session, token, until, bound } => {
                let Some(q) = self.queues.get_mut(queue) else { return };
                let Some(sessions) = q.sessions.as_mut() else { return };
                let slot = sessions.find_or_add(session);
                let Some(s) = sessions.at_mut(slot) else { return };
                (s.extras_mut().hold, s.cursor) = (token.slot, 0);
                q.sessions_held += 1;
                q.refresh_session(slot);
                let what = LeaseTarget::Session { session: slot };
                self.grant(Lease::new(*token, *queue, until.0, *bound, what));
            }
            Event::Unheld { queue, session, lost } => {
                let Some(q) = self.queues.get_mut(queue) else { return };
                let Some(slot) = q.sessions.as_ref().and_then(|s| s.find(session)) else { return };
                let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) else { return };
                let rare = s.extras_mut();
                let hold = std::mem::replace(&mut rare.hold, NONE);
                rare.consumers.clear();
                s.cursor = 0;
                q.sessions_held = q.sessions_held.saturating_sub(1);
                q.totals.sessions_lost += u64::from(*lost);
                q.refresh_session(slot);
                self.revoke(hold);
                self.mark_dirty(*queue);
            }
            Event::TopicDeclared { topic, name, spec, at } => {
                self.topic_declared(*topic, name, spec, *at);
            }
            Event::TopicUpdated { topic, spec, at } => {
                self.advance_time(at.0);
                self.topic_updated(*topic, spec);
            }
            Event::TopicDeleted { topic } => self.drop_topic(*topic),
            Event::Bound { topic, queue, rule } => self.bound(*topic, *queue, rule),
            Event::Unbound { topic, queue, rule } => self.unbound(*topic, *queue, rule),
            Event::State { queue, session, state, at } => {
                self.advance_time(at.0);
                let Some(q) = self.queues.get_mut(queue) else { return };
                let (Some(sessions), state_bytes) = (&mut q.sessions, &mut q.state_bytes) else {
                    return;
                };
                let slot = sessions.find_or_add(session);
                if let Some(s) = sessions.at_mut(slot) {
                    let bytes = |state: &StoredState| u64::from(state.bytes);
                    let rare = s.extras_mut();
                    *state_bytes -= rare.state.as_ref().map_or(0, bytes);
                    rare.state = state.as_ref().map(|state| StoredState {
                        pos,
                        bytes: state.len() as u32,
                        at: at.0,
                    });
                    *state_bytes += rare.state.as_ref().map_or(0, bytes);
                    s.rests_on = pos;
                }
                sessions.forget_if_idle(slot);
                self.may_overflow(*queue);
            }
            Event::Relocated(message) => self.relocated(pos, message),
            Event::ClockStepped { by_ms, at } => {
                self.advance_time(at.0);
                self.leases.clock_stepped(*by_ms);
            }
            Event::Digest(digest) => {
                self.compare(pos, digest);
                self.advance_time(digest.at.0);
            }
        }
    }

    pub(super) fn advance_time(&mut self, at: u64) {
        self.last_at = self.last_at.max(at);
    }

    /// Marks a queue, so that its deliveries are checked before the turn ends.
    pub(super) fn mark_dirty(&mut self, id: QueueId) {
        if let (Some(live), Some(q)) = (self.live.as_mut(), self.queues.get_mut(&id))
            && !q.dirty
        {
            q.dirty = true;
            live.dirty.push(id);
        }
    }

    pub(super) fn mark_session_dirty(&mut self, id: QueueId, slot: u32) {
        let held = self
            .queues
            .get(&id)
            .and_then(|q| q.sessions.as_ref()?.at(slot))
            .is_some_and(|s| !s.extras().consumers.is_empty());
        if let Some(live) = self.live.as_mut()
            && held
        {
            live.dirty_sessions.push((id, slot));
        }
        self.mark_dirty(id);
    }

    fn sent(&mut self, pos: Pos, sent: &SentEvent) {
        self.advance_time(sent.at.0);
        let SentEvent { at, scheduled, session, priority, ttl_ms, dedup, known_as, size, .. } =
            sent;
        let tenant = session.as_ref();
        // In a queue without sessions, a session id only identifies the tenant.
        let orders = |place: &Placement| self.queues.get(&place.queue).is_some_and(|q| q.orders());
        let session = tenant.filter(|_| sent.places.iter().any(orders));
        if let Some(topic) = sent.topic {
            self.remember_published(topic, *dedup, *known_as, at.0);
            if let Some(t) = self.topics.get_mut(&topic).filter(|_| !scheduled) {
                t.totals.copies += sent.places.len() as u64;
            }
        }
        if let Some(body_at) = sent.body_at {
            self.share(body_at);
            self.base_records.insert(pos, BaseRecord { from: body_at, users: 1 });
        }
        for place in &sent.places {
            let Some(q) = self.queues.get_mut(&place.queue) else { continue };
            q.totals.sent += 1;
            if let Some(key) = dedup {
                let first = FirstSend { seq: place.seq, id: *known_as };
                self.remember(place.queue, *key, session, first, at.0);
            }
            let arrival = Arrival {
                seq: place.seq,
                at: at.0,
                due: place.due.0,
                scheduled: *scheduled,
                size: *size,
                session,
                tenant,
                priority: *priority,
                ttl_ms: *ttl_ms,
                history: Some(&sent.history).filter(|history| **history != RouteHistory::default()),
            };
            self.add_message(pos, place.queue, &arrival);
            if sent.body_at.is_some()
                && let Some(q) = self.queues.get_mut(&place.queue)
            {
                q.newest.insert(place.seq, pos);
            }
        }
    }

    /// Adds a message to a queue and, if the queue has sessions, to its session.
    fn add_message(&mut self, pos: Pos, id: QueueId, arrival: &Arrival<'_>) {
        let Some(q) = self.queues.get_mut(&id) else { return };
        let Arrival { seq, due, scheduled, session, priority, ttl_ms, history, .. } = *arrival;
        if seq < q.next_seq {
            return; // impossible: sequence numbers only grow
        }
        let in_line = session.filter(|_| !scheduled);
        let slot = in_line.and_then(|session| Some(q.sessions.as_mut()?.find_or_add(session)));
        q.insert(pos, arrival, slot);
        if due > 0 {
            let place = if scheduled { MessageStatus::Scheduled } else { MessageStatus::Delayed };
            self.wait(id, seq, place, due);
        }
        let Some(q) = self.queues.get_mut(&id) else { return };
        let history = history.cloned();
        // A pending message of a session is found through the session; only its history needs to be kept.
        let keeps = match slot {
            Some(_) => history.as_ref().is_some_and(|history| *history != RouteHistory::default()),
            None => scheduled || history.is_some(),
        };
        let history = history.unwrap_or_default();
        let carried = CarriedAttributes { session: session.cloned(), priority, ttl_ms, history };
        if (keeps || q.keeps_attributes()) && carried != CarriedAttributes::default() {
            q.carried.insert(seq, carried);
        }
        if let Some(slot) = slot {
            if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                s.pending.insert(seq);
                s.cursor = s.cursor.min(seq);
            }
            if let Some(tracked) = q.tracked.get_mut(&seq) {
                tracked.session = slot;
            }
            q.refresh_session(slot);
            self.mark_session_dirty(id, slot);
        } else {
            if due == 0 && q.sessions.is_none() {
                q.make_ready(seq);
            }
            self.mark_dirty(id);
        }
        self.arm_expiry(id);
        self.may_overflow(id);
    }

    /// Marks a queue, so that its limits are checked before the turn ends.
    pub(super) fn may_overflow(&mut self, id: QueueId) {
        let limited = self.queues.get(&id).is_some_and(|q| q.drops());
        if let Some(live) = self.live.as_mut().filter(|_| limited) {
            live.over_limit.push(id);
        }
    }

    /// Lets a message wait until `due`.
    fn wait(&mut self, id: QueueId, seq: u64, place: MessageStatus, due: u64) {
        let timer = self
            .live
            .as_mut()
            .map(|live| live.timers.set(due, Timer::Due(MessageRef { queue: id, seq })));
        let Some(q) = self.queues.get_mut(&id) else { return };
        let tracked = q.tracked.entry(seq).or_default();
        let from = tracked.status;
        (tracked.status, tracked.due, tracked.timer) = (place, due, timer);
        q.recount(seq, Some(from), Some(place));
        q.settle_cursor();
    }

    fn removed(
        &mut self,
        pos: Pos,
        id: QueueId,
        why: Removal,
        session: Option<&SessionId>,
        seqs: &[u64],
    ) {
        for &seq in seqs {
            let Some(q) = self.queues.get_mut(&id) else { return };
            match why {
                Removal::Completed | Removal::Taken => q.totals.completed += 1,
                Removal::Dropped(cause) => q.totals.lease_ended(cause),
                Removal::Expired => q.totals.expired += 1,
                Removal::Cancelled
                | Removal::Replaced
                | Removal::Overflowed
                | Removal::Unrouted
                | Removal::Purged => {}
            }
            if why == Removal::Taken {
                q.totals.delivered += 1;
                q.totals.redelivered +=
                    u64::from(q.tracked.get(&seq).is_some_and(|t| t.receives > 0));
            }
            let unheld = matches!(why, Removal::Replaced | Removal::Expired | Removal::Overflowed);
            let line = if unheld { q.session_slot_of(seq) } else { None };
            self.count_processed(1);
            self.remove_message(pos, id, seq);
            self.refresh_after_removal(pos, id, line);
        }
        // Messages taken without a lease: the session must drop them from the front of its pending list.
        let Some(q) = self.queues.get_mut(&id) else { return };
        if let Some(slot) = session.and_then(|session| q.sessions.as_ref()?.find(session)) {
            if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                s.rests_on = pos;
            }
            q.refresh_session(slot);
            if why == Removal::Purged {
                self.mark_session_dirty(id, slot);
            }
        }
    }

    /// Removes a message from its queue, whatever its status.
    fn remove_message(&mut self, pos: Pos, id: QueueId, seq: u64) {
        let Some(q) = self.queues.get_mut(&id) else { return };
        let Some(RemovedMessage { newest, tracked }) = q.remove(seq) else { return };
        if let Some(newest) = newest {
            self.forget_records(newest);
        }
        let Some(tracked) = tracked else { return };
        if let (Some(timer), Some(live)) = (tracked.timer, self.live.as_mut()) {
            live.timers.cancel(timer);
        }
        match tracked.status {
            MessageStatus::Locked(slot) => self.unlock(pos, id, slot),
            MessageStatus::Deferred | MessageStatus::Parked => self.unpark(id, tracked.session),
            // A session drops removed messages when they reach the front of its pending list.
            MessageStatus::Ready | MessageStatus::Delayed | MessageStatus::Scheduled => {}
        }
    }

    /// Updates a session after a message that was not leased was removed. Another message may be next now.
    fn refresh_after_removal(&mut self, pos: Pos, id: QueueId, slot: Option<u32>) {
        if let (Some(slot), Some(q)) = (slot, self.queues.get_mut(&id)) {
            if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                s.rests_on = s.rests_on.max(pos);
            }
            q.refresh_session(slot);
            self.mark_session_dirty(id, slot);
        }
    }

    fn unpark(&mut self, id: QueueId, slot: u32) {
        let Some(q) = self.queues.get_mut(&id) else { return };
        if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
            s.decrement_aside();
        }
        q.refresh_session(slot);
    }

    /// Drops a chain of overlays, from the newest record down to one that other messages use.
    pub(super) fn forget_records(&mut self, newest: Pos) {
        let mut next = newest;
        while let Some(under) = self.base_records.get_mut(&next) {
            under.users -= 1;
            if under.users > 0 {
                return;
            }
            let from = under.from;
            self.base_records.remove(&next);
            next = from;
        }
    }

    /// Counts another user of a record.
    fn share(&mut self, pos: Pos) {
        if let Some(under) = self.base_records.get_mut(&pos) {
            under.users += 1;
        }
    }

    fn moved(&mut self, pos: Pos, moved: &MovedEvent) {
        self.advance_time(moved.at.0);
        let MovedEvent { from_queue, from_seq, from, at, why, .. } = moved;
        // The older records stay live under the new position, so they are detached from the old one first.
        if let Some(q) = self.queues.get_mut(from_queue) {
            q.newest.remove(from_seq);
            if let MoveReason::DeadLettered { reason, cause, .. } = why {
                q.totals.dead_lettered += 1;
                q.totals.expired += u64::from(*reason == DeadReason::Expired);
                q.totals.lease_ended(*cause);
            }
        }
        if let Some(topic) = self.topics.get_mut(from_queue).filter(|_| *why == MoveReason::Routed)
        {
            // Copies that go back to the inbox are counted when they leave it.
            let copies = moved.places.iter().filter(|place| place.queue != *from_queue);
            topic.totals.copies += copies.count() as u64;
        }
        let line = self.queues.get_mut(from_queue).and_then(|q| q.session_slot_of(*from_seq));
        self.count_processed(1);
        self.remove_message(pos, *from_queue, *from_seq);
        self.refresh_after_removal(pos, *from_queue, line);
        let users = moved.places.iter().filter(|place| self.queues.contains_key(&place.queue));
        // One more, so that the record survives until the end of this function.
        let users = users.count() as u32 + 1;
        self.base_records.insert(pos, BaseRecord { from: *from, users });
        for place in &moved.places {
            let Some(q) = self.queues.get_mut(&place.queue) else { continue };
            q.totals.sent += 1;
            let arrival = Arrival {
                seq: place.seq,
                at: at.0,
                due: place.due.0,
                scheduled: false,
                size: moved.size,
                session: moved.session.as_ref(),
                tenant: moved.session.as_ref(),
                priority: moved.priority,
                ttl_ms: moved.ttl_ms,
                history: Some(&moved.history),
            };
            self.add_message(pos, place.queue, &arrival);
            // `newest` has an entry for every position with overlays, so that removing the message drops them.
            if let Some(q) = self.queues.get_mut(&place.queue) {
                q.newest.insert(place.seq, pos);
            }
            self.check_depth(place.queue, place.seq, pos);
        }
        self.forget_records(pos);
    }

    /// Sets all timers after a replay. They are not journaled, but follow from the state.
    pub(super) fn set_timers(&mut self, now: Timestamp) {
        let Some(live) = self.live.as_mut() else { return };
        // Sorted by time, so that overdue timers fire in their order.
        let waits = |t: &TrackedMessage| {
            matches!(
                t.status,
                MessageStatus::Delayed | MessageStatus::Parked | MessageStatus::Scheduled
            )
        };
        let mut due = Vec::new();
        for (&id, q) in &self.queues {
            let waiting = q.tracked.iter().filter(|(_, t)| waits(t));
            due.extend(waiting.map(|(&seq, t)| (t.due, id, seq)));
        }
        due.sort_unstable();
        for (at, id, seq) in due {
            let tracked = self.queues.get_mut(&id).and_then(|q| q.tracked.get_mut(&seq));
            if let Some(tracked) = tracked {
                tracked.timer =
                    Some(live.timers.set(at, Timer::Due(MessageRef { queue: id, seq })));
            }
        }
        let seq = |lease: &Lease| match lease.what {
            LeaseTarget::Message { seq, .. } => seq,
            LeaseTarget::Session { .. } => 0,
        };
        let mut leases: Vec<_> = self
            .leases
            .iter()
            .map(|l| (self.leases.until(l), l.queue, seq(l), l.token.slot))
            .collect();
        leases.sort_unstable();
        leases.into_iter().for_each(|(.., slot)| self.arm(slot));
        let mut ids: Vec<_> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.arm_expiry(id);
            self.arm_topic(id);
            // A crash may have come between the return of messages and the removal of what was too many.
            self.may_overflow(id);
            // The time while the broker was down does not count as idle.
            self.used(id, now);
            self.arm_idle(id);
            // Messages that wait to be routed or forwarded are offered again.
            if self.queues.get(&id).is_some_and(|q| q.keeps_attributes()) {
                self.mark_dirty(id);
            }
        }
    }

    fn purge_queue(&mut self, id: QueueId, below: u64, leased: bool) {
        let Some(q) = self.queues.get(&id) else { return };
        if leased {
            let is_out = |(&seq, t): (&u64, &TrackedMessage)| {
                (seq < below && matches!(t.status, MessageStatus::Locked(_))).then_some(seq)
            };
            let mut out: Vec<u64> = q.tracked.iter().filter_map(is_out).collect();
            out.sort_unstable();
            out.into_iter().for_each(|seq| self.remove_message(Pos::ZERO, id, seq));
            // Also forget the de-duplication keys, as if nothing had ever been sent.
            let seen = self.queues.get_mut(&id).and_then(|q| q.seen.as_mut());
            let forgotten = seen.map(std::mem::take);
            self.dedup_keys -= forgotten.map_or(0, |seen| seen.len());
        }
        let Some(q) = self.queues.get_mut(&id) else { return };
        if q.locked > 0 || below < q.next_seq {
            let stays =
                |seq: u64| seq >= below || matches!(q.status(seq), MessageStatus::Locked(_));
            let gone: Vec<_> =
                q.index.iter().map(|(seq, _)| seq).filter(|&seq| !stays(seq)).collect();
            gone.into_iter().for_each(|seq| self.remove_message(Pos::ZERO, id, seq));
        } else {
            // No message is leased: remove everything at once.
            q.index.clear();
            q.returned.clear();
            q.fair = None;
            q.lanes.iter_mut().for_each(BTreeSet::clear);
            q.carried.clear();
            q.expiring.clear();
            q.own_expiries = 0;
            q.aside_bytes = 0;
            (q.delayed, q.scheduled, q.deferred, q.cursor) = (0, 0, 0, q.next_seq);
            let timers: Vec<_> =
                q.tracked.drain().filter_map(|(_, tracked)| tracked.timer).collect();
            let records: Vec<_> = q.newest.drain().map(|(_, newest)| newest).collect();
            if let Some(live) = self.live.as_mut() {
                timers.into_iter().for_each(|timer| live.timers.cancel(timer));
            }
            records.into_iter().for_each(|newest| self.forget_records(newest));
        }
        let Some(q) = self.queues.get_mut(&id) else { return };
        let slots: Vec<u32> =
            q.sessions.as_ref().map_or_else(Vec::new, |s| s.iter().map(|(slot, _)| slot).collect());
        for slot in slots {
            if q.tracked.is_empty()
                && let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot))
                && s.extras().aside > 0
            {
                s.extras_mut().aside = 0;
            }
            q.refresh_session(slot);
        }
    }

    pub(super) fn drop_queue(&mut self, id: QueueId) {
        let Some(dead) = self.queues.get(&id).map(|q| q.dead) else { return };
        // A topic's inbox has no dead-letter set.
        for id in if id == dead { vec![id] } else { vec![id, dead] } {
            let Some(q) = self.queues.remove(&id) else { continue };
            self.names.remove(&q.name);
            self.forget_bindings(&q, id);
            self.dedup_keys -= q.seen.as_ref().map_or(0, |seen| seen.len());
            if q.owner.is_none() {
                self.set_dead_letter_target(id, &q.spec.dead_letter, &DeadLetterTarget::Own);
            }
            if let Some(live) = self.live.as_mut() {
                let own = q.expiry.map(|(_, timer)| timer).into_iter().chain(q.idle).chain(q.retry);
                own.for_each(|timer| live.timers.cancel(timer));
            }
            self.free_queue(id, q);
        }
    }

    /// Updates the index of dead-letter targets.
    pub(super) fn set_dead_letter_target(
        &mut self,
        id: QueueId,
        from: &DeadLetterTarget,
        to: &DeadLetterTarget,
    ) {
        if let DeadLetterTarget::Queue(name) = from
            && let Some(ids) = self.dead_letter_sources.get_mut(name)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.dead_letter_sources.remove(name);
            }
        }
        if let DeadLetterTarget::Queue(name) = to {
            self.dead_letter_sources.entry(name.clone()).or_default().insert(id);
        }
    }
}

/// The settings of a dead-letter set. Dead letters keep their session ids but not their order: the set has no sessions,
/// no limits and no expiry.
pub(super) fn dead_letter_set_spec(spec: &QueueSpec) -> QueueSpec {
    QueueSpec {
        lock_ms: spec.lock_ms,
        durability: spec.durability,
        message_bytes_max: spec.message_bytes_max,
        backlog_warning: spec.backlog_warning,
        failed_max: None,
        ..QueueSpec::default()
    }
}
