//! Delivery: gives messages to the waiting consumers of a queue, in turn, and to the holders of sessions.
//!
//! `consumers.rs` attaches consumers and counts their credit.

use malote_model::{Refusal, Seq, Timestamp, limits};

use super::background::SLICE_MAX;
use super::consumers::{ConsumerDemand, check_lock};
use super::leases::{Leases, NONE};
use super::queue::Queue;
use super::tracked::{MessageStatus, TrackedMessage};
use super::{Decided, Effect, FRAME_ROOM, LiveState, Output, Stalled, Turn, WaitFor};
use crate::command::{ConnectionId, ConsumerId, MessageGrant, Notice, ReceiveDeferred, Reply};
use crate::event::{Event, LeasedEvent, QueueId, Removal};
use crate::journal::Pos;

/// Messages delivered in one turn. This is more than can arrive meanwhile, so that queues can drain.
const DISPATCH_MAX: usize = 16 * SLICE_MAX;

/// Forwarding a message is as much work as delivering this many.
pub(super) const FORWARD_WORK: usize = 8;

impl LiveState {
    /// Adds a lease to the list of a connection.
    fn link(&mut self, leases: &mut Leases, connection: ConnectionId, slot: u32) {
        let connected = self.connections.entry(connection).or_default();
        let first = std::mem::replace(&mut connected.first, slot);
        if let Some(lease) = leases.at_mut(slot) {
            (lease.connection, lease.prev, lease.next) = (Some(connection), NONE, first);
        }
        if let Some(after) = leases.at_mut(first) {
            after.prev = slot;
        }
    }

    /// Sets the first lease in the list of a connection.
    pub(super) fn set_first(&mut self, connection: ConnectionId, first: u32) {
        if let Some(connected) = self.connections.get_mut(&connection) {
            connected.first = first;
        }
    }
}

impl Turn<'_> {
    /// Delivers messages in all queues and sessions that changed.
    pub fn dispatch(&mut self) {
        self.left = DISPATCH_MAX;
        self.remove_unused_queues();
        self.request_rewrites();
        // The rest is handled in the next turn, which begins at once.
        while self.left > 0 {
            let live = self.core.live();
            if let Some((queue, session)) = live.dirty_sessions.pop() {
                self.serve_holder(queue, session);
            } else if let Some(queue) = live.dirty.pop() {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.dirty = false;
                    self.serve_queue(queue);
                }
            } else if live.over_limit.is_empty() {
                break;
            } else {
                // Forwarding may have filled the target, and making room may dead-letter messages.
                self.enforce_limits();
            }
        }
        self.digest_if_due();
    }

    fn serve_queue(&mut self, id: QueueId) {
        let Some(q) = self.core.queues.get(&id) else { return };
        if q.spec.forward_to.is_some() {
            return self.forward(id);
        }
        if q.name.is_inbox() {
            return self.request_inbox_reads(id);
        }
        let now = self.now.0;
        while self.core.queues.contains_key(&id) {
            if self.left == 0 {
                return self.core.mark_dirty(id);
            }
            let Some(consumer_id) = self.next_consumer(id) else { return };
            let Some(q) = self.core.queues.get_mut(&id).filter(|q| q.delivers()) else { return };
            let first_session = q.sessions.as_ref().and_then(|s| s.first_ready());
            if (q.sessions.is_some() && first_session.is_none())
                || q.sessions.is_none() && q.first_ready(now).is_none()
            {
                return;
            }
            q.waiting.pop_front();
            self.left -= 1;
            let Some(consumer) = self.core.live().consumers.get_mut(&consumer_id) else { continue };
            consumer.waiting = false;
            let served = match consumer.wants {
                ConsumerDemand::Session => self.grant_session(consumer_id, id),
                ConsumerDemand::Messages { per_session } => {
                    self.grant_messages(consumer_id, id, per_session)
                }
                ConsumerDemand::Held(_) => Ok(()),
            };
            self.end();
            if served.is_err() || self.core.leases.room() == 0 {
                return self.wait_for_room(consumer_id, id);
            }
            // A consumer that still has credit goes to the end of the list.
            self.add_waiting(consumer_id);
        }
    }

    /// The consumer keeps its turn. The queue is not marked as changed: that would retry at once, without end.
    fn wait_for_room(&mut self, consumer_id: ConsumerId, id: QueueId) {
        if let Some(consumer) = self.core.live().consumers.get_mut(&consumer_id)
            && (consumer.credit > 0 || consumer.wants == ConsumerDemand::Session)
        {
            consumer.waiting = true;
            let priority = consumer.priority;
            if let Some(q) = self.core.queues.get_mut(&id) {
                q.waiting.push_front(consumer_id, q.waiting_priority(priority));
            }
        }
        self.stall(Stalled::Queue(id));
    }

    fn grant_messages(
        &mut self,
        consumer_id: ConsumerId,
        id: QueueId,
        per_session: u32,
    ) -> Result<(), Refusal> {
        let Some(consumer) = self.core.live().consumers.get(&consumer_id) else { return Ok(()) };
        let (mut wanted, once) = (consumer.credit as usize, consumer.request.is_some());
        let out = !consumer.take;
        let Some(q) = self.core.queues.get(&id) else { return Ok(()) };
        if !once {
            // A fair share now, the rest in the next round.
            let others = if q.ranked.is_empty() { q.waiting.len() } else { 0 };
            let share = q.ready() as usize / (others + 1);
            wanted = wanted.min(share.clamp(1, 256));
        }
        wanted = wanted.min(limits::RECEIVE_BATCH_MAX).min(self.core.leases.room());
        let mut picked = PickedMessages::default();
        let mut bytes = 0;
        if q.sessions.is_none() {
            picked.seqs = q.ready_batch(wanted, limits::DELIVERY_BYTES_MAX, out, self.now.0);
        } else {
            let mut last = None;
            while picked.seqs.len() < wanted
                && bytes < limits::DELIVERY_BYTES_MAX
                && let Some(slot) = self.ready_session_after(id, last)
            {
                let most = (per_session as usize).min(wanted - picked.seqs.len());
                self.pick_of_session(id, slot, most, &mut bytes, &mut picked);
                last = Some(slot);
            }
        }
        let granted = self.lease(consumer_id, id, picked, None)?;
        self.end();
        self.deliver(consumer_id, granted);
        Ok(())
    }

    /// The head of the ready ring, or the session after `last`. Sessions without messages are removed from the ring.
    pub(super) fn ready_session_after(&mut self, id: QueueId, last: Option<u32>) -> Option<u32> {
        let now = self.now.0;
        loop {
            let q = self.core.queues.get_mut(&id)?;
            let sessions = q.sessions.as_ref()?;
            let slot = match last {
                None => sessions.first_ready()?,
                Some(last) => sessions.ready_after(last)?,
            };
            if q.next_of(slot, None, now).is_some() {
                return Some(slot);
            }
            if let Some(s) = q.sessions.as_mut().and_then(|s| s.at_mut(slot)) {
                s.cursor = 0;
            }
            q.refresh_session(slot);
            if q.next_of(slot, None, now).is_none() {
                q.sessions.as_mut()?.set_ready(slot, false);
            }
        }
    }

    /// Picks the next messages of a session: at most `most`, and none once `bytes` exceeds the limit.
    fn pick_of_session(
        &self,
        id: QueueId,
        slot: u32,
        most: usize,
        bytes: &mut u64,
        picked: &mut PickedMessages,
    ) {
        let Some(q) = self.core.queues.get(&id) else { return };
        let (mut last, mut count) = (None, 0);
        while count < most
            && *bytes < limits::DELIVERY_BYTES_MAX
            && let Some(seq) = q.next_of(slot, last, self.now.0)
        {
            picked.seqs.push(seq);
            *bytes += q.index.size(seq);
            (last, count) = (Some(seq), count + 1);
        }
        picked.sessions.push((slot, count));
    }

    fn serve_holder(&mut self, id: QueueId, slot: u32) {
        loop {
            if self.left == 0 {
                return self.core.live().dirty_sessions.push((id, slot));
            }
            self.left -= 1;
            let Some(q) = self.core.queues.get(&id).filter(|q| q.delivers()) else { return };
            let Some(s) = q.sessions.as_ref().and_then(|s| s.at(slot)) else { return };
            let hold = s.extras().hold;
            // The first attached consumer with credit.
            let Some(live) = self.core.live.as_ref() else { return };
            let credit =
                |id: &ConsumerId| live.consumers.get(id).map_or(0, |consumer| consumer.credit);
            let Some(&consumer_id) = s.extras().consumers.iter().find(|id| credit(id) > 0) else {
                return;
            };
            let most = (credit(&consumer_id) as usize).min(limits::RECEIVE_BATCH_MAX);
            // All leases of a hold end in one journal group, so their number must be bounded.
            let most = most.min((limits::CREDIT_MAX.saturating_sub(s.locked)) as usize);
            let most = most.min(self.core.leases.room());
            let mut picked = PickedMessages::default();
            self.pick_of_session(id, slot, most, &mut 0, &mut picked);
            let Some(&newest) = picked.seqs.last() else { return };
            // Tells the holder that no more messages are ready, without a further request.
            let last = q.next_of(slot, Some(newest), self.now.0).is_none();
            let leased = self.lease(consumer_id, id, picked, Some(hold));
            self.end();
            match leased {
                Ok(mut granted) => {
                    if let Some(grant) = granted.grants.last_mut() {
                        grant.last = last;
                    }
                    self.deliver(consumer_id, granted);
                }
                Err(_) => return self.stall(Stalled::Session(id, slot)),
            }
        }
    }

    /// Leases messages to a consumer, or removes them on delivery. The group stays open.
    fn lease(
        &mut self,
        consumer_id: ConsumerId,
        id: QueueId,
        picked: PickedMessages,
        hold: Option<u32>,
    ) -> Result<GrantedMessages, Refusal> {
        let Some(consumer) = self.core.live().consumers.get(&consumer_id) else {
            return Ok(GrantedMessages::default());
        };
        let (take, lock_ms) = (consumer.take, consumer.lock_ms);
        let connection = consumer.connection.filter(|_| !consumer.free_standing);
        let options = GrantOptions { hold, take, lock_ms, connection, deferred: false };
        self.grant(id, picked, options)
    }

    /// Leases the picked messages, or removes them on delivery. Opens a group.
    fn grant(
        &mut self,
        id: QueueId,
        picked: PickedMessages,
        options: GrantOptions,
    ) -> Result<GrantedMessages, Refusal> {
        let PickedMessages { seqs, sessions } = picked;
        let GrantOptions { hold: hold_slot, take, lock_ms, connection, deferred } = options;
        let (mut grants, mut rests_on) = (Vec::with_capacity(seqs.len()), Pos::ZERO);
        let Some(q) = self.core.queues.get(&id).filter(|_| !seqs.is_empty()) else {
            return Ok(GrantedMessages::default());
        };
        let until = self.now.plus_ms(lock_ms.unwrap_or(q.spec.lock_ms));
        let mut of_sessions = Vec::with_capacity(sessions.len());
        let mut room = FRAME_ROOM + ITEM_ROOM * seqs.len();
        for (slot, count) in sessions {
            let Some(s) = q.sessions.as_ref().and_then(|s| s.at(slot)) else { continue };
            room += s.id.as_str().len() + ITEM_ROOM;
            if q.durable() {
                rests_on = rests_on.max(after(s.rests_on));
            }
            of_sessions.push((s.id.clone(), count));
        }
        for &seq in &seqs {
            let Some(pos) = q.pos(seq) else { continue };
            let counts = q.tracked.get(&seq);
            let (receives, failed) = counts.map_or((0, 0), |t| (t.receives, t.failed));
            let first_at = if receives == 0 {
                Some(self.now)
            } else {
                counts.and_then(TrackedMessage::first_at)
            };
            if q.durable() {
                rests_on = rests_on.max(after(pos));
            }
            grants.push(MessageGrant {
                seq: Seq(seq),
                pos,
                lease: None,
                until,
                receives: receives + 1,
                failed,
                first_at,
                last: false,
                // The core forgets the older records together with the message, but the reader needs them.
                under: if take { self.core.records_under(pos) } else { None },
                pin: None,
            });
        }
        self.begin(room)?;
        if take {
            // Only the holder can take messages of a session, so there is at most one session.
            let session = of_sessions.pop().map(|(session, _)| session);
            self.commit(Event::Removed { queue: id, why: Removal::Taken, session, seqs }, false);
            // The message is removed before it is delivered, so the removal itself must be on disk.
            return Ok(GrantedMessages { grants, needs: WaitFor::Durable });
        }
        let mut items = Vec::with_capacity(seqs.len());
        for (nth, grant) in grants.iter_mut().enumerate() {
            let token = self.token(nth);
            grant.lease = Some(token);
            items.push((grant.seq.0, token));
        }
        let hold = hold_slot.and_then(|slot| self.core.leases.at(slot));
        // Under an explicit hold, only the hold's deadline counts.
        let until = hold.map_or(until, |hold| Timestamp(self.core.leases.until(hold)));
        let bound = hold.map_or(connection.is_some(), |hold| hold.bound);
        let hold = hold.map(|hold| hold.token);
        grants.iter_mut().for_each(|grant| grant.until = until);
        let tokens: Vec<u32> = items.iter().map(|(_, token)| token.slot).collect();
        self.commit(
            Event::Leased(LeasedEvent {
                queue: id,
                at: self.now,
                until,
                bound,
                hold,
                sessions: of_sessions,
                deferred,
                items,
            }),
            true,
        );
        // A lease under a hold ends with the hold. In the connection's list it would end twice.
        if let (Some(connection), None) = (connection, hold_slot) {
            tokens.into_iter().for_each(|slot| self.bind(Some(connection), slot));
        }
        Ok(GrantedMessages { grants, needs: WaitFor::Granted(rests_on) })
    }

    pub(super) fn bind(&mut self, connection: Option<ConnectionId>, slot: u32) {
        if let (Some(connection), Some(live)) = (connection, self.core.live.as_mut()) {
            live.link(&mut self.core.leases, connection, slot);
        }
    }

    /// Sends the granted messages and reduces the credit. The group must be closed.
    fn deliver(&mut self, consumer_id: ConsumerId, granted: GrantedMessages) {
        let GrantedMessages { grants, needs } = granted;
        if grants.is_empty() {
            return;
        }
        self.left = self.left.saturating_sub(grants.len());
        let (durable, written) = self.marks(needs);
        let Some(consumer) = self.core.live().consumers.get_mut(&consumer_id) else { return };
        consumer.credit = consumer.credit.saturating_sub(grants.len() as u32);
        let effect = match consumer.request {
            Some(request) => {
                self.remove_consumer(consumer_id);
                Effect::Request(request, Ok(Reply::Delivered(grants)))
            }
            None => Effect::Consumer(consumer_id, Notice::Deliver(grants)),
        };
        self.out.push(Output { effect, durable, written });
    }

    pub(super) fn receive_deferred(&mut self, receive: ReceiveDeferred) -> Decided {
        let ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection } = receive;
        check_lock(lock_ms)?;
        if seqs.len() > limits::RECEIVE_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "sequences in one receive",
                limit: limits::RECEIVE_BATCH_MAX as u64,
            });
        }
        if !take && seqs.len() > self.core.leases.room() {
            return Err(Refusal::BoundReached { what: "leases", limit: limits::LEASES_MAX as u64 });
        }
        let (id, q) = self.core.queue(&queue)?;
        q.check_receives()?;
        let session = match (q.sessions.is_some(), hold) {
            (true, Some(token)) => Some(self.held_session(id, token)?),
            (true, None) => return Err(Refusal::HoldRequired { queue }),
            (false, _) => None,
        };
        let belongs = |q: &Queue, seq: u64| {
            let Some(tracked) = q.tracked.get(&seq) else { return false };
            tracked.status == MessageStatus::Deferred
                && session.is_none_or(|slot| tracked.session == slot)
        };
        if let Some(&seq) = seqs.iter().find(|seq| !belongs(q, seq.0)) {
            return Err(Refusal::MessageNotFound { queue, seq, what: "deferred" });
        }
        let mut seqs: Vec<u64> = seqs.iter().map(|seq| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        let sessions = session.map(|slot| (slot, seqs.len())).into_iter().collect();
        let hold = session.and(hold).map(|hold| hold.slot);
        let options = GrantOptions { hold, take, lock_ms, connection, deferred: true };
        let granted = self.grant(id, PickedMessages { seqs, sessions }, options)?;
        self.end();
        Ok(Some((Reply::Delivered(granted.grants), granted.needs)))
    }
}

/// Space that the record of a grant needs for each message, and for each session besides its id.
const ITEM_ROOM: usize = 32;

/// Messages for one consumer.
#[derive(Default)]
struct PickedMessages {
    seqs: Vec<u64>,
    /// The slots of their sessions, in order, with the number of messages of each.
    sessions: Vec<(u32, usize)>,
}

/// How to grant messages.
struct GrantOptions {
    /// The slot of the explicit hold of their session.
    hold: Option<u32>,
    take: bool,
    lock_ms: Option<u64>,
    connection: Option<ConnectionId>,
    deferred: bool,
}

/// Granted messages, and what their delivery waits for.
struct GrantedMessages {
    grants: Vec<MessageGrant>,
    needs: WaitFor,
}

impl Default for GrantedMessages {
    fn default() -> Self {
        Self { grants: Vec::new(), needs: WaitFor::Granted(Pos::ZERO) }
    }
}

/// The position after the record at `pos`. Marks move from group to group, so the whole group is included.
pub(super) fn after(pos: Pos) -> Pos {
    if pos == Pos::ZERO { pos } else { Pos::from_u64(pos.get() + 1) }
}
