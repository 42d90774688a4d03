//! Sending, scheduling, and moving messages between queues.

use malote_model::{QueueName, Refusal, Seq, SessionId, Sessions, Timestamp, When, limits};

use super::queue::Place;
use super::{Decided, FRAME_ROOM, Needs, SMALL_ROOM, Turn};
use crate::codec::Outgoing;
use crate::command::{MoveWhy, Reply};
use crate::event::{Event, Moved, QueueId, Removal, Sent, Why};

impl Turn<'_> {
    /// All checks come first: then all of it happens.
    pub(super) fn send(&mut self, items: Vec<(QueueName, Outgoing)>) -> Decided {
        if !self.publish_allowed {
            return Err(Refusal::DiskFull);
        }
        let mut room = 0;
        let mut durable = false;
        let mut targets = Vec::with_capacity(items.len());
        for (name, message) in &items {
            let (id, is_durable) = self.check_target(name, message)?;
            durable |= is_durable;
            let session = message.session.as_ref().map_or("", |session| session.as_str());
            room += SMALL_ROOM + session.len() + message.size();
            targets.push(id);
        }
        if targets.is_empty() {
            return Ok(Some((Reply::Sent(Vec::new()), Needs::Settled)));
        }
        self.begin(room)?;
        let seqs = targets
            .into_iter()
            .zip(items)
            .map(|(id, (_, message))| self.enter(id, message))
            .collect();
        Ok(Some((Reply::Sent(seqs), Needs::of(durable))))
    }

    fn check_target(
        &self,
        name: &QueueName,
        message: &Outgoing,
    ) -> Result<(QueueId, bool), Refusal> {
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
        Ok((id, q.durable()))
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

    fn enter(&mut self, id: QueueId, message: Outgoing) -> Seq {
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
        let Outgoing { session, head, body, .. } = message;
        let session = session.filter(|_| sessioned);
        self.commit(
            Event::Sent(Sent {
                queue: id,
                seq,
                at: self.now,
                due,
                scheduled,
                session,
                head,
                body,
                size,
            }),
            false,
        );
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
    pub(super) fn activate(&mut self, id: QueueId, seq: u64, session: Option<SessionId>) {
        let Some(q) = self.core.queues.get(&id) else { return };
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
            return Err(Refusal::BatchTooLarge {
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
        let (id, durable) = self.check_target(to, &message)?;
        self.begin(message.size() + 2 * FRAME_ROOM)?;
        let seqs = vec![seq.0];
        self.commit(
            Event::Removed { queue: from_id, why: Removal::Replaced, session: None, seqs },
            false,
        );
        let seq = self.enter(id, message);
        Ok(Some((Reply::Sent(vec![seq]), Needs::of(durable || source_durable))))
    }
}
