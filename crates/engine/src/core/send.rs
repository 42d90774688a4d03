//! Sending, scheduling, and moving messages between queues.

use malote_model::{QueueName, Refusal, Seq, SessionId, Sessions, Timestamp, When, limits};

use smallvec::{SmallVec, smallvec};

use super::queue::{Kept, Place};
use super::{Decided, FRAME_ROOM, Needs, Turn};
use crate::codec::Outgoing;
use crate::command::{MoveWhy, Receipt, Reply};
use crate::event::{Event, Moved, Placed, QueueId, Removal, Sent, Why};

/// Checked messages: where each goes and what it is known by there, and what all of them need.
pub(super) struct Plan {
    targets: Vec<(QueueId, Option<u128>)>,
    pub room: usize,
    pub durable: bool,
}

fn check_full(
    queue: &QueueName,
    field: &'static str,
    have: u64,
    limit: Option<u64>,
) -> Result<(), Refusal> {
    match limit.filter(|&limit| have > limit) {
        Some(limit) => Err(Refusal::QueueFull { queue: queue.clone(), field, limit }),
        None => Ok(()),
    }
}

impl Turn<'_> {
    /// All checks come first: then all of it happens.
    pub(super) fn send(&mut self, items: Vec<(QueueName, Outgoing)>) -> Decided {
        let plan = self.plan(&items)?;
        if items.is_empty() {
            return Ok(Some((Reply::Sent(Vec::new()), Needs::Settled)));
        }
        self.begin(plan.room)?;
        let (receipts, needs) = self.carry_out(&plan, items);
        Ok(Some((Reply::Sent(receipts), needs)))
    }

    /// Checks messages and tells what they need. Nothing changes.
    pub(super) fn plan(&self, items: &[(QueueName, Outgoing)]) -> Result<Plan, Refusal> {
        if !self.publish_allowed {
            return Err(Refusal::DiskFull);
        }
        let mut plan = Plan { targets: Vec::with_capacity(items.len()), room: 0, durable: false };
        // What the earlier ones of this command put into queues with limits.
        let mut filled: SmallVec<[(QueueId, u64, u64); 2]> = SmallVec::new();
        for (name, message) in items {
            let (id, key) = self.check_target(name, message)?;
            let Some(q) = self.core.queues.get(&id) else { continue };
            let seen =
                key.and_then(|key| self.core.seen(id, key, message.session.as_ref(), self.now.0));
            if seen.is_none()
                && !q.drops()
                && (q.spec.length_max.is_some() || q.spec.bytes_max.is_some())
            {
                let at = filled.iter().position(|(have, ..)| *have == id);
                let at = at.unwrap_or_else(|| {
                    filled.push((id, q.ready(), q.ready_bytes()));
                    filled.len() - 1
                });
                let (_, length, bytes) = &mut filled[at];
                (*length, *bytes) = (*length + 1, *bytes + message.size() as u64);
                check_full(name, "length_max", *length, q.spec.length_max)?;
                check_full(name, "bytes_max", *bytes, q.spec.bytes_max)?;
            }
            plan.durable |= q.durable();
            plan.room += message.size() + FRAME_ROOM;
            plan.targets.push((id, key));
        }
        Ok(plan)
    }

    /// Puts planned messages into their queues. The group must be open.
    pub(super) fn carry_out(
        &mut self,
        plan: &Plan,
        items: Vec<(QueueName, Outgoing)>,
    ) -> (Vec<Receipt>, Needs) {
        let mut new = false;
        let mut receipts = Vec::with_capacity(items.len());
        for (&(id, key), (_, message)) in plan.targets.iter().zip(items) {
            let session = message.session.as_ref();
            // Looked up once more: an earlier one of this command may have the same key.
            let seen = key.and_then(|key| self.core.seen(id, key, session, self.now.0));
            let duplicate = seen.is_some();
            new |= !duplicate;
            let seq = seen.map_or_else(|| self.enter(id, message, key), Seq);
            receipts.push(Receipt { seq, duplicate });
        }
        // That it is a duplicate rests on the first one.
        (receipts, if new { Needs::of(plan.durable) } else { Needs::Settled })
    }

    fn check_target(
        &self,
        name: &QueueName,
        message: &Outgoing,
    ) -> Result<(QueueId, Option<u128>), Refusal> {
        let (id, q) = self.core.queue(name)?;
        if q.owner.is_some() {
            return Err(Refusal::DeadLetterSet {
                queue: name.clone(),
                why: "send to the queue itself",
            });
        }
        let (size, size_max) = (message.size() as u64, q.spec.message_bytes_max);
        if size > size_max {
            return Err(Refusal::MessageTooLarge {
                queue: name.clone(),
                size_bytes: size,
                size_bytes_max: size_max,
            });
        }
        self.check_session(name, &q.spec.sessions, message.session.as_ref())?;
        let key = q.spec.dedup.and_then(|dedup| message.dedup_key(dedup.content));
        if key.is_some() && self.core.seen_keys >= limits::DEDUP_KEYS_MAX {
            return Err(Refusal::TooMany {
                what: "de-duplication keys",
                limit: limits::DEDUP_KEYS_MAX as u64,
            });
        }
        Ok((id, key))
    }

    pub(super) fn check_session(
        &self,
        queue: &QueueName,
        sessions: &Sessions,
        session: Option<&SessionId>,
    ) -> Result<(), Refusal> {
        match (sessions, session) {
            (Sessions::None, _) | (Sessions::Dynamic, Some(_)) => Ok(()),
            (Sessions::Fixed(ids), Some(session)) if ids.contains(session) => Ok(()),
            (Sessions::Fixed(_), Some(session)) => {
                Err(Refusal::SessionNotListed { queue: queue.clone(), session: session.clone() })
            }
            (_, None) => Err(Refusal::SessionRequired { queue: queue.clone() }),
        }
    }

    fn enter(&mut self, id: QueueId, message: Outgoing, dedup: Option<u128>) -> Seq {
        let q = &self.core.queues[&id];
        let (due, scheduled) = match message.when {
            When::Now if q.spec.delay_ms > 0 => (self.now.plus_ms(q.spec.delay_ms), false),
            When::Delay(ms) if ms > 0 => (self.now.plus_ms(ms), false),
            When::At(at) if at > self.now => (at, true),
            _ => (Timestamp(0), false),
        };
        let sessioned = q.sessions.is_some();
        let seq = q.next_seq;
        let size = message.size() as u32;
        let Outgoing { session, head, body, priority, ttl_ms, .. } = message;
        let sent = Sent {
            places: smallvec![Placed { queue: id, seq, due }],
            at: self.now,
            scheduled,
            session: session.filter(|_| sessioned),
            priority,
            ttl_ms,
            dedup,
            head,
            body,
            size,
        };
        self.commit(Event::Sent(sent), false);
        Seq(seq)
    }

    pub(super) fn cancel(&mut self, queue: &QueueName, seqs: &[Seq]) -> Decided {
        let (id, q) = self.core.queue(queue)?;
        for &seq in seqs {
            if !q.index.contains(seq.0) || q.place(seq.0) != Place::Scheduled {
                return Err(Refusal::MessageNotFound {
                    queue: queue.clone(),
                    seq,
                    what: "scheduled",
                });
            }
        }
        let durable = q.durable();
        let mut seqs: Vec<u64> = seqs.iter().map(|seq| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        let count = seqs.len() as u64;
        if count == 0 {
            return Ok(Some((Reply::Count(0), Needs::Settled)));
        }
        self.begin(FRAME_ROOM + 10 * seqs.len())?;
        self.commit(
            Event::Removed { queue: id, why: Removal::Cancelled, session: None, seqs },
            false,
        );
        Ok(Some((Reply::Count(count), Needs::of(durable))))
    }

    /// A scheduled message is due: it is appended as if it were sent now.
    pub(super) fn activate(&mut self, id: QueueId, seq: u64) {
        let Some(q) = self.core.queues.get(&id) else { return };
        let Kept { session, priority, ttl_ms } = q.kept.get(&seq).cloned().unwrap_or_default();
        let (Some(from), Some((_, size))) = (q.pos(seq), q.index.get(seq)) else { return };
        let moved = Moved {
            from_queue: id,
            from_seq: seq,
            from,
            queue: id,
            seq: q.next_seq,
            at: self.now,
            session,
            size,
            priority,
            ttl_ms,
            why: Why::Due,
            properties: Default::default(),
        };
        self.commit(Event::Moved(Box::new(moved)), false);
    }

    /// Moves messages that are not out, each to its target. One that cannot move refuses all.
    pub(super) fn move_messages(
        &mut self,
        from: &QueueName,
        items: Vec<(Seq, QueueName)>,
        why: MoveWhy,
    ) -> Decided {
        let MoveWhy::Redrive = why;
        if items.len() > limits::RECEIVE_BATCH_MAX {
            return Err(Refusal::TooMany {
                what: "messages in one move",
                limit: limits::RECEIVE_BATCH_MAX as u64,
            });
        }
        let (from_id, source) = self.core.queue(from)?;
        let mut durable = source.durable();
        let mut targets = Vec::with_capacity(items.len());
        for (seq, to) in &items {
            if !source.index.contains(seq.0) || source.place(seq.0) != Place::Ready {
                return Err(Refusal::MessageNotFound {
                    queue: from.clone(),
                    seq: *seq,
                    what: "ready",
                });
            }
            let (id, q) = self.core.queue(to)?;
            let session = self.session_of(from_id, seq.0);
            self.check_session(to, &q.spec.sessions, session.as_ref())?;
            durable |= q.durable();
            targets.push((*seq, id, session));
        }
        if targets.is_empty() {
            return Ok(Some((Reply::Count(0), Needs::Settled)));
        }
        self.begin(targets.len() * FRAME_ROOM)?;
        let mut count = 0;
        for (Seq(from_seq), queue, session) in targets {
            let source = &self.core.queues[&from_id];
            // Named twice: the second time it is gone.
            let (Some(from), Some((_, size))) = (source.pos(from_seq), source.index.get(from_seq))
            else {
                continue;
            };
            let priority = source.kept.get(&from_seq).map_or(0, |kept| kept.priority);
            let seq = self.core.queues[&queue].next_seq;
            let (at, why, properties) = (self.now, Why::Redriven, Default::default());
            let moved = Moved {
                from_queue: from_id,
                from_seq,
                from,
                queue,
                seq,
                at,
                session,
                size,
                priority,
                ttl_ms: None,
                why,
                properties,
            };
            self.commit(Event::Moved(Box::new(moved)), false);
            count += 1;
        }
        Ok(Some((Reply::Count(count), Needs::of(durable))))
    }

    /// Removes one message and sends another in its stead.
    pub(super) fn replace(
        &mut self,
        from: &QueueName,
        seq: Seq,
        to: &QueueName,
        message: Outgoing,
    ) -> Decided {
        if !self.publish_allowed {
            return Err(Refusal::DiskFull);
        }
        let (from_id, source) = self.core.queue(from)?;
        if !source.index.contains(seq.0) || matches!(source.place(seq.0), Place::Locked(_)) {
            return Err(Refusal::MessageNotFound { queue: from.clone(), seq, what: "free" });
        }
        let source_durable = source.durable();
        let (id, key) = self.check_target(to, &message)?;
        let durable = self.core.queues.get(&id).is_some_and(|q| q.durable());
        self.begin(message.size() + 2 * FRAME_ROOM)?;
        let seqs = vec![seq.0];
        self.commit(
            Event::Removed { queue: from_id, why: Removal::Replaced, session: None, seqs },
            false,
        );
        // An operator's edit is meant: it counts as new, whatever it is known by.
        let receipt = Receipt { seq: self.enter(id, message, key), duplicate: false };
        Ok(Some((Reply::Sent(vec![receipt]), Needs::of(durable || source_durable))))
    }
}
