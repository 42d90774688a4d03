//! Applying events about leases: messages are granted, returned and deferred.

use malote_model::{LeaseToken, Timestamp};

use super::leases::{Lease, LeaseTarget};
use super::sessions::NONE;
use super::tracked::MessageStatus;
use super::{BaseRecord, Core, Timer};
use crate::event::{Event, LeaseEnd, LeasedEvent, MessageRef, Overlay, QueueId, ReturnedEvent};
use crate::journal::Pos;

impl Core {
    /// Ends the lease of a message. Its session may have messages for another receiver.
    pub(super) fn unlock(&mut self, pos: Pos, id: QueueId, slot: u32) {
        let Some(lease) = self.revoke(slot) else { return };
        if let LeaseTarget::Message { session: Some(session), .. } = lease.what
            && let Some(q) = self.queues.get_mut(&id)
        {
            if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(session)) {
                s.locked = s.locked.saturating_sub(1);
                s.rests_on = s.rests_on.max(pos);
            }
            q.refresh_session(session);
            self.mark_session_dirty(id, session);
        }
    }

    pub(super) fn leased(&mut self, leased: &LeasedEvent) {
        self.advance_time(leased.at.0);
        let hold =
            leased.hold.and_then(|token| self.leases.find(token)).map(|lease| lease.token.slot);
        let mut items = &leased.items[..];
        for (session, count) in &leased.sessions {
            let (of_it, rest) = items.split_at((*count).min(items.len()));
            items = rest;
            let Some(q) = self.queues.get_mut(&leased.queue) else { return };
            let slot = q.sessions.as_mut().map(|sessions| sessions.find_or_add(session));
            self.leased_of(leased, hold, slot, of_it);
        }
        if leased.sessions.is_empty() {
            self.leased_of(leased, hold, None, items);
        }
    }

    /// Applies leases of one session's messages, or of a queue without sessions.
    pub(super) fn leased_of(
        &mut self,
        leased: &LeasedEvent,
        hold: Option<u32>,
        slot: Option<u32>,
        items: &[(u64, LeaseToken)],
    ) {
        let id = leased.queue;
        for &(seq, token) in items {
            let Some(q) = self.queues.get_mut(&id) else { return };
            if !q.index.contains(seq) || !self.leases.plausible(token.slot) {
                continue;
            }
            let tracked = q.tracked.entry(seq).or_default();
            let from = std::mem::replace(&mut tracked.status, MessageStatus::Locked(token.slot));
            // It no longer waits. A replay may not have noticed that its delay has ended.
            tracked.due = 0;
            let again = tracked.receives > 0;
            if !again {
                tracked.first = leased.at.0;
            }
            tracked.receives = tracked.receives.saturating_add(1);
            q.totals.delivered += 1;
            q.totals.redelivered += u64::from(again);
            q.recount(seq, Some(from), Some(MessageStatus::Locked(token.slot)));
            match slot {
                Some(slot) => {
                    if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                        s.locked += 1;
                        if leased.deferred || from == MessageStatus::Parked {
                            s.decrement_aside();
                        }
                        if from == MessageStatus::Parked {
                            // In a replay: the end of a delay is not an event, but it must have passed.
                            s.pending.insert(seq);
                        }
                        if !leased.deferred {
                            s.cursor = seq + 1;
                        }
                    }
                }
                None if leased.deferred => {}
                None => q.unready(seq),
            }
            let what = LeaseTarget::Message { seq, session: slot, hold, deferred: leased.deferred };
            self.grant(Lease::new(token, id, leased.until.0, leased.bound, what));
        }
        let Some(q) = self.queues.get_mut(&id) else { return };
        match slot {
            Some(slot) => q.refresh_session(slot),
            None => q.settle_cursor(),
        }
    }

    pub(super) fn returned(&mut self, pos: Pos, returned: &ReturnedEvent) {
        let ReturnedEvent { queue: id, seq, cause, due, parked, overlay } = returned;
        let Some(q) = self.queues.get_mut(id) else { return };
        let Some(tracked) = q.tracked.get_mut(seq) else { return };
        let MessageStatus::Locked(lease_slot) = tracked.status else { return };
        match cause {
            // With the mutation, a replay counts what the live core does not.
            LeaseEnd::Released if cfg!(feature = "mutate-live-differs") && self.live.is_some() => {}
            LeaseEnd::Released => tracked.released = tracked.released.saturating_add(1),
            LeaseEnd::Abandoned => tracked.failed = tracked.failed.saturating_add(1),
            LeaseEnd::Lost => {
                tracked.failed = tracked.failed.saturating_add(1);
                tracked.lost = tracked.lost.saturating_add(1);
            }
        }
        q.totals.lease_ended(*cause);
        self.apply_overlay(pos, *id, *seq, overlay.as_ref());
        let what = self.leases.at(lease_slot).map(|lease| lease.what);
        let Some(LeaseTarget::Message { session, deferred, .. }) = what else { return };
        let Some(q) = self.queues.get_mut(id) else { return };
        let to = match (deferred, due.0) {
            (true, _) => MessageStatus::Deferred,
            (false, 0) => MessageStatus::Ready,
            (false, _) if *parked => MessageStatus::Parked,
            (false, _) => MessageStatus::Delayed,
        };
        q.recount(*seq, Some(MessageStatus::Locked(lease_slot)), Some(to));
        if let Some(tracked) = q.tracked.get_mut(seq) {
            tracked.status = to;
            tracked.session = session.unwrap_or(NONE);
        }
        if matches!(to, MessageStatus::Delayed | MessageStatus::Parked) {
            // It is already counted; this only sets the timer.
            let timer = self.live.as_mut().map(|live| {
                live.timers.set(due.0, Timer::Due(MessageRef { queue: *id, seq: *seq }))
            });
            if let Some(tracked) = self.queues.get_mut(id).and_then(|q| q.tracked.get_mut(seq)) {
                (tracked.due, tracked.timer) = (due.0, timer);
            }
        }
        let Some(q) = self.queues.get_mut(id) else { return };
        match session {
            Some(slot) => {
                if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                    match to {
                        MessageStatus::Deferred | MessageStatus::Parked => {
                            s.extras_mut().aside += 1
                        }
                        _ => s.cursor = s.cursor.min(*seq),
                    }
                }
                q.oldest = q.oldest.min(*seq);
            }
            None if to == MessageStatus::Ready => q.make_ready(*seq),
            None => {}
        }
        // A lazy return does not have to be durable.
        let rests_on =
            if overlay.is_some() || *cause == LeaseEnd::Abandoned { pos } else { Pos::ZERO };
        self.unlock(rests_on, *id, lease_slot);
        self.mark_dirty(*id);
        self.may_overflow(*id);
    }

    pub(super) fn deferred(&mut self, pos: Pos, id: QueueId, seq: u64, overlay: Option<&Overlay>) {
        self.apply_overlay(pos, id, seq, overlay);
        let Some(q) = self.queues.get_mut(&id) else { return };
        let Some(tracked) = q.tracked.get_mut(&seq) else { return };
        let MessageStatus::Locked(slot) = tracked.status else { return };
        let what = self.leases.at(slot).map(|lease| lease.what);
        let Some(LeaseTarget::Message { session, .. }) = what else { return };
        (tracked.status, tracked.session) = (MessageStatus::Deferred, session.unwrap_or(NONE));
        q.recount(seq, Some(MessageStatus::Locked(slot)), Some(MessageStatus::Deferred));
        q.totals.deferred += 1;
        if let Some(s) = session.and_then(|slot| q.sessions.as_mut()?.at_mut(slot)) {
            s.extras_mut().aside += 1;
        }
        self.unlock(pos, id, slot);
    }

    /// Records that the record at `pos` is an overlay on the message's newest record.
    pub(super) fn apply_overlay(
        &mut self,
        pos: Pos,
        id: QueueId,
        seq: u64,
        overlay: Option<&Overlay>,
    ) {
        if let (Some(overlay), Some(q)) = (overlay, self.queues.get_mut(&id)) {
            self.base_records.insert(pos, BaseRecord { from: overlay.from, users: 1 });
            q.newest.insert(seq, pos);
            self.check_depth(id, seq, pos);
        }
    }

    /// Ends a delay. This is not an event: it follows from the clock.
    pub(super) fn delay_over(&mut self, id: QueueId, seq: u64) {
        let Some(q) = self.queues.get_mut(&id) else { return };
        let Some(tracked) = q.tracked.get_mut(&seq) else { return };
        let from = std::mem::replace(&mut tracked.status, MessageStatus::Ready);
        let slot = tracked.session;
        if tracked.receives == 0 {
            q.tracked.remove(&seq);
        }
        q.recount(seq, Some(from), None);
        self.may_overflow(id);
        let Some(q) = self.queues.get_mut(&id) else { return };
        if q.sessions.is_none() {
            q.make_ready(seq);
            return self.mark_dirty(id);
        }
        q.oldest = q.oldest.min(seq);
        if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
            if from == MessageStatus::Parked {
                s.decrement_aside();
            }
            s.pending.insert(seq);
            s.cursor = s.cursor.min(seq);
        }
        q.refresh_session(slot);
        self.mark_session_dirty(id, slot);
    }

    pub(super) fn grant(&mut self, lease: Lease) {
        let what = lease.what;
        let slot = self.leases.insert(lease);
        if let LeaseTarget::Message { hold: Some(hold), .. } = what
            && let Some(hold) = self.leases.at_mut(hold)
        {
            let first = std::mem::replace(&mut hold.first, slot);
            if let Some(after) = self.leases.at_mut(first) {
                after.prev = slot;
            }
            if let Some(lease) = self.leases.at_mut(slot) {
                lease.next = first;
            }
        }
        self.arm(slot);
    }

    /// Sets the timer of a lease, unless an earlier one is set, which then checks again. Messages under an explicit
    /// hold need no timer.
    pub(super) fn arm(&mut self, slot: u32) {
        let Some(until) = self.leases.at(slot).map(|lease| self.leases.until(lease)) else {
            return;
        };
        let (Some(live), Some(lease)) = (self.live.as_mut(), self.leases.at_mut(slot)) else {
            return;
        };
        if matches!(lease.what, LeaseTarget::Message { hold: Some(_), .. }) {
            return;
        }
        if let Some(timer) = lease.timer {
            if until >= lease.armed_for {
                return;
            }
            live.timers.cancel(timer);
        }
        lease.armed_for = until;
        lease.timer = Some(live.timers.set(until, Timer::Lease(slot)));
    }

    pub(super) fn revoke(&mut self, slot: u32) -> Option<Lease> {
        self.count_processed(1);
        let lease = self.leases.remove(slot)?;
        if let (Some(live), Some(timer)) = (self.live.as_mut(), lease.timer) {
            live.timers.cancel(timer);
        }
        if let Some(before) = self.leases.at_mut(lease.prev) {
            before.next = lease.next;
        } else if let LeaseTarget::Message { hold: Some(hold), .. } = lease.what {
            if let Some(hold) = self.leases.at_mut(hold) {
                hold.first = lease.next;
            }
        } else if let (Some(live), Some(connection)) = (self.live.as_mut(), lease.connection) {
            live.set_first(connection, lease.next);
        }
        if let Some(after) = self.leases.at_mut(lease.next) {
            after.prev = lease.prev;
        }
        Some(lease)
    }

    /// A restart of the broker releases connection-bound leases. Nothing is counted.
    pub(super) fn end_bound_leases(&mut self) {
        let bound: Vec<_> = self
            .leases
            .iter()
            .filter(|lease| lease.bound)
            .map(|l| (l.token.slot, l.queue, l.what))
            .collect();
        for &(_, queue, what) in &bound {
            if let LeaseTarget::Message { seq, .. } = what {
                let (cause, due) = (LeaseEnd::Released, Timestamp(0));
                self.returned(
                    Pos::ZERO,
                    &ReturnedEvent { queue, seq, cause, due, parked: false, overlay: None },
                );
            }
        }
        for (_, queue, what) in bound {
            if let LeaseTarget::Session { session } = what
                && let Some(id) = self
                    .queues
                    .get(&queue)
                    .and_then(|q| q.sessions.as_ref()?.at(session))
                    .map(|s| s.id.clone())
            {
                self.apply(Pos::ZERO, &Event::Unheld { queue, session: id, lost: false });
            }
        }
    }
}
