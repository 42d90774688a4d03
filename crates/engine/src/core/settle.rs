//! Settling leases, and its effects on messages and sessions.

use hashbrown::HashSet;
use malote_model::{
    Changes, DeadLetterTarget, DeadReason, LeaseToken, OnExpiry, QueueName, Refusal, RetryOrder,
    SessionId, Settlement, Timestamp, limits,
};

use smallvec::smallvec;

use super::consumers::check_lock;
use super::leases::{Lease, LeaseTarget};
use super::{Decided, FRAME_ROOM, FixedState, SMALL_ROOM, Turn, WaitFor};
use crate::codec::put_properties;
use crate::command::{Reply, StateChange};
use crate::event::{
    Event, LeaseEnd, MessageRef, MoveReason, MovedEvent, Overlay, Placement, QueueId, Removal,
    ReturnedEvent, RouteHistory,
};

/// Longer chains of dead-letter targets are treated as cycles and end in the queue's own set.
const DEAD_LETTERED_IN_MAX: usize = 16;

impl Turn<'_> {
    pub(super) fn settle(
        &mut self,
        leases: &[LeaseToken],
        settlement: Settlement,
        state: Option<StateChange>,
    ) -> Decided {
        if leases.len() > limits::SETTLE_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "leases in one settle",
                limit: limits::SETTLE_BATCH_MAX as u64,
            });
        }
        let each = check_settlement(&settlement)?;
        let mut room = each * leases.len() + FRAME_ROOM + self.delay_room(leases, &settlement);
        if let Some(change) = &state {
            self.check_state_room(change)?;
            room += change.state.as_ref().map_or(0, |state| state.len());
            // With a session state, everything takes effect or nothing.
            if let Some(&lease) = leases.iter().find(|&&lease| self.leased_message(lease).is_none())
            {
                return Err(Refusal::LeaseLost { lease });
            }
        }
        let durable = leases
            .iter()
            .filter_map(|&lease| self.leased_message(lease))
            .any(|(_, queue, _)| self.durable(queue));
        let durable = durable || state.is_some();
        self.begin(room)?;
        // The state comes first: an abandon with a delay ends the hold that the state change needs.
        if let Some(change) = state {
            self.commit_state(change);
        }
        let outcomes = match settlement {
            Settlement::Complete => self.complete(leases),
            other => leases.iter().map(|&lease| self.settle_one(lease, &other)).collect(),
        };
        self.end();
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let needs = match accepted {
            0 => WaitFor::Settled,
            // The refusals among them depend on everything decided before, whatever the durability of these queues.
            n if n < outcomes.len() && !durable => WaitFor::Granted(self.log.last_eager()),
            _ => WaitFor::of(durable),
        };
        Ok(Some((Reply::Settled(outcomes), needs)))
    }

    /// Dead-letters messages that cannot be read. A damaged dead letter is deferred, because it has nowhere to go.
    pub(super) fn damaged(&mut self, leases: Vec<(LeaseToken, String)>) -> Decided {
        for (token, mut text) in leases {
            text.truncate(text.floor_char_boundary(limits::DEAD_LETTER_TEXT_BYTES_MAX));
            if self.begin(FRAME_ROOM + text.len()).is_err() {
                break; // their locks will expire, and they are found again
            }
            if let Some((_, queue, seq)) = self.leased_message(token) {
                if self.core.queues.get(&queue).is_some_and(|q| q.owner.is_some()) {
                    let lazy = !self.durable(queue);
                    self.commit(Event::Deferred { queue, seq, overlay: None }, lazy);
                } else {
                    let (reason, changes) = (DeadReason::Damaged { text }, Changes::default());
                    self.dead_letter(
                        MessageRef { queue, seq },
                        reason,
                        LeaseEnd::Released,
                        &changes,
                    );
                }
            }
            self.end();
        }
        Ok(Some((Reply::Done, WaitFor::Settled)))
    }

    /// Space for the records of a delay, besides those of the leases: it returns all leased messages of their sessions.
    pub(super) fn delay_room(&self, leases: &[LeaseToken], settlement: &Settlement) -> usize {
        let (Settlement::Abandon { delay_ms, .. } | Settlement::Release { delay_ms }) = settlement
        else {
            return 0;
        };
        if *delay_ms == 0 {
            return 0;
        }
        let mut seen: HashSet<(QueueId, u32), FixedState> = HashSet::with_hasher(FixedState);
        let each = leases.iter().filter_map(|&token| {
            let lease = self.lease_of(token)?;
            let LeaseTarget::Message { session: Some(session), .. } = lease.what else {
                return None;
            };
            let s = self.core.queues.get(&lease.queue)?.sessions.as_ref()?.at(session)?;
            let out = s.locked as usize;
            let room = self.return_room(lease.queue, session, LeaseEnd::Released, out) + FRAME_ROOM;
            seen.insert((lease.queue, session)).then_some(room)
        });
        each.sum()
    }

    /// Space for the records of `n` messages of a session when their leases end without being settled.
    pub(super) fn return_room(
        &self,
        queue: QueueId,
        session: u32,
        cause: LeaseEnd,
        n: usize,
    ) -> usize {
        let Some(q) = self.core.queues.get(&queue) else { return 0 };
        let limited = q.spec.failed_max.is_some() || q.spec.receives_max.is_some();
        let dies =
            cause != LeaseEnd::Released && limited || q.spec.on_expiry == OnExpiry::DeadLetter;
        if !dies {
            return n * SMALL_ROOM;
        }
        let id = q.sessions.as_ref().and_then(|s| s.at(session)).map_or("", |s| s.id.as_str());
        let key = match &q.spec.dead_letter {
            DeadLetterTarget::Topic { topic, key } => {
                topic.as_str().len() + key.as_ref().map_or(0, String::len)
            }
            _ => 0,
        };
        n * (4 * SMALL_ROOM + q.name.as_str().len() + id.len() + key)
    }

    pub(super) fn durable(&self, queue: QueueId) -> bool {
        self.core.queues.get(&queue).is_none_or(|q| q.durable())
    }

    /// The slot, queue and sequence number of a message whose lease is valid now.
    pub(super) fn leased_message(&self, token: LeaseToken) -> Option<(u32, QueueId, u64)> {
        let lease = self.lease_of(token)?;
        let LeaseTarget::Message { seq, hold, .. } = lease.what else { return None };
        let until = match hold {
            Some(hold) => self.core.leases.until(self.core.leases.at(hold)?),
            None => self.core.leases.until(lease),
        };
        (self.now.0 < until).then_some((lease.token.slot, lease.queue, seq))
    }

    /// Journals one event for all completed leases of a queue.
    fn complete(&mut self, leases: &[LeaseToken]) -> Vec<Result<(), Refusal>> {
        let mut seen: HashSet<u32, FixedState> = HashSet::with_hasher(FixedState);
        let mut by_queue: Vec<(QueueId, Vec<u64>)> = Vec::new();
        let mut outcomes = Vec::with_capacity(leases.len());
        for &lease in leases {
            match self
                .leased_message(lease)
                .filter(|(slot, ..)| leases.len() == 1 || seen.insert(*slot))
            {
                None => outcomes.push(Err(Refusal::LeaseLost { lease })),
                Some((_, queue, seq)) => {
                    match by_queue.iter_mut().find(|(have, _)| *have == queue) {
                        Some((_, seqs)) => seqs.push(seq),
                        None => by_queue.push((queue, vec![seq])),
                    }
                    outcomes.push(Ok(()));
                }
            }
        }
        for (queue, seqs) in by_queue {
            let lazy = !self.durable(queue);
            self.commit(
                Event::Removed { queue, why: Removal::Completed, session: None, seqs },
                lazy,
            );
        }
        outcomes
    }

    pub(super) fn settle_one(
        &mut self,
        token: LeaseToken,
        settlement: &Settlement,
    ) -> Result<(), Refusal> {
        let (slot, queue, seq) =
            self.leased_message(token).ok_or(Refusal::LeaseLost { lease: token })?;
        match settlement {
            Settlement::Complete => {
                let lazy = !self.durable(queue);
                self.commit(
                    Event::Removed {
                        queue,
                        why: Removal::Completed,
                        session: None,
                        seqs: vec![seq],
                    },
                    lazy,
                );
            }
            Settlement::Abandon { delay_ms, changes } => {
                self.return_message(slot, LeaseEnd::Abandoned, *delay_ms, changes);
            }
            Settlement::Release { delay_ms } => {
                self.return_message(slot, LeaseEnd::Released, *delay_ms, &Changes::default());
            }
            Settlement::Defer { .. } if self.expire_instead(queue, seq) => {}
            Settlement::Defer { changes } => {
                let overlay = self.overlay(queue, seq, changes);
                let lazy = !self.durable(queue);
                self.commit(Event::Deferred { queue, seq, overlay }, lazy);
            }
            Settlement::DeadLetter { reason, text, changes } => {
                let reason = DeadReason::Asked { reason: reason.clone(), text: text.clone() };
                self.dead_letter(MessageRef { queue, seq }, reason, LeaseEnd::Released, changes);
            }
        }
        Ok(())
    }

    fn overlay(&self, queue: QueueId, seq: u64, changes: &Changes) -> Option<Overlay> {
        if changes.is_empty() {
            return None;
        }
        let from = self.core.queues.get(&queue)?.pos(seq)?;
        Some(Overlay { from, properties: changes.properties.clone() })
    }

    /// Ends a lease and returns its message to the queue, or dead-letters it at a limit. The group must be open.
    pub(super) fn return_message(
        &mut self,
        slot: u32,
        cause: LeaseEnd,
        delay_ms: u64,
        changes: &Changes,
    ) {
        let Some(&Lease { queue, what: LeaseTarget::Message { seq, session, hold, .. }, .. }) =
            self.core.leases.at(slot)
        else {
            return;
        };
        if cause != LeaseEnd::Released
            && let Some(reason) = self.limit_reached(queue, seq)
        {
            return self.dead_letter(MessageRef { queue, seq }, reason, cause, changes);
        }
        if self.expire_instead(queue, seq) {
            return;
        }
        let Some(q) = self.core.queues.get(&queue) else { return };
        let due = if delay_ms == 0 { Timestamp(0) } else { self.now.plus_ms(delay_ms) };
        let parked = session.is_some() && q.spec.retry == RetryOrder::Skip;
        let holds_back = session.filter(|_| delay_ms > 0 && !parked);
        let overlay = self.overlay(queue, seq, changes);
        let lazy = cause == LeaseEnd::Lost && overlay.is_none() || !q.durable();
        self.commit(
            Event::Returned(ReturnedEvent { queue, seq, cause, due, parked, overlay }),
            lazy,
        );
        // The whole session waits for its delayed message: its other leased messages are returned, and its hold ends.
        if let Some(session) = holds_back {
            for other in self.leases_of_session(queue, session) {
                self.return_message(other, LeaseEnd::Released, 0, &Changes::default());
            }
            if let Some(hold) = hold {
                self.unhold(hold, false);
            }
        }
    }

    fn limit_reached(&self, queue: QueueId, seq: u64) -> Option<DeadReason> {
        let q = self.core.queues.get(&queue)?;
        let tracked = q.tracked.get(&seq)?;
        let failed = tracked.failed.saturating_add(1);
        let receives = tracked.receives.saturating_sub(tracked.released);
        if let Some(failed_max) = q.spec.failed_max.filter(|&max| failed >= max) {
            return Some(DeadReason::MaxFailed { failed, failed_max });
        }
        let receives_max = q.spec.receives_max.filter(|&max| receives >= max)?;
        Some(DeadReason::MaxReceives { receives, receives_max })
    }

    /// Dead-letters a message that is not leased. The group must be open.
    pub(super) fn dead_letter_unleased(&mut self, queue: QueueId, seq: u64, reason: DeadReason) {
        let message = MessageRef { queue, seq };
        self.dead_letter(message, reason, LeaseEnd::Released, &Changes::default());
    }

    /// Moves a message to the dead-letter target of its queue.
    pub(super) fn dead_letter(
        &mut self,
        source: MessageRef,
        reason: DeadReason,
        cause: LeaseEnd,
        changes: &Changes,
    ) {
        let MessageRef { queue: from_queue, seq: from_seq } = source;
        let Some(q) = self.core.queues.get(&from_queue) else { return };
        let session = self.session_of(from_queue, from_seq);
        let damaged = matches!(reason, DeadReason::Damaged { .. });
        let asked = damaged || matches!(reason, DeadReason::Asked { .. });
        let carried = q.carried.get(&from_seq);
        let mut history =
            carried.map_or_else(RouteHistory::default, |carried| carried.history.clone());
        // It was dead-lettered here before and came back without any receiver involved: it would cycle forever.
        let limit = matches!(reason, DeadReason::MaxFailed { .. } | DeadReason::MaxReceives { .. });
        let circles = !asked && !limit && history.dead_lettered_in.contains(&from_queue);
        history.hops = 0;
        history.dead_lettered_from = Some(from_queue);
        // A receiver may dead-letter a message again and again on purpose, but it must not cycle by itself.
        match asked {
            true => history.dead_lettered_in.clear(),
            false
                if history.dead_lettered_in.contains(&from_queue)
                    || history.dead_lettered_in.len() == DEAD_LETTERED_IN_MAX => {}
            false => history.dead_lettered_in.push(from_queue),
        }
        let mut new_key = None;
        let mut to = None;
        let discards = q.spec.discard_unroutable && q.owner.is_none() && !damaged;
        let queue = match &q.spec.dead_letter {
            // A damaged message is useless in another queue, and would be lost if it were dropped.
            _ if q.owner.is_some() || damaged => q.dead,
            DeadLetterTarget::Drop if !asked || discards => {
                let why = match reason {
                    DeadReason::Expired => Removal::Expired,
                    DeadReason::Overflowed => Removal::Overflowed,
                    _ => Removal::Dropped(cause),
                };
                let seqs = vec![from_seq];
                let lazy = !q.durable();
                self.commit(Event::Removed { queue: from_queue, why, session: None, seqs }, lazy);
                return;
            }
            DeadLetterTarget::Own | DeadLetterTarget::Drop => q.dead,
            DeadLetterTarget::Topic { topic, .. }
                if discards && (circles || !self.core.topic_names.contains_key(topic)) =>
            {
                let (why, seqs) = (Removal::Dropped(cause), vec![from_seq]);
                let lazy = !q.durable();
                self.commit(Event::Removed { queue: from_queue, why, session: None, seqs }, lazy);
                return;
            }
            _ if circles => q.dead,
            DeadLetterTarget::Queue(name) => {
                let target = self.dead_target(name, session.as_ref());
                let goes_on = |target: &QueueId| {
                    !history.dead_lettered_in.contains(target)
                        && history.dead_lettered_in.len() < DEAD_LETTERED_IN_MAX
                };
                target.filter(goes_on).unwrap_or(q.dead)
            }
            DeadLetterTarget::Topic { topic, key } => {
                let target = self.core.topic_names.get(topic).copied();
                let target =
                    target.filter(|_| history.dead_lettered_in.len() < DEAD_LETTERED_IN_MAX);
                // The configured key is only for the topic. In the queue's own set, the message keeps its key.
                new_key = key.clone().filter(|_| target.is_some());
                to = target.map(|_| topic.clone());
                target.unwrap_or(q.dead)
            }
        };
        let (Some(from), Some((_, size))) = (q.pos(from_seq), q.index.get(from_seq)) else {
            return;
        };
        let Some(target) = self.core.queues.get(&queue) else { return };
        let tracked = q.tracked.get(&from_seq);
        // The delivery that reached the limit is not counted yet.
        let (receives, failed) =
            tracked.map_or((0, 0), |t| (t.receives, t.failed + u32::from(limit)));
        let source = q
            .owner
            .and_then(|owner| self.core.queues.get(&owner))
            .map_or(&q.name, |owner| &owner.name);
        let why = MoveReason::DeadLettered {
            reason,
            source: source.clone(),
            receives,
            failed,
            cause,
            to,
        };
        // The rest of the target's time to live, if it counts from before the message was dead-lettered.
        let ttl = target.spec.ttl_ms.filter(|_| q.spec.dead_letters_keep_age);
        let ttl_ms = ttl
            .zip(q.index.when(from_seq))
            .map(|(ttl_ms, since)| since.saturating_add(ttl_ms).saturating_sub(self.now.0).max(1));
        let lazy = !(q.durable() || target.durable());
        let moved = MovedEvent {
            from_queue,
            from_seq,
            from,
            places: smallvec![Placement { queue, seq: target.next_seq, due: Timestamp(0) }],
            at: self.now,
            session,
            size,
            priority: carried.map_or(q.index.priority(from_seq), |carried| carried.priority),
            ttl_ms,
            history,
            key: new_key,
            message_id: None,
            why,
            properties: changes.properties.clone(),
        };
        self.commit(Event::Moved(Box::new(moved)), lazy);
    }

    /// Another queue as the target, if it accepts the message.
    fn dead_target(&self, name: &QueueName, session: Option<&SessionId>) -> Option<QueueId> {
        let (id, q) = self.core.queue(name).ok()?;
        self.check_session(name, &q.spec.sessions, session).ok()?;
        Some(id)
    }

    pub(super) fn session_of(&self, queue: QueueId, seq: u64) -> Option<SessionId> {
        let q = self.core.queues.get(&queue)?;
        if let Some(carried) = q.carried.get(&seq) {
            return carried.session.clone();
        }
        if q.status(seq) == super::tracked::MessageStatus::Ready {
            let slot = q.session_slot(seq)?;
            return Some(q.sessions.as_ref()?.at(slot)?.id.clone());
        }
        let slot = match q.tracked.get(&seq)?.status {
            super::tracked::MessageStatus::Locked(lease) => {
                match self.core.leases.at(lease)?.what {
                    LeaseTarget::Message { session, .. } => session?,
                    LeaseTarget::Session { .. } => return None,
                }
            }
            _ => q.tracked.get(&seq)?.session,
        };
        Some(q.sessions.as_ref()?.at(slot)?.id.clone())
    }

    pub(super) fn renew(&mut self, leases: &[LeaseToken], lock_ms: Option<u64>) -> Decided {
        check_lock(lock_ms)?;
        if leases.len() > limits::SETTLE_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "leases in one renew",
                limit: limits::SETTLE_BATCH_MAX as u64,
            });
        }
        self.begin(SMALL_ROOM * leases.len() + FRAME_ROOM)?;
        let outcomes = leases.iter().map(|&lease| self.renew_one(lease, lock_ms)).collect();
        self.end();
        Ok(Some((Reply::Renewed(outcomes), WaitFor::Granted(self.log.last_eager()))))
    }

    fn renew_one(&mut self, token: LeaseToken, lock_ms: Option<u64>) -> Result<Timestamp, Refusal> {
        let lost = Refusal::LeaseLost { lease: token };
        let lease = self.lease_of(token).ok_or(lost.clone())?;
        // Under an explicit hold, only the hold has a lock.
        let lease = match lease.what {
            LeaseTarget::Message { hold: Some(hold), .. } => {
                self.core.leases.at(hold).ok_or(lost.clone())?
            }
            _ => lease,
        };
        if self.core.leases.until(lease) <= self.now.0 {
            return Err(lost);
        }
        let lock_ms =
            lock_ms.or_else(|| self.core.queues.get(&lease.queue).map(|q| q.spec.lock_ms));
        let until = self.now.plus_ms(lock_ms.unwrap_or_default());
        let leases = vec![lease.token];
        self.commit(Event::Renewed { leases, until }, true);
        Ok(until)
    }
}

/// Checks the values of a settlement. Returns the space that the record of one lease needs.
pub(super) fn check_settlement(settlement: &Settlement) -> Result<usize, Refusal> {
    let (room, delay_ms, changes, texts) = match settlement {
        Settlement::Complete => return Ok(SMALL_ROOM),
        // At a limit or after its expiry, the message is dead-lettered.
        Settlement::Release { delay_ms } => (FRAME_ROOM, *delay_ms, None, 0),
        Settlement::Abandon { delay_ms, changes } => (FRAME_ROOM, *delay_ms, Some(changes), 0),
        Settlement::Defer { changes } => (FRAME_ROOM, 0, Some(changes), 0),
        Settlement::DeadLetter { reason, text, changes } => {
            (FRAME_ROOM, 0, Some(changes), reason.len().max(text.len()))
        }
    };
    if delay_ms > limits::DELAY_MS_MAX {
        return Err(Refusal::OutOfRange {
            what: "delay_ms",
            rule: format!("at most {}", limits::DELAY_MS_MAX),
        });
    }
    if texts > limits::DEAD_LETTER_TEXT_BYTES_MAX {
        let rule = format!("at most {} bytes long", limits::DEAD_LETTER_TEXT_BYTES_MAX);
        return Err(Refusal::OutOfRange { what: "a dead-letter reason or text", rule });
    }
    let mut encoded = Vec::new();
    if let Some(changes) = changes {
        put_properties(&mut encoded, &changes.properties)?;
    }
    if encoded.len() > limits::CHANGES_BYTES_MAX {
        let rule = format!("at most {} bytes together", limits::CHANGES_BYTES_MAX);
        return Err(Refusal::OutOfRange { what: "changed properties", rule });
    }
    Ok(room + encoded.len() + 2 * texts)
}
