//! Session holds: accept, release and break, and session states.

use malote_model::{Changes, LeaseToken, QueueName, Refusal, SessionId, Timestamp, limits};

use super::consume::after;
use super::consumers::{Consumer, ConsumerDemand, check_lock};
use super::leases::{Lease, LeaseTarget, NONE};
use super::tracked::MessageStatus;
use super::{Decided, Effect, FRAME_ROOM, Output, Turn, WaitFor};
use crate::command::{Accept, AcceptedSession, ConnectionId, ConsumerId, Reply, StateChange};
use crate::event::{Event, LeaseEnd, QueueId};

impl Turn<'_> {
    pub(super) fn accept(&mut self, request: u64, accept: Accept) -> Decided {
        let Accept { consumer, connection, queue, session, lock_ms, until } = accept;
        check_lock(lock_ms)?;
        self.check_consumer(&queue, connection)?;
        let (id, q) = self.core.queue(&queue)?;
        let Some(sessions) = q.sessions.as_ref() else { return Err(Refusal::NoSessions { queue }) };
        q.check_receives()?;
        let lock = lock_ms.unwrap_or(q.spec.lock_ms);
        if let Some(session) = session {
            self.check_session(&queue, &q.spec.sessions, Some(&session))?;
            if let Some(held) = sessions.find(&session).and_then(|slot| self.busy_until(id, slot)) {
                return Err(Refusal::SessionHeld { session, until: held });
            }
            let held = self.hold(id, session, lock, connection)?;
            return Ok(Some((
                Reply::Accepted(Some(held)),
                WaitFor::Granted(self.log.last_eager()),
            )));
        }
        let wants = ConsumerDemand::Session;
        let waiting = Consumer {
            queue: id,
            connection,
            free_standing: false,
            wants,
            credit: 0,
            take: false,
            lock_ms,
            request: Some(request),
            timer: None,
            priority: 0,
            exclusive: false,
            waiting: false,
        };
        self.add_consumer(consumer, waiting)?;
        self.add_waiting(consumer);
        self.dispatch();
        if self.core.live().consumers.contains_key(&consumer) {
            self.wait_until(consumer, until);
        }
        Ok(None)
    }

    /// Until when the session is busy: its explicit hold, or the last of its leases.
    fn busy_until(&self, id: QueueId, slot: u32) -> Option<Timestamp> {
        let s = self.core.queues.get(&id)?.sessions.as_ref()?.at(slot)?;
        if let Some(hold) = self.core.leases.at(s.extras().hold) {
            return Some(Timestamp(self.core.leases.until(hold)));
        }
        let out = self.leases_of_session(id, slot);
        out.iter()
            .filter_map(|&slot| self.core.leases.at(slot))
            .map(|lease| Timestamp(self.core.leases.until(lease)))
            .max()
    }

    /// Grants a hold on a free session. Opens and closes a group.
    fn hold(
        &mut self,
        queue: QueueId,
        session: SessionId,
        lock_ms: u64,
        connection: Option<ConnectionId>,
    ) -> Result<AcceptedSession, Refusal> {
        if self.core.leases.room() == 0 {
            return Err(Refusal::BoundReached { what: "leases", limit: limits::LEASES_MAX as u64 });
        }
        self.begin(FRAME_ROOM)?;
        let until = self.now.plus_ms(lock_ms);
        let token = self.token(0);
        let bound = connection.is_some();
        self.commit(Event::Held { queue, session: session.clone(), token, until, bound }, true);
        self.end();
        self.bind(connection, token.slot);
        Ok(AcceptedSession { session, hold: token, until })
    }

    /// Grants the head of the ready ring to a waiting accept.
    pub(super) fn grant_session(
        &mut self,
        consumer_id: ConsumerId,
        id: QueueId,
    ) -> Result<(), Refusal> {
        let Some(slot) = self.ready_session_after(id, None) else { return Ok(()) };
        let Some(consumer) = self.core.live().consumers.get(&consumer_id) else { return Ok(()) };
        let (connection, lock_ms) = (consumer.connection, consumer.lock_ms);
        let Some(q) = self.core.queues.get(&id) else { return Ok(()) };
        let Some(s) = q.sessions.as_ref().and_then(|s| s.at(slot)) else { return Ok(()) };
        // Its readiness also depends on its first message.
        let first =
            q.next_of(slot, None, self.now.0).and_then(|seq| q.pos(seq)).filter(|_| q.durable());
        let (session, rests_on) = (s.id.clone(), s.rests_on.max(after(first.unwrap_or_default())));
        let held = self.hold(id, session, lock_ms.unwrap_or(q.spec.lock_ms), connection)?;
        if let Some(request) =
            self.remove_consumer(consumer_id).and_then(|consumer| consumer.request)
        {
            let (durable, written) = self.marks(WaitFor::Granted(rests_on));
            let effect = Effect::Request(request, Ok(Reply::Accepted(Some(held))));
            self.out.push(Output { effect, durable, written });
        }
        Ok(())
    }

    /// The slots of the leases of a session's messages.
    pub(super) fn leases_of_session(&self, id: QueueId, slot: u32) -> Vec<u32> {
        let Some(q) = self.core.queues.get(&id) else { return Vec::new() };
        let Some(s) = q.sessions.as_ref().and_then(|s| s.at(slot)) else { return Vec::new() };
        if let Some(hold) = self.core.leases.at(s.extras().hold) {
            let mut all = Vec::with_capacity(s.locked as usize);
            let mut next = hold.first;
            while let Some(lease) = self.core.leases.at(next) {
                all.push(next);
                next = lease.next;
            }
            // The list is newest first, but messages must be returned or dead-lettered in order.
            all.sort_unstable_by_key(|&slot| {
                match self.core.leases.at(slot).map(|lease| lease.what) {
                    Some(LeaseTarget::Message { seq, .. }) => seq,
                    _ => u64::MAX,
                }
            });
            return all;
        }
        // Leased messages are before the cursor, at the front of the pending list.
        let mut all = Vec::new();
        for seq in s.pending.iter() {
            if all.len() == s.locked as usize {
                break;
            }
            if let MessageStatus::Locked(lease) = q.status(seq) {
                all.push(lease);
            }
        }
        all
    }

    pub(super) fn release_session(&mut self, hold: LeaseToken) -> Decided {
        let lease =
            self.lease_of(hold).filter(|lease| matches!(lease.what, LeaseTarget::Session { .. }));
        let slot = lease.map(|lease| lease.token.slot).ok_or(Refusal::LeaseLost { lease: hold })?;
        self.end_hold(slot, LeaseEnd::Released)?;
        self.end();
        Ok(Some((Reply::Done, WaitFor::Settled)))
    }

    /// Ends a hold and returns its leased messages. Opens a group.
    pub(super) fn end_hold(&mut self, hold: u32, cause: LeaseEnd) -> Result<(), Refusal> {
        let Some(&Lease { queue, what: LeaseTarget::Session { session }, .. }) =
            self.core.leases.at(hold)
        else {
            return Ok(());
        };
        let out = self.leases_of_session(queue, session);
        self.begin(self.return_room(queue, session, cause, out.len()) + FRAME_ROOM)?;
        for lease in out {
            self.return_message(lease, cause, 0, &Changes::default());
        }
        self.unhold(hold, cause == LeaseEnd::Lost);
        Ok(())
    }

    /// Ends the hold itself. Consumers of the session are notified.
    pub(super) fn unhold(&mut self, hold: u32, lost: bool) {
        let Some(&Lease { token, queue, what: LeaseTarget::Session { session: slot }, .. }) =
            self.core.leases.at(hold)
        else {
            return;
        };
        let session = self.core.queues.get(&queue).and_then(|q| q.sessions.as_ref()?.at(slot));
        let Some((session, consumers)) =
            session.map(|s| (s.id.clone(), s.extras().consumers.clone()))
        else {
            return;
        };
        self.commit(Event::Unheld { queue, session, lost }, true);
        for consumer in consumers {
            self.end_consumer(consumer, Refusal::LeaseLost { lease: token });
        }
    }

    /// Ends the lease of one message without an explicit hold. Opens a group.
    pub(super) fn end_lease(&mut self, slot: u32, cause: LeaseEnd) -> Result<(), Refusal> {
        self.begin(FRAME_ROOM)?;
        self.return_message(slot, cause, 0, &Changes::default());
        Ok(())
    }

    pub(super) fn break_session(&mut self, queue: &QueueName, session: &SessionId) -> Decided {
        let (id, q) = self.core.queue(queue)?;
        let Some(sessions) = q.sessions.as_ref() else {
            return Err(Refusal::NoSessions { queue: queue.clone() });
        };
        let done = Ok(Some((Reply::Done, WaitFor::Durable)));
        let Some(slot) = sessions.find(session) else { return done };
        let hold = sessions.at(slot).map_or(NONE, |s| s.extras().hold);
        if hold != NONE {
            self.end_hold(hold, LeaseEnd::Released)?;
            return done;
        }
        let out = self.leases_of_session(id, slot);
        self.begin(self.return_room(id, slot, LeaseEnd::Released, out.len()))?;
        for lease in out {
            self.return_message(lease, LeaseEnd::Released, 0, &Changes::default());
        }
        done
    }

    /// Checks a state change, and returns its queue and session.
    pub(super) fn check_state(&self, change: &StateChange) -> Result<(QueueId, u32), Refusal> {
        let lost = Refusal::LeaseLost { lease: change.hold };
        if change.state.as_ref().is_some_and(|state| state.len() > limits::SESSION_STATE_BYTES_MAX)
        {
            let rule = format!("at most {} bytes", limits::SESSION_STATE_BYTES_MAX);
            return Err(Refusal::OutOfRange { what: "a session state", rule });
        }
        let queue = self.lease_of(change.hold).map(|lease| lease.queue).ok_or(lost)?;
        Ok((queue, self.held_session(queue, change.hold)?))
    }

    /// Checks that a growing state fits into its queue. If old messages are dropped for limits, only the other states
    /// count.
    pub(super) fn check_state_room(&self, change: &StateChange) -> Result<(), Refusal> {
        let (id, slot) = self.check_state(change)?;
        let Some(q) = self.core.queues.get(&id) else { return Ok(()) };
        let Some(limit) = q.spec.bytes_max else { return Ok(()) };
        let now = q.sessions.as_ref().and_then(|s| s.at(slot)?.extras().state);
        let now = now.map_or(0, |state| u64::from(state.bytes));
        let then = change.state.as_ref().map_or(0, |state| state.len() as u64);
        let taken = if q.drops() { q.state_bytes } else { q.limited_bytes() };
        if then > now && taken - now + then > limit {
            let (queue, field) = (q.name.clone(), "bytes_max");
            return Err(Refusal::QueueFull { queue, field, limit });
        }
        Ok(())
    }

    /// Journals a checked state change; nothing if the hold has ended by a settlement of the same command.
    pub(super) fn commit_state(&mut self, change: StateChange) {
        let Ok((queue, slot)) = self.check_state(&change) else { return };
        let session = self
            .core
            .queues
            .get(&queue)
            .and_then(|q| q.sessions.as_ref()?.at(slot))
            .map(|s| s.id.clone());
        if let Some(session) = session {
            let at = self.now;
            self.commit(Event::State { queue, session, state: change.state, at }, false);
        }
    }

    pub(super) fn set_state(&mut self, change: StateChange) -> Decided {
        self.check_state_room(&change)?;
        self.begin(FRAME_ROOM + change.state.as_ref().map_or(0, |state| state.len()))?;
        self.commit_state(change);
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    pub(super) fn get_state(
        &mut self,
        queue: &QueueName,
        session: &SessionId,
        hold: Option<LeaseToken>,
    ) -> Decided {
        let (id, q) = self.core.queue(queue)?;
        let Some(sessions) = q.sessions.as_ref() else {
            return Err(Refusal::NoSessions { queue: queue.clone() });
        };
        let slot = sessions.find(session);
        if let Some(token) = hold
            && slot != Some(self.held_session(id, token)?)
        {
            return Err(Refusal::LeaseLost { lease: token });
        }
        let state = slot.and_then(|slot| sessions.at(slot)?.extras().state).map(|state| state.pos);
        Ok(Some((Reply::State(state), WaitFor::Settled)))
    }
}
