//! The reference model: what the queues hold, written from docs/concepts/model.md and as plainly as possible.
//!
//! State is maps of maps; every change is an [`Ev`] with the journal position of the group it stands in. After a crash
//! the state at the cut is made by applying the events up to there again, and the engine must be in that state.
//! What may be decided when is in `decide`; nothing here knows how the engine does it.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::Totals;
use malote_engine::journal::Pos;
use malote_model::{
    Changes, DeadReason, Durability, LeaseToken, Message, Properties, QueueName, QueueSpec,
    SessionId,
};

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its place; delivered no earlier than `due`.
    Here { due: u64 },
    /// Beside its session until `due`, in its place then.
    Parked { due: u64 },
    /// Appended at `due`.
    Scheduled { due: u64 },
    /// In somebody's hands.
    Out(LeaseToken),
    /// Found by its sequence only.
    Deferred,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Msg {
    /// What was sent; never changes.
    pub sent: Rc<Message>,
    /// With all that was laid over.
    pub properties: Properties,
    /// As far as the queues it was in knew it.
    pub session: Option<SessionId>,
    pub place: Place,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    /// It entered its queue between these times.
    pub at: (u64, u64),
    pub dead: Option<Dead>,
    /// Nobody may be given it before this is durable.
    pub rests: Pos,
}

/// Why a message is a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    pub reason: DeadReason,
    pub from: QueueName,
    pub from_seq: u64,
    pub receives: u32,
    pub failed: u32,
    /// How its last lease ended.
    pub cause: Cause,
}

/// Something in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub queue: QueueName,
    pub what: What,
    /// Of a message under a hold: the hold's counts instead.
    pub until: u64,
    /// Ends with its connection.
    pub bound: bool,
    /// Which one; unknown after a restart, when it is over anyway.
    pub connection: Option<u64>,
    pub hold: Option<LeaseToken>,
    pub deferred: bool,
}

/// What is leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Message(u64),
    Session(SessionId),
}

/// One session that somebody holds or that has a state. Messages know their session themselves.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub hold: Option<LeaseToken>,
    pub state: Option<Bytes>,
    /// Nobody may be given anything of it before this is durable.
    pub rests: Pos,
}

/// One queue or dead-letter set.
#[derive(Clone, Debug)]
pub struct Queue {
    pub spec: QueueSpec,
    pub owner: Option<QueueName>,
    pub paused: bool,
    pub next_seq: u64,
    pub msgs: BTreeMap<u64, Msg>,
    pub sessions: BTreeMap<SessionId, Session>,
    pub totals: Totals,
    /// The last change that an answer about the queue must wait for.
    pub eager: Pos,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub queues: BTreeMap<QueueName, Queue>,
    pub leases: BTreeMap<LeaseToken, Lease>,
    /// Positions are not known exactly: no answer must wait for them.
    pub inexact: bool,
}

/// How a lease ended that did not settle its message for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Released,
    Abandoned,
    Lost,
}

/// Why a message went from one place to another.
#[derive(Clone, Debug)]
pub enum Why {
    Due,
    Dead(Dead),
    Redriven,
}

/// One change.
#[derive(Clone, Debug)]
pub enum Ev {
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
    Put {
        queue: QueueName,
        msg: Box<Msg>,
    },
    /// Gone for good; `completed` if by its holder's word or taken.
    Gone {
        queue: QueueName,
        seq: u64,
        completed: bool,
        taken: bool,
        /// How its lease ended, if it was dropped.
        cause: Cause,
    },
    Grant {
        queue: QueueName,
        seq: u64,
        token: LeaseToken,
        lease: Box<Lease>,
    },
    Renew {
        token: LeaseToken,
        until: u64,
    },
    Back {
        queue: QueueName,
        seq: u64,
        cause: Cause,
        due: u64,
        parked: bool,
        changes: Changes,
    },
    Defer {
        queue: QueueName,
        seq: u64,
        changes: Changes,
    },
    Move {
        from: QueueName,
        seq: u64,
        to: QueueName,
        to_seq: u64,
        at: (u64, u64),
        why: Why,
        changes: Changes,
    },
    Hold {
        token: LeaseToken,
        lease: Box<Lease>,
    },
    Unhold {
        queue: QueueName,
        session: SessionId,
        lost: bool,
    },
    SetState {
        queue: QueueName,
        session: SessionId,
        state: Option<Bytes>,
    },
    /// The broker started again.
    Boot,
}

impl Cause {
    fn count(self, totals: &mut Totals) {
        totals.abandoned += u64::from(self == Self::Abandoned);
        totals.lost += u64::from(self == Self::Lost);
    }
}

impl Msg {
    /// Ready at `now`.
    pub fn ready(&self, now: u64) -> bool {
        matches!(self.place, Place::Here { due } | Place::Parked { due } if due <= now)
    }

    /// Does not stand in the way of what comes after it in its session.
    pub fn aside(&self, now: u64) -> bool {
        match self.place {
            Place::Parked { due } => due > now,
            Place::Scheduled { .. } | Place::Deferred => true,
            Place::Here { .. } | Place::Out(_) => false,
        }
    }
}

impl Queue {
    fn new(spec: QueueSpec, owner: Option<QueueName>, eager: Pos) -> Self {
        let (msgs, sessions, totals) = (BTreeMap::new(), BTreeMap::new(), Totals::default());
        Self { spec, owner, paused: false, next_seq: 1, msgs, sessions, totals, eager }
    }

    pub fn sessioned(&self) -> bool {
        self.spec.sessions.required()
    }

    pub fn durable(&self) -> bool {
        self.spec.durability == Durability::Fsync
    }

    /// Messages of a session that hold a place in it.
    pub fn line<'a>(&'a self, session: &'a SessionId) -> impl Iterator<Item = (u64, &'a Msg)> {
        let of = move |msg: &Msg| msg.session.as_ref() == Some(session);
        self.msgs.iter().filter(move |(_, msg)| of(msg)).map(|(&seq, msg)| (seq, msg))
    }

    /// Messages of a session in somebody's hands.
    pub fn out(&self, session: &SessionId) -> Vec<(u64, LeaseToken)> {
        let out = self.line(session).filter_map(|(seq, msg)| match msg.place {
            Place::Out(token) => Some((seq, token)),
            _ => None,
        });
        out.collect()
    }

    pub fn hold(&self, session: &SessionId) -> Option<LeaseToken> {
        self.sessions.get(session).and_then(|s| s.hold)
    }

    /// The next of a session for its holder: every earlier one is out to it or set aside.
    pub fn next_of(&self, session: &SessionId, now: u64) -> Option<u64> {
        for (seq, msg) in self.line(session) {
            if msg.ready(now) {
                return Some(seq);
            }
            if !msg.aside(now) && !matches!(msg.place, Place::Out(_)) {
                return None;
            }
        }
        None
    }

    /// A session with something to give that nobody has.
    pub fn free(&self, session: &SessionId, now: u64) -> bool {
        self.hold(session).is_none()
            && self.out(session).is_empty()
            && self.next_of(session, now).is_some()
    }

    /// Every session with messages.
    pub fn live_sessions(&self) -> Vec<SessionId> {
        let mut ids: Vec<_> = self.msgs.values().filter_map(|msg| msg.session.clone()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Of a queue without sessions.
    pub fn first_ready(&self, now: u64) -> Option<u64> {
        self.msgs.iter().find(|(_, msg)| msg.ready(now)).map(|(&seq, _)| seq)
    }
}

impl State {
    pub fn queue(&self, name: &QueueName) -> &Queue {
        self.queues.get(name).unwrap_or_else(|| panic!("the model has no queue {name}"))
    }

    fn queue_mut(&mut self, name: &QueueName) -> &mut Queue {
        self.queues.get_mut(name).unwrap_or_else(|| panic!("the model has no queue {name}"))
    }

    /// A lease that is good now.
    pub fn lease(&self, token: LeaseToken, now: u64) -> Option<&Lease> {
        self.leases.get(&token).filter(|lease| now < self.until(lease))
    }

    /// When a lease ends: under a hold only the hold's lock counts.
    pub fn until(&self, lease: &Lease) -> u64 {
        match lease.hold {
            Some(hold) => self.leases.get(&hold).map_or(0, |hold| hold.until),
            None => lease.until,
        }
    }

    /// The message of a lease that is good now.
    pub fn leased(&self, token: LeaseToken, now: u64) -> Option<(QueueName, u64)> {
        let lease = self.lease(token, now)?;
        match lease.what {
            What::Message(seq) => Some((lease.queue.clone(), seq)),
            What::Session(_) => None,
        }
    }

    /// The session of a hold that is good now.
    pub fn held(&self, token: LeaseToken, now: u64) -> Option<(QueueName, SessionId)> {
        let lease = self.lease(token, now)?;
        match &lease.what {
            What::Session(session) => Some((lease.queue.clone(), session.clone())),
            What::Message(_) => None,
        }
    }

    /// Takes in one change that stands in a group ending at `pos`.
    pub fn apply(&mut self, ev: &Ev, pos: Pos) {
        match ev {
            Ev::Declare { name, spec } => {
                let dead = letters_spec(spec);
                self.queues.insert(name.clone(), Queue::new(spec.clone(), None, pos));
                self.queues.insert(name.dead_letters(), Queue::new(dead, Some(name.clone()), pos));
            }
            Ev::Update { name, spec } => {
                let q = self.queue_mut(name);
                (q.spec, q.eager) = (spec.clone(), pos);
                self.queue_mut(&name.dead_letters()).spec = letters_spec(spec);
            }
            Ev::Delete { name } => {
                for name in [name, &name.dead_letters()] {
                    self.queues.remove(name);
                    self.leases.retain(|_, lease| lease.queue != *name);
                }
            }
            Ev::Purge { queue } => {
                let q = self.queue_mut(queue);
                q.msgs.retain(|_, msg| matches!(msg.place, Place::Out(_)));
                self.eager(queue, pos);
            }
            Ev::Pause { queue, paused } => {
                let q = self.queue_mut(queue);
                (q.paused, q.eager) = (*paused, pos);
            }
            Ev::Put { queue, msg } => {
                let q = self.queue_mut(queue);
                let mut msg = (**msg).clone();
                msg.rests = pos;
                q.msgs.insert(q.next_seq, msg);
                q.next_seq += 1;
                q.totals.sent += 1;
                self.eager(queue, pos);
            }
            Ev::Gone { queue, seq, completed, taken, cause } => {
                self.rest(queue, *seq, pos);
                self.unlease(queue, *seq);
                let q = self.queue_mut(queue);
                let msg = q.msgs.remove(seq);
                cause.count(&mut q.totals);
                q.totals.completed += u64::from(*completed);
                q.totals.delivered += u64::from(*taken);
                q.totals.redelivered += u64::from(*taken && msg.is_some_and(|m| m.receives > 0));
                self.eager(queue, pos);
            }
            Ev::Grant { queue, seq, token, lease } => {
                self.leases.insert(*token, (**lease).clone());
                let q = self.queue_mut(queue);
                let Some(msg) = q.msgs.get_mut(seq) else { panic!("a grant of nothing") };
                msg.place = Place::Out(*token);
                q.totals.delivered += 1;
                q.totals.redelivered += u64::from(msg.receives > 0);
                msg.receives += 1;
            }
            Ev::Renew { token, until } => {
                if let Some(lease) = self.leases.get_mut(token) {
                    lease.until = *until;
                }
            }
            Ev::Back { queue, seq, cause, due, parked, changes } => {
                if *cause == Cause::Abandoned || !changes.is_empty() {
                    self.rest(queue, *seq, pos);
                }
                let deferred = self.unlease(queue, *seq).is_some_and(|lease| lease.deferred);
                let q = self.queue_mut(queue);
                let Some(msg) = q.msgs.get_mut(seq) else { return };
                msg.place = match (deferred, parked) {
                    (true, _) => Place::Deferred,
                    (false, true) => Place::Parked { due: *due },
                    (false, false) => Place::Here { due: *due },
                };
                match cause {
                    Cause::Released => msg.released += 1,
                    Cause::Abandoned | Cause::Lost => msg.failed += 1,
                }
                cause.count(&mut q.totals);
                msg.change(changes, pos);
                if *cause != Cause::Lost {
                    self.eager(queue, pos);
                }
            }
            Ev::Defer { queue, seq, changes } => {
                self.rest(queue, *seq, pos);
                self.unlease(queue, *seq);
                let q = self.queue_mut(queue);
                q.totals.deferred += 1;
                if let Some(msg) = q.msgs.get_mut(seq) {
                    msg.place = Place::Deferred;
                    msg.change(changes, pos);
                }
                self.eager(queue, pos);
            }
            Ev::Move { from, seq, to, to_seq, at, why, changes } => {
                self.rest(from, *seq, pos);
                self.unlease(from, *seq);
                let q = self.queue_mut(from);
                let Some(mut msg) = q.msgs.remove(seq) else { panic!("nothing to move") };
                if let Why::Dead(dead) = why {
                    q.totals.dead_lettered += 1;
                    dead.cause.count(&mut q.totals);
                }
                msg.change(changes, pos);
                (msg.receives, msg.failed, msg.released) = (0, 0, 0);
                (msg.place, msg.at, msg.rests) = (Place::Here { due: 0 }, *at, pos);
                msg.dead = match why {
                    Why::Dead(dead) => Some(dead.clone()),
                    Why::Due | Why::Redriven => None,
                };
                let q = self.queue_mut(to);
                q.totals.sent += 1;
                q.next_seq = q.next_seq.max(to_seq + 1);
                q.msgs.insert(*to_seq, msg);
                self.eager(from, pos);
                self.eager(to, pos);
            }
            Ev::Hold { token, lease } => {
                if let What::Session(session) = &lease.what {
                    let q = self.queue_mut(&lease.queue);
                    q.sessions.entry(session.clone()).or_default().hold = Some(*token);
                }
                self.leases.insert(*token, (**lease).clone());
            }
            Ev::Unhold { queue, session, lost } => {
                let q = self.queue_mut(queue);
                q.totals.sessions_lost += u64::from(*lost);
                let hold = q.sessions.get_mut(session).and_then(|s| s.hold.take());
                hold.map(|hold| self.leases.remove(&hold));
                self.tidy(queue, session);
            }
            Ev::SetState { queue, session, state } => {
                let q = self.queue_mut(queue);
                let s = q.sessions.entry(session.clone()).or_default();
                (s.state, s.rests, q.eager) = (state.clone(), pos, pos);
                self.tidy(queue, session);
            }
            Ev::Boot => self.boot(),
        }
    }

    /// Connection-bound leases and holds of the last start are over: released, nothing failed or lost.
    fn boot(&mut self) {
        let bound = |state: &Self, of_message: bool| -> Vec<Lease> {
            let is = |lease: &&Lease| {
                lease.bound && matches!(lease.what, What::Message(_)) == of_message
            };
            state.leases.values().filter(is).cloned().collect()
        };
        for Lease { queue, what, .. } in bound(self, true) {
            if let What::Message(seq) = what {
                let (cause, changes) = (Cause::Released, Changes::default());
                self.apply(
                    &Ev::Back { queue, seq, cause, due: 0, parked: false, changes },
                    Pos::ZERO,
                );
            }
        }
        for Lease { queue, what, .. } in bound(self, false) {
            if let What::Session(session) = what {
                self.apply(&Ev::Unhold { queue, session, lost: false }, Pos::ZERO);
            }
        }
        self.leases.values_mut().for_each(|lease| lease.connection = None);
    }

    fn eager(&mut self, queue: &QueueName, pos: Pos) {
        let inexact = self.inexact;
        let q = self.queue_mut(queue);
        if q.durable() && !inexact {
            q.eager = q.eager.max(pos);
        }
    }

    /// What is given of the session from now on rests on this.
    fn rest(&mut self, queue: &QueueName, seq: u64, pos: Pos) {
        let q = self.queue_mut(queue);
        if q.durable()
            && q.sessioned()
            && let Some(msg) = q.msgs.get(&seq)
            && matches!(msg.place, Place::Here { .. } | Place::Out(_))
            && let Some(session) = msg.session.clone()
        {
            let s = q.sessions.entry(session).or_default();
            s.rests = s.rests.max(pos);
        }
    }

    fn unlease(&mut self, queue: &QueueName, seq: u64) -> Option<Lease> {
        match self.queue(queue).msgs.get(&seq)?.place {
            Place::Out(token) => self.leases.remove(&token),
            _ => None,
        }
    }

    fn tidy(&mut self, queue: &QueueName, session: &SessionId) {
        let q = self.queue_mut(queue);
        if q.sessions
            .get(session)
            .is_some_and(|s| s.hold.is_none() && s.state.is_none() && s.rests == Pos::ZERO)
        {
            q.sessions.remove(session);
        }
    }
}

impl Msg {
    fn change(&mut self, changes: &Changes, pos: Pos) {
        if !changes.is_empty() {
            self.properties.lay_over(changes.properties.clone());
            self.rests = self.rests.max(pos);
        }
    }
}

/// Of its queue, a dead-letter set has the lock, the durability, and what is shown and taken; nothing else.
fn letters_spec(spec: &QueueSpec) -> QueueSpec {
    QueueSpec {
        lock_ms: spec.lock_ms,
        durability: spec.durability,
        message_bytes_max: spec.message_bytes_max,
        backlog_warning: spec.backlog_warning,
        failed_max: None,
        ..QueueSpec::default()
    }
}
