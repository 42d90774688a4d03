//! Sending, scheduling, and moving messages between queues.

use malote_model::{
    Address, DeadReason, Overflow, QueueName, Refusal, Seq, SessionId, Sessions, Timestamp, limits,
};

use smallvec::{SmallVec, smallvec};

use super::dedup::FirstSend;
use super::enqueue::MessageMove;
use super::queue::Queue;
use super::route::PlannedPublish;
use super::tracked::{CarriedAttributes, MessageStatus};
use super::{Decided, FRAME_ROOM, Turn, WaitFor};
use crate::codec::EncodedMessage;
use crate::command::{Items, MoveItem, MoveWhy, Receipt, Receipts, Reply};
use crate::event::{Event, MessageRef, MoveReason, Placement, QueueId, Removal};

/// Checked messages: their targets and what they need together.
pub(super) struct SendPlan {
    targets: SmallVec<[SendTarget; 2]>,
    pub room: usize,
    pub durable: bool,
}

enum SendTarget {
    Queue(QueueTarget),
    Topic(Box<PlannedPublish>),
}

/// A queue that a message is sent to.
struct QueueTarget {
    id: QueueId,
    /// The message's de-duplication key there.
    key: Option<u128>,
    /// The session by the queue's own rule, if it has one. Boxed, because most queues have none.
    session: Option<Box<SessionId>>,
    /// The queue is full and dead-letters the message.
    overflows: bool,
}

/// The lengths and sizes of limited queues, with the earlier messages of a command.
#[derive(Default)]
pub(super) struct FillLevels(SmallVec<[(QueueId, u64, u64); 2]>);

impl FillLevels {
    /// Adds a message to a queue. If a limit would be exceeded, it is refused, or `true` says that the message must be
    /// dead-lettered.
    pub(super) fn add(&mut self, id: QueueId, q: &Queue, size: u64) -> Result<bool, Refusal> {
        if q.drops() || q.spec.length_max.is_none() && q.spec.bytes_max.is_none() {
            return Ok(false);
        }
        let at = self.0.iter().position(|(have, ..)| *have == id).unwrap_or_else(|| {
            self.0.push((id, q.ready(), q.limited_bytes()));
            self.0.len() - 1
        });
        let (_, length, bytes) = &mut self.0[at];
        let limits = [
            ("length_max", *length + 1, q.spec.length_max),
            ("bytes_max", *bytes + size, q.spec.bytes_max),
        ];
        for (field, have, limit) in limits {
            if let Some(limit) = limit.filter(|&limit| have > limit) {
                if q.spec.overflow == Overflow::DeadLetterNewest {
                    return Ok(true);
                }
                return Err(Refusal::QueueFull { queue: q.name.clone(), field, limit });
            }
        }
        (*length, *bytes) = (*length + 1, *bytes + size);
        Ok(false)
    }
}

impl Turn<'_> {
    /// Checks everything first, then stores everything.
    pub(super) fn send(&mut self, items: Items) -> Result<(Receipts, WaitFor), Refusal> {
        let plan = self.plan(&items)?;
        if items.is_empty() {
            return Ok((Receipts::new(), WaitFor::Settled));
        }
        self.begin(plan.room)?;
        Ok(self.store_planned(plan, items))
    }

    /// Independent sends of one batch. The reply waits for the strictest durability of them.
    pub(super) fn send_each(&mut self, sends: Vec<Items>) -> (Reply, WaitFor) {
        let (mut durable, mut rests) = (false, false);
        let each = sends.into_iter().map(|items| {
            let (reply, needs) = match self.send(items) {
                Ok((receipts, needs)) => (Ok(receipts), needs),
                Err(refusal) => (Err(refusal), WaitFor::Settled),
            };
            durable |= matches!(needs, WaitFor::Durable);
            rests |= matches!(needs, WaitFor::Settled);
            self.end();
            // The next send may find the queue full.
            self.enforce_limits();
            reply
        });
        let reply = Reply::SentEach(each.collect());
        let needs = match (durable, rests) {
            (true, _) => WaitFor::Durable,
            (false, true) => WaitFor::Granted(self.log.last_eager()),
            (false, false) => WaitFor::Written,
        };
        (reply, needs)
    }

    /// Checks messages and computes what they need. Nothing changes.
    pub(super) fn plan(&self, items: &[(Address, EncodedMessage)]) -> Result<SendPlan, Refusal> {
        if !self.publish_allowed {
            return Err(self.no_publishing());
        }
        let mut plan =
            SendPlan { targets: SmallVec::with_capacity(items.len()), room: 0, durable: false };
        let mut levels = FillLevels::default();
        for (to, message) in items {
            match to {
                Address::Queue(name) => {
                    let mut target = self.check_target(name, message)?;
                    let QueueTarget { id, key, .. } = target;
                    let Some(q) = self.core.queues.get(&id) else { continue };
                    let own = target.session.as_deref();
                    let session = own.or(message.session.as_ref());
                    let seen = key.and_then(|key| self.core.seen(id, key, session, self.now.0));
                    plan.room += message.room() + own.map_or(0, |own| own.as_str().len());
                    if seen.is_none() {
                        target.overflows = levels.add(id, q, message.size() as u64)?;
                    }
                    plan.durable |= q.durable() && !message.relaxed;
                    plan.room += if target.overflows { FRAME_ROOM } else { 0 };
                    plan.targets.push(SendTarget::Queue(target));
                }
                Address::Topic(name) => {
                    let (publication, room, durable) =
                        self.plan_publish(name, message, &mut levels)?;
                    plan.durable |= durable && !message.relaxed;
                    plan.room += room;
                    plan.targets.push(SendTarget::Topic(Box::new(publication)));
                }
            }
        }
        Ok(plan)
    }

    /// Stores planned messages. The group must be open.
    pub(super) fn store_planned(&mut self, plan: SendPlan, items: Items) -> (Receipts, WaitFor) {
        let mut receipts = Receipts::with_capacity(items.len());
        for (target, (_, mut message)) in plan.targets.into_iter().zip(items) {
            receipts.push(match target {
                SendTarget::Topic(publication) => self.publish(*publication, message),
                SendTarget::Queue(QueueTarget { id, key, session: own, overflows }) => {
                    if let Some(own) = own {
                        message.session = Some(*own);
                    }
                    let session = message.session.as_ref();
                    // Checked again: an earlier message of this command may have the same key.
                    let seen = key.and_then(|key| self.core.seen(id, key, session, self.now.0));
                    match seen {
                        None => {
                            let seq = self.enqueue(id, message, key);
                            if overflows {
                                self.dead_letter_unleased(id, seq.0, DeadReason::Overflowed);
                            }
                            Receipt { overflowed: overflows, ..Receipt::new(seq, 1) }
                        }
                        Some(FirstSend { seq, id: first_id }) => {
                            Receipt { duplicate: true, first_id, ..Receipt::new(Seq(seq), 0) }
                        }
                    }
                }
            });
        }
        let stored = receipts.iter().any(|receipt| receipt.copies > 0);
        // A duplicate, or a message that no rule matched, depends on earlier decisions.
        (receipts, if stored { WaitFor::of(plan.durable) } else { WaitFor::Settled })
    }

    fn check_target(
        &self,
        name: &QueueName,
        message: &EncodedMessage,
    ) -> Result<QueueTarget, Refusal> {
        let (id, q) = self.core.queue(name)?;
        if q.owner.is_some() {
            return Err(Refusal::DeadLetterSet {
                queue: name.clone(),
                why: "send to the queue itself",
            });
        }
        q.check_sends()?;
        self.check_size(q, message)?;
        let session = match &q.spec.session_from {
            None => {
                self.check_session(name, &q.spec.sessions, message.session.as_ref())?;
                None
            }
            Some(from) => {
                let own = message.session_by(from);
                self.check_session(name, &q.spec.sessions, own.as_ref())?;
                own.map(Box::new)
            }
        };
        let key = q.spec.dedup.and_then(|dedup| message.dedup_key(dedup.content));
        self.check_keys(key)?;
        Ok(QueueTarget { id, key, session, overflows: false })
    }

    pub(super) fn check_size(&self, q: &Queue, message: &EncodedMessage) -> Result<(), Refusal> {
        let (size_bytes, size_bytes_max) = (message.size() as u64, q.spec.message_bytes_max);
        if size_bytes > size_bytes_max {
            let queue = q.name.clone();
            return Err(Refusal::MessageTooLarge { queue, size_bytes, size_bytes_max });
        }
        Ok(())
    }

    /// Returns a refusal if no more de-duplication keys can be stored.
    pub(super) fn check_keys(&self, key: Option<u128>) -> Result<(), Refusal> {
        if key.is_some() && self.core.dedup_keys >= limits::DEDUP_KEYS_MAX {
            return Err(Refusal::BoundReached {
                what: "de-duplication keys",
                limit: limits::DEDUP_KEYS_MAX as u64,
            });
        }
        Ok(())
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

    pub(super) fn cancel(&mut self, from: &Address, seqs: &[Seq]) -> Decided {
        if seqs.len() > limits::SETTLE_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "sequences in one cancel",
                limit: limits::SETTLE_BATCH_MAX as u64,
            });
        }
        let id = match from {
            Address::Queue(name) => self.core.queue(name)?.0,
            Address::Topic(name) => self.core.topic(name)?.0,
        };
        let Some(q) = self.core.queues.get(&id) else {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        };
        for &seq in seqs {
            if !q.index.contains(seq.0) || q.status(seq.0) != MessageStatus::Scheduled {
                let (queue, what) = (q.name.clone(), "scheduled");
                return Err(Refusal::MessageNotFound { queue, seq, what });
            }
        }
        let durable = q.durable();
        let mut seqs: Vec<u64> = seqs.iter().map(|seq| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        let count = seqs.len() as u64;
        if count == 0 {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        }
        self.begin(FRAME_ROOM + 10 * seqs.len())?;
        self.commit(
            Event::Removed { queue: id, why: Removal::Cancelled, session: None, seqs },
            false,
        );
        Ok(Some((Reply::Count(count), WaitFor::of(durable))))
    }

    /// Enqueues a scheduled message that is due, as if it were sent now.
    pub(super) fn activate(&mut self, id: QueueId, seq: u64) {
        let Some(q) = self.core.queues.get(&id) else { return };
        let carried = q.carried.get(&seq).cloned().unwrap_or_default();
        let (Some(record), Some((_, size))) = (q.pos(seq), q.index.get(seq)) else { return };
        let places = smallvec![Placement { queue: id, seq: q.next_seq, due: Timestamp(0) }];
        let (source, why) = (MessageRef { queue: id, seq }, MoveReason::Due);
        let moving = MessageMove { source, record, places, size, carried, why, message_id: None };
        self.commit_moved(moving, false);
    }

    /// Moves messages that are not leased, each to its target. If one cannot be moved, none is.
    pub(super) fn move_messages(
        &mut self,
        from: &QueueName,
        items: Vec<MoveItem>,
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
        for MoveItem { seq, to, message_id } in items {
            if message_id.as_ref().is_some_and(|id| id.len() > limits::MESSAGE_ID_BYTES_MAX) {
                return Err(Refusal::OutOfRange {
                    what: "message_id",
                    rule: format!("at most {} bytes long", limits::MESSAGE_ID_BYTES_MAX),
                });
            }
            if !source.index.contains(seq.0) || source.status(seq.0) != MessageStatus::Ready {
                return Err(Refusal::MessageNotFound { queue: from.clone(), seq, what: "ready" });
            }
            let (id, q) = self.core.queue(&to)?;
            let session = self.session_of(from_id, seq.0);
            self.check_session(&to, &q.spec.sessions, session.as_ref())?;
            durable |= q.durable();
            targets.push((seq, id, session, message_id));
        }
        if targets.is_empty() {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        }
        self.begin(targets.len() * FRAME_ROOM)?;
        let mut count = 0;
        for (Seq(from_seq), queue, session, message_id) in targets {
            let source = &self.core.queues[&from_id];
            // The message was listed twice, and has already been moved.
            let (Some(record), Some((_, size))) =
                (source.pos(from_seq), source.index.get(from_seq))
            else {
                continue;
            };
            let priority = source.index.priority(from_seq);
            let carried = CarriedAttributes { session, priority, ..CarriedAttributes::default() };
            let seq = self.core.queues[&queue].next_seq;
            let places = smallvec![Placement { queue, seq, due: Timestamp(0) }];
            let (source, why) =
                (MessageRef { queue: from_id, seq: from_seq }, MoveReason::Redriven);
            let moving = MessageMove { source, record, places, size, carried, why, message_id };
            self.commit_moved(moving, false);
            count += 1;
        }
        Ok(Some((Reply::Count(count), WaitFor::of(durable))))
    }

    /// Removes one message and sends another.
    pub(super) fn replace(
        &mut self,
        from: &QueueName,
        seq: Seq,
        to: &QueueName,
        mut message: EncodedMessage,
    ) -> Decided {
        if !self.publish_allowed {
            return Err(self.no_publishing());
        }
        let (from_id, source) = self.core.queue(from)?;
        if !source.index.contains(seq.0) || matches!(source.status(seq.0), MessageStatus::Locked(_))
        {
            return Err(Refusal::MessageNotFound { queue: from.clone(), seq, what: "free" });
        }
        let source_durable = source.durable();
        let QueueTarget { id, key, session, .. } = self.check_target(to, &message)?;
        if let Some(own) = session {
            message.session = Some(*own);
        }
        let durable = self.core.queues.get(&id).is_some_and(|q| q.durable());
        self.begin(message.room() + 2 * FRAME_ROOM)?;
        let seqs = vec![seq.0];
        self.commit(
            Event::Removed { queue: from_id, why: Removal::Replaced, session: None, seqs },
            false,
        );
        // An operator's edit is intentional: it is never a duplicate.
        let receipt = Receipt::new(self.enqueue(id, message, key), 1);
        Ok(Some((Reply::Sent(vec![receipt]), WaitFor::of(durable || source_durable))))
    }
}
