//! How messages find their way: through topics, along forwarding queues, and out of a topic's inbox.
//!
//! A message that is sent to a topic is routed as it comes in: its headers are at hand. One that was stored first
//! (scheduled, dead-lettered or forwarded to a topic) waits in the topic's inbox; the shell reads it and says
//! `Command::Route`. Whatever the number of copies, the body is stored once.

use malote_model::{
    DeadReason, Facts, Message, Refusal, Seq, SessionId, Timestamp, TopicName, limits,
};
use smallvec::{SmallVec, smallvec};

use super::dedup::First;
use super::enqueue::{MessageMove, SendOptions, accepts_session};
use super::queue::{Kept, Place};
use super::send::Filling;
use super::{Core, Decided, FRAME_ROOM, Needs, Output, To, Turn};
use crate::codec::Outgoing;
use crate::command::{Receipt, Reply, ToRoute};
use crate::event::{Cause, Event, MessageRef, Placed, QueueId, Removal, Way, Why};
use crate::journal::Pos;

/// Messages of an inbox that are read at once.
const ROUTE_MAX: usize = 64;

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

/// A copy that its queue cannot accept, and why.
struct Misfit {
    /// Its place in the queue's dead-letter set.
    at: Placed,
    record: Pos,
    queue: QueueId,
    reason: DeadReason,
    session: Option<SessionId>,
    size: u32,
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
                match accepts_session(q, message.session.as_ref()) {
                    true => copies.plain.push(hit.target),
                    false => copies.misfits.push((hit.target, DeadReason::NoSession)),
                }
                continue;
            };
            let mut changed = message.clone();
            rule.act(&mut changed, at);
            match Outgoing::new(&changed, true) {
                Ok(copy) if accepts_session(q, copy.session.as_ref()) => {
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
        let later = self.is_scheduled(message);
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

    /// Stores the copies of a message that was planned. The group must be open.
    pub(super) fn publish(&mut self, publication: Publication, message: Outgoing) -> Receipt {
        let Publication { topic, key, mut copies } = publication;
        // Looked up once more: an earlier one of this command may have the same key.
        if let Some(first) = self.core.published(topic, key, self.now.0) {
            return Receipt { seq: Seq(0), duplicate: true, first_id: first.id, copies: 0 };
        }
        if self.is_scheduled(&message) {
            let places = smallvec![self.next_place(topic, &message)];
            let options = SendOptions { dedup: key, topic: Some(topic), ..SendOptions::default() };
            self.commit_sent(places, message, options);
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
            copies.plain.iter().map(|&queue| self.next_place(queue, &message)).collect();
        let misfits = self.misfit_places(&copies.misfits);
        places.extend_from_slice(&misfits);
        let size = message.size() as u32;
        let mut body_at = None;
        if !places.is_empty() {
            let options = SendOptions { dedup: key, topic: Some(topic), ..SendOptions::default() };
            let pos = self.commit_sent(places, message, options);
            body_at = Some(pos);
            for (at, (queue, reason)) in misfits.into_iter().zip(copies.misfits) {
                let session = session.clone();
                let misfit = Misfit { at, record: pos, queue, reason, session, size };
                self.dead_letter_misfit(misfit);
            }
        }
        for (queue, message) in copies.changed {
            let places = smallvec![self.next_place(queue, &message)];
            let options =
                SendOptions { dedup: key, topic: Some(topic), body_at, ..SendOptions::default() };
            let pos = self.commit_sent(places, message, options);
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

    /// Dead-letters a copy that its queue cannot accept. The copy already stands in the queue's dead-letter set; this moves
    /// it to a new place there and records the reason.
    fn dead_letter_misfit(&mut self, misfit: Misfit) {
        let Misfit { at: Placed { queue: dead, seq, .. }, record, queue, reason, session, size } =
            misfit;
        let Some(source) = self.core.queues.get(&queue).map(|q| q.name.clone()) else { return };
        let place = Placed { queue: dead, seq: self.last_seq(dead) + 1, due: Timestamp(0) };
        let cause = Cause::Released;
        let why = Why::Dead { reason, source, receives: 0, failed: 0, cause };
        let way = Way { home: Some(queue), ..Way::default() };
        let priority = self.core.queues.get(&dead).map_or(0, |q| q.index.priority(seq));
        let kept = Kept { session, priority, way, ..Kept::default() };
        let (source, places) = (MessageRef { queue: dead, seq }, smallvec![place]);
        let moving = MessageMove { source, record, places, size, kept, why, message_id: None };
        self.commit_moved(moving, false);
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
            self.retry_later(topic);
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
        let here = MessageRef { queue: topic, seq: from_seq };
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
            let options = SendOptions { dedup: None, topic: Some(topic), body_at, way };
            self.commit_sent(places, message, options);
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
            let moving = MessageMove {
                source: here,
                record: from,
                places,
                size,
                kept,
                why,
                message_id: None,
            };
            self.commit_moved(moving, false);
            return Ok(());
        }
        if places.is_empty() {
            let (why, seqs) = (Removal::Unrouted, vec![from_seq]);
            self.commit(Event::Removed { queue: topic, why, session: None, seqs }, false);
            return Ok(());
        }
        let session = kept.session.clone();
        let (why, message_id) = (Why::Routed, None);
        let moving =
            MessageMove { source: here, record: from, places, size, kept, why, message_id };
        self.commit_moved(moving, false);
        for (at, (queue, reason)) in misfits.into_iter().zip(copies.misfits) {
            let q = self.core.queues.get(&at.queue);
            let Some(record) = q.and_then(|q| q.pos(at.seq)) else { continue };
            let session = session.clone();
            self.dead_letter_misfit(Misfit { at, record, queue, reason, session, size });
        }
        Ok(())
    }
}
