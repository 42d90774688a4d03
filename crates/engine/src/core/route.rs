//! How messages find their way: through topics, along forwarding queues, and out of a topic's inbox.
//!
//! A message that is sent to a topic is routed as it comes in: its headers are at hand. One that was stored first
//! (scheduled, dead-lettered or forwarded to a topic) waits in the topic's inbox; the shell reads it and says
//! `Command::Route`. Whatever the number of copies, the body is stored once.

use malote_model::{
    Address, DeadReason, Facts, Message, Refusal, Seq, SessionId, Sessions, Timestamp, TopicName,
    When, limits,
};
use smallvec::{SmallVec, smallvec};

use super::consume::FORWARD_WORK;
use super::dedup::First;
use super::queue::{Kept, Place, Queue};
use super::send::Filling;
use super::{Core, Decided, FRAME_ROOM, Needs, Output, Timer, To, Turn};
use crate::codec::Outgoing;
use crate::command::{Receipt, Reply, ToRoute};
use crate::event::{Cause, Event, Moved, Placed, QueueId, Removal, Sent, Way, Why};
use crate::journal::Pos;

/// Messages of an inbox that are read at once.
const ROUTE_MAX: usize = 64;

/// Messages that a queue forwards at once.
const FORWARD_MAX: usize = 256;

/// What cannot go on is tried again after so long.
const AGAIN_MS: u64 = 1000;

/// The copies of one message.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Queues that take it as it is.
    plain: SmallVec<[QueueId; 4]>,
    /// Queues that take it as a rule's action left it.
    changed: Vec<(QueueId, Outgoing)>,
    /// Queues that wanted it and cannot take it: their dead-letter sets do.
    misfits: SmallVec<[(QueueId, DeadReason); 1]>,
    /// Queues that it is kept from: it died there before.
    barred: usize,
}

impl Copies {
    fn len(&self) -> usize {
        self.plain.len() + self.changed.len() + self.misfits.len()
    }

    fn room(&self) -> usize {
        let heads: usize = self.changed.iter().map(|(_, copy)| copy.head.len()).sum();
        heads + (2 * self.len() + 2) * FRAME_ROOM
    }
}

/// What a copy has beside its message.
#[derive(Debug, Default)]
struct Copy {
    /// What it is known by.
    dedup: Option<u128>,
    /// The topic that makes it.
    topic: Option<QueueId>,
    /// Its body stands in this record.
    body_at: Option<Pos>,
    /// Its way here, if it was stored before.
    way: Way,
}

/// A message on its way into a topic.
#[derive(Debug)]
pub(super) struct Publication {
    topic: QueueId,
    key: Option<u128>,
    copies: Copies,
}

impl Core {
    /// The copies that a topic makes of a message. Every rule sees it as it was sent.
    fn copies(&self, topic: QueueId, message: &Message, at: Timestamp, way: &Way) -> Copies {
        let mut copies = Copies::default();
        let Some(t) = self.topics.get(&topic) else { return copies };
        let mut hits = Vec::new();
        t.router.route(&Facts::new(message, at), &mut hits);
        for hit in hits {
            let Some(q) = self.queues.get(&hit.target) else { continue };
            if way.died_in.contains(&hit.target) {
                copies.barred += 1;
                continue;
            }
            let Some(rule) = hit.rule else {
                match fits(q, message.session.as_ref()) {
                    true => copies.plain.push(hit.target),
                    false => copies.misfits.push((hit.target, DeadReason::NoSession)),
                }
                continue;
            };
            let mut changed = message.clone();
            rule.act(&mut changed, at);
            match Outgoing::new(&changed, true) {
                Ok(copy) if fits(q, copy.session.as_ref()) => {
                    copies.changed.push((hit.target, copy));
                }
                Ok(_) => copies.misfits.push((hit.target, DeadReason::NoSession)),
                Err(refused) => {
                    let (reason, text) = (format!("Rule {}", rule.name), refused.to_string());
                    copies.misfits.push((hit.target, DeadReason::Asked { reason, text }));
                }
            }
        }
        copies
    }

    /// What a topic has seen a key with within its window.
    fn published(&self, topic: QueueId, key: Option<u128>, now: u64) -> Option<First> {
        let (t, key) = self.topics.get(&topic).zip(key)?;
        let (dedup, seen) = t.spec.dedup.zip(t.seen.as_ref())?;
        seen.find(key, now, dedup.window_ms)
    }

    /// A topic has seen a key.
    pub(super) fn remember_published(
        &mut self,
        topic: QueueId,
        key: Option<u128>,
        id: Option<u128>,
        at: u64,
    ) {
        let Some(t) = self.topics.get_mut(&topic) else { return };
        if let (Some(key), Some(dedup), Some(seen)) = (key, t.spec.dedup, t.seen.as_mut()) {
            self.seen_keys -= seen.forget(at, dedup.window_ms);
            // Of several copies only the first tells something new.
            let first = First { seq: 0, id };
            self.seen_keys += usize::from(seen.insert(key, first, at, dedup.window_ms));
            self.arm_topic(topic);
        }
    }
}

/// Whether a queue takes a message of this session.
fn fits(q: &Queue, session: Option<&SessionId>) -> bool {
    match (&q.spec.sessions, session) {
        (Sessions::None, _) | (Sessions::Dynamic, Some(_)) => true,
        (Sessions::Fixed(ids), Some(session)) => ids.contains(session),
        (_, None) => false,
    }
}

impl Turn<'_> {
    /// Checks a message for a topic and finds its copies. Nothing changes.
    pub(super) fn plan_publication(
        &self,
        name: &TopicName,
        message: &Outgoing,
        filling: &mut Filling,
    ) -> Result<(Publication, usize, bool), Refusal> {
        let (topic, t) = self.core.topic(name)?;
        if t.spec.internal {
            return Err(Refusal::TopicInternal { topic: name.clone() });
        }
        if !t.spec.status.sends() {
            return Err(Refusal::Disabled {
                what: "topic",
                name: name.as_str().to_owned(),
                status: t.spec.status.word(),
                why: "nothing can be sent to it",
            });
        }
        let key = message.dedup_key(t.spec.dedup.is_some_and(|dedup| dedup.content));
        self.check_keys(key.filter(|_| t.spec.dedup.is_some()))?;
        let later = self.is_later(message);
        let again = self.core.published(topic, key, self.now.0).is_some();
        let mut copies = Copies::default();
        if let Some(facts) = message.facts.as_deref()
            && !later
            && !again
        {
            copies = self.core.copies(topic, facts, self.now, &Way::default());
        }
        // That it is a duplicate rests on the first one, whose copies may be durable.
        let mut durable = later || again || !copies.misfits.is_empty();
        // A queue that knows it gets no copy, and needs no room for it.
        let session = message.session.as_ref();
        let seen = |queue: QueueId| {
            key.is_some_and(|key| self.core.seen(queue, key, session, self.now.0).is_some())
        };
        let plain = copies.plain.iter().map(|&queue| (queue, message, seen(queue)));
        let changed = copies.changed.iter().map(|(queue, copy)| (*queue, copy, false));
        for (queue, copy, seen) in plain.chain(changed) {
            let Some(q) = self.core.queues.get(&queue) else { continue };
            self.check_size(q, copy)?;
            if !seen {
                filling.add(queue, q, copy.size() as u64)?;
            }
            durable |= q.durable();
        }
        let room = message.size() + copies.room();
        Ok((Publication { topic, key, copies }, room, durable))
    }

    fn is_later(&self, message: &Outgoing) -> bool {
        matches!(message.when, When::At(at) if at > self.now)
    }

    /// Stores the copies of a message that was planned. The group must be open.
    pub(super) fn publish(&mut self, publication: Publication, message: Outgoing) -> Receipt {
        let Publication { topic, key, mut copies } = publication;
        // Looked up once more: an earlier one of this command may have the same key.
        if let Some(first) = self.core.published(topic, key, self.now.0) {
            return Receipt { seq: Seq(0), duplicate: true, first_id: first.id, copies: 0 };
        }
        if self.is_later(&message) {
            let places = smallvec![self.place(topic, &message)];
            let copy = Copy { dedup: key, topic: Some(topic), ..Copy::default() };
            self.commit_sent(places, message, copy);
            return Receipt::new(Seq(self.last_seq(topic)), 1);
        }
        let session = message.session.clone();
        let seen = |queue: &QueueId| {
            let seen =
                key.and_then(|key| self.core.seen(*queue, key, session.as_ref(), self.now.0));
            seen.is_some()
        };
        copies.plain.retain(|queue| !seen(queue));
        let count = copies.len() as u32;
        let mut places: SmallVec<[Placed; 1]> =
            copies.plain.iter().map(|&queue| self.place(queue, &message)).collect();
        let misfits = self.misfit_places(&copies.misfits);
        places.extend_from_slice(&misfits);
        let size = message.size() as u32;
        let mut body_at = None;
        if !places.is_empty() {
            let copy = Copy { dedup: key, topic: Some(topic), ..Copy::default() };
            let pos = self.commit_sent(places, message, copy);
            body_at = Some(pos);
            for (place, (queue, reason)) in misfits.into_iter().zip(copies.misfits) {
                self.bury_misfit(place, pos, queue, reason, session.clone(), size);
            }
        }
        for (queue, message) in copies.changed {
            let places = smallvec![self.place(queue, &message)];
            let copy = Copy { dedup: key, topic: Some(topic), body_at, ..Copy::default() };
            let pos = self.commit_sent(places, message, copy);
            body_at.get_or_insert(pos);
        }
        Receipt::new(Seq(0), count)
    }

    /// Places in dead-letter sets: a queue may have more than one misfit of a message.
    fn misfit_places(&self, misfits: &[(QueueId, DeadReason)]) -> Vec<Placed> {
        let mut places: Vec<Placed> = Vec::with_capacity(misfits.len());
        for (queue, _) in misfits {
            let Some(dead) = self.core.queues.get(queue).map(|q| q.dead) else { continue };
            let next = self.last_seq(dead) + 1;
            let earlier = places.iter().filter(|place| place.queue == dead).count() as u64;
            places.push(Placed { queue: dead, seq: next + earlier, due: Timestamp(0) });
        }
        places
    }

    /// The next place of a queue, and when a message that comes in now is due there.
    fn place(&self, queue: QueueId, message: &Outgoing) -> Placed {
        let Some(q) = self.core.queues.get(&queue) else {
            return Placed { queue, seq: 0, due: Timestamp(0) };
        };
        let due = match message.when {
            When::Now if q.spec.delay_ms > 0 => self.now.plus_ms(q.spec.delay_ms),
            When::Delay(ms) if ms > 0 => self.now.plus_ms(ms),
            When::At(at) if at > self.now => at,
            _ => Timestamp(0),
        };
        Placed { queue, seq: q.next_seq, due }
    }

    fn last_seq(&self, queue: QueueId) -> u64 {
        self.core.queues.get(&queue).map_or(0, |q| q.next_seq - 1)
    }

    /// Puts a message into its places. The group must be open.
    fn commit_sent(&mut self, places: SmallVec<[Placed; 1]>, message: Outgoing, copy: Copy) -> Pos {
        let Copy { dedup, topic, body_at, way } = copy;
        let scheduled = self.is_later(&message);
        let size = message.size() as u32;
        let known_as = dedup.and_then(|_| message.known_as());
        let Outgoing { session, head, body, priority, ttl_ms, .. } = message;
        // A queue without sessions may have tenants, and where it goes next there may be sessions. What is only
        // scheduled has no place yet, and none among tenants.
        let counts = |place: &Placed| {
            let q = self.core.queues.get(&place.queue);
            q.is_some_and(|q| q.orders() || q.has_tenants() && !scheduled)
        };
        let session = session.filter(|_| places.iter().any(counts));
        let remembers = |place: &Placed| {
            self.core.queues.get(&place.queue).is_some_and(|q| q.spec.dedup.is_some())
        };
        let topic_remembers = topic
            .and_then(|topic| self.core.topics.get(&topic))
            .is_some_and(|topic| topic.spec.dedup.is_some());
        let dedup = dedup.filter(|_| topic_remembers || places.iter().any(remembers));
        let at = self.now;
        let sent = Sent {
            places,
            at,
            scheduled,
            session,
            priority,
            ttl_ms,
            dedup,
            known_as: known_as.filter(|_| dedup.is_some()),
            topic,
            body_at,
            way,
            head,
            body,
            size,
        };
        self.commit(Event::Sent(sent), false)
    }

    /// Puts one message into one queue. The group must be open.
    pub(super) fn enter(&mut self, id: QueueId, message: Outgoing, dedup: Option<u128>) -> Seq {
        let place = self.place(id, &message);
        self.commit_sent(smallvec![place], message, Copy { dedup, ..Copy::default() });
        Seq(place.seq)
    }

    /// A copy that its queue cannot take stands in that queue's dead-letter set: this says why.
    fn bury_misfit(
        &mut self,
        Placed { queue: dead, seq, .. }: Placed,
        from: Pos,
        queue: QueueId,
        reason: DeadReason,
        session: Option<SessionId>,
        size: u32,
    ) {
        let Some(source) = self.core.queues.get(&queue).map(|q| q.name.clone()) else { return };
        let place = Placed { queue: dead, seq: self.last_seq(dead) + 1, due: Timestamp(0) };
        let cause = Cause::Released;
        let why = Why::Dead { reason, source, receives: 0, failed: 0, cause };
        let way = Way { home: Some(queue), ..Way::default() };
        let priority = self.core.queues.get(&dead).map_or(0, |q| q.index.priority(seq));
        let kept = Kept { session, priority, way, ..Kept::default() };
        self.commit_moved((dead, seq), from, smallvec![place], size, kept, why, false);
    }

    #[allow(clippy::too_many_arguments)] // each is one fact of the event
    pub(super) fn commit_moved(
        &mut self,
        (from_queue, from_seq): (QueueId, u64),
        from: Pos,
        places: SmallVec<[Placed; 1]>,
        size: u32,
        kept: Kept,
        why: Why,
        lazy: bool,
    ) {
        self.commit_renamed((from_queue, from_seq), from, places, size, kept, why, lazy, None);
    }

    /// The same, under a new id.
    #[allow(clippy::too_many_arguments)] // each is one fact of the event
    pub(super) fn commit_renamed(
        &mut self,
        (from_queue, from_seq): (QueueId, u64),
        from: Pos,
        places: SmallVec<[Placed; 1]>,
        size: u32,
        kept: Kept,
        why: Why,
        lazy: bool,
        message_id: Option<String>,
    ) {
        let Kept { session, priority, ttl_ms, way } = kept;
        let moved = Moved {
            from_queue,
            from_seq,
            from,
            places,
            at: self.now,
            session,
            size,
            priority,
            ttl_ms,
            way,
            key: None,
            message_id,
            why,
            properties: Default::default(),
        };
        self.commit(Event::Moved(Box::new(moved)), lazy);
    }

    /// Asks the shell to read what waits in a topic's inbox.
    pub(super) fn offer_inbox(&mut self, id: QueueId) {
        let now = self.now.0;
        let (Some(t), Some(q)) = (self.core.topics.get_mut(&id), self.core.queues.get(&id)) else {
            return;
        };
        if t.routing {
            return;
        }
        let all = ROUTE_MAX + t.unreadable.len();
        let seqs = q.ready_batch(all, limits::DELIVERY_BYTES_MAX, false, now);
        let seqs = seqs.into_iter().filter(|seq| !t.unreadable.contains(seq));
        let items: Vec<_> =
            seqs.filter_map(|seq| Some(ToRoute { seq, pos: q.pos(seq)?, message: None })).collect();
        if items.is_empty() {
            return;
        }
        t.routing = true;
        let written = self.log.end_pos();
        self.out.push(Output { to: To::Route(id, items), durable: Pos::ZERO, written });
    }

    /// Routes what the shell has read out of an inbox.
    pub(super) fn route(&mut self, topic: QueueId, items: Vec<ToRoute>) -> Decided {
        let mut again = false;
        for ToRoute { seq, pos, message } in items {
            let Some(inbox) = self.core.queues.get(&topic) else { break };
            // Gone meanwhile.
            let Some(stands_at) = inbox.pos(seq).filter(|_| inbox.place(seq) == Place::Ready)
            else {
                continue;
            };
            // Stored anew: it is offered again, and so are those behind it, which must not pass it.
            if stands_at != pos {
                break;
            }
            let Some(message) = message else {
                if let Some(t) = self.core.topics.get_mut(&topic) {
                    t.unreadable.insert(seq);
                }
                continue;
            };
            let routed = self.route_one(topic, seq, pos, &message);
            self.end();
            // For want of room. There may be some for a smaller one, but that must not pass it either.
            if routed.is_err() {
                again = true;
                break;
            }
        }
        if let Some(t) = self.core.topics.get_mut(&topic) {
            t.routing = false;
        }
        if again {
            self.try_later(topic);
        } else {
            self.core.touch(topic);
        }
        Ok(Some((Reply::Done, Needs::Settled)))
    }

    fn route_one(
        &mut self,
        topic: QueueId,
        from_seq: u64,
        from: Pos,
        message: &Message,
    ) -> Result<(), Refusal> {
        let Some(inbox) = self.core.queues.get(&topic) else { return Ok(()) };
        let Some((_, size)) = inbox.index.get(from_seq) else { return Ok(()) };
        let mut kept = inbox.kept.get(&from_seq).cloned().unwrap_or_default();
        // Queues without sessions forgot it on the way here; where it goes now it may count.
        kept.session = message.session.clone();
        let home = kept.way.home;
        let copies = self.core.copies(topic, message, self.now, &kept.way);
        self.begin(copies.room())?;
        let here = (topic, from_seq);
        let changed = !copies.changed.is_empty();
        let now_in = |core: &Core, queue: QueueId| {
            let q = core.queues.get(&queue);
            Placed { queue, seq: q.map_or(0, |q| q.next_seq), due: Timestamp(0) }
        };
        for (queue, message) in copies.changed {
            let places = smallvec![now_in(self.core, queue)];
            // What was changed on its way is still on its way: else a circle through an action would have no end.
            let forgets = cfg!(feature = "mutate-forget-way");
            let way = if forgets { Way::default() } else { kept.way.clone() };
            let body_at = Some(from);
            let copy = Copy { dedup: None, topic: Some(topic), body_at, way };
            self.commit_sent(places, message, copy);
        }
        let now = |queue: QueueId| now_in(self.core, queue);
        let mut places: SmallVec<[Placed; 1]> = copies.plain.iter().map(|&q| now(q)).collect();
        let misfits = self.misfit_places(&copies.misfits);
        places.extend_from_slice(&misfits);
        // Nobody may have a dead letter, or only those in whose hands it died: where it died keeps it.
        let lost = home.filter(|_| places.is_empty() && !changed);
        if let Some((home, q)) = lost.and_then(|id| Some((id, self.core.queues.get(&id)?))) {
            let (source, dead) = (q.name.clone(), q.dead);
            let reason = if copies.barred > 0 { DeadReason::Cycle } else { DeadReason::Unroutable };
            let cause = Cause::Released;
            let why = Why::Dead { reason, source, receives: 0, failed: 0, cause };
            let way = Way { home: Some(home), ..Way::default() };
            let places = smallvec![now(dead)];
            // Dead letters in the own set do not expire.
            let kept = Kept { way, ttl_ms: None, ..kept };
            self.commit_moved(here, from, places, size, kept, why, false);
            return Ok(());
        }
        if places.is_empty() {
            let (why, seqs) = (Removal::Unrouted, vec![from_seq]);
            self.commit(Event::Removed { queue: topic, why, session: None, seqs }, false);
            return Ok(());
        }
        let session = kept.session.clone();
        self.commit_moved(here, from, places, size, kept, Why::Routed, false);
        for (place, (queue, reason)) in misfits.into_iter().zip(copies.misfits) {
            let Some(pos) = self.core.queues.get(&place.queue).and_then(|q| q.pos(place.seq))
            else {
                continue;
            };
            self.bury_misfit(place, pos, queue, reason, session.clone(), size);
        }
        Ok(())
    }

    /// Sends the messages of a queue that forwards on their way.
    pub(super) fn forward(&mut self, id: QueueId) {
        while let Some(q) = self.core.queues.get(&id).filter(|q| !q.paused && q.is_prepared()) {
            if self.left == 0 {
                return self.core.touch(id);
            }
            let Some(to) = &q.spec.forward_to else { return };
            let target = match to {
                Address::Queue(name) => self.core.names.get(name),
                Address::Topic(name) => self.core.topic_names.get(name),
            };
            let most = self.away_max().min(FORWARD_MAX);
            let seqs = q.ready_batch(most, limits::DELIVERY_BYTES_MAX, false, self.now.0);
            if seqs.is_empty() {
                return;
            }
            self.left = self.left.saturating_sub(FORWARD_WORK * seqs.len());
            let target = target.copied().filter(|&target| target != id);
            let Some(target) = target else { return self.try_later(id) };
            if self.begin(seqs.len() * FRAME_ROOM).is_err() {
                return self.try_later(id);
            }
            let full = seqs.into_iter().any(|seq| !self.forward_one(id, seq, target));
            self.end();
            if full {
                return self.try_later(id);
            }
        }
    }

    /// False when the target has no room.
    fn forward_one(&mut self, id: QueueId, seq: u64, target: QueueId) -> bool {
        let (Some(q), Some(to)) = (self.core.queues.get(&id), self.core.queues.get(&target)) else {
            return true;
        };
        let (Some(from), Some((_, size))) = (q.pos(seq), q.index.get(seq)) else { return true };
        // One that came before the queue forwarded is known by its place only.
        let placed = || {
            let (session, priority) = (self.session_of(id, seq), q.index.priority(seq));
            Kept { session, priority, ..Kept::default() }
        };
        let mut kept = q.kept.get(&seq).cloned().unwrap_or_else(placed);
        kept.way.hops = kept.way.hops.saturating_add(1);
        if kept.way.hops > limits::HOPS_MAX {
            self.bury(id, seq, DeadReason::TooManyHops);
            return true;
        }
        if !fits(to, kept.session.as_ref()) {
            self.bury(id, seq, DeadReason::NoSession);
            return true;
        }
        if Filling::default().add(target, to, u64::from(size)).is_err() {
            return false;
        }
        let lazy = !(q.durable() || to.durable());
        let places = smallvec![Placed { queue: target, seq: to.next_seq, due: Timestamp(0) }];
        self.commit_moved((id, seq), from, places, size, kept, Why::Forwarded, lazy);
        true
    }

    /// Looks at a queue again in a while.
    fn try_later(&mut self, id: QueueId) {
        let at = self.now.0 + AGAIN_MS;
        if let (Some(live), Some(q)) = (self.core.live.as_mut(), self.core.queues.get_mut(&id))
            && q.again.is_none()
        {
            q.again = Some(live.timers.set(at, Timer::Again(id)));
        }
    }
}
