//! Declaring, updating, describing and listing queues.

use std::ops::Bound;

use malote_model::{
    Address, DeadLetterTarget, QueueName, QueueSpec, Refusal, Seq, SessionId, Timestamp, limits,
};

use super::consumers::Consumer;
use super::leases::LeaseTarget;
use super::queue::Queue;
use super::sessions::{Session, SessionTable};
use super::tracked::{MessageStatus, TrackedMessage};
use super::{Decided, FRAME_ROOM, Turn, WaitFor};
use crate::command::{Command, ConnectionId, ConsumerId, Peek, Peeked, Reply};
use crate::event::{Event, QueueId};
use crate::facts::SessionFacts;

/// Messages that one peek examines before it returns a partial page.
const PEEK_SCAN_MAX: usize = 20_000;

/// Session slots that one page examines before it returns a partial page.
const SESSION_SCAN_MAX: u32 = 20_000;

impl Turn<'_> {
    pub(super) fn declare(
        &mut self,
        name: QueueName,
        spec: Box<QueueSpec>,
        connection: Option<ConnectionId>,
    ) -> Decided {
        if name.is_dead_letters() {
            return Err(Refusal::DeadLetterSet {
                queue: name,
                why: "it is created and deleted with its queue",
            });
        }
        if let Ok((id, q)) = self.core.queue(&name) {
            let difference = q.spec.difference(&spec);
            self.check_exclusive(&name, connection)?;
            self.core.used(id, self.now);
            return match difference {
                None => Ok(Some((Reply::Declared { created: false }, WaitFor::Settled))),
                Some((field, is, asked)) => {
                    Err(Refusal::QueueDiffers { queue: name, field, is, asked })
                }
            };
        }
        if name.subscription_of().is_some() {
            let why = "is the queue of a subscription: declare it as a subscription of its topic";
            return Err(Refusal::BadName { name: name.as_str().to_owned(), why });
        }
        let queue = self.make_queue(name, spec, connection, 0)?;
        self.end();
        self.made_queue(queue, connection);
        Ok(Some((Reply::Declared { created: true }, WaitFor::Durable)))
    }

    /// Creates a queue. The group stays open, with `room` bytes left in it.
    pub(super) fn make_queue(
        &mut self,
        name: QueueName,
        spec: Box<QueueSpec>,
        connection: Option<ConnectionId>,
        room: usize,
    ) -> Result<QueueId, Refusal> {
        self.check_spec(&name, &spec)?;
        if spec.exclusive && connection.is_none() {
            let why = "an exclusive queue belongs to a connection: declare it over one".into();
            return Err(Refusal::BadSpec { field: "exclusive", why });
        }
        if self.core.queues.len() / 2 >= limits::QUEUES_MAX {
            return Err(Refusal::BoundReached { what: "queues", limit: limits::QUEUES_MAX as u64 });
        }
        let (queue, dead) = (QueueId(self.core.next_queue), QueueId(self.core.next_queue + 1));
        self.begin(FRAME_ROOM + spec_room(&spec) + room)?;
        self.commit(Event::Declared { queue, dead, name, spec, at: self.now }, false);
        Ok(queue)
    }

    /// Finishes creating a queue, after it was journaled.
    pub(super) fn made_queue(&mut self, queue: QueueId, connection: Option<ConnectionId>) {
        self.core.used(queue, self.now);
        self.core.arm_idle(queue);
        let exclusive = self.core.queues.get(&queue).is_some_and(|q| q.spec.exclusive);
        if let Some(connection) = connection.filter(|_| exclusive) {
            self.bind_queue(connection, queue);
        }
    }

    fn check_spec(&self, name: &QueueName, spec: &QueueSpec) -> Result<(), Refusal> {
        spec.check()?;
        if let DeadLetterTarget::Queue(target) = &spec.dead_letter {
            let bad = |why: String| Err(Refusal::BadSpec { field: "dead_letter", why });
            if target == name {
                return bad("must be another queue".into());
            }
            if self.core.queue(target).is_err() {
                return bad(format!("queue `{target}` does not exist: declare it first"));
            }
        }
        if spec.forward_to == Some(Address::Queue(name.clone())) {
            let why = "must be another queue, or a topic".into();
            return Err(Refusal::BadSpec { field: "forward_to", why });
        }
        Ok(())
    }

    pub(super) fn update(&mut self, name: QueueName, spec: Box<QueueSpec>) -> Decided {
        let (queue, q) = self.core.queue(&name)?;
        if q.owner.is_some() {
            return Err(Refusal::DeadLetterSet { queue: name, why: "update its queue" });
        }
        let fixed = [
            ("sessions", q.spec.sessions != spec.sessions),
            ("priority_max", q.spec.priority_max != spec.priority_max),
            ("exclusive", q.spec.exclusive != spec.exclusive),
        ];
        if let Some((field, _)) = fixed.into_iter().find(|(_, differs)| *differs) {
            return Err(Refusal::QueueFixed { queue: name, field });
        }
        self.check_spec(&name, &spec)?;
        let received = q.spec.status.receives();
        let was_single = q.spec.single_active;
        self.begin(FRAME_ROOM + spec_room(&spec))?;
        self.commit(Event::Updated { queue, spec, at: self.now }, false);
        self.end();
        if received {
            self.end_disabled(queue);
        }
        if was_single {
            self.wake_inactive(queue);
        }
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    /// Ends the consumers of a queue whose receiving was disabled. Leased messages stay leased.
    fn end_disabled(&mut self, queue: QueueId) {
        let Some(Err(why)) = self.core.queues.get(&queue).map(|q| q.check_receives()) else {
            return;
        };
        let of_it = |(&id, c): (&ConsumerId, &Consumer)| (c.queue == queue).then_some(id);
        let mut consumers: Vec<_> = self.core.live().consumers.iter().filter_map(of_it).collect();
        consumers.sort_unstable();
        for consumer in consumers {
            self.end_consumer(consumer, why.clone());
        }
    }

    pub(super) fn delete(&mut self, name: &QueueName) -> Decided {
        let (queue, q) = self.core.queue(name)?;
        if q.owner.is_some() {
            return Err(Refusal::DeadLetterSet {
                queue: name.clone(),
                why: "delete its queue, or purge it",
            });
        }
        let aims_here = self.core.dead_letter_sources.get(name).and_then(|ids| ids.first());
        if let Some(other) = aims_here.and_then(|id| self.core.queues.get(id)) {
            return Err(Refusal::QueueInUse { queue: name.clone(), by: other.name.clone() });
        }
        self.remove_queue(queue)?;
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    pub(super) fn pause(&mut self, name: &QueueName, paused: bool) -> Decided {
        let (queue, q) = self.core.queue(name)?;
        if q.paused == paused {
            return Ok(Some((Reply::Done, WaitFor::Settled)));
        }
        self.begin(FRAME_ROOM)?;
        self.commit(Event::Paused { queue, paused }, false);
        if let Some(rest) = self.wake_holders(queue, 0) {
            self.core.add_background_work(rest);
        }
        Ok(Some((Reply::Done, WaitFor::Durable)))
    }

    pub(super) fn describe(&mut self, name: &QueueName) -> Decided {
        let (id, _) = self.core.queue(name)?;
        Ok(Some((Reply::Queues(self.facts(id).into_iter().collect()), WaitFor::Settled)))
    }

    fn facts(&self, id: QueueId) -> Option<crate::facts::QueueFacts> {
        let q = self.core.queues.get(&id)?;
        let dead = if q.owner.is_some() {
            0
        } else {
            self.core.queues.get(&q.dead).map_or(0, |dead| dead.index.len())
        };
        Some(q.facts(dead))
    }

    /// Returns a page, so that a turn does not grow with the number of queues.
    pub(super) fn list(&self, after: Option<&QueueName>, max: usize) -> Reply {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.core.names.range::<QueueName, _>((from, Bound::Unbounded));
        let queues = names.filter(|(name, _)| !name.is_dead_letters());
        let facts = queues.filter_map(|(_, &id)| self.facts(id));
        Reply::Queues(facts.take(max.min(limits::LIST_MAX)).collect())
    }

    /// The queue whose index must get session slots before this command can run, if any.
    pub(super) fn must_prepare(&mut self, command: &Command) -> Option<QueueId> {
        let (Command::Move { from, .. } | Command::Replace { from, .. }) = command else {
            return None;
        };
        let id = *self.core.names.get(from)?;
        self.core.queues.get_mut(&id)?.start_session_slots();
        self.core.prepare(id);
        self.core.queues.get(&id).is_some_and(|q| !q.is_prepared()).then_some(id)
    }

    /// Lists sessions by slot. An order by name would need all of them, or another index.
    pub(super) fn list_sessions(&mut self, name: &QueueName, from: u32, max: usize) -> Decided {
        let (q, there) = self.sessions_of(name)?;
        let max = max.min(limits::RECEIVE_BATCH_MAX);
        let end = from.saturating_add(SESSION_SCAN_MAX).min(there.slots());
        let (mut sessions, mut slot) = (Vec::new(), from);
        while slot < end && sessions.len() < max {
            sessions.extend(there.at(slot).map(|session| self.session_facts(q, session)));
            slot += 1;
        }
        let next = (slot < there.slots()).then_some(slot);
        Ok(Some((Reply::Sessions { sessions, next }, WaitFor::Settled)))
    }

    pub(super) fn describe_session(&mut self, name: &QueueName, session: &SessionId) -> Decided {
        let (q, there) = self.sessions_of(name)?;
        let found = there.find(session).and_then(|slot| there.at(slot));
        let sessions = found.map(|session| self.session_facts(q, session)).into_iter().collect();
        Ok(Some((Reply::Sessions { sessions, next: None }, WaitFor::Settled)))
    }

    fn sessions_of(&self, name: &QueueName) -> Result<(&Queue, &SessionTable), Refusal> {
        let (_, q) = self.core.queue(name)?;
        let none = || Refusal::NoSessions { queue: name.clone() };
        Ok((q, q.sessions.as_ref().ok_or_else(none)?))
    }

    fn session_facts(&self, q: &Queue, s: &Session) -> SessionFacts {
        let hold = self.core.leases.at(s.extras().hold);
        let head = s.pending.first();
        let waits =
            head.and_then(|seq| q.tracked.get(&seq)).filter(|t| t.status == MessageStatus::Delayed);
        SessionFacts {
            session: s.id.clone(),
            messages: s.pending.len() as u64,
            locked: u64::from(s.locked),
            held_until: hold.map(|hold| Timestamp(self.core.leases.until(hold))),
            state_bytes: s.extras().state.map_or(0, |state| u64::from(state.bytes)),
            state_at: Timestamp(s.extras().state.map_or(0, |state| state.at)),
            first: head.map(Seq),
            delayed_until: waits.map(|t| Timestamp(t.due)),
        }
    }

    pub(super) fn peek(&mut self, peek: &Peek) -> Decided {
        let (_, q) = self.core.queue(&peek.queue)?;
        let max = peek.max.min(limits::RECEIVE_BATCH_MAX);
        let line = peek.session.as_ref().and_then(|session| Some((q.sessions.as_ref()?, session)));
        let line = line
            .map(|(sessions, session)| sessions.find(session).and_then(|slot| sessions.at(slot)));
        let mut items = Vec::new();
        let mut next = Some(peek.from);
        for _ in 0..PEEK_SCAN_MAX {
            if items.len() == max {
                break;
            }
            let from = next.map_or(0, |seq| seq.0);
            // In a queue with sessions, follow the session's pending list. Otherwise the caller filters the messages.
            let seq = match line {
                None => q.index.next(from),
                Some(session) => session.and_then(|s| s.pending.get(s.pending.lower_bound(from))),
            };
            let Some(seq) = seq else {
                next = None;
                break;
            };
            next = Some(Seq(seq + 1));
            let Some(pos) = q.pos(seq) else { continue };
            let tracked = q.tracked.get(&seq);
            let place = tracked.map_or(MessageStatus::Ready, |t| t.status);
            if peek.state.is_some_and(|state| state != place.state()) {
                continue;
            }
            let due = tracked.filter(|t| {
                matches!(
                    t.status,
                    MessageStatus::Delayed | MessageStatus::Parked | MessageStatus::Scheduled
                )
            });
            let deferred = match place {
                MessageStatus::Locked(slot) => matches!(
                    self.core.leases.at(slot).map(|lease| lease.what),
                    Some(LeaseTarget::Message { deferred: true, .. })
                ),
                place => place == MessageStatus::Deferred,
            };
            items.push(Peeked {
                seq: Seq(seq),
                pos,
                state: place.state(),
                deferred,
                receives: tracked.map_or(0, |t| t.receives),
                failed: tracked.map_or(0, |t| t.failed),
                first_at: tracked.and_then(TrackedMessage::first_at),
                due: due.map(|t| Timestamp(t.due)),
            });
        }
        Ok(Some((Reply::Peeked { items, next }, WaitFor::Settled)))
    }
}

pub(super) fn spec_room(spec: &QueueSpec) -> usize {
    let labels: usize = spec.labels.iter().map(|(name, text)| name.len() + text.len() + 8).sum();
    let session_from = match &spec.session_from {
        Some(malote_model::SessionFrom::Property(name)) => name.len() + 4,
        _ => 0,
    };
    labels
        + session_from
        + match &spec.sessions {
            malote_model::Sessions::Fixed(ids) => ids.iter().map(|id| id.as_str().len() + 4).sum(),
            _ => 0,
        }
}
