//! What the reference model says to each question, and what it allows the engine to do by itself.
//!
//! The engine decides first; here its answer is checked and its effect noted. Where docs/concepts/model.md leaves a choice (which
//! consumer is served, which of two timers of one moment comes first) the engine's choice is taken over if it is legal.

mod check;
mod happen;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::discriminant;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::{Accept, Attach, Grant, MoveWhy, Reply};
use malote_engine::journal::Pos;
use malote_engine::{ConsumerId, Held, Wants};
use malote_model::{
    Changes, LeaseToken, Message, QueueName, QueueSpec, Refusal, Seq, SessionId, Settlement, When,
};

use crate::model::{Cause, Ev, Lease, Msg, Place, State, What, Why};

/// What a client asks. The engine's command is made from it.
#[derive(Clone, Debug)]
pub enum Ask {
    Declare {
        name: QueueName,
        spec: QueueSpec,
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
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Send {
        items: Vec<(QueueName, Rc<Message>)>,
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
        message: Rc<Message>,
    },
}

/// Why messages move by an operator's hand.
pub const REDRIVE: MoveWhy = MoveWhy::Redrive;

/// What must be so before an answer may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub durable: Pos,
    pub written: Pos,
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

struct Entry {
    lo: Pos,
    hi: Pos,
    /// The step has several groups: a cut may go between them.
    many: bool,
    /// Changes of one group happen together.
    group: u32,
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
    span: (Pos, Pos),
    many: bool,
    group: u32,
    /// Where the engine was seen to put messages, by their ids, when several moved in one step.
    pub placed: BTreeMap<(QueueName, String), u64>,
    now: u64,
    pub verbose: bool,
    /// What became due may have been done, and noted, before the last crash.
    pub unsure: bool,
}

fn refused(answer: &Result<Reply, Refusal>, expected: &Refusal) {
    match answer {
        Err(refusal) if discriminant(refusal) == discriminant(expected) => {}
        other => panic!("expected the refusal {expected:?}, got {other:?}"),
    }
}

impl Model {
    /// A step of the engine at `now` that put its groups between `lo` and `hi`.
    pub fn begin(&mut self, now: u64, lo: Pos, hi: Pos, many: bool) {
        (self.now, self.span, self.many) = (now, (lo, hi), many);
        self.group += 1;
        self.placed.clear();
    }

    fn note(&mut self, ev: Ev) {
        let (lo, hi) = self.span;
        if self.verbose {
            eprintln!("    model: {ev:?}");
        }
        self.state.inexact = self.many;
        self.state.apply(&ev, if self.many { lo } else { hi });
        self.log.push_back(Entry { lo, hi, many: self.many, group: self.group, ev });
    }

    /// Everything up to here is durable.
    pub fn durable(&mut self, pos: Pos) {
        while self.log.front().is_some_and(|entry| entry.hi <= pos) {
            if let Some(Entry { hi, ev, .. }) = self.log.pop_front() {
                self.base.apply(&ev, hi);
            }
        }
    }

    /// The journal was cut here. `failed` tells of a message whether it is there, and how often it failed. Says
    /// whether the cut went through the middle of a step, so that totals are not known.
    pub fn crash(&mut self, cut: Pos, failed: impl Fn(&QueueName, u64) -> Option<u32>) -> bool {
        let mut state = std::mem::take(&mut self.base);
        let mut unsure = false;
        let mut included: BTreeMap<u32, bool> = BTreeMap::new();
        for Entry { lo, hi, many, group, ev } in self.log.drain(..) {
            if hi <= cut {
                state.apply(&ev, hi);
            } else if many && lo < cut {
                unsure = true;
                // What is bound ends differently if the step was not journaled; the rest is done again.
                let (queue, seq) = match &ev {
                    Ev::Back { queue, seq, .. } | Ev::Gone { queue, seq, .. } => (queue, *seq),
                    Ev::Move { from, seq, why: Why::Dead(_), .. } => (from, *seq),
                    Ev::Unhold { .. } if included.get(&group) == Some(&true) => {
                        state.apply(&ev, hi);
                        continue;
                    }
                    _ => continue,
                };
                let Some(msg) = state.queues.get(queue).and_then(|q| q.msgs.get(&seq)) else {
                    continue;
                };
                let Place::Out(token) = msg.place else { continue };
                if !state.leases.get(&token).is_some_and(|lease| lease.bound) {
                    continue;
                }
                let is = failed(queue, seq).is_none_or(|failed| failed == msg.failed + 1);
                included.insert(group, is);
                if is {
                    state.apply(&ev, hi);
                }
            }
        }
        state.apply(&Ev::Boot, cut);
        self.base = state.clone();
        self.state = state;
        self.consumers.clear();
        self.ended.clear();
        unsure
    }

    /// Takes the engine's totals over after a cut in the middle of a step.
    pub fn adopt_totals(&mut self, totals: &BTreeMap<QueueName, malote_engine::Totals>) {
        for state in [&mut self.state, &mut self.base] {
            for (name, q) in &mut state.queues {
                if let Some(totals) = totals.get(name) {
                    q.totals = *totals;
                }
            }
        }
    }

    fn eager(&self, queue: &QueueName) -> Need {
        let durable = self.state.queues.get(queue).map_or(Pos::ZERO, |q| q.eager);
        Need { durable, written: Pos::ZERO }
    }

    fn done(&self, queue: &QueueName) -> Need {
        let hi = self.span.1;
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
        // A wait that is answered at once: what it is given is looked at like any delivery.
        if waits && answer.is_ok() {
            return self.wait(request, ask);
        }
        match self.check(ask) {
            Err(refusal) => {
                refused(answer, &refusal);
                match ask {
                    Ask::Settle { leases, .. } | Ask::Renew { leases, .. } => {
                        self.eager_of_tokens(leases)
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
            (Ask::Declare { name, spec }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.queues.contains_key(name), "declared {name}");
                if !created {
                    return self.eager(name);
                }
                self.note(Ev::Declare { name: name.clone(), spec: spec.clone() });
                Need { durable: self.span.1, ..Need::default() }
            }
            (Ask::Update { name, spec }, Reply::Done) => {
                self.note(Ev::Update { name: name.clone(), spec: spec.clone() });
                Need { durable: self.span.1, ..Need::default() }
            }
            (Ask::Delete { name }, Reply::Done) => {
                let dead = name.dead_letters();
                let of = |c: &Consumer| c.queue == *name || c.queue == dead;
                let ended: Vec<_> =
                    self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id).collect();
                self.ended.extend(ended);
                self.note(Ev::Delete { name: name.clone() });
                Need { durable: self.span.1, ..Need::default() }
            }
            (Ask::Purge { queue }, Reply::Count(count)) => {
                let out = |msg: &&Msg| !matches!(msg.place, Place::Out(_));
                let gone = self.state.queue(queue).msgs.values().filter(out).count() as u64;
                assert_eq!(*count, gone, "purged");
                self.note(Ev::Purge { queue: queue.clone() });
                self.done(queue)
            }
            (Ask::Pause { queue, paused }, Reply::Done) => {
                if self.state.queue(queue).paused == *paused {
                    return self.eager(queue);
                }
                self.note(Ev::Pause { queue: queue.clone(), paused: *paused });
                Need { durable: self.span.1, ..Need::default() }
            }
            (Ask::Send { items }, Reply::Sent(seqs)) => {
                assert_eq!(seqs.len(), items.len(), "one sequence for each");
                let mut need = Need::default();
                for ((queue, message), seq) in items.iter().zip(seqs) {
                    self.put(queue, message, seq.seq);
                    let done = self.done(queue);
                    need = Need { durable: need.durable.max(done.durable), written: done.written };
                }
                need
            }
            (Ask::Cancel { queue, seqs }, Reply::Count(count)) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                assert_eq!(*count, seqs.len() as u64, "cancelled");
                if seqs.is_empty() {
                    return Need::default();
                }
                for seq in seqs {
                    self.note(Ev::Gone {
                        queue: queue.clone(),
                        seq,
                        completed: false,
                        taken: false,
                        cause: Cause::Released,
                    });
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
            (Ask::Disconnect { connection, clean }, Reply::Done) => {
                self.disconnect(*connection, *clean);
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
                Need { written: self.span.1, ..self.eager_of_tokens(leases) }
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
                Need { durable: self.span.1, ..Need::default() }
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
                        let (to_seq, at) = (self.state.queue(to).next_seq, (now, now));
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
                self.note(Ev::Gone {
                    queue: from.clone(),
                    seq: seq.0,
                    completed: false,
                    taken: false,
                    cause: Cause::Released,
                });
                self.put(to, message, seqs[0].seq);
                let (a, b) = (self.done(from), self.done(to));
                Need { durable: a.durable.max(b.durable), written: a.written }
            }
            (ask, reply) => panic!("{ask:?} was answered with {reply:?}"),
        }
    }

    fn put(&mut self, queue: &QueueName, message: &Rc<Message>, seq: Seq) {
        let q = self.state.queue(queue);
        assert_eq!(seq.0, q.next_seq, "sequences are dense");
        let place = match message.when {
            When::Now if q.spec.delay_ms > 0 => Place::Here { due: self.now + q.spec.delay_ms },
            When::Delay(ms) if ms > 0 => Place::Here { due: self.now + ms },
            When::At(at) if at.0 > self.now => Place::Scheduled { due: at.0 },
            When::Now | When::Delay(_) | When::At(_) => Place::Here { due: 0 },
        };
        let msg = Msg {
            sent: message.clone(),
            properties: message.properties.clone(),
            session: message.session.clone().filter(|_| q.sessioned()),
            place,
            receives: 0,
            failed: 0,
            released: 0,
            at: (self.now, self.now),
            dead: None,
            rests: Pos::ZERO,
        };
        self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg) });
    }

    fn attach(&mut self, attach: &Attach, once: Option<(u64, u64)>) {
        self.consumers.insert(
            attach.consumer,
            Consumer {
                queue: attach.queue.clone(),
                connection: attach.connection.map(|c| c.0),
                wants: Some(attach.wants.clone()),
                credit: attach.credit,
                take: attach.take,
                lock_ms: attach.lock_ms,
                once,
            },
        );
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
                self.consumers.insert(accept.consumer, c);
            }
            _ => {}
        }
        Need::default()
    }

    fn forget(&mut self, id: ConsumerId) {
        self.consumers.remove(&id);
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
        Need { durable, written: self.span.1 }
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
        let mut durable = msg.rests;
        if let Some(s) = msg.session.as_ref().and_then(|session| q.sessions.get(session)) {
            durable = durable.max(s.rests);
        }
        if !q.durable() {
            durable = Pos::ZERO;
        }
        let hi = self.span.1;
        if by.take {
            assert_eq!(grant.lease, None, "taken without a lease");
            let durable = if q.durable() { hi } else { Pos::ZERO };
            self.note(Ev::Gone {
                queue: by.queue.clone(),
                seq,
                completed: true,
                taken: true,
                cause: Cause::Released,
            });
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
        self.note(Ev::Grant { queue: by.queue.clone(), seq, token, lease: Box::new(lease) });
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
