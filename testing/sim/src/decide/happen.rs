//! What follows: how leases and holds end, what becomes due, and who must have been served.

use bytes::Bytes;
use malote_engine::Wants;
use malote_model::{
    Changes, DeadLetterTarget, DeadReason, LeaseToken, QueueName, Refusal, RetryOrder, Settlement,
};

use super::check::check_session;
use super::{Consumer, Model, Need};
use crate::model::{Cause, Dead, Ev, Lease, Msg, Place, What, Why};

/// Something that is due.
enum Due {
    Hold(LeaseToken),
    Lease(LeaseToken),
    Activate(QueueName, u64),
}

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
                    "a stale token settled: {token} {outcome:?}"
                );
                continue;
            };
            assert_eq!(*outcome, Ok(()), "a good lease was refused: {token} of {seq} in {queue}");
            match settlement {
                Settlement::Complete => self.note(Ev::Gone {
                    queue: queue.clone(),
                    seq,
                    completed: true,
                    taken: false,
                    cause: Cause::Released,
                }),
                Settlement::Abandon { delay_ms, changes } => {
                    self.back(&queue, seq, Cause::Abandoned, *delay_ms, changes)
                }
                Settlement::Release { delay_ms } => {
                    self.back(&queue, seq, Cause::Released, *delay_ms, &Changes::default())
                }
                Settlement::Defer { changes } => {
                    self.note(Ev::Defer { queue: queue.clone(), seq, changes: changes.clone() })
                }
                Settlement::DeadLetter { reason, text, changes } => {
                    let reason = DeadReason::Asked { reason: reason.clone(), text: text.clone() };
                    self.dead_letter(&queue, seq, reason, Cause::Released, changes);
                }
            }
            let done = self.done(&queue);
            need = Need { durable: need.durable.max(done.durable), written: done.written };
        }
        if state.is_some() {
            need.durable = self.span.1;
        }
        need
    }

    pub(super) fn set_state(&mut self, hold: LeaseToken, state: &Option<Bytes>) {
        let (queue, session) = self.state.held(hold, self.now).expect("checked before");
        self.note(Ev::SetState { queue, session, state: state.clone() });
    }

    /// A lease ends and its message comes back, or goes to the dead letters.
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
        let Place::Out(token) = msg.place else { return };
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
                let (cause, changes) = (Cause::Released, Changes::default());
                self.note(Ev::Back {
                    queue: queue.clone(),
                    seq,
                    cause,
                    due: 0,
                    parked: false,
                    changes,
                });
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
        let to = match &q.spec.dead_letter {
            _ if q.owner.is_some() => own,
            DeadLetterTarget::Drop if !asked => {
                return self.note(Ev::Gone {
                    queue: queue.clone(),
                    seq,
                    completed: false,
                    taken: false,
                    cause,
                });
            }
            DeadLetterTarget::Own | DeadLetterTarget::Drop => own,
            DeadLetterTarget::Topic { .. } => unreachable!("there are no topics"),
            DeadLetterTarget::Queue(target) => {
                let fits = self.state.queues.get(target).is_some_and(|q| {
                    check_session(target, &q.spec.sessions, msg.session.as_ref()).is_ok()
                });
                if fits { target.clone() } else { own }
            }
        };
        let from = q.owner.clone().unwrap_or(queue.clone());
        let dead = Dead {
            reason,
            from,
            from_seq: seq,
            receives: msg.receives,
            failed: msg.failed + u32::from(!asked),
            cause,
        };
        let to_seq = self.next_place(&to, msg);
        let (at, why) = ((if self.unsure { 0 } else { self.now }, self.now), Why::Dead(dead));
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

    pub(super) fn next_place(&self, queue: &QueueName, msg: &Msg) -> u64 {
        let id = msg.sent.message_id.clone().unwrap_or_default();
        self.placed.get(&(queue.clone(), id)).copied().unwrap_or(self.state.queue(queue).next_seq)
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

    pub(super) fn disconnect(&mut self, connection: u64, clean: bool) {
        let of = |c: &Consumer| c.connection == Some(connection);
        let gone: Vec<_> =
            self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id).collect();
        for id in gone {
            // A request that waits is answered with nothing.
            match self.consumers.get_mut(&id) {
                Some(Consumer { once: Some((_, until)), .. }) => *until = 0,
                _ => self.forget(id),
            }
        }
        let cause = if clean { Cause::Released } else { Cause::Lost };
        for token in self.bound_to(connection) {
            self.group += 1;
            match self.state.leases.get(&token).cloned() {
                Some(Lease { what: What::Session(_), .. }) => self.end_hold(token, cause),
                Some(Lease { queue, what: What::Message(seq), .. }) => {
                    self.back(&queue, seq, cause, 0, &Changes::default())
                }
                None => {}
            }
        }
    }

    /// Leases and holds that end with a connection; what is under a hold ends with that.
    pub fn bound_to(&self, connection: u64) -> Vec<LeaseToken> {
        let of = |lease: &Lease| {
            lease.connection == Some(connection) && lease.hold.is_none() && lease.bound
        };
        self.state.leases.iter().filter(|(_, lease)| of(lease)).map(|(&token, _)| token).collect()
    }

    fn due(&self) -> Vec<Due> {
        let now = self.now;
        let mut due = Vec::new();
        for (&token, lease) in
            self.state.leases.iter().filter(|(_, l)| l.hold.is_none() && l.until <= now)
        {
            due.push((
                lease.until,
                match lease.what {
                    What::Session(_) => Due::Hold(token),
                    What::Message(_) => Due::Lease(token),
                },
            ));
        }
        for (name, q) in &self.state.queues {
            for (&seq, msg) in &q.msgs {
                if let Place::Scheduled { due: at } = msg.place
                    && at <= now
                {
                    due.push((at, Due::Activate(name.clone(), seq)));
                }
            }
        }
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, due)| due).collect()
    }

    /// Whether several messages may move in the step that ends now, in an order that only the engine knows.
    pub fn may_move_several(&self, now: u64, connection: Option<u64>) -> bool {
        let out =
            |lease: &Lease| (lease.until <= now && lease.hold.is_none()) || lease.hold.is_some();
        let leases = self.state.leases.values().filter(|lease| match connection {
            Some(_) => lease.bound,
            None => out(lease),
        });
        let scheduled = self.state.queues.values().flat_map(|q| q.msgs.values());
        let scheduled =
            scheduled.filter(|msg| matches!(msg.place, Place::Scheduled { due } if due <= now));
        leases.count() + scheduled.count() > 1
    }

    /// What became due by now: lapsed leases and holds, schedules.
    pub fn expire(&mut self) {
        for due in self.due() {
            self.group += 1;
            match due {
                Due::Hold(token) => self.end_hold(token, Cause::Lost),
                Due::Lease(token) => {
                    if let Some(Lease { queue, what: What::Message(seq), .. }) =
                        self.state.leases.get(&token).cloned()
                    {
                        self.back(&queue, seq, Cause::Lost, 0, &Changes::default());
                    }
                }
                Due::Activate(queue, seq) => {
                    let msg = &self.state.queue(&queue).msgs[&seq];
                    let Place::Scheduled { due } = msg.place else { continue };
                    let to_seq = self.next_place(&queue, msg);
                    let (why, changes) = (Why::Due, Changes::default());
                    self.note(Ev::Move {
                        from: queue.clone(),
                        seq,
                        to: queue,
                        to_seq,
                        at: (due, self.now),
                        why,
                        changes,
                    });
                }
            }
        }
    }

    /// Nobody waits for what could be given.
    pub fn check_served(&self) {
        for (id, c) in &self.consumers {
            let Some(q) = self.state.queues.get(&c.queue) else { continue };
            if q.paused || (c.wants.is_some() && c.credit == 0) {
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
            assert_eq!(could, None, "{id:?} waits at {} though there is something for it", c.queue);
            if let Some((_, until)) = c.once {
                assert!(until > self.now, "{id:?} waits longer than it wanted");
            }
        }
    }
}
