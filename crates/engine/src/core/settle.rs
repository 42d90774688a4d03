//! How leases end by the holder's word, and what each end does to the message and to its session.

use hashbrown::HashSet;
use malote_model::{
    Changes, DeadLetterTarget, DeadReason, LeaseToken, OnExpiry, QueueName, Refusal, RetryOrder,
    SessionId, Settlement, Timestamp, limits,
};

use smallvec::smallvec;

use super::consume::check_lock;
use super::leases::{Lease, Leased as Kind};
use super::{Decided, FRAME_ROOM, FixedState, Needs, SMALL_ROOM, Turn};
use crate::codec::put_properties;
use crate::command::{Reply, StateChange};
use crate::event::{
    Cause, Event, MessageRef, Moved, Over, Placed, QueueId, Removal, Returned, Way, Why,
};

/// A way that is longer than this is none that anybody meant: its end is the own dead-letter set.
const DIED_IN_MAX: usize = 16;

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
        let mut room = each * leases.len() + FRAME_ROOM + self.held_back_room(leases, &settlement);
        if let Some(change) = &state {
            self.check_state_room(change)?;
            room += change.state.as_ref().map_or(0, |state| state.len());
            // With a state all of it happens or none.
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
        // The state comes first: an abandon with a delay ends the hold that allows it.
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
            0 => Needs::Settled,
            // The refusals among them rest on all that was decided before, whatever these leases' queues promise.
            n if n < outcomes.len() && !durable => Needs::Granted(self.log.last_eager()),
            _ => Needs::of(durable),
        };
        Ok(Some((Reply::Settled(outcomes), needs)))
    }

    /// Messages that cannot be read leave the way of the others. A dead letter is set aside: it has nowhere to go.
    pub(super) fn damaged(&mut self, leases: Vec<(LeaseToken, String)>) -> Decided {
        for (token, mut text) in leases {
            text.truncate(text.floor_char_boundary(limits::DEAD_LETTER_TEXT_BYTES_MAX));
            if self.begin(FRAME_ROOM + text.len()).is_err() {
                break; // their locks end them, and they are found once more
            }
            if let Some((_, queue, seq)) = self.leased_message(token) {
                if self.core.queues.get(&queue).is_some_and(|q| q.owner.is_some()) {
                    let lazy = !self.durable(queue);
                    self.commit(Event::Deferred { queue, seq, over: None }, lazy);
                } else {
                    let (reason, changes) = (DeadReason::Damaged { text }, Changes::default());
                    self.dead_letter(MessageRef { queue, seq }, reason, Cause::Released, &changes);
                }
            }
            self.end();
        }
        Ok(Some((Reply::Done, Needs::Settled)))
    }

    /// What a delay needs beside the records of these leases: it holds back all that is out of their sessions.
    pub(super) fn held_back_room(&self, leases: &[LeaseToken], settlement: &Settlement) -> usize {
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
            let Kind::Message { session: Some(session), .. } = lease.what else { return None };
            let s = self.core.queues.get(&lease.queue)?.sessions.as_ref()?.at(session)?;
            let out = s.out as usize;
            let room = self.return_room(lease.queue, session, Cause::Released, out) + FRAME_ROOM;
            seen.insert((lease.queue, session)).then_some(room)
        });
        each.sum()
    }

    /// What the records of so many of a session's messages may need when their leases end by no word of the holder.
    pub(super) fn return_room(
        &self,
        queue: QueueId,
        session: u32,
        cause: Cause,
        n: usize,
    ) -> usize {
        let Some(q) = self.core.queues.get(&queue) else { return 0 };
        let limited = q.spec.failed_max.is_some() || q.spec.receives_max.is_some();
        let dies = cause != Cause::Released && limited || q.spec.on_expiry == OnExpiry::DeadLetter;
        if !dies {
            return n * SMALL_ROOM;
        }
        let id = q.sessions.as_ref().and_then(|s| s.at(session)).map_or("", |s| s.id.as_str());
        let key = match &q.spec.dead_letter {
            DeadLetterTarget::Topic { key: Some(key), .. } => key.len(),
            _ => 0,
        };
        n * (4 * SMALL_ROOM + q.name.as_str().len() + id.len() + key)
    }

    pub(super) fn durable(&self, queue: QueueId) -> bool {
        self.core.queues.get(&queue).is_none_or(|q| q.durable())
    }

    /// Slot, queue and sequence of a message whose lease is good now.
    pub(super) fn leased_message(&self, token: LeaseToken) -> Option<(u32, QueueId, u64)> {
        let lease = self.lease_of(token)?;
        let Kind::Message { seq, hold, .. } = lease.what else { return None };
        let until = match hold {
            Some(hold) => self.core.leases.at(hold)?.until,
            None => lease.until,
        };
        (self.now.0 < until).then_some((lease.token.slot, lease.queue, seq))
    }

    /// One event for all that a queue's leases complete.
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
                self.return_message(slot, Cause::Abandoned, *delay_ms, changes);
            }
            Settlement::Release { delay_ms } => {
                self.return_message(slot, Cause::Released, *delay_ms, &Changes::default());
            }
            Settlement::Defer { .. } if self.expire_instead(queue, seq) => {}
            Settlement::Defer { changes } => {
                let over = self.over(queue, seq, changes);
                let lazy = !self.durable(queue);
                self.commit(Event::Deferred { queue, seq, over }, lazy);
            }
            Settlement::DeadLetter { reason, text, changes } => {
                let reason = DeadReason::Asked { reason: reason.clone(), text: text.clone() };
                self.dead_letter(MessageRef { queue, seq }, reason, Cause::Released, changes);
            }
        }
        Ok(())
    }

    fn over(&self, queue: QueueId, seq: u64, changes: &Changes) -> Option<Over> {
        if changes.is_empty() {
            return None;
        }
        let from = self.core.queues.get(&queue)?.pos(seq)?;
        Some(Over { from, properties: changes.properties.clone() })
    }

    /// A lease ends and its message comes back, or goes to the dead letters if that was once too often. The group
    /// must be open.
    pub(super) fn return_message(
        &mut self,
        slot: u32,
        cause: Cause,
        delay_ms: u64,
        changes: &Changes,
    ) {
        let Some(&Lease { queue, what: Kind::Message { seq, session, hold, .. }, .. }) =
            self.core.leases.at(slot)
        else {
            return;
        };
        if cause != Cause::Released
            && let Some(reason) = self.once_too_often(queue, seq)
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
        let over = self.over(queue, seq, changes);
        let lazy = cause == Cause::Lost && over.is_none() || !q.durable();
        self.commit(Event::Returned(Returned { queue, seq, cause, due, parked, over }), lazy);
        // The whole session waits for its delayed message: others that are out come back, and nobody holds it.
        if let Some(session) = holds_back {
            for other in self.out_of_session(queue, session) {
                self.return_message(other, Cause::Released, 0, &Changes::default());
            }
            if let Some(hold) = hold {
                self.unhold(hold, false);
            }
        }
    }

    fn once_too_often(&self, queue: QueueId, seq: u64) -> Option<DeadReason> {
        let q = self.core.queues.get(&queue)?;
        let touched = q.touched.get(&seq)?;
        let failed = touched.failed.saturating_add(1);
        let receives = touched.receives.saturating_sub(touched.released);
        if let Some(failed_max) = q.spec.failed_max.filter(|&max| failed >= max) {
            return Some(DeadReason::MaxFailed { failed, failed_max });
        }
        let receives_max = q.spec.receives_max.filter(|&max| receives >= max)?;
        Some(DeadReason::MaxReceives { receives, receives_max })
    }

    /// A message that nobody has becomes a dead letter. The group must be open.
    pub(super) fn bury(&mut self, queue: QueueId, seq: u64, reason: DeadReason) {
        let message = MessageRef { queue, seq };
        self.dead_letter(message, reason, Cause::Released, &Changes::default());
    }

    /// Moves a message to where its queue's dead letters go.
    pub(super) fn dead_letter(
        &mut self,
        source: MessageRef,
        reason: DeadReason,
        cause: Cause,
        changes: &Changes,
    ) {
        let MessageRef { queue: from_queue, seq: from_seq } = source;
        let Some(q) = self.core.queues.get(&from_queue) else { return };
        let session = self.session_of(from_queue, from_seq);
        let damaged = matches!(reason, DeadReason::Damaged { .. });
        let asked = damaged || matches!(reason, DeadReason::Asked { .. });
        let kept = q.kept.get(&from_seq);
        let mut way = kept.map_or_else(Way::default, |kept| kept.way.clone());
        // It died here before and came back, and nobody had a hand in it this time: it would go on for ever.
        let limit = matches!(reason, DeadReason::MaxFailed { .. } | DeadReason::MaxReceives { .. });
        let circles = !asked && !limit && way.died_in.contains(&from_queue);
        way.hops = 0;
        way.home = Some(from_queue);
        // Somebody who says so may mean it to come round again; nobody means a circle that turns by itself.
        match asked {
            true => way.died_in.clear(),
            false if way.died_in.contains(&from_queue) || way.died_in.len() == DIED_IN_MAX => {}
            false => way.died_in.push(from_queue),
        }
        let mut new_key = None;
        let queue = match &q.spec.dead_letter {
            // What cannot be read is no use in another queue, and no longer there if it is dropped.
            _ if q.owner.is_some() || damaged => q.dead,
            DeadLetterTarget::Drop if !asked => {
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
            _ if circles => q.dead,
            DeadLetterTarget::Queue(name) => {
                let target = self.dead_target(name, session.as_ref());
                let goes_on = |target: &QueueId| {
                    !way.died_in.contains(target) && way.died_in.len() < DIED_IN_MAX
                };
                target.filter(goes_on).unwrap_or(q.dead)
            }
            DeadLetterTarget::Topic { topic, key } => {
                let target = self.core.topic_names.get(topic).copied();
                let target = target.filter(|_| way.died_in.len() < DIED_IN_MAX);
                // The topic's key is for the topic: what stays in the own set keeps what it has.
                new_key = key.clone().filter(|_| target.is_some());
                target.unwrap_or(q.dead)
            }
        };
        let (Some(from), Some((_, size))) = (q.pos(from_seq), q.index.get(from_seq)) else {
            return;
        };
        let Some(target) = self.core.queues.get(&queue) else { return };
        let touched = q.touched.get(&from_seq);
        // The delivery that was once too often is not counted yet.
        let (receives, failed) =
            touched.map_or((0, 0), |t| (t.receives, t.failed + u32::from(limit)));
        let source = q
            .owner
            .and_then(|owner| self.core.queues.get(&owner))
            .map_or(&q.name, |owner| &owner.name);
        let why = Why::Dead { reason, source: source.clone(), receives, failed, cause };
        // What is left of the target's time to live, if that counts from before it died.
        let ttl = target.spec.ttl_ms.filter(|_| q.spec.dead_letters_keep_age);
        let ttl_ms = ttl
            .zip(q.index.when(from_seq))
            .map(|(ttl_ms, since)| since.saturating_add(ttl_ms).saturating_sub(self.now.0).max(1));
        let lazy = !(q.durable() || target.durable());
        let moved = Moved {
            from_queue,
            from_seq,
            from,
            places: smallvec![Placed { queue, seq: target.next_seq, due: Timestamp(0) }],
            at: self.now,
            session,
            size,
            priority: kept.map_or(q.index.priority(from_seq), |kept| kept.priority),
            ttl_ms,
            way,
            key: new_key,
            message_id: None,
            why,
            properties: changes.properties.clone(),
        };
        self.commit(Event::Moved(Box::new(moved)), lazy);
    }

    /// Another queue as a target, if it can take the message; else the own set does.
    fn dead_target(&self, name: &QueueName, session: Option<&SessionId>) -> Option<QueueId> {
        let (id, q) = self.core.queue(name).ok()?;
        self.check_session(name, &q.spec.sessions, session).ok()?;
        Some(id)
    }

    pub(super) fn session_of(&self, queue: QueueId, seq: u64) -> Option<SessionId> {
        let q = self.core.queues.get(&queue)?;
        if let Some(kept) = q.kept.get(&seq) {
            return kept.session.clone();
        }
        if q.place(seq) == super::queue::Place::Ready {
            let slot = q.marked_session(seq)?;
            return Some(q.sessions.as_ref()?.at(slot)?.id.clone());
        }
        let slot = match q.touched.get(&seq)?.place {
            super::queue::Place::Locked(lease) => match self.core.leases.at(lease)?.what {
                Kind::Message { session, .. } => session?,
                Kind::Session { .. } => return None,
            },
            _ => q.touched.get(&seq)?.session,
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
        Ok(Some((Reply::Renewed(outcomes), Needs::Granted(self.log.last_eager()))))
    }

    fn renew_one(&mut self, token: LeaseToken, lock_ms: Option<u64>) -> Result<Timestamp, Refusal> {
        let lost = Refusal::LeaseLost { lease: token };
        let lease = self.lease_of(token).ok_or(lost.clone())?;
        // Inside an explicit hold there is one lock: the hold's.
        let lease = match lease.what {
            Kind::Message { hold: Some(hold), .. } => {
                self.core.leases.at(hold).ok_or(lost.clone())?
            }
            _ => lease,
        };
        if lease.until <= self.now.0 {
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

/// Checks a settlement's own values; tells how many bytes the record of one lease may have.
pub(super) fn check_settlement(settlement: &Settlement) -> Result<usize, Refusal> {
    let (room, delay_ms, changes, texts) = match settlement {
        Settlement::Complete => return Ok(SMALL_ROOM),
        // It may be once too often or too late, and then it is a dead letter.
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
