//! Consumers: attaching, credit, the list of waiting consumers, and detaching. A waiting consumer costs no task.
//!
//! `consume.rs` gives them messages.

use std::cmp::Reverse;

use malote_model::{LeaseToken, Refusal, Timestamp, limits};

use super::leases::LeaseTarget;
use super::timers::TimerId;
use super::{Decided, Effect, Output, Timer, Turn, WaitFor};
use crate::command::{Attach, ConnectionId, ConsumerId, Notice, Reply, Wants};
use crate::event::QueueId;

/// A consumer of messages, or a request for a session.
#[derive(Debug)]
pub(super) struct Consumer {
    pub queue: QueueId,
    pub connection: Option<ConnectionId>,
    pub free_standing: bool,
    pub wants: ConsumerDemand,
    pub credit: u32,
    pub take: bool,
    pub lock_ms: Option<u64>,
    /// For a long poll or a waiting accept: the request to answer once.
    pub request: Option<u64>,
    pub timer: Option<TimerId>,
    pub priority: i32,
    /// No other consumer may attach.
    pub exclusive: bool,
    /// Whether the consumer is in the queue's list of waiting consumers.
    pub waiting: bool,
}

/// What a consumer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsumerDemand {
    Messages {
        per_session: u32,
    },
    /// Messages of the session of this hold.
    Held(LeaseToken),
    /// A session to hold.
    Session,
}

impl Turn<'_> {
    pub(super) fn attach(&mut self, request: u64, attach: Attach) -> Decided {
        let Attach { consumer, connection, free_standing, queue, wants, credit, .. } = attach;
        let Attach { take, lock_ms, once_until, priority, exclusive, .. } = attach;
        check_lock(lock_ms)?;
        if credit > limits::CREDIT_MAX {
            return Err(Refusal::OutOfRange {
                what: "credit",
                rule: format!("at most {}", limits::CREDIT_MAX),
            });
        }
        self.check_consumer(&queue, connection)?;
        let (id, q) = self.core.queue(&queue)?;
        q.check_receives()?;
        if exclusive && q.consumers > 0 {
            let why = "has consumers: an exclusive consumer must be its only one";
            return Err(Refusal::ConsumerExclusive { queue, why });
        }
        let sessioned = q.sessions.is_some();
        let wants = match wants {
            Wants::Any { .. } if sessioned && take => return Err(Refusal::HoldRequired { queue }),
            Wants::Any { per_session } => {
                ConsumerDemand::Messages { per_session: per_session.max(1) }
            }
            Wants::Held(_) if !sessioned => return Err(Refusal::NoSessions { queue }),
            Wants::Held(token) => ConsumerDemand::Held(token),
        };
        let session = match wants {
            ConsumerDemand::Held(token) => Some(self.held_session(id, token)?),
            ConsumerDemand::Messages { .. } | ConsumerDemand::Session => None,
        };
        self.add_consumer(
            consumer,
            Consumer {
                queue: id,
                connection,
                free_standing,
                wants,
                credit,
                take,
                lock_ms,
                request: once_until.map(|_| request),
                timer: None,
                priority,
                exclusive,
                waiting: false,
            },
        )?;
        if let Some(session) = session {
            let q = self.core.queues.get_mut(&id);
            if let Some(s) = q.and_then(|q| q.sessions.as_mut()?.at_mut(session)) {
                s.extras_mut().consumers.push(consumer);
            }
            self.core.live().dirty_sessions.push((id, session));
        }
        let Some(until) = once_until else {
            self.add_waiting(consumer);
            return Ok(Some((Reply::Done, WaitFor::Settled)));
        };
        // A long poll is served at once, before messages that arrive later.
        self.add_waiting(consumer);
        self.end();
        self.dispatch();
        if self.core.live().consumers.contains_key(&consumer) {
            self.wait_until(consumer, until);
        }
        Ok(None)
    }

    /// The session of a valid hold of this queue.
    pub(super) fn held_session(&self, queue: QueueId, token: LeaseToken) -> Result<u32, Refusal> {
        let lost = Refusal::LeaseLost { lease: token };
        let lease = self
            .core
            .leases
            .find(token)
            .filter(|lease| lease.queue == queue && self.now.0 < self.core.leases.until(lease));
        match lease.map(|lease| lease.what) {
            Some(LeaseTarget::Session { session }) => Ok(session),
            _ => Err(lost),
        }
    }

    pub(super) fn add_consumer(
        &mut self,
        id: ConsumerId,
        consumer: Consumer,
    ) -> Result<(), Refusal> {
        let (queue, connection) = (consumer.queue, consumer.connection);
        let (stays, priority) = (consumer.request.is_none(), consumer.priority);
        let exclusive = consumer.exclusive;
        let live = self.core.live();
        if live.consumers.len() >= limits::CONSUMERS_MAX {
            return Err(Refusal::BoundReached {
                what: "consumers",
                limit: limits::CONSUMERS_MAX as u64,
            });
        }
        if let Some(connection) = connection {
            live.connections.entry(connection).or_default().consumers.insert(id);
        }
        live.consumers.insert(id, consumer);
        if let Some(q) = self.core.queues.get_mut(&queue) {
            q.consumers += 1;
            q.exclusive_consumer = exclusive;
            q.had_consumer |= stays;
            if stays && (q.spec.single_active || priority != 0 || !q.ranked.is_empty()) {
                self.rank_consumer(queue, id, priority);
            }
            if let Some(q) = self.core.queues.get_mut(&queue) {
                q.used_at = self.now.0;
            }
        }
        Ok(())
    }

    /// Answers a waiting request at `until` at the latest.
    pub(super) fn wait_until(&mut self, id: ConsumerId, until: Timestamp) {
        if until <= self.now {
            return self.end_wait(id);
        }
        let live = self.core.live();
        let timer = live.timers.set(until.0, Timer::Wait(id));
        if let Some(consumer) = live.consumers.get_mut(&id) {
            consumer.timer = Some(timer);
        }
    }

    /// Ends a wait without a result.
    pub(super) fn end_wait(&mut self, id: ConsumerId) {
        if let Some(consumer) = self.remove_consumer(id)
            && let Some(request) = consumer.request
        {
            let nothing = match consumer.wants {
                ConsumerDemand::Session => Reply::Accepted(None),
                ConsumerDemand::Messages { .. } | ConsumerDemand::Held(_) => {
                    Reply::Delivered(Vec::new())
                }
            };
            self.answer(request, Ok(nothing), WaitFor::Settled);
        }
    }

    pub(super) fn remove_consumer(&mut self, id: ConsumerId) -> Option<Consumer> {
        let live = self.core.live();
        let consumer = live.consumers.remove(&id)?;
        if let Some(timer) = consumer.timer {
            live.timers.cancel(timer);
        }
        if let Some(connected) = consumer.connection.and_then(|c| live.connections.get_mut(&c)) {
            connected.consumers.remove(&id);
        }
        let held = match consumer.wants {
            ConsumerDemand::Held(token) => self.held_session(consumer.queue, token).ok(),
            ConsumerDemand::Messages { .. } | ConsumerDemand::Session => None,
        };
        if let Some(q) = self.core.queues.get_mut(&consumer.queue) {
            q.consumers = q.consumers.saturating_sub(1);
            // While there was an exclusive consumer, it was the only one.
            q.exclusive_consumer = false;
            // The next one may become the active consumer.
            if q.ranked.remove(&(Reverse(consumer.priority), id))
                && q.spec.single_active
                && let Some(&(_, active)) = q.ranked.first()
            {
                self.add_waiting(active);
            }
        }
        if let Some(q) = self.core.queues.get_mut(&consumer.queue)
            && let Some(s) = held.and_then(|slot| q.sessions.as_mut()?.at_mut(slot))
        {
            s.extras_mut().consumers.retain(|&other| other != id);
        }
        self.prune_waiting(consumer.queue);
        self.consumer_left(consumer.queue);
        Some(consumer)
    }

    /// Removes consumers that left from the list of waiting consumers, once they are the majority.
    fn prune_waiting(&mut self, queue: QueueId) {
        let Some(live) = self.core.live.as_ref() else { return };
        if let Some(q) = self.core.queues.get_mut(&queue)
            && q.waiting.len() as u64 > 2 * q.consumers + 64
        {
            q.waiting.retain(|id| live.consumers.contains_key(id));
        }
    }

    pub(super) fn credit(&mut self, id: ConsumerId, credit: u32, replace: bool) -> Decided {
        let live = self.core.live();
        // The consumer just ended; its notice is being sent.
        let Some(consumer) = live.consumers.get_mut(&id) else {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        };
        let had = consumer.credit;
        let total = if replace { credit } else { consumer.credit.saturating_add(credit) };
        if total > limits::CREDIT_MAX {
            return Err(Refusal::OutOfRange {
                what: "credit",
                rule: format!("at most {}", limits::CREDIT_MAX),
            });
        }
        consumer.credit = total;
        if let ConsumerDemand::Held(token) = consumer.wants {
            let queue = consumer.queue;
            if let Ok(session) = self.held_session(queue, token) {
                self.core.live().dirty_sessions.push((queue, session));
            }
        }
        self.add_waiting(id);
        Ok(Some((Reply::Count(had.into()), WaitFor::Settled)))
    }

    /// Adds a consumer with demand to its queue's list of waiting consumers.
    pub(super) fn add_waiting(&mut self, id: ConsumerId) {
        let Some(consumer) = self.core.live().consumers.get_mut(&id) else { return };
        let wants = match consumer.wants {
            ConsumerDemand::Messages { .. } => consumer.credit > 0,
            ConsumerDemand::Session => true,
            ConsumerDemand::Held(_) => false,
        };
        if wants && !consumer.waiting {
            consumer.waiting = true;
            let (queue, priority) = (consumer.queue, consumer.priority);
            if let Some(q) = self.core.queues.get_mut(&queue) {
                q.waiting.push_back(id, q.waiting_priority(priority));
            }
            self.core.mark_dirty(queue);
        }
    }

    /// Detaches a consumer. A waiting request gets an empty reply.
    pub(super) fn detach(&mut self, id: ConsumerId) -> Decided {
        self.end_wait(id);
        Ok(Some((Reply::Done, WaitFor::Settled)))
    }

    /// Orders the consumers of a queue by priority, from now on.
    fn rank_consumer(&mut self, queue: QueueId, id: ConsumerId, priority: i32) {
        let Some(live) = self.core.live.as_ref() else { return };
        let Some(q) = self.core.queues.get_mut(&queue) else { return };
        if q.ranked.is_empty() && q.consumers > 1 {
            let stays = |c: &Consumer| c.queue == queue && c.request.is_none();
            let others = live.consumers.iter().filter(|(_, c)| stays(c));
            q.ranked.extend(others.map(|(&other, c)| (Reverse(c.priority), other)));
        }
        q.ranked.insert((Reverse(priority), id));
    }

    /// The next waiting consumer. If only one consumer of the queue is active, the others are removed from the list; they
    /// return to it when they become active or get credit.
    pub(super) fn next_consumer(&mut self, id: QueueId) -> Option<ConsumerId> {
        loop {
            let q = self.core.queues.get_mut(&id)?;
            let first = q.waiting.first()?;
            let active = match q.spec.single_active {
                true => q.ranked.first().map(|&(_, active)| active),
                false => None,
            };
            if active.is_none_or(|active| active == first) {
                return Some(first);
            }
            let consumer = self.core.live.as_mut()?.consumers.get_mut(&first);
            if consumer.as_ref().is_some_and(|consumer| consumer.request.is_some()) {
                return Some(first);
            }
            if let Some(consumer) = consumer {
                consumer.waiting = false;
            }
            q.waiting.pop_front();
        }
    }

    /// All consumers may be served again, once more than one of them is active.
    pub(super) fn wake_inactive(&mut self, id: QueueId) {
        let Some(q) = self.core.queues.get(&id).filter(|q| !q.spec.single_active) else { return };
        let consumers: Vec<ConsumerId> = q.ranked.iter().map(|&(_, id)| id).collect();
        consumers.into_iter().for_each(|id| self.add_waiting(id));
    }

    /// Ends a consumer for a reason of the engine's.
    pub(super) fn end_consumer(&mut self, id: ConsumerId, why: Refusal) {
        let Some(consumer) = self.remove_consumer(id) else { return };
        match consumer.request {
            Some(request) => self.answer(request, Err(why), WaitFor::Settled),
            None => {
                let (durable, written) = self.marks(WaitFor::Settled);
                self.out.push(Output {
                    effect: Effect::Consumer(id, Notice::Ended(why)),
                    durable,
                    written,
                });
            }
        }
    }
}

pub(super) fn check_lock(lock_ms: Option<u64>) -> Result<(), Refusal> {
    match lock_ms {
        Some(ms) if !(limits::LOCK_MS_MIN..=limits::LOCK_MS_MAX).contains(&ms) => {
            Err(Refusal::OutOfRange {
                what: "lock_ms",
                rule: format!("from {} to {}", limits::LOCK_MS_MIN, limits::LOCK_MS_MAX),
            })
        }
        _ => Ok(()),
    }
}
