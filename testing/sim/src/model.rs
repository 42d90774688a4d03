//! The reference model: the contents of the queues, written from docs/concepts/model.md and as simply as possible.
//!
//! The state is maps of maps. Every change is an [`Ev`] with the journal position of its group. After a crash, the
//! events up to the cut are applied again, and the engine must be in the resulting state. `decide` contains which
//! changes are allowed when, and `apply` what they do. Nothing here depends on how the engine works.

mod apply;
mod topic;

pub use topic::{ForwardingPath, Topic, Via};

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::journal::Pos;
use malote_engine::{EncodedMessage, Totals};
use malote_model::{
    Changes, DeadReason, Durability, LeaseToken, Message, Overflow, Properties, QueueName,
    QueueSpec, Rule, SessionFrom, SessionId, TopicName, TopicSpec, Value, When,
};

/// A message as a client sends it.
#[derive(Clone)]
pub struct SentMessage {
    pub message: Message,
    /// Its id was generated, so the sender does not know it.
    pub id_given: bool,
    pub outgoing: EncodedMessage,
}

/// Omits the payload.
impl fmt::Debug for SentMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.message;
        let session = m.session.as_ref().map_or("-", |session| session.as_str());
        let id = m.message_id.as_deref().unwrap_or_default();
        let (key, ttl_ms, priority) = (&m.dedup_id, m.ttl_ms, m.priority);
        write!(f, "{id} {session} {:?} key {key:?} ttl {ttl_ms:?} priority {priority}", m.when)
    }
}

impl SentMessage {
    pub fn new(mut message: Message, id_given: bool) -> Self {
        // By default, `origin_id` is the message's own id.
        message.origin_id = message.origin_id.or_else(|| message.message_id.clone());
        let outgoing = EncodedMessage::new(&message, id_given)
            .unwrap_or_else(|refusal| panic!("invalid message: {refusal}"));
        Self { message, id_given, outgoing }
    }

    pub fn size(&self) -> u64 {
        self.outgoing.size() as u64
    }

    /// Its de-duplication key.
    pub fn key(&self, content: bool) -> Option<Vec<u8>> {
        let own = self.message.message_id.as_ref().filter(|_| !self.id_given);
        match self.message.dedup_id.as_ref().or(own) {
            Some(key) => Some(key.as_bytes().to_vec()),
            None => content.then(|| self.message.body.bytes.to_vec()),
        }
    }
}

/// The state of a message in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// In order; delivered no earlier than `due`.
    InOrder {
        due: u64,
    },
    /// Skipped by its session until `due`; then in order again.
    Parked {
        due: u64,
    },
    /// Appended at `due`.
    Scheduled {
        due: u64,
    },
    Leased(LeaseToken),
    /// Only accessible by its sequence number.
    Deferred,
}

#[derive(Clone, Debug)]
pub struct Msg {
    /// The message as it was sent; never changes.
    pub sent: Rc<SentMessage>,
    /// The properties with all changes applied.
    pub properties: Properties,
    /// The session, if the queues on its path use it.
    pub session: Option<SessionId>,
    /// The session id that a reader sees: the sender's, or the one that a queue took from a field.
    pub read_session: Option<SessionId>,
    /// The tenant, in fair queues.
    pub tenant: Option<SessionId>,
    pub availability: Availability,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    /// When it was first delivered in its current queue.
    pub first: Option<u64>,
    /// When it entered its queue.
    pub at: u64,
    /// Its own time to live for the next queue. Dead letters have none.
    pub ttl_ms: Option<u64>,
    /// When it expires because of its own time to live.
    pub own_expiry: Option<u64>,
    /// Its queue had a time to live when it arrived, so its arrival is known exactly.
    pub timed: bool,
    pub dead: Option<Dead>,
    /// Its path, to prevent cycles.
    pub path: ForwardingPath,
    /// The routing key, if it changed.
    pub key: Option<String>,
    /// The message id, if it changed.
    pub message_id: Option<String>,
    /// It may not be delivered before this position is durable.
    pub rests: Pos,
    /// End of the record that stored it in its queue.
    pub entered: Pos,
}

/// Why a message was dead-lettered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    pub reason: DeadReason,
    pub from: QueueName,
    pub from_seq: u64,
    pub receives: u32,
    pub failed: u32,
    /// How its last lease ended.
    pub cause: Cause,
    /// The queues in which it was dead-lettered.
    pub path: ForwardingPath,
    /// The new routing key, if it changes.
    pub key: Option<String>,
    /// The remaining time to live, if the dead letter keeps its age.
    pub ttl_ms: Option<u64>,
}

/// A lease of a message, or the hold of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub queue: QueueName,
    pub what: What,
    /// For messages of a held session, the hold's time counts instead.
    pub until: u64,
    /// Ends with its connection.
    pub bound: bool,
    /// Its connection; unknown after a restart, which ends bound leases anyway.
    pub connection: Option<u64>,
    pub hold: Option<LeaseToken>,
    pub deferred: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Message(u64),
    Session(SessionId),
}

/// A session with a hold or a state. Messages contain their session id themselves.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub hold: Option<LeaseToken>,
    pub state: Option<Bytes>,
    /// Nothing of it may be delivered before this position is durable.
    pub rests: Pos,
}

/// A queue or a dead-letter set.
#[derive(Clone, Debug)]
pub struct Queue {
    pub spec: QueueSpec,
    pub owner: Option<QueueName>,
    /// Distinguishes it from earlier queues of the same name.
    pub born: Pos,
    pub paused: bool,
    pub next_seq: u64,
    pub msgs: BTreeMap<u64, Msg>,
    /// Whether any of its messages had a tenant.
    pub had_tenants: bool,
    pub sessions: BTreeMap<SessionId, Session>,
    pub totals: Totals,
    /// When the last message arrived while there was no time to live.
    pub untimed_at: u64,
    /// De-duplication keys, with the session if the queue de-duplicates per session.
    pub seen: BTreeMap<(Vec<u8>, Option<SessionId>), Known>,
    /// After a crash or while the disk is full, it may exceed its limits until the next message.
    pub loose: bool,
    /// The last change that an answer about the queue must wait for.
    pub eager: Pos,
}

/// A message whose key a queue remembers.
#[derive(Clone, Debug)]
pub struct Known {
    pub sent_message: Rc<SentMessage>,
    pub seq: u64,
    pub at: u64,
    /// The position that a duplicate's answer must wait for.
    pub rests: Pos,
}

/// The complete state.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub queues: BTreeMap<QueueName, Queue>,
    pub topics: BTreeMap<TopicName, Topic>,
    /// Messages that topics have not routed yet, by the internal names of the inboxes.
    pub inboxes: BTreeMap<QueueName, Queue>,
    pub leases: BTreeMap<LeaseToken, Lease>,
}

/// How a lease ended without a final settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Released,
    Abandoned,
    Lost,
}

/// How a message was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Completed,
    Taken,
    Cancelled,
    Purged,
    /// Exceeded a limit, and the queue drops dead letters.
    Dropped(Cause),
    Replaced,
    Expired,
    Overflowed,
    Unrouted,
}

/// Why a message was moved.
#[derive(Clone, Debug)]
pub enum Why {
    Due,
    Dead(Dead),
    /// By an operator, perhaps with a new id.
    Redriven(Option<String>),
    /// By forwarding, with its new path.
    Forwarded(ForwardingPath),
}

/// One change of the state.
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
        /// Also leased messages.
        leased: bool,
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Put {
        queue: QueueName,
        msg: Box<Msg>,
        /// The topic that it was published to.
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
    /// Extends all leases by this time.
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
    /// A message is routed from a topic's inbox to all queues that get it unchanged.
    Route {
        topic: TopicName,
        seq: u64,
        to: Vec<(QueueName, u64)>,
        at: u64,
    },
    /// The broker restarted.
    Boot,
}

impl Cause {
    fn count(self, totals: &mut Totals) {
        totals.abandoned += u64::from(self == Self::Abandoned);
        totals.lost += u64::from(self == Self::Lost);
    }
}

impl Msg {
    /// The message as a reader sees it now.
    pub fn as_read(&self) -> Message {
        let mut message = self.sent.message.clone();
        message.properties = self.properties.clone();
        message.session = self.read_session.clone();
        message.key = self.key.clone().or(message.key);
        message.message_id = self.message_id.clone().or(message.message_id);
        message.when = When::Now;
        message
    }

    pub fn ready(&self, now: u64) -> bool {
        matches!(self.availability, Availability::InOrder { due } | Availability::Parked { due } if due <= now)
    }

    /// Does not block later messages of its session.
    pub fn aside(&self, now: u64) -> bool {
        match self.availability {
            Availability::Parked { due } => due > now,
            Availability::Scheduled { .. } | Availability::Deferred => true,
            Availability::InOrder { .. } | Availability::Leased(_) => false,
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

    /// Whether messages are delivered.
    pub fn delivers(&self) -> bool {
        !self.paused && self.spec.status.receives()
    }

    pub fn sessioned(&self) -> bool {
        self.spec.sessions.required()
    }

    pub fn durable(&self) -> bool {
        self.spec.durability == Durability::Fsync
    }

    /// All messages of a session, in order.
    pub fn line<'a>(&'a self, session: &'a SessionId) -> impl Iterator<Item = (u64, &'a Msg)> {
        let of = move |msg: &Msg| msg.session.as_ref() == Some(session);
        self.msgs.iter().filter(move |(_, msg)| of(msg)).map(|(&seq, msg)| (seq, msg))
    }

    /// The leased messages of a session.
    pub fn out(&self, session: &SessionId) -> Vec<(u64, LeaseToken)> {
        let out = self.line(session).filter_map(|(seq, msg)| match msg.availability {
            Availability::Leased(token) => Some((seq, token)),
            _ => None,
        });
        out.collect()
    }

    pub fn hold(&self, session: &SessionId) -> Option<LeaseToken> {
        self.sessions.get(session).and_then(|s| s.hold)
    }

    /// The earliest and the latest time at which a message expires. They differ for messages that arrived while there
    /// was no time to live, because their arrival is known only approximately.
    pub fn expiry(&self, msg: &Msg) -> Option<(u64, u64)> {
        if matches!(msg.availability, Availability::Scheduled { .. }) {
            return None;
        }
        let latest = if msg.timed { msg.at } else { msg.at.max(self.untimed_at) };
        let by_queue = self.spec.ttl_ms.map(|ttl_ms| (msg.at + ttl_ms, latest + ttl_ms));
        match (by_queue, msg.own_expiry) {
            (Some((from, to)), Some(own)) => Some((from.min(own), to.min(own))),
            (by_queue, own) => by_queue.or(own.map(|own| (own, own))),
        }
    }

    /// Has certainly expired.
    pub fn expired(&self, msg: &Msg, now: u64) -> bool {
        self.expiry(msg).is_some_and(|(_, to)| to <= now)
    }

    /// May have expired.
    pub fn may_expire(&self, msg: &Msg, now: u64) -> bool {
        self.expiry(msg).is_some_and(|(from, _)| from <= now)
    }

    /// Contains an expired message that is not removed yet, because it expired just now.
    pub fn overdue(&self, now: u64) -> bool {
        let out = |msg: &Msg| matches!(msg.availability, Availability::Leased(_));
        self.msgs.values().any(|msg| !out(msg) && self.expired(msg, now))
    }

    /// The message's priority, limited by the queue's maximum.
    pub fn priority(&self, msg: &Msg) -> u8 {
        msg.sent.message.priority.min(self.spec.priority_max)
    }

    /// Number of ready messages, and their bytes together with session states.
    pub fn filled(&self, now: u64) -> (u64, u64) {
        let ready = self.msgs.values().filter(|msg| msg.ready(now));
        ready.fold((0, self.state_bytes()), |(n, bytes), msg| (n + 1, bytes + msg.sent.size()))
    }

    /// Bytes of all session states.
    pub fn state_bytes(&self) -> u64 {
        self.sessions.values().filter_map(|s| s.state.as_ref()).map(|s| s.len() as u64).sum()
    }

    /// Drops old messages when it is full.
    pub fn drops(&self) -> bool {
        matches!(self.spec.overflow, Overflow::DropOldest | Overflow::DeadLetterOldest)
    }

    /// The messages to remove so that the queue is within its limits: the oldest of the lowest priority first.
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

    /// The session id of a new message: the sender's, or the field that the queue takes it from.
    pub fn session_for(&self, message: &Message) -> Option<SessionId> {
        let text = match &self.spec.session_from {
            None => return message.session.clone(),
            Some(SessionFrom::Key) => message.key.clone(),
            Some(SessionFrom::CorrelationId) => message.correlation_id.clone(),
            Some(SessionFrom::Property(name)) => match message.properties.get(name) {
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::I64(number)) => Some(number.to_string()),
                _ => None,
            },
        };
        text.and_then(|text| SessionId::new(&text).ok())
    }

    /// The remembered message, if this one is a duplicate.
    pub fn known(&self, sent_message: &SentMessage, now: u64) -> Option<Known> {
        let key = sent_message.key(self.spec.dedup?.content)?;
        self.known_by(key, sent_message, now)
    }

    /// The same with a given key.
    pub fn known_by(&self, key: Vec<u8>, sent_message: &SentMessage, now: u64) -> Option<Known> {
        let dedup = self.spec.dedup?;
        let session = self.session_for(&sent_message.message).filter(|_| dedup.per_session);
        let known = self.seen.get(&(key, session))?;
        (now < known.at + dedup.window_ms).then(|| known.clone())
    }

    /// The next message of a session for its holder. All earlier ones are leased, set aside or expired.
    pub fn next_of(&self, session: &SessionId, now: u64) -> Option<u64> {
        for (seq, msg) in self.line(session) {
            if self.expired(msg, now) {
                continue;
            }
            if msg.ready(now) {
                return Some(seq);
            }
            if !msg.aside(now) && !matches!(msg.availability, Availability::Leased(_)) {
                return None;
            }
        }
        None
    }

    /// A session with a deliverable message that is neither held nor leased.
    pub fn free(&self, session: &SessionId, now: u64) -> bool {
        self.hold(session).is_none()
            && self.out(session).is_empty()
            && self.next_of(session, now).is_some()
    }

    /// All sessions with messages.
    pub fn live_sessions(&self) -> Vec<SessionId> {
        let mut ids: Vec<_> = self.msgs.values().filter_map(|msg| msg.session.clone()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Session ids are tenants: the queue is fair and has no sessions, priorities or forwarding.
    pub fn has_tenants(&self) -> bool {
        let plain = self.spec.fair && !self.sessioned() && self.spec.priority_max == 0;
        plain && self.owner.is_none() && self.spec.forward_to.is_none()
    }

    /// Number of leased messages of each noisy tenant. A tenant is noisy with thirty or more, and over a tenth of
    /// all.
    pub fn noisy(&self) -> BTreeMap<&SessionId, u64> {
        let mut out = BTreeMap::new();
        let mut all = 0;
        if !self.had_tenants {
            return out;
        }
        for msg in
            self.msgs.values().filter(|msg| matches!(msg.availability, Availability::Leased(_)))
        {
            all += 1;
            if let Some(tenant) = &msg.tenant {
                *out.entry(tenant).or_default() += 1;
            }
        }
        out.retain(|_, out| *out >= 30 && *out * 10 > all);
        out
    }

    /// In a queue without sessions, the next message: the oldest of the highest priority. Messages of noisy tenants
    /// come last, ordered by their number of leased messages.
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

    /// Whether a message overtakes an older one.
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

    /// A lease that is valid now.
    pub fn lease(&self, token: LeaseToken, now: u64) -> Option<&Lease> {
        self.leases.get(&token).filter(|lease| now < self.until(lease))
    }

    /// When a lease ends: in a held session, with the hold.
    pub fn until(&self, lease: &Lease) -> u64 {
        match lease.hold {
            Some(hold) => self.leases.get(&hold).map_or(0, |hold| hold.until),
            None => lease.until,
        }
    }

    /// The message of a lease that is valid now.
    pub fn leased(&self, token: LeaseToken, now: u64) -> Option<(QueueName, u64)> {
        let lease = self.lease(token, now)?;
        match lease.what {
            What::Message(seq) => Some((lease.queue.clone(), seq)),
            What::Session(_) => None,
        }
    }

    /// The session of a hold that is valid now.
    pub fn held(&self, token: LeaseToken, now: u64) -> Option<(QueueName, SessionId)> {
        let lease = self.lease(token, now)?;
        match &lease.what {
            What::Session(session) => Some((lease.queue.clone(), session.clone())),
            What::Message(_) => None,
        }
    }
}
