//! What the reference model says to each question, and what it allows the engine to do by itself.
//!
//! The engine decides first; here its answer is checked and its effect noted. Where docs/concepts/model.md leaves a choice (which
//! consumer is served, which of two timers of one moment comes first) the engine's choice is taken over if it is legal.

mod check;
mod happen;
mod journal;
mod life;
mod send;
mod time;
mod together;
mod topics;

pub use journal::Group;
pub use together::{SetState, Settle};
pub use topics::TopicAsk;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::discriminant;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::{Accept, Attach, Grant, MoveWhy, Reply};
use malote_engine::event::QueueId;
use malote_engine::journal::Pos;
use malote_engine::{ConsumerId, Held, Wants};
use malote_model::{
    Address, Changes, LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId, Settlement,
    TopicName,
};

use self::life::Life;
use crate::model::{Cause, End, Ev, Lease, Letter, Msg, Place, State, What, Why};

/// What a client asks. The engine's command is made from it.
#[derive(Clone, Debug)]
pub enum Ask {
    Declare {
        name: QueueName,
        spec: QueueSpec,
        connection: Option<u64>,
    },
    Update {
        name: QueueName,
        spec: QueueSpec,
    },
    Delete {
        name: QueueName,
    },
    Purge {
        queue: QueueName,
        leased: bool,
    },
    CompleteLate {
        queue: QueueName,
        seqs: Vec<Seq>,
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Send {
        items: Vec<(Address, Rc<Letter>)>,
    },
    Commit {
        sends: Vec<(Address, Rc<Letter>)>,
        settles: Vec<Settle>,
        states: Vec<SetState>,
    },
    Cancel {
        queue: QueueName,
        seqs: Vec<Seq>,
    },
    Attach(Attach),
    Credit {
        consumer: ConsumerId,
        credit: u32,
        replace: bool,
    },
    Detach {
        consumer: ConsumerId,
    },
    Disconnect {
        connection: u64,
        clean: bool,
    },
    ReceiveDeferred {
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        lock_ms: Option<u64>,
        take: bool,
        connection: Option<u64>,
    },
    Settle {
        leases: Vec<LeaseToken>,
        settlement: Settlement,
        state: Option<(LeaseToken, Option<Bytes>)>,
    },
    Renew {
        leases: Vec<LeaseToken>,
        lock_ms: Option<u64>,
    },
    Accept(Accept),
    ReleaseSession {
        hold: LeaseToken,
    },
    SetState {
        hold: LeaseToken,
        state: Option<Bytes>,
    },
    GetState {
        queue: QueueName,
        session: SessionId,
        hold: Option<LeaseToken>,
    },
    BreakSession {
        queue: QueueName,
        session: SessionId,
    },
    Move {
        from: QueueName,
        items: Vec<(Seq, QueueName)>,
    },
    Replace {
        from: QueueName,
        seq: Seq,
        to: QueueName,
        message: Rc<Letter>,
    },
    Topic(TopicAsk),
}

/// Why messages move by an operator's hand.
pub const REDRIVE: MoveWhy = MoveWhy::Redrive;

/// What must be so before an answer may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub durable: Pos,
    pub written: Pos,
}

impl Need {
    fn and(self, other: Need) -> Need {
        let durable = self.durable.max(other.durable);
        Need { durable, written: self.written.max(other.written) }
    }
}

/// Somebody who waits for messages or for a session. Over with a restart.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub queue: QueueName,
    pub connection: Option<u64>,
    /// None waits for a session.
    pub wants: Option<Wants>,
    pub credit: u32,
    pub take: bool,
    pub lock_ms: Option<u64>,
    /// Answers this request, at this time at the latest.
    pub once: Option<(u64, u64)>,
}

/// A change, and where the group ends that it stands in.
struct Entry {
    end: Pos,
    ev: Ev,
}

/// The state now, the state that is durable, and what lies between.
#[derive(Default)]
pub struct Model {
    pub state: State,
    base: State,
    log: VecDeque<Entry>,
    pub consumers: BTreeMap<ConsumerId, Consumer>,
    /// Consumers that must hear that they ended, in this step.
    pub ended: BTreeSet<ConsumerId>,
    /// Every token ever issued, and for which queue.
    pub issued: BTreeMap<LeaseToken, QueueName>,
    /// Where the group of what is decided now ends.
    end: Pos,
    /// Names of the engine's queues.
    pub names: BTreeMap<QueueId, QueueName>,
    pub topic_names: BTreeMap<QueueId, TopicName>,
    /// What must stand in the journal of this step.
    noted: Vec<String>,
    /// What expired in this group, by the engine's word.
    said_expired: BTreeSet<(QueueName, u64)>,
    /// What was put where in this group, likewise.
    said_put: BTreeSet<(QueueName, u64)>,
    /// Since the last start: who used which queue when, and queues whose last consumer left.
    lives: BTreeMap<QueueName, Life>,
    leaving: BTreeSet<QueueName>,
    /// Where each queue stood before a step of many groups: an answer in it may rest on that.
    before: Option<BTreeMap<QueueName, Pos>>,
    now: u64,
    /// When what is due was last done.
    expired_at: u64,
    pub verbose: bool,
    pub happened: Happened,
}

/// What a run went through that only the model can tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happened {
    pub duplicates: u64,
    pub expired: u64,
    pub overflowed: u64,
    /// Queues that went by themselves.
    pub went: u64,
    pub committed: u64,
    /// Messages that topics took, copies that they made of them at once, and later.
    pub published: u64,
    pub copies: u64,
    pub routed: u64,
    /// Copies whose headers a rule changed, and those that their queue could not take.
    pub changed: u64,
    pub misfits: u64,
    /// Dead letters that went to topics, and those that nobody might have again.
    pub dead_topics: u64,
    pub cycles: u64,
}

fn refused(answer: &Result<Reply, Refusal>, expected: &Refusal) {
    match answer {
        Err(refusal) if discriminant(refusal) == discriminant(expected) => {}
        other => panic!("expected the refusal {expected:?}, got {other:?}"),
    }
}

impl Model {
    /// Something happens in the engine at `now`; its group ends there.
    pub fn begin(&mut self, now: u64, end: Pos) {
        (self.now, self.end) = (now, end);
        self.said_expired.clear();
        self.said_put.clear();
    }

    fn note(&mut self, ev: Ev) {
        if self.verbose {
            eprintln!("    model: {ev:?}");
        }
        self.noted.extend(journal::words(&self.state, &ev));
        self.state.apply(&ev, self.end);
        self.log.push_back(Entry { end: self.end, ev });
    }

    /// Everything up to here is durable.
    pub fn durable(&mut self, pos: Pos) {
        while self.log.front().is_some_and(|entry| entry.end <= pos) {
            if let Some(Entry { end, ev }) = self.log.pop_front() {
                self.base.apply(&ev, end);
            }
        }
    }

    /// The journal was cut here, and the broker started again at `now`.
    pub fn crash(&mut self, cut: Pos, now: u64) {
        let mut state = std::mem::take(&mut self.base);
        for Entry { end, ev } in self.log.drain(..).filter(|entry| entry.end <= cut) {
            state.apply(&ev, end);
        }
        state.apply(&Ev::Boot, cut);
        self.base = state.clone();
        self.state = state;
        self.consumers.clear();
        self.ended.clear();
        self.noted.clear();
        self.begin_lives(now);
        for q in self.state.queues.values_mut() {
            q.loose = true;
        }
    }

    fn eager(&self, queue: &QueueName) -> Need {
        let now = || self.state.queues.get(queue).map(|q| q.eager);
        let before = self.before.as_ref().map(|before| before.get(queue).copied());
        let durable = before.unwrap_or_else(now).unwrap_or(Pos::ZERO);
        Need { durable, written: Pos::ZERO }
    }

    fn done(&self, queue: &QueueName) -> Need {
        let hi = self.end;
        match self.state.queues.get(queue).is_none_or(|q| q.durable()) {
            true => Need { durable: hi, written: hi },
            false => Need { durable: Pos::ZERO, written: hi },
        }
    }

    fn eager_of_tokens(&self, tokens: &[LeaseToken]) -> Need {
        let queues = tokens.iter().filter_map(|token| self.issued.get(token));
        queues.map(|queue| self.eager(queue)).max_by_key(|need| need.durable).unwrap_or_default()
    }

    /// Checks the answer to a question and takes its effect in; tells what the answer must wait for. `None` as
    /// answer: the engine lets the request wait.
    pub fn ask(
        &mut self,
        request: u64,
        ask: &Ask,
        answer: Option<&Result<Reply, Refusal>>,
    ) -> Need {
        let waits = match ask {
            Ask::Attach(attach) => attach.once_until.is_some(),
            Ask::Accept(accept) => accept.session.is_none(),
            _ => false,
        };
        let Some(answer) = answer else {
            assert!(waits, "no answer to {ask:?}");
            return self.wait(request, ask);
        };
        // A wait that is answered at once: what it is given is looked at like any delivery, and an end like any other.
        if waits && (answer.is_ok() || self.check(ask).is_ok()) {
            return self.wait(request, ask);
        }
        if let Ask::Declare { name, connection, .. } = ask {
            self.asked_for(name, *connection);
        }
        match self.check(ask) {
            Err(refusal) => {
                refused(answer, &refusal);
                match ask {
                    Ask::Settle { leases, .. } | Ask::Renew { leases, .. } => {
                        self.eager_of_tokens(leases)
                    }
                    Ask::Commit { settles, .. } => {
                        let tokens: Vec<_> = settles.iter().map(|(_, token, _)| *token).collect();
                        self.eager_of_tokens(&tokens)
                    }
                    Ask::SetState { hold, .. } | Ask::ReleaseSession { hold } => {
                        self.eager_of_tokens(&[*hold])
                    }
                    Ask::Attach(Attach { queue, .. })
                    | Ask::Cancel { queue, .. }
                    | Ask::Declare { name: queue, .. } => self.eager(queue),
                    _ => Need::default(),
                }
            }
            Ok(()) => match answer {
                Ok(reply) => self.effect(ask, reply),
                Err(refusal) => panic!("{ask:?} was refused: {refusal}"),
            },
        }
    }

    fn effect(&mut self, ask: &Ask, reply: &Reply) -> Need {
        let now = self.now;
        match (ask, reply) {
            (Ask::Declare { name, spec, connection }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.queues.contains_key(name), "declared {name}");
                if !created {
                    return self.eager(name);
                }
                self.note(Ev::Declare { name: name.clone(), spec: spec.clone() });
                let connection = connection.filter(|_| spec.exclusive);
                self.lives.insert(name.clone(), Life::new(now, connection));
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Update { name, spec }, Reply::Done) => {
                self.note(Ev::Update { name: name.clone(), spec: spec.clone(), at: now });
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Delete { name }, Reply::Done) => {
                self.delete(name);
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Purge { queue, leased }, Reply::Count(count)) => {
                let goes = |msg: &&Msg| *leased || !matches!(msg.place, Place::Out(_));
                let gone = self.state.queue(queue).msgs.values().filter(goes).count() as u64;
                assert_eq!(*count, gone, "purged");
                self.note(Ev::Purge { queue: queue.clone(), leased: *leased });
                self.done(queue)
            }
            (Ask::CompleteLate { queue, seqs }, Reply::Count(count)) => {
                self.complete_late(queue, seqs, *count)
            }
            (Ask::Pause { queue, paused }, Reply::Done) => {
                if self.state.queue(queue).paused == *paused {
                    return self.eager(queue);
                }
                self.note(Ev::Pause { queue: queue.clone(), paused: *paused });
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Send { items }, Reply::Sent(receipts)) => self.send(items, receipts),
            (Ask::Commit { sends, settles, states }, Reply::Sent(receipts)) => {
                self.commit(sends, settles, states, receipts)
            }
            (Ask::Cancel { queue, seqs }, Reply::Count(count)) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                assert_eq!(*count, seqs.len() as u64, "cancelled");
                if seqs.is_empty() {
                    return Need::default();
                }
                for seq in seqs {
                    self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Cancelled });
                }
                self.done(queue)
            }
            (Ask::Attach(attach), Reply::Done) => {
                self.attach(attach, None);
                self.eager(&attach.queue)
            }
            (Ask::Credit { consumer, credit, replace }, Reply::Count(had)) => {
                let known = self.consumers.get(consumer).map_or(0, |c| c.credit);
                assert_eq!(*had, u64::from(known), "credit before");
                if let Some(c) = self.consumers.get_mut(consumer) {
                    c.credit = if *replace { *credit } else { c.credit + credit };
                }
                Need::default()
            }
            (Ask::Detach { consumer }, Reply::Done) => {
                // A request that waited is answered with nothing: its time is over now.
                match self.consumers.get_mut(consumer) {
                    Some(Consumer { once: Some((_, until)), .. }) => *until = 0,
                    _ => self.forget(*consumer),
                }
                Need::default()
            }
            (Ask::Disconnect { connection, .. }, Reply::Done) => {
                self.disconnect(*connection);
                Need::default()
            }
            (
                Ask::ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection },
                Reply::Delivered(grants),
            ) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                let given: Vec<u64> = grants.iter().map(|grant| grant.seq.0).collect();
                assert_eq!(
                    given,
                    seqs.into_iter().collect::<Vec<_>>(),
                    "deferred messages as asked"
                );
                let by = By {
                    queue,
                    hold: *hold,
                    lock_ms: *lock_ms,
                    take: *take,
                    connection: *connection,
                    deferred: true,
                };
                grants.iter().fold(Need::default(), |need, grant| self.grant(&by, grant, need))
            }
            (Ask::Settle { leases, settlement, state }, Reply::Settled(outcomes)) => {
                self.settle(leases, settlement, state.as_ref(), outcomes)
            }
            (Ask::Renew { leases, lock_ms }, Reply::Renewed(outcomes)) => {
                assert_eq!(leases.len(), outcomes.len());
                for (&token, outcome) in leases.iter().zip(outcomes) {
                    let lease = self.state.lease(token, now);
                    let token = lease.and_then(|lease| lease.hold).unwrap_or(token);
                    match (self.state.lease(token, now), outcome) {
                        (None, Err(Refusal::LeaseLost { .. })) => {}
                        (Some(lease), Ok(until)) => {
                            let lock_ms =
                                lock_ms.unwrap_or(self.state.queue(&lease.queue).spec.lock_ms);
                            assert_eq!(until.0, now + lock_ms, "renewed from now");
                            self.note(Ev::Renew { token, until: until.0 });
                        }
                        (have, said) => panic!("renewing {token}: {said:?}, but it is {have:?}"),
                    }
                }
                Need { written: self.end, ..self.eager_of_tokens(leases) }
            }
            (Ask::Accept(accept), Reply::Accepted(held)) => {
                let held = held.as_ref().expect("a free session is given");
                self.hold(&accept.queue, accept.connection.map(|c| c.0), accept.lock_ms, held)
            }
            (Ask::ReleaseSession { hold }, Reply::Done) => {
                self.end_hold(*hold, Cause::Released);
                self.eager_of_tokens(&[*hold])
            }
            (Ask::SetState { hold, state }, Reply::Done) => {
                self.set_state(*hold, state);
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::GetState { queue, session, .. }, Reply::State(at)) => {
                let have =
                    self.state.queue(queue).sessions.get(session).and_then(|s| s.state.as_ref());
                assert_eq!(have.is_some(), at.is_some(), "the state of {session}");
                self.eager(queue)
            }
            (Ask::BreakSession { queue, session }, Reply::Done) => {
                let q = self.state.queue(queue);
                match q.hold(session) {
                    Some(hold) => self.end_hold(hold, Cause::Released),
                    None => {
                        for (seq, _) in q.out(session) {
                            self.back(queue, seq, Cause::Released, 0, &Changes::default());
                        }
                    }
                }
                self.done(queue)
            }
            (Ask::Move { from, items }, Reply::Count(count)) => {
                let mut moved = 0;
                let mut need = Need::default();
                for (seq, to) in items {
                    if self.state.queue(from).msgs.contains_key(&seq.0) {
                        let (to_seq, at) = (self.state.queue(to).next_seq, now);
                        let changes = Changes::default();
                        let ev = Ev::Move {
                            from: from.clone(),
                            seq: seq.0,
                            to: to.clone(),
                            to_seq,
                            at,
                            why: Why::Redriven,
                            changes,
                        };
                        self.note(ev);
                        need.durable =
                            need.durable.max(self.done(from).durable).max(self.done(to).durable);
                        moved += 1;
                    }
                }
                assert_eq!(*count, moved, "moved");
                need
            }
            (Ask::Replace { from, seq, to, message }, Reply::Sent(seqs)) => {
                self.note(Ev::Gone { queue: from.clone(), seq: seq.0, end: End::Replaced });
                assert!(!seqs[0].duplicate, "what is meant to replace is never a duplicate");
                self.put(to, message, seqs[0].seq);
                let (a, b) = (self.done(from), self.done(to));
                Need { durable: a.durable.max(b.durable), written: a.written }
            }
            (Ask::Topic(ask), reply) => self.topic_effect(ask, reply),
            (ask, reply) => panic!("{ask:?} was answered with {reply:?}"),
        }
    }

    fn attach(&mut self, attach: &Attach, once: Option<(u64, u64)>) {
        let consumer = Consumer {
            queue: attach.queue.clone(),
            connection: attach.connection.map(|c| c.0),
            wants: Some(attach.wants.clone()),
            credit: attach.credit,
            take: attach.take,
            lock_ms: attach.lock_ms,
            once,
        };
        self.add_consumer(attach.consumer, consumer);
    }

    /// A long poll or a waiting accept begins.
    fn wait(&mut self, request: u64, ask: &Ask) -> Need {
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
                    wants: None,
                    credit: 0,
                    take: false,
                    lock_ms: accept.lock_ms,
                    once,
                };
                self.add_consumer(accept.consumer, c);
            }
            _ => {}
        }
        Need::default()
    }

    /// The consumer that answers a request.
    pub fn waiting(&self, request: u64) -> Option<ConsumerId> {
        let of = |c: &Consumer| c.once.is_some_and(|(r, _)| r == request);
        self.consumers.iter().find(|(_, c)| of(c)).map(|(&id, _)| id)
    }

    /// The engine says that a consumer ended by itself.
    pub fn said_ended(&mut self, id: ConsumerId) -> Need {
        assert!(self.ended.remove(&id), "{id:?} did not end");
        self.forget(id);
        Need::default()
    }

    /// A wait ends with nothing.
    pub fn said_nothing(&mut self, id: ConsumerId) -> Need {
        let c = self.consumers.get(&id).expect("whoever waits is known");
        let (_, until) = c.once.expect("only a wait ends with nothing");
        assert!(until <= self.now, "a wait until {until} ended with nothing at {}", self.now);
        let need = self.eager(&c.queue.clone());
        // It may have ended in the same moment: one word is enough.
        self.ended.remove(&id);
        self.forget(id);
        need
    }

    /// A waiting accept got a session.
    pub fn said_held(&mut self, id: ConsumerId, held: &Held) -> Need {
        let c = self.consumers.get(&id).expect("whoever waits is known").clone();
        assert!(c.wants.is_none(), "a session for whom messages were wanted");
        let q = self.state.queue(&c.queue);
        assert!(!q.paused, "a session of a paused queue was given");
        assert!(q.free(&held.session, self.now), "session {} is not free", held.session);
        self.forget(id);
        self.hold(&c.queue, c.connection, c.lock_ms, held)
    }

    fn hold(
        &mut self,
        queue: &QueueName,
        connection: Option<u64>,
        lock_ms: Option<u64>,
        held: &Held,
    ) -> Need {
        let q = self.state.queue(queue);
        assert_eq!(
            held.until.0,
            self.now + lock_ms.unwrap_or(q.spec.lock_ms),
            "the lock of a hold"
        );
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

    /// Messages for a consumer, in one group that ends where the span does.
    pub fn said_deliver(&mut self, id: ConsumerId, grants: &[Grant]) -> Need {
        let c = self.consumers.get(&id).expect("who is delivered to is known").clone();
        assert!(
            !grants.is_empty() && grants.len() as u32 <= c.credit,
            "{} messages for credit {}",
            grants.len(),
            c.credit
        );
        assert!(!self.state.queue(&c.queue).paused, "a paused queue delivered");
        let (hold, per_session) = match c.wants {
            Some(Wants::Held(token)) => (Some(token), u32::MAX),
            Some(Wants::Any { per_session }) => (None, per_session.max(1)),
            None => panic!("messages for whom a session was wanted"),
        };
        let by = By {
            queue: &c.queue,
            hold,
            lock_ms: c.lock_ms,
            take: c.take,
            connection: c.connection,
            deferred: false,
        };
        let mut need = Need::default();
        let mut run: Option<(SessionId, u32)> = None;
        for grant in grants {
            let q = self.state.queue(&c.queue);
            let next = match (q.sessioned(), hold) {
                (false, _) => q.first_ready(self.now),
                (true, Some(token)) => {
                    let (_, session) =
                        self.state.held(token, self.now).expect("whoever has no hold gets nothing");
                    q.next_of(&session, self.now)
                }
                (true, None) => {
                    let msg = q.msgs.get(&grant.seq.0).expect("what is delivered is there");
                    let session =
                        msg.session.clone().expect("a session queue's message has a session");
                    match &mut run {
                        Some((of, n)) if *of == session => {
                            *n += 1;
                            assert!(
                                *n <= per_session,
                                "more than {per_session} of session {session} at once"
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

    fn grant(&mut self, by: &By<'_>, grant: &Grant, need: Need) -> Need {
        let q = self.state.queue(by.queue);
        let seq = grant.seq.0;
        let msg = q.msgs.get(&seq).expect("what is granted is there");
        assert_eq!(
            (grant.receives, grant.failed),
            (msg.receives + 1, msg.failed),
            "counters of {seq} in {}",
            by.queue
        );
        let first = grant.first_at.map(|at| at.0);
        assert_eq!(first, msg.first.or(Some(self.now)), "the first grant of {seq}");
        let mut durable = msg.rests;
        if let Some(s) = msg.session.as_ref().and_then(|session| q.sessions.get(session)) {
            durable = durable.max(s.rests);
        }
        if !q.durable() {
            durable = Pos::ZERO;
        }
        let hi = self.end;
        if by.take {
            assert_eq!(grant.lease, None, "taken without a lease");
            let durable = if q.durable() { hi } else { Pos::ZERO };
            self.note(Ev::Gone { queue: by.queue.clone(), seq, end: End::Taken });
            return Need { durable: need.durable.max(durable), written: hi };
        }
        let token = grant.lease.expect("granted with a lease");
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
        assert_eq!(grant.until.0, lease.until, "the lock of a lease");
        self.issue(token, by.queue);
        let (queue, lease, at) = (by.queue.clone(), Box::new(lease), self.now);
        self.note(Ev::Grant { queue, seq, token, lease, at });
        Need { durable: need.durable.max(durable), written: hi }
    }
}

/// On whose behalf messages are granted.
struct By<'a> {
    queue: &'a QueueName,
    hold: Option<LeaseToken>,
    lock_ms: Option<u64>,
    take: bool,
    connection: Option<u64>,
    deferred: bool,
}
