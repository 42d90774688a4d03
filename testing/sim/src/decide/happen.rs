//! How leases and holds end, and whether every consumer was served.

use bytes::Bytes;
use malote_engine::Wants;
use malote_model::{
    Changes, DeadLetterTarget, DeadReason, LeaseToken, QueueName, Refusal, RetryOrder, Seq,
    Settlement,
};

use super::check::check_session;
use super::{Consumer, Model, Need};
use crate::model::{Availability, Cause, Dead, End, Ev, ForwardingPath, Lease, Msg, What, Why};

/// A message that was dead-lettered in this many queues goes no further.
const DIED_IN_MAX: usize = 16;

impl Model {
    pub(super) fn settle(
        &mut self,
        leases: &[LeaseToken],
        settlement: &Settlement,
        state: Option<&(LeaseToken, Option<Bytes>)>,
        outcomes: &[Result<(), Refusal>],
    ) -> Need {
        assert_eq!(leases.len(), outcomes.len(), "one outcome for each lease");
        if let Some((hold, state)) = state {
            self.set_state(*hold, state);
        }
        let mut need = Need::default();
        for (&token, outcome) in leases.iter().zip(outcomes) {
            let leased = self.state.leased(token, self.now);
            let Some((queue, seq)) = leased else {
                need.durable = need.durable.max(self.eager_of_tokens(&[token]).durable);
                assert!(
                    matches!(outcome, Err(Refusal::LeaseLost { .. })),
                    "a stale token was settled: {token} {outcome:?}"
                );
                continue;
            };
            assert_eq!(*outcome, Ok(()), "a valid lease was refused: {token} of {seq} in {queue}");
            self.settle_one(&queue, seq, settlement);
            let done = self.done(&queue);
            need = Need { durable: need.durable.max(done.durable), written: done.written };
        }
        if state.is_some() {
            need.durable = self.end;
        }
        need
    }

    pub(super) fn settle_one(&mut self, queue: &QueueName, seq: u64, settlement: &Settlement) {
        match settlement {
            Settlement::Complete => {
                self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Completed });
            }
            Settlement::Abandon { delay_ms, changes } => {
                self.back(queue, seq, Cause::Abandoned, *delay_ms, changes);
            }
            Settlement::Release { delay_ms } => {
                self.back(queue, seq, Cause::Released, *delay_ms, &Changes::default());
            }
            Settlement::Defer { .. } if self.is_over(queue, seq) => self.expire_message(queue, seq),
            Settlement::Defer { changes } => {
                self.note(Ev::Defer { queue: queue.clone(), seq, changes: changes.clone() });
            }
            Settlement::DeadLetter { reason, text, changes } => {
                let reason = DeadReason::Asked { reason: reason.clone(), text: text.clone() };
                self.dead_letter(queue, seq, reason, Cause::Released, changes);
            }
        }
    }

    /// A returned message has expired. Where its arrival is known only approximately, the engine decides.
    fn is_over(&self, queue: &QueueName, seq: u64) -> bool {
        let q = self.state.queue(queue);
        let msg = &q.msgs[&seq];
        let said = self.said_expired.contains(&(queue.clone(), seq));
        q.expired(msg, self.now) || said && q.may_expire(msg, self.now)
    }

    /// Messages that were received before and are not leased now are completed without a lease.
    pub(super) fn complete_late(&mut self, queue: &QueueName, seqs: &[Seq], count: u64) -> Need {
        let mut gone = 0;
        for &Seq(seq) in seqs {
            let msg = self.state.queue(queue).msgs.get(&seq);
            let free = |msg: &Msg| matches!(msg.availability, Availability::InOrder { .. });
            if msg.is_some_and(|msg| msg.receives > 0 && free(msg)) {
                self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Completed });
                gone += 1;
            }
        }
        assert_eq!(count, gone, "completed late in {queue}");
        if gone > 0 { self.done(queue) } else { self.eager(queue) }
    }

    pub(super) fn set_state(&mut self, hold: LeaseToken, state: &Option<Bytes>) {
        let (queue, session) = self.state.held(hold, self.now).expect("checked before");
        self.note(Ev::SetState { queue, session, state: state.clone() });
    }

    /// A lease ends. Its message returns to the queue or is dead-lettered.
    pub(super) fn back(
        &mut self,
        queue: &QueueName,
        seq: u64,
        cause: Cause,
        delay_ms: u64,
        changes: &Changes,
    ) {
        let q = self.state.queue(queue);
        let msg = &q.msgs[&seq];
        let Availability::Leased(token) = msg.availability else { return };
        if cause != Cause::Released {
            let (failed, receives) = (msg.failed + 1, msg.receives - msg.released);
            let reason = match (q.spec.failed_max, q.spec.receives_max) {
                (Some(failed_max), _) if failed >= failed_max => {
                    Some(DeadReason::MaxFailed { failed, failed_max })
                }
                (_, Some(receives_max)) if receives >= receives_max => {
                    Some(DeadReason::MaxReceives { receives, receives_max })
                }
                _ => None,
            };
            if let Some(reason) = reason {
                return self.dead_letter(queue, seq, reason, cause, changes);
            }
        }
        if self.is_over(queue, seq) {
            return self.expire_message(queue, seq);
        }
        let due = if delay_ms == 0 { 0 } else { self.now + delay_ms };
        let session = msg.session.clone().filter(|_| q.sessioned());
        let parked = session.is_some() && q.spec.retry == RetryOrder::Skip && delay_ms > 0;
        let hold = self.state.leases.get(&token).and_then(|lease| lease.hold);
        let held_back = session.filter(|_| delay_ms > 0 && !parked);
        self.note(Ev::Back {
            queue: queue.clone(),
            seq,
            cause,
            due,
            parked,
            changes: changes.clone(),
        });
        if let Some(session) = held_back {
            for (seq, _) in self.state.queue(queue).out(&session) {
                self.back(queue, seq, Cause::Released, 0, &Changes::default());
            }
            if let Some(hold) = hold {
                self.unhold(hold, false);
            }
        }
    }

    pub(super) fn dead_letter(
        &mut self,
        queue: &QueueName,
        seq: u64,
        reason: DeadReason,
        cause: Cause,
        changes: &Changes,
    ) {
        let q = self.state.queue(queue);
        let msg = &q.msgs[&seq];
        let asked = matches!(reason, DeadReason::Asked { .. });
        let own = queue.dead_letters();
        let here = (queue.clone(), q.born);
        let mut path = ForwardingPath { hops: 0, home: Some(here.clone()), ..msg.path.clone() };
        let limit = matches!(reason, DeadReason::MaxFailed { .. } | DeadReason::MaxReceives { .. });
        // It was dead-lettered here before, returned, and was dead-lettered again automatically.
        let circles = !asked && !limit && path.died_in.contains(&here);
        // A receiver that dead-letters a message explicitly may want it to return.
        match asked {
            true => path.died_in.clear(),
            false if path.died_in.contains(&here) || path.died_in.len() == DIED_IN_MAX => {}
            false => path.died_in.push(here),
        }
        let (mut key, is_long) = (None, path.died_in.len() == DIED_IN_MAX);
        let to = match &q.spec.dead_letter {
            _ if q.owner.is_some() => own,
            DeadLetterTarget::Drop if !asked => {
                let end = match reason {
                    DeadReason::Expired => End::Expired,
                    DeadReason::Overflowed => End::Overflowed,
                    _ => End::Dropped(cause),
                };
                return self.note(Ev::Gone { queue: queue.clone(), seq, end });
            }
            DeadLetterTarget::Own | DeadLetterTarget::Drop => own,
            _ if circles => own,
            DeadLetterTarget::Topic { topic, key: new } => {
                let goes_on = self.state.topics.contains_key(topic) && !is_long;
                key = new.clone().filter(|_| goes_on);
                if goes_on { QueueName::inbox(topic) } else { own }
            }
            DeadLetterTarget::Queue(target) => {
                let fits = self.state.queues.get(target).is_some_and(|q| {
                    let circle = path.died_in.contains(&(target.clone(), q.born));
                    let takes = check_session(target, &q.spec.sessions, msg.session.as_ref());
                    takes.is_ok() && !circle && !is_long
                });
                if fits { target.clone() } else { own }
            }
        };
        self.met.count("dead letters to topics", u64::from(to.is_inbox()));
        let from = q.owner.clone().unwrap_or(queue.clone());
        // The delivery that exceeded the limit counts.
        let ttl_ms = self.state.queue(&to).spec.ttl_ms.filter(|_| q.spec.dead_letters_keep_age);
        let ttl_ms = ttl_ms.map(|ttl_ms| (msg.at + ttl_ms).saturating_sub(self.now).max(1));
        self.met.count("dead letters that keep their age", u64::from(ttl_ms.is_some()));
        let dead = Dead {
            reason,
            from,
            from_seq: seq,
            receives: msg.receives,
            failed: msg.failed + u32::from(limit),
            cause,
            path,
            key,
            ttl_ms,
        };
        let to_seq = self.state.queue(&to).next_seq;
        let (at, why) = (self.now, Why::Dead(dead));
        self.note(Ev::Move {
            from: queue.clone(),
            seq,
            to,
            to_seq,
            at,
            why,
            changes: changes.clone(),
        });
    }

    pub(super) fn end_hold(&mut self, hold: LeaseToken, cause: Cause) {
        let Some(Lease { queue, what: What::Session(session), .. }) =
            self.state.leases.get(&hold).cloned()
        else {
            return;
        };
        for (seq, _) in self.state.queue(&queue).out(&session) {
            self.back(&queue, seq, cause, 0, &Changes::default());
        }
        self.unhold(hold, cause == Cause::Lost);
    }

    pub(super) fn unhold(&mut self, hold: LeaseToken, lost: bool) {
        let Some(Lease { queue, what: What::Session(session), .. }) =
            self.state.leases.get(&hold).cloned()
        else {
            return;
        };
        let of = |c: &Consumer| c.wants == Some(Wants::Held(hold));
        self.ended.extend(self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id));
        self.note(Ev::Unhold { queue, session, lost });
    }

    /// A connection ended, and so do its consumers.
    pub(super) fn disconnect(&mut self, connection: u64) {
        let of = |c: &Consumer| c.connection == Some(connection);
        let gone: Vec<_> =
            self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id).collect();
        for id in gone {
            // A waiting request gets an empty answer.
            match self.consumers.get_mut(&id) {
                Some(Consumer { once: Some((_, until)), .. }) => *until = 0,
                _ => self.forget(id),
            }
        }
    }

    /// Checks that no consumer waits for a message that could be delivered.
    pub fn check_served(&self) {
        for (id, c) in &self.consumers {
            let Some(q) = self.state.queues.get(&c.queue) else { continue };
            // Expired messages are removed in the next turn; until then a session may seem to wait for one.
            let goes_on = q.spec.forward_to.is_some();
            if !q.delivers()
                || goes_on
                || q.overdue(self.now)
                || (c.wants.is_some() && c.credit == 0)
            {
                continue;
            }
            let could = match &c.wants {
                Some(Wants::Held(token)) => self
                    .state
                    .held(*token, self.now)
                    .and_then(|(_, session)| q.next_of(&session, self.now)),
                _ if q.sessioned() => q
                    .live_sessions()
                    .iter()
                    .find(|s| q.free(s, self.now))
                    .and_then(|s| q.next_of(s, self.now)),
                _ => q.first_ready(self.now),
            };
            assert_eq!(could, None, "{id:?} waits at {} although a message is ready", c.queue);
            if let Some((_, until)) = c.once {
                assert!(until > self.now, "{id:?} waits longer than requested");
            }
        }
    }
}
