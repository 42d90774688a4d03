//! Waiting consumers, and deliveries to them.

use malote_engine::command::{Attach, MessageGrant};
use malote_engine::journal::Pos;
use malote_engine::{AcceptedSession, ConsumerId, Wants};
use malote_model::{LeaseToken, QueueName, SessionId};

use super::{Ask, Consumer, Model, Need};
use crate::model::{End, Ev, Lease, What};

impl Model {
    pub(super) fn attach(&mut self, attach: &Attach, once: Option<(u64, u64)>) {
        let consumer = Consumer {
            queue: attach.queue.clone(),
            connection: attach.connection.map(|c| c.0),
            free_standing: attach.free_standing,
            wants: Some(attach.wants.clone()),
            credit: attach.credit,
            take: attach.take,
            lock_ms: attach.lock_ms,
            once,
            exclusive: attach.exclusive,
        };
        self.add_consumer(attach.consumer, consumer);
    }

    /// A long poll or a waiting accept begins.
    pub(super) fn wait(&mut self, request: u64, ask: &Ask) -> Need {
        if let Err(refusal) = self.check(ask) {
            panic!("{ask:?} waits, but should be refused: {refusal}");
        }
        match ask {
            Ask::Attach(attach) => {
                let until = attach.once_until.map_or(0, |until| until.0);
                self.attach(attach, Some((request, until)));
            }
            Ask::Accept(accept) => {
                let (queue, connection) = (accept.queue.clone(), accept.connection.map(|c| c.0));
                let once = Some((request, accept.until.0));
                let c = Consumer {
                    queue,
                    connection,
                    free_standing: false,
                    wants: None,
                    credit: 0,
                    take: false,
                    lock_ms: accept.lock_ms,
                    once,
                    exclusive: false,
                };
                self.add_consumer(accept.consumer, c);
            }
            _ => {}
        }
        Need::default()
    }

    /// The consumer that will answer a request.
    pub fn waiting(&self, request: u64) -> Option<ConsumerId> {
        let of = |c: &Consumer| c.once.is_some_and(|(r, _)| r == request);
        self.consumers.iter().find(|(_, c)| of(c)).map(|(&id, _)| id)
    }

    /// The engine ended a consumer.
    pub fn said_ended(&mut self, id: ConsumerId) -> Need {
        assert!(self.ended.remove(&id), "{id:?} did not end");
        self.forget(id);
        Need::default()
    }

    /// A waiting request ends with an empty answer.
    pub fn said_nothing(&mut self, id: ConsumerId) -> Need {
        let c = self.consumers.get(&id).expect("the consumer is known");
        let (_, until) = c.once.expect("only a waiting request ends empty");
        assert!(until <= self.now, "a wait until {until} ended empty at {}", self.now);
        let need = self.eager(&c.queue.clone());
        // It may have ended at the same time; one answer is enough.
        self.ended.remove(&id);
        self.forget(id);
        need
    }

    /// A waiting accept got a session.
    pub fn said_held(&mut self, id: ConsumerId, held: &AcceptedSession) -> Need {
        let c = self.consumers.get(&id).expect("the consumer is known").clone();
        assert!(c.wants.is_none(), "a consumer of messages got a session");
        let q = self.state.queue(&c.queue);
        assert!(q.delivers(), "a queue that is paused or disabled delivered a session");
        assert!(q.free(&held.session, self.now), "session {} is not free", held.session);
        self.forget(id);
        self.hold(&c.queue, c.connection, c.lock_ms, held)
    }

    pub(super) fn hold(
        &mut self,
        queue: &QueueName,
        connection: Option<u64>,
        lock_ms: Option<u64>,
        held: &AcceptedSession,
    ) -> Need {
        let q = self.state.queue(queue);
        assert_eq!(held.until.0, self.now + lock_ms.unwrap_or(q.spec.lock_ms), "the end of a hold");
        let rests = q.sessions.get(&held.session).map_or(Pos::ZERO, |s| s.rests);
        let durable = if q.durable() { rests } else { Pos::ZERO };
        self.issue(held.hold, queue);
        let lease = Lease {
            queue: queue.clone(),
            what: What::Session(held.session.clone()),
            until: held.until.0,
            bound: connection.is_some(),
            connection,
            hold: None,
            deferred: false,
        };
        self.note(Ev::Hold { token: held.hold, lease: Box::new(lease) });
        Need { durable, written: self.end }
    }

    fn issue(&mut self, token: LeaseToken, queue: &QueueName) {
        assert!(
            self.issued.insert(token, queue.clone()).is_none(),
            "token {token} was issued twice"
        );
    }

    /// Messages are delivered to a consumer, in the current journal group.
    pub fn said_deliver(&mut self, id: ConsumerId, grants: &[MessageGrant]) -> Need {
        let c = self.consumers.get(&id).expect("the consumer is known").clone();
        assert!(
            !grants.is_empty() && grants.len() as u32 <= c.credit,
            "{} messages for credit {}",
            grants.len(),
            c.credit
        );
        assert!(
            self.state.queue(&c.queue).delivers(),
            "a paused or disabled queue delivered messages"
        );
        let (hold, per_session) = match c.wants {
            Some(Wants::Held(token)) => (Some(token), u32::MAX),
            Some(Wants::Any { per_session }) => (None, per_session.max(1)),
            None => panic!("a request for a session got messages"),
        };
        let by = By {
            queue: &c.queue,
            hold,
            lock_ms: c.lock_ms,
            take: c.take,
            connection: c.connection.filter(|_| !c.free_standing),
            deferred: false,
        };
        if c.free_standing && c.connection.is_some() {
            self.met.count("free-standing on a connection", grants.len() as u64);
        }
        let mut need = Need::default();
        let mut run: Option<(SessionId, u32)> = None;
        for grant in grants {
            let q = self.state.queue(&c.queue);
            let next = match (q.sessioned(), hold) {
                (false, _) => q.first_ready(self.now),
                (true, Some(token)) => {
                    let (_, session) =
                        self.state.held(token, self.now).expect("the consumer has a valid hold");
                    q.next_of(&session, self.now)
                }
                (true, None) => {
                    let msg = q.msgs.get(&grant.seq.0).expect("the delivered message exists");
                    let session =
                        msg.session.clone().expect("messages of session queues have a session");
                    match &mut run {
                        Some((of, n)) if *of == session => {
                            *n += 1;
                            assert!(
                                *n <= per_session,
                                "more than {per_session} messages of session {session} at once"
                            );
                        }
                        _ => {
                            assert!(q.free(&session, self.now), "session {session} is not free");
                            run = Some((session.clone(), 1));
                        }
                    }
                    q.next_of(&session, self.now)
                }
            };
            assert_eq!(next, Some(grant.seq.0), "delivered out of order from {}", c.queue);
            let (passes, alone) = (q.passes(grant.seq.0, self.now), q.noisy().len());
            self.met.count("overtook a noisy tenant", u64::from(passes));
            self.met.count("delivered beside a noisy tenant", u64::from(alone > 0));
            need = self.grant(&by, grant, need);
        }
        match c.once {
            Some(_) => self.forget(id),
            None => {
                if let Some(c) = self.consumers.get_mut(&id) {
                    c.credit -= grants.len() as u32;
                }
            }
        }
        need
    }

    pub(super) fn grant(&mut self, by: &By<'_>, grant: &MessageGrant, need: Need) -> Need {
        let q = self.state.queue(by.queue);
        let seq = grant.seq.0;
        let msg = q.msgs.get(&seq).expect("the granted message exists");
        assert_eq!(
            (grant.receives, grant.failed),
            (msg.receives + 1, msg.failed),
            "counters of {seq} in {}",
            by.queue
        );
        let first = grant.first_at.map(|at| at.0);
        assert_eq!(first, msg.first.or(Some(self.now)), "the time of the first grant of {seq}");
        let mut durable = msg.rests;
        if let Some(s) = msg.session.as_ref().and_then(|session| q.sessions.get(session)) {
            durable = durable.max(s.rests);
        }
        if !q.durable() {
            durable = Pos::ZERO;
        }
        let hi = self.end;
        if by.take {
            assert_eq!(grant.lease, None, "receive-and-delete has no lease");
            let durable = if q.durable() { hi } else { Pos::ZERO };
            self.note(Ev::Gone { queue: by.queue.clone(), seq, end: End::Taken });
            return Need { durable: need.durable.max(durable), written: hi };
        }
        let token = grant.lease.expect("the grant has a lease");
        let hold = by.hold.filter(|_| q.sessioned());
        let lease = match hold.and_then(|hold| self.state.leases.get(&hold)) {
            Some(held) => {
                Lease { what: What::Message(seq), hold, deferred: by.deferred, ..held.clone() }
            }
            None => Lease {
                queue: by.queue.clone(),
                what: What::Message(seq),
                until: self.now + by.lock_ms.unwrap_or(q.spec.lock_ms),
                bound: by.connection.is_some(),
                connection: by.connection,
                hold: None,
                deferred: by.deferred,
            },
        };
        assert_eq!(grant.until.0, lease.until, "the end of a lease");
        self.issue(token, by.queue);
        let (queue, lease, at) = (by.queue.clone(), Box::new(lease), self.now);
        self.note(Ev::Grant { queue, seq, token, lease, at });
        Need { durable: need.durable.max(durable), written: hi }
    }
}

/// The receiver of granted messages.
pub(super) struct By<'a> {
    pub queue: &'a QueueName,
    pub hold: Option<LeaseToken>,
    pub lock_ms: Option<u64>,
    pub take: bool,
    pub connection: Option<u64>,
    pub deferred: bool,
}
