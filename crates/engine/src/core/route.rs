//! Routing through topics: publishing, and emptying a topic's inbox.
//!
//! A message that is sent to a topic is routed immediately, because its headers are in memory. A message that was
//! stored first (scheduled, dead-lettered or forwarded to a topic) waits in the topic's inbox. The shell reads it and
//! sends `Command::Route`. The body is stored once, whatever the number of copies.

use malote_model::{
    DeadReason, Facts, Message, Refusal, Seq, SessionId, Timestamp, TopicKind, TopicName, limits,
};
use smallvec::{SmallVec, smallvec};

use super::dedup::FirstSend;
use super::enqueue::{MessageMove, SendOptions, accepts_session};
use super::send::FillLevels;
use super::tracked::{CarriedAttributes, MessageStatus};
use super::{Core, Decided, Effect, FRAME_ROOM, Output, Turn, WaitFor};
use crate::codec::EncodedMessage;
use crate::command::{InboxItem, Receipt, Reply};
use crate::event::{
    Event, LeaseEnd, MessageRef, MoveReason, Placement, QueueId, Removal, RouteHistory,
};
use crate::journal::Pos;
use crate::topic::RouteMatch;

/// Messages of an inbox that are read at once.
const ROUTE_MAX: usize = 64;

/// The copies of one message.
#[derive(Debug, Default)]
pub(super) struct FanOut {
    /// Queues that get the message unchanged.
    plain: SmallVec<[QueueId; 4]>,
    /// Queues that get the message unchanged, in the session that their own rule gives it.
    own_sessions: Vec<(QueueId, SessionId)>,
    /// Queues that get the message as a rule's action changed it.
    changed: Vec<(QueueId, EncodedMessage)>,
    /// Queues whose rules match, but that cannot accept the message. It goes to their dead-letter sets.
    rejected: SmallVec<[(QueueId, DeadReason); 1]>,
    /// The number of matching queues that get no copy because they dead-lettered the message before.
    barred: usize,
    /// Queues of `plain` and `own_sessions` that are full and dead-letter the message.
    overflowed: SmallVec<[QueueId; 1]>,
}

impl FanOut {
    fn len(&self) -> usize {
        self.plain.len() + self.own_sessions.len() + self.changed.len() + self.rejected.len()
    }

    fn room(&self) -> usize {
        let heads: usize = self.changed.iter().map(|(_, copy)| copy.head.len()).sum();
        let sessions: usize = self.own_sessions.iter().map(|(_, id)| 2 * id.as_str().len()).sum();
        heads + sessions + (2 * self.len() + 2) * FRAME_ROOM
    }
}

/// A copy that its queue cannot accept, and why.
struct RejectedCopy {
    /// Its position in the queue's dead-letter set.
    at: Placement,
    record: Pos,
    queue: QueueId,
    reason: DeadReason,
    session: Option<SessionId>,
    size: u32,
}

/// A message to a topic, after all checks.
#[derive(Debug)]
pub(super) struct PlannedPublish {
    topic: QueueId,
    key: Option<u128>,
    copies: FanOut,
}

impl Core {
    /// The copies that a topic makes of a message. Every rule sees the message as it was sent.
    fn copies(
        &self,
        topic: QueueId,
        message: &Message,
        at: Timestamp,
        history: &RouteHistory,
    ) -> FanOut {
        let mut copies = FanOut::default();
        let mut hits = Vec::new();
        for hit in self.matches(topic, message, at, &mut hits) {
            let Some(q) = self.queues.get(&hit.target) else { continue };
            if history.dead_lettered_in.contains(&hit.target) {
                copies.barred += 1;
                continue;
            }
            let Some(rule) = hit.rule else {
                let own = q.spec.session_from.as_ref().map(|from| from.session_of(message));
                let session = own.as_ref().unwrap_or(&message.session);
                match (accepts_session(q, session.as_ref()), own.flatten()) {
                    (false, _) => copies.rejected.push((hit.target, DeadReason::NoSession)),
                    (true, Some(own)) => copies.own_sessions.push((hit.target, own)),
                    (true, None) => copies.plain.push(hit.target),
                }
                continue;
            };
            let mut changed = message.clone();
            rule.act(&mut changed, at);
            if let Some(from) = &q.spec.session_from {
                changed.session = from.session_of(&changed);
            }
            match EncodedMessage::new(&changed, true) {
                Ok(copy) if accepts_session(q, copy.session.as_ref()) => {
                    copies.changed.push((hit.target, copy));
                }
                Ok(_) => copies.rejected.push((hit.target, DeadReason::NoSession)),
                Err(refused) => {
                    let (reason, text) = (format!("Rule {}", rule.name), refused.to_string());
                    copies.rejected.push((hit.target, DeadReason::Asked { reason, text }));
                }
            }
        }
        copies
    }

    /// The rules of a topic that match a message, and those of the topics that these rules lead to. Each topic is
    /// visited once, so cycles end. A topic without a matching rule passes the message to its alternate topic.
    fn matches<'a>(
        &'a self,
        topic: QueueId,
        message: &Message,
        at: Timestamp,
        hits: &mut Vec<RouteMatch<'a, QueueId>>,
    ) -> Vec<RouteMatch<'a, QueueId>> {
        let facts = Facts::new(message, at);
        let mut all: Vec<RouteMatch<'a, QueueId>> = Vec::new();
        let mut topics: SmallVec<[QueueId; 4]> = smallvec![topic];
        let mut next = 0;
        while let Some(t) = topics.get(next).and_then(|id| self.topics.get(id)) {
            next += 1;
            t.router.route(&facts, hits);
            if t.spec.kind == TopicKind::Hash {
                let target = t.router.by_hash(&facts.hashed(&t.spec.hash_on));
                hits.extend(target.map(|target| RouteMatch { target, rule: None }));
            }
            if t.spec.kind == TopicKind::Queue {
                let target = self.named_queue(&t.name, facts.key);
                hits.extend(target.map(|target| RouteMatch { target, rule: None }));
            }
            let alternate = t.spec.alternate.as_ref().filter(|_| hits.is_empty());
            let alternate = alternate.and_then(|name| self.topic_names.get(name).copied());
            let (onward, here): (Vec<_>, Vec<_>) =
                hits.drain(..).partition(|hit| self.topics.contains_key(&hit.target));
            all.extend(here);
            for id in onward.into_iter().map(|hit| hit.target).chain(alternate) {
                if !topics.contains(&id) {
                    topics.push(id);
                }
            }
        }
        if topics.len() > 1 {
            let order =
                |hit: &RouteMatch<'a, QueueId>| (hit.target, hit.rule.map(|r| r.name.clone()));
            all.sort_by_cached_key(order);
            all.dedup_by(|a, b| a.target == b.target && a.rule.is_none() && b.rule.is_none());
        }
        all
    }

    /// The queue that a key names, in the folder of a topic. Only the main key counts, so the record of a message is not
    /// shared between queues that no rule connects.
    fn named_queue(&self, topic: &TopicName, key: &str) -> Option<QueueId> {
        let folder = topic.as_str().rfind('/').map_or("", |at| &topic.as_str()[..=at]);
        let id = match folder {
            "" => self.names.get(key),
            folder => self.names.get(format!("{folder}{key}").as_str()),
        };
        id.copied().filter(|id| self.queues.get(id).is_some_and(|q| q.owner.is_none()))
    }

    /// The first message that was published with a key within the topic's window.
    fn published(&self, topic: QueueId, key: Option<u128>, now: u64) -> Option<FirstSend> {
        let (t, key) = self.topics.get(&topic).zip(key)?;
        let (dedup, seen) = t.spec.dedup.zip(t.seen.as_ref())?;
        seen.find(key, now, dedup.window_ms)
    }

    /// Remembers a key that was published to a topic.
    pub(super) fn remember_published(
        &mut self,
        topic: QueueId,
        key: Option<u128>,
        id: Option<u128>,
        at: u64,
    ) {
        let Some(t) = self.topics.get_mut(&topic) else { return };
        if let (Some(key), Some(dedup), Some(seen)) = (key, t.spec.dedup, t.seen.as_mut()) {
            self.dedup_keys -= seen.forget(at, dedup.window_ms);
            // Only the first of several copies adds a new key.
            let first = FirstSend { seq: 0, id };
            self.dedup_keys += usize::from(seen.insert(key, first, at, dedup.window_ms));
            self.arm_topic(topic);
        }
    }
}

impl Turn<'_> {
    /// Checks a message for a topic and computes its copies. Nothing changes.
    pub(super) fn plan_publish(
        &self,
        name: &TopicName,
        message: &EncodedMessage,
        levels: &mut FillLevels,
    ) -> Result<(PlannedPublish, usize, bool), Refusal> {
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
        let mut copies = FanOut::default();
        if let Some(facts) = message.facts.as_deref()
            && !later
            && !again
        {
            copies = self.core.copies(topic, facts, self.now, &RouteHistory::default());
        }
        // A duplicate depends on the first message, whose copies may be durable.
        let mut durable = later || again || !copies.rejected.is_empty();
        // A queue that already knows the key gets no copy and needs no space for it.
        let session = message.session.as_ref();
        let seen = |queue: QueueId, session: Option<&SessionId>| {
            key.is_some_and(|key| self.core.seen(queue, key, session, self.now.0).is_some())
        };
        let plain = copies.plain.iter().map(|&queue| (queue, message, seen(queue, session)));
        let own_sessions = copies.own_sessions.iter();
        let own_sessions =
            own_sessions.map(|(queue, own)| (*queue, message, seen(*queue, Some(own))));
        let changed = copies.changed.iter().map(|(queue, copy)| (*queue, copy, false));
        let mut overflowed = SmallVec::new();
        for (queue, copy, seen) in plain.chain(own_sessions).chain(changed) {
            let Some(q) = self.core.queues.get(&queue) else { continue };
            self.check_size(q, copy)?;
            if !seen && levels.add(queue, q, copy.size() as u64)? {
                overflowed.push(queue);
            }
            durable |= q.durable();
        }
        copies.overflowed = overflowed;
        // Each session of its own needs a record with the headers, but not with the body.
        let heads = copies.own_sessions.len() * message.head.len();
        let room = message.size() + heads + copies.room();
        Ok((PlannedPublish { topic, key, copies }, room, durable))
    }

    /// Stores the copies of a planned message. The group must be open.
    pub(super) fn publish(
        &mut self,
        publication: PlannedPublish,
        mut message: EncodedMessage,
    ) -> Receipt {
        let PlannedPublish { topic, key, mut copies } = publication;
        // Checked again: an earlier message of this command may have the same key.
        if let Some(first) = self.core.published(topic, key, self.now.0) {
            return Receipt { duplicate: true, first_id: first.id, ..Receipt::new(Seq(0), 0) };
        }
        if self.is_scheduled(&message) {
            let places = smallvec![self.next_placement(topic, &message)];
            let options = SendOptions { dedup: key, topic: Some(topic), ..SendOptions::default() };
            self.commit_sent(places, message, options);
            return Receipt::new(Seq(self.last_seq(topic)), 1);
        }
        let session = message.session.clone();
        let seen = |queue: QueueId, session: Option<&SessionId>| {
            let seen = key.and_then(|key| self.core.seen(queue, key, session, self.now.0));
            seen.is_some()
        };
        copies.plain.retain(|queue| !seen(*queue, session.as_ref()));
        copies.own_sessions.retain(|(queue, own)| !seen(*queue, Some(own)));
        let count = copies.len() as u32;
        let mut places: SmallVec<[Placement; 1]> =
            copies.plain.iter().map(|&queue| self.next_placement(queue, &message)).collect();
        let rejected = self.rejected_places(&copies.rejected);
        places.extend_from_slice(&rejected);
        let size = message.size() as u32;
        let full = |place: &Placement| copies.overflowed.contains(&place.queue);
        let mut full: SmallVec<[Placement; 1]> = places.iter().copied().filter(full).collect();
        let mut body_at = None;
        message.facts = None;
        let own_message = (!copies.own_sessions.is_empty()).then(|| message.clone());
        if !places.is_empty() {
            let options = SendOptions { dedup: key, topic: Some(topic), ..SendOptions::default() };
            let pos = self.commit_sent(places, message, options);
            body_at = Some(pos);
            for (at, (queue, reason)) in rejected.into_iter().zip(copies.rejected) {
                let session = session.clone();
                let copy = RejectedCopy { at, record: pos, queue, reason, session, size };
                self.dead_letter_copy(copy);
            }
        }
        for ((queue, own), message) in
            copies.own_sessions.into_iter().zip(own_message.iter().cycle())
        {
            let mut message = message.clone();
            message.session = Some(own);
            let place = self.next_placement(queue, &message);
            let options =
                SendOptions { dedup: key, topic: Some(topic), body_at, ..SendOptions::default() };
            let pos = self.commit_sent(smallvec![place], message, options);
            body_at.get_or_insert(pos);
            if copies.overflowed.contains(&queue) {
                full.push(place);
            }
        }
        for (queue, message) in copies.changed {
            let places = smallvec![self.next_placement(queue, &message)];
            let options =
                SendOptions { dedup: key, topic: Some(topic), body_at, ..SendOptions::default() };
            let pos = self.commit_sent(places, message, options);
            body_at.get_or_insert(pos);
        }
        for place in &full {
            self.dead_letter_unleased(place.queue, place.seq, DeadReason::Overflowed);
        }
        Receipt { overflowed: !full.is_empty(), ..Receipt::new(Seq(0), count) }
    }

    /// Positions in dead-letter sets. Several copies of a message may go to the same one.
    fn rejected_places(&self, rejected: &[(QueueId, DeadReason)]) -> Vec<Placement> {
        let mut places: Vec<Placement> = Vec::with_capacity(rejected.len());
        for (queue, _) in rejected {
            let Some(dead) = self.core.queues.get(queue).map(|q| q.dead) else { continue };
            let next = self.last_seq(dead) + 1;
            let earlier = places.iter().filter(|place| place.queue == dead).count() as u64;
            places.push(Placement { queue: dead, seq: next + earlier, due: Timestamp(0) });
        }
        places
    }

    /// Records why a copy was dead-lettered. The copy is already in the queue's dead-letter set; this moves it to a new
    /// position there, with the reason.
    fn dead_letter_copy(&mut self, copy: RejectedCopy) {
        let RejectedCopy {
            at: Placement { queue: dead, seq, .. },
            record,
            queue,
            reason,
            session,
            size,
        } = copy;
        let Some(source) = self.core.queues.get(&queue).map(|q| q.name.clone()) else { return };
        let place = Placement { queue: dead, seq: self.last_seq(dead) + 1, due: Timestamp(0) };
        let cause = LeaseEnd::Released;
        let why =
            MoveReason::DeadLettered { reason, source, receives: 0, failed: 0, cause, to: None };
        let history = RouteHistory { dead_lettered_from: Some(queue), ..RouteHistory::default() };
        let priority = self.core.queues.get(&dead).map_or(0, |q| q.index.priority(seq));
        let carried =
            CarriedAttributes { session, priority, history, ..CarriedAttributes::default() };
        let (source, places) = (MessageRef { queue: dead, seq }, smallvec![place]);
        let moving = MessageMove { source, record, places, size, carried, why, message_id: None };
        self.commit_moved(moving, false);
    }

    /// Asks the shell to read the messages of a topic's inbox.
    pub(super) fn request_inbox_reads(&mut self, id: QueueId) {
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
        let items: Vec<_> = seqs
            .filter_map(|seq| Some(InboxItem { seq, pos: q.pos(seq)?, message: None }))
            .collect();
        if items.is_empty() {
            return;
        }
        t.routing = true;
        let written = self.log.end_pos();
        self.out.push(Output { effect: Effect::Route(id, items), durable: Pos::ZERO, written });
    }

    /// Routes messages of an inbox that the shell has read.
    pub(super) fn route(&mut self, topic: QueueId, items: Vec<InboxItem>) -> Decided {
        let mut again = false;
        for InboxItem { seq, pos, message } in items {
            let Some(inbox) = self.core.queues.get(&topic) else { break };
            // It was removed meanwhile.
            let Some(stands_at) =
                inbox.pos(seq).filter(|_| inbox.status(seq) == MessageStatus::Ready)
            else {
                continue;
            };
            // It was stored again meanwhile. It is read again, together with the messages behind it, which must not
            // overtake it.
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
            // The journal has no room. A smaller message might fit, but must not overtake this one.
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
            self.core.mark_dirty(topic);
        }
        Ok(Some((Reply::Done, WaitFor::Settled)))
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
        let mut carried = inbox.carried.get(&from_seq).cloned().unwrap_or_default();
        // Queues without sessions drop the session id on the way, but the target may need it.
        carried.session = message.session.clone();
        let home = carried.history.dead_lettered_from;
        let copies = self.core.copies(topic, message, self.now, &carried.history);
        self.begin(copies.room())?;
        let here = MessageRef { queue: topic, seq: from_seq };
        let changed = !copies.changed.is_empty();
        let now_in = |core: &Core, queue: QueueId| {
            let q = core.queues.get(&queue);
            Placement { queue, seq: q.map_or(0, |q| q.next_seq), due: Timestamp(0) }
        };
        for (queue, message) in copies.changed {
            let places = smallvec![now_in(self.core, queue)];
            // A copy changed by an action keeps its history. Otherwise a cycle through an action would never end.
            let forgets = cfg!(feature = "mutate-forget-path");
            let history = if forgets { RouteHistory::default() } else { carried.history.clone() };
            let body_at = Some(from);
            let options = SendOptions { dedup: None, topic: Some(topic), body_at, history };
            self.commit_sent(places, message, options);
        }
        let now = |queue: QueueId| now_in(self.core, queue);
        let mut places: SmallVec<[Placement; 1]> = copies.plain.iter().map(|&q| now(q)).collect();
        let rejected = self.rejected_places(&copies.rejected);
        places.extend_from_slice(&rejected);
        let mut own_sessions = copies.own_sessions;
        if places.is_empty()
            && let Some((queue, own)) = own_sessions.pop()
        {
            places.push(now(queue));
            carried.session = Some(own);
        }
        // One move has one session. The copies in other sessions go back to the inbox first, and move on from there
        // in the same group.
        let next = now(topic);
        let own_places = (0..own_sessions.len() as u64)
            .map(|nth| Placement { seq: next.seq + nth, ..next })
            .collect::<Vec<_>>();
        places.extend_from_slice(&own_places);
        // If no queue gets the dead letter, or only queues that dead-lettered it before, the last one of those keeps
        // it.
        let lost = home.filter(|_| places.is_empty() && !changed);
        if let Some((home, q)) = lost.and_then(|id| Some((id, self.core.queues.get(&id)?))) {
            if q.spec.discard_unroutable {
                let (why, seqs) = (Removal::Unrouted, vec![from_seq]);
                self.commit(Event::Removed { queue: topic, why, session: None, seqs }, false);
                return Ok(());
            }
            let (source, dead) = (q.name.clone(), q.dead);
            let reason = if copies.barred > 0 { DeadReason::Cycle } else { DeadReason::Unroutable };
            let cause = LeaseEnd::Released;
            let why = MoveReason::DeadLettered {
                reason,
                source,
                receives: 0,
                failed: 0,
                cause,
                to: None,
            };
            let history =
                RouteHistory { dead_lettered_from: Some(home), ..RouteHistory::default() };
            let places = smallvec![now(dead)];
            // Dead letters in a queue's own set do not expire.
            let carried = CarriedAttributes { history, ttl_ms: None, ..carried };
            let moving = MessageMove {
                source: here,
                record: from,
                places,
                size,
                carried,
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
        let session = carried.session.clone();
        let (why, message_id) = (MoveReason::Routed, None);
        let moves_on = carried.clone();
        let moving =
            MessageMove { source: here, record: from, places, size, carried, why, message_id };
        self.commit_moved(moving, false);
        for (at, (queue, own)) in own_places.into_iter().zip(own_sessions) {
            let inbox = self.core.queues.get(&topic);
            let Some(record) = inbox.and_then(|inbox| inbox.pos(at.seq)) else { continue };
            let moving = MessageMove {
                source: MessageRef { queue: topic, seq: at.seq },
                record,
                places: smallvec![now_in(self.core, queue)],
                size,
                carried: CarriedAttributes { session: Some(own), ..moves_on.clone() },
                why: MoveReason::Routed,
                message_id: None,
            };
            self.commit_moved(moving, false);
        }
        for (at, (queue, reason)) in rejected.into_iter().zip(copies.rejected) {
            let q = self.core.queues.get(&at.queue);
            let Some(record) = q.and_then(|q| q.pos(at.seq)) else { continue };
            let session = session.clone();
            self.dead_letter_copy(RejectedCopy { at, record, queue, reason, session, size });
        }
        Ok(())
    }
}
