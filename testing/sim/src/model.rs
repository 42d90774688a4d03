//! The reference model: what the queues hold, written from docs/concepts/model.md and as plainly as possible.
//!
//! State is maps of maps; every change is an [`Ev`] with the journal position of the group it stands in. After a crash
//! the state at the cut is made by applying the events up to there again, and the engine must be in that state.
//! What may be decided when is in `decide`; what changes do is in `apply`; nothing here knows how the engine does it.

mod apply;
mod topic;

pub use topic::{Topic, Via, Way};

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::journal::Pos;
use malote_engine::{EncodedMessage, Totals};
use malote_model::{
    Changes, DeadReason, Durability, LeaseToken, Message, Overflow, Properties, QueueName,
    QueueSpec, Rule, SessionId, TopicName, TopicSpec,
};

/// A message as somebody sends it.
#[derive(Clone)]
pub struct Letter {
    pub message: Message,
    /// Its id was given on the way: the sender does not know it by that.
    pub id_given: bool,
    pub outgoing: EncodedMessage,
}

/// Without its payload.
impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.message;
        let session = m.session.as_ref().map_or("-", |session| session.as_str());
        let id = m.message_id.as_deref().unwrap_or_default();
        let (key, ttl_ms, priority) = (&m.dedup_id, m.ttl_ms, m.priority);
        write!(f, "{id} {session} {:?} key {key:?} ttl {ttl_ms:?} priority {priority}", m.when)
    }
}

impl Letter {
    pub fn new(mut message: Message, id_given: bool) -> Self {
        // A message comes from itself, unless it says otherwise.
        message.origin_id = message.origin_id.or_else(|| message.message_id.clone());
        let outgoing = EncodedMessage::new(&message, id_given)
            .unwrap_or_else(|refusal| panic!("a message is well formed: {refusal}"));
        Self { message, id_given, outgoing }
    }

    pub fn size(&self) -> u64 {
        self.outgoing.size() as u64
    }

    /// What a queue knows it by.
    pub fn key(&self, content: bool) -> Option<Vec<u8>> {
        let own = self.message.message_id.as_ref().filter(|_| !self.id_given);
        match self.message.dedup_id.as_ref().or(own) {
            Some(key) => Some(key.as_bytes().to_vec()),
            None => content.then(|| self.message.body.bytes.to_vec()),
        }
    }
}

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
    pub sent: Rc<Letter>,
    /// With all that was laid over.
    pub properties: Properties,
    /// As far as the queues it was in knew it.
    pub session: Option<SessionId>,
    /// Whose it is, where that counts.
    pub tenant: Option<SessionId>,
    pub place: Place,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    /// When it was first granted where it is.
    pub first: Option<u64>,
    /// When it entered its queue.
    pub at: u64,
    /// How long it lives where it comes to next, by its own word. Dead letters have forgotten it.
    pub ttl_ms: Option<u64>,
    /// When it expires by its own word.
    pub own_expiry: Option<u64>,
    /// Its queue had a time to live when it came: the moment is known exactly.
    pub timed: bool,
    pub dead: Option<Dead>,
    /// Whence it came, so that it does not go in circles.
    pub way: Way,
    /// Another routing key than it was sent with.
    pub key: Option<String>,
    /// Another id than it was sent with.
    pub message_id: Option<String>,
    /// Nobody may be given it before this is durable.
    pub rests: Pos,
    /// Where the record ends that brought it into its queue.
    pub entered: Pos,
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
    /// Where it died so far.
    pub way: Way,
    /// Another routing key from now on.
    pub key: Option<String>,
    /// What is left of its time where it goes, if that counts from before it died.
    pub ttl_ms: Option<u64>,
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
    /// Tells it from others that had its name.
    pub born: Pos,
    pub paused: bool,
    pub next_seq: u64,
    pub msgs: BTreeMap<u64, Msg>,
    /// Whether any of its messages has had a tenant.
    pub had_tenants: bool,
    pub sessions: BTreeMap<SessionId, Session>,
    pub totals: Totals,
    /// When the last message came while there was no time to live.
    pub untimed_at: u64,
    /// Which messages it has seen, by key and, if that counts, session.
    pub seen: BTreeMap<(Vec<u8>, Option<SessionId>), Known>,
    /// After a crash, or for want of room, it may hold more than it should, until something comes in.
    pub loose: bool,
    /// The last change that an answer about the queue must wait for.
    pub eager: Pos,
}

/// A message that a queue has seen.
#[derive(Clone, Debug)]
pub struct Known {
    pub letter: Rc<Letter>,
    pub seq: u64,
    pub at: u64,
    /// That it is a duplicate rests on this.
    pub rests: Pos,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub queues: BTreeMap<QueueName, Queue>,
    pub topics: BTreeMap<TopicName, Topic>,
    /// What topics have not routed yet, by the names that only the engine can give.
    pub inboxes: BTreeMap<QueueName, Queue>,
    pub leases: BTreeMap<LeaseToken, Lease>,
}

/// How a lease ended that did not settle its message for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Released,
    Abandoned,
    Lost,
}

/// How a message was gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Completed,
    Taken,
    Cancelled,
    Purged,
    /// Once too often, and there is no place for dead letters.
    Dropped(Cause),
    Replaced,
    Expired,
    Overflowed,
    Unrouted,
}

/// Why a message went from one place to another.
#[derive(Clone, Debug)]
pub enum Why {
    Due,
    Dead(Dead),
    /// By an operator; perhaps under another id from then on.
    Redriven(Option<String>),
    /// Its queue forwards: what it remembers of its way since.
    Forwarded(Way),
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
        at: u64,
    },
    Delete {
        name: QueueName,
    },
    Purge {
        queue: QueueName,
        /// Also what is out.
        leased: bool,
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Put {
        queue: QueueName,
        msg: Box<Msg>,
        /// The topic that it came through.
        via: Option<Via>,
    },
    Gone {
        queue: QueueName,
        seq: u64,
        end: End,
    },
    Grant {
        queue: QueueName,
        seq: u64,
        token: LeaseToken,
        lease: Box<Lease>,
        at: u64,
    },
    /// Every lease lasts this much longer.
    ClockStep {
        by_ms: u64,
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
        at: u64,
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
    DeclareTopic {
        name: TopicName,
        spec: TopicSpec,
    },
    UpdateTopic {
        name: TopicName,
        spec: TopicSpec,
        at: u64,
    },
    DeleteTopic {
        name: TopicName,
    },
    Bind {
        topic: TopicName,
        queue: QueueName,
        rule: Box<Rule>,
    },
    Unbind {
        topic: TopicName,
        queue: QueueName,
        rule: String,
    },
    /// A message goes from a topic's inbox to everyone who takes it as it is.
    Route {
        topic: TopicName,
        seq: u64,
        to: Vec<(QueueName, u64)>,
        at: u64,
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
        Self {
            spec,
            owner,
            born: eager,
            paused: false,
            next_seq: 1,
            msgs,
            had_tenants: false,
            sessions,
            totals,
            untimed_at: 0,
            seen: BTreeMap::new(),
            loose: false,
            eager,
        }
    }

    /// Whether anything is given out.
    pub fn delivers(&self) -> bool {
        !self.paused && self.spec.status.receives()
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

    /// When a message expires: not before the first, and at the second at the latest. Of messages that came while
    /// there was no time to live the moment is kept only roughly.
    pub fn expiry(&self, msg: &Msg) -> Option<(u64, u64)> {
        if matches!(msg.place, Place::Scheduled { .. }) {
            return None;
        }
        let latest = if msg.timed { msg.at } else { msg.at.max(self.untimed_at) };
        let by_queue = self.spec.ttl_ms.map(|ttl_ms| (msg.at + ttl_ms, latest + ttl_ms));
        match (by_queue, msg.own_expiry) {
            (Some((from, to)), Some(own)) => Some((from.min(own), to.min(own))),
            (by_queue, own) => by_queue.or(own.map(|own| (own, own))),
        }
    }

    /// Its time to live is over, beyond doubt.
    pub fn expired(&self, msg: &Msg, now: u64) -> bool {
        self.expiry(msg).is_some_and(|(_, to)| to <= now)
    }

    /// Its time to live may be over.
    pub fn may_expire(&self, msg: &Msg, now: u64) -> bool {
        self.expiry(msg).is_some_and(|(from, _)| from <= now)
    }

    /// Something whose time is over is still there: it became so in this moment.
    pub fn overdue(&self, now: u64) -> bool {
        let out = |msg: &Msg| matches!(msg.place, Place::Out(_));
        self.msgs.values().any(|msg| !out(msg) && self.expired(msg, now))
    }

    /// As far as the queue cares.
    pub fn priority(&self, msg: &Msg) -> u8 {
        msg.sent.message.priority.min(self.spec.priority_max)
    }

    /// Ready messages and their bytes.
    pub fn filled(&self, now: u64) -> (u64, u64) {
        let ready = self.msgs.values().filter(|msg| msg.ready(now));
        ready.fold((0, self.state_bytes()), |(n, bytes), msg| (n + 1, bytes + msg.sent.size()))
    }

    /// Bytes of the states of all sessions.
    pub fn state_bytes(&self) -> u64 {
        self.sessions.values().filter_map(|s| s.state.as_ref()).map(|s| s.len() as u64).sum()
    }

    /// Older messages make room when it is full.
    pub fn drops(&self) -> bool {
        self.spec.overflow != Overflow::Reject
    }

    /// The messages that must go so that it keeps its limits: the oldest of the lowest priority first.
    pub fn in_excess(&self, now: u64) -> Vec<u64> {
        if self.spec.length_max.is_none() && self.spec.bytes_max.is_none() {
            return Vec::new();
        }
        let mut ready: Vec<_> = self.msgs.iter().filter(|(_, msg)| msg.ready(now)).collect();
        ready.sort_by_key(|(seq, msg)| (self.priority(msg), **seq));
        let (mut count, mut bytes) = self.filled(now);
        let mut gone = Vec::new();
        for (seq, msg) in ready {
            let over = |have: u64, max: Option<u64>| max.is_some_and(|max| have > max);
            if !over(count, self.spec.length_max) && !over(bytes, self.spec.bytes_max) {
                break;
            }
            gone.push(*seq);
            (count, bytes) = (count - 1, bytes - msg.sent.size());
        }
        gone
    }

    /// What the queue knows of a message that is sent to it.
    pub fn known(&self, letter: &Letter, now: u64) -> Option<Known> {
        let key = letter.key(self.spec.dedup?.content)?;
        self.known_by(key, letter, now)
    }

    /// The same, by a key that somebody else made.
    pub fn known_by(&self, key: Vec<u8>, letter: &Letter, now: u64) -> Option<Known> {
        let dedup = self.spec.dedup?;
        let session = letter.message.session.clone().filter(|_| dedup.per_session);
        let known = self.seen.get(&(key, session))?;
        (now < known.at + dedup.window_ms).then(|| known.clone())
    }

    /// The next of a session for its holder: every earlier one is out to it or set aside, or its time is over.
    pub fn next_of(&self, session: &SessionId, now: u64) -> Option<u64> {
        for (seq, msg) in self.line(session) {
            if self.expired(msg, now) {
                continue;
            }
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

    /// Session ids are tenants: there are neither sessions nor priorities, and messages neither rest nor pass.
    pub fn has_tenants(&self) -> bool {
        let plain = self.spec.fair && !self.sessioned() && self.spec.priority_max == 0;
        plain && self.owner.is_none() && self.spec.forward_to.is_none()
    }

    /// How many messages of the tenants that are noisy are out: thirty or more, and more than a tenth of all.
    pub fn noisy(&self) -> BTreeMap<&SessionId, u64> {
        let mut out = BTreeMap::new();
        let mut all = 0;
        if !self.had_tenants {
            return out;
        }
        for msg in self.msgs.values().filter(|msg| matches!(msg.place, Place::Out(_))) {
            all += 1;
            if let Some(tenant) = &msg.tenant {
                *out.entry(tenant).or_default() += 1;
            }
        }
        out.retain(|_, out| *out >= 30 && *out * 10 > all);
        out
    }

    /// Of a queue without sessions: the oldest of the highest priority; those of noisy tenants come last, and first of
    /// whom the fewest are out.
    pub fn first_ready(&self, now: u64) -> Option<u64> {
        let mut ready =
            self.msgs.iter().filter(|(_, msg)| msg.ready(now) && !self.expired(msg, now));
        if self.spec.priority_max == 0 && !self.had_tenants {
            return ready.next().map(|(&seq, _)| seq);
        }
        let noisy = self.noisy();
        let noise = |msg: &Msg| msg.tenant.as_ref().and_then(|tenant| noisy.get(tenant));
        let turn = |seq: &u64, msg: &Msg| (255 - self.priority(msg), noise(msg).copied(), *seq);
        ready.min_by_key(|(seq, msg)| turn(seq, msg)).map(|(&seq, _)| seq)
    }

    /// Whether a message passes an older one.
    pub fn passes(&self, seq: u64, now: u64) -> bool {
        let mut older = self.msgs.range(..seq);
        self.has_tenants() && older.any(|(_, msg)| msg.ready(now) && !self.expired(msg, now))
    }
}

impl State {
    pub fn queue(&self, name: &QueueName) -> &Queue {
        let queue = self.queues.get(name).or_else(|| self.inboxes.get(name));
        queue.unwrap_or_else(|| panic!("the model has no queue {name}"))
    }

    fn queue_mut(&mut self, name: &QueueName) -> &mut Queue {
        let queue = self.queues.get_mut(name).or_else(|| self.inboxes.get_mut(name));
        queue.unwrap_or_else(|| panic!("the model has no queue {name}"))
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
}
