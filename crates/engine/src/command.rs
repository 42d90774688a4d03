//! What can be asked of the engine, and what it answers. Plain data: the core turns a command into events.

#![allow(missing_docs)] // the fields of a command are named for what they are

use std::collections::BTreeMap;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, Rule, Seq, SessionId, Settlement,
    Timestamp, TopicName, TopicSpec,
};

use smallvec::SmallVec;

use crate::codec::Outgoing;
use crate::core::Relocation;
use crate::event::{Cause, QueueId};
use crate::journal::{Pin, Pos};

/// One thing asked. All its events stand in one journal group: it happens wholly or not at all.
#[derive(Debug)]
pub enum Command {
    /// Make the queue, or find it just as asked. An exclusive one belongs to the connection.
    Declare { name: QueueName, spec: Box<QueueSpec>, connection: Option<ConnectionId> },
    /// Replace the specification.
    Update { name: QueueName, spec: Box<QueueSpec> },
    /// Remove the queue, its dead letters and all they hold.
    Delete { name: QueueName },
    /// Drop every message that is not out to a receiver; with `leased`, those as well: their leases are over, and what
    /// is sent again is new.
    Purge { queue: QueueName, leased: bool },
    /// Drop those of these messages that are ready, each of its session.
    PurgeThese { queue: QueueName, items: Vec<(Seq, Option<SessionId>)> },
    /// Complete messages that were received no earlier than said, whose leases are over and that nobody has. Refused in
    /// queues with sessions, where the lease is what keeps the order.
    CompleteLate { queue: QueueName, items: Vec<(Seq, Timestamp)> },
    /// Stop or resume delivery; sending and settling go on.
    Pause { queue: QueueName, paused: bool },
    /// Send all or none, to queues and topics.
    Send { items: Vec<(Address, Outgoing)> },
    /// Several such sends, one after the other, each all or none on its own.
    SendEach { sends: Vec<Items> },
    /// Do all of it or nothing.
    Commit { work: Work },
    /// Take back scheduled messages.
    Cancel { from: Address, seqs: Vec<Seq> },
    /// Start to consume.
    Attach(Attach),
    /// Add to a consumer's credit, or replace it. The answer counts what it had.
    Credit { consumer: ConsumerId, credit: u32, replace: bool },
    /// End a consumer. What is out to it stays out.
    Detach { consumer: ConsumerId },
    /// The connection is gone: its consumers end, its connection-bound leases and holds come back.
    /// `clean` tells a close from a loss: only a loss counts as a failed delivery.
    Disconnect { connection: ConnectionId, clean: bool },
    /// Deferred messages by their sequences.
    ReceiveDeferred(ReceiveDeferred),
    /// What is inside, with tokens of this queue only: a caller who may use one queue has no business with the leases
    /// of another.
    Within { queue: QueueName, command: Box<Command> },
    /// End leases, each on its own outcome; session state, if any, changes with them or not at all.
    Settle { leases: Vec<LeaseToken>, settlement: Settlement, state: Option<StateChange> },
    /// These messages cannot be read, each for a reason: they go to the dead letters.
    Damaged { leases: Vec<(LeaseToken, String)> },
    /// Prolong leases or holds from now.
    Renew { leases: Vec<LeaseToken>, lock_ms: Option<u64> },
    /// Hold a session: by name, or the next that is ready.
    Accept(Accept),
    /// Let go of a held session.
    ReleaseSession { hold: LeaseToken },
    /// Set or clear the state of a held session.
    SetState { change: StateChange },
    /// Where the state of a session is stored. Without a hold: an operator looks.
    GetState { queue: QueueName, session: SessionId, hold: Option<LeaseToken> },
    /// An operator takes a session from its holder.
    BreakSession { queue: QueueName, session: SessionId },
    /// Move dead letters, or any messages not out, to another queue; each keeps its origin.
    Move { from: QueueName, items: Vec<Moving>, why: MoveWhy },
    /// Remove one message and send another in its stead, atomically.
    Replace { from: QueueName, seq: Seq, to: QueueName, message: Outgoing },
    /// Make a topic, or find it just as asked.
    DeclareTopic { name: TopicName, spec: Box<TopicSpec> },
    /// Replace the properties of a topic, but for its kind.
    UpdateTopic { name: TopicName, spec: Box<TopicSpec> },
    /// Remove a topic and its subscriptions. Queues that were only bound stay.
    DeleteTopic { name: TopicName },
    /// Replace the labels of a topic.
    LabelTopic { name: TopicName, labels: BTreeMap<String, String> },
    /// Make a subscription: the queue of that name and its rules. Without any it takes what its topic's kind suggests.
    Subscribe { name: QueueName, spec: Box<QueueSpec>, rules: Option<Vec<Rule>> },
    /// Let a queue have copies by a rule.
    Bind { topic: TopicName, queue: QueueName, rule: Box<Rule> },
    /// Put a rule in the place of the one of that name.
    Rebind { topic: TopicName, queue: QueueName, rule: Box<Rule> },
    /// Take a rule away.
    Unbind { topic: TopicName, queue: QueueName, rule: String },
    /// Messages of a topic's inbox that were read: the answer to `To::Route`.
    Route { topic: QueueId, items: Vec<ToRoute> },
    /// Facts about one topic.
    DescribeTopic { name: TopicName },
    /// Facts about topics by name, from after one; at most [`malote_model::limits::LIST_MAX`] of them.
    ListTopics { after: Option<TopicName>, max: usize },
    /// Rules of a topic, or of one queue on it, by queue and name, from after one.
    Rules {
        topic: TopicName,
        queue: Option<QueueName>,
        after: Option<(QueueName, String)>,
        max: usize,
    },
    /// Look without touching.
    Peek(Peek),
    /// Facts about one queue.
    Describe { queue: QueueName },
    /// Facts about queues by name, from after one; at most [`malote_model::limits::LIST_MAX`] of them.
    List { after: Option<QueueName>, max: usize },
    /// The queue or topic that a name means to protocols that ignore case.
    Resolve { name: QueueName },
    /// Sessions of a queue, in no order that means anything, from where the last look ended.
    Sessions { queue: QueueName, from: u32, max: usize },
    /// One session of a queue.
    Session { queue: QueueName, session: SessionId },
    /// The engine to itself: journal copies of live records, so that their segments can be used again.
    Relocate { items: Vec<Relocation> },
    /// The engine to itself: about how many bytes of the journal are live.
    LiveBytes,
    /// The engine to itself: where messages under these leases stand now.
    Locate { leases: Vec<LeaseToken> },
    /// The engine to itself: note in the journal what is durable, so that another snapshot can be made.
    Mark,
    /// Saves all state as a snapshot holds it. The core stands still meanwhile: only for when the journal cannot be
    /// replayed.
    Save,
}

impl Command {
    /// Whether its answer may wait for messages that come later.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Attach(_) | Self::Accept(_))
    }

    /// Bytes that it holds beside its fixed size, roughly. Those of sends are counted by the sender.
    pub(crate) fn held_bytes(&self) -> usize {
        let state_bytes = |change: &StateChange| change.state.as_ref().map_or(0, Bytes::len);
        match self {
            Self::Within { command, .. } => command.held_bytes(),
            Self::Settle { leases, settlement, state } => {
                let changes = match settlement {
                    Settlement::Abandon { changes, .. }
                    | Settlement::Defer { changes }
                    | Settlement::DeadLetter { changes, .. } => changes.size(),
                    Settlement::Complete | Settlement::Release { .. } => 0,
                };
                16 * leases.len() + changes + state.as_ref().map_or(0, state_bytes)
            }
            Self::SetState { change } => state_bytes(change),
            Self::Commit { work } => {
                let states: usize = work.states.iter().map(|(_, change)| state_bytes(change)).sum();
                states + 64 * work.settles.len()
            }
            Self::Renew { leases, .. } | Self::Locate { leases } => 16 * leases.len(),
            Self::Cancel { seqs, .. } | Self::ReceiveDeferred(ReceiveDeferred { seqs, .. }) => {
                8 * seqs.len()
            }
            Self::PurgeThese { items, .. } => 64 * items.len(),
            Self::CompleteLate { items, .. } => 16 * items.len(),
            Self::Move { items, .. } => 128 * items.len(),
            Self::Replace { message, .. } => message.size(),
            _ => 0,
        }
    }
}

impl Reply {
    /// Bytes that it holds beside its fixed size, roughly, if they may be many.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Queues(all) => 1024 * all.len(),
            Self::Topics(all) => 512 * all.len(),
            Self::Rules(all) => 512 * all.len(),
            Self::Peeked { items, .. } => size_of::<Peeked>() * items.len(),
            Self::Sessions { sessions, .. } => 128 * sessions.len(),
            _ => 0,
        }
    }
}

/// What a transaction does when it is committed.
#[derive(Debug, Default)]
pub struct Work {
    /// To queues and topics.
    pub sends: Vec<(Address, Outgoing)>,
    /// Leases to end, of which queue, and how. One that is over refuses the whole transaction.
    pub settles: Vec<(Option<QueueName>, LeaseToken, Settlement)>,
    /// States of held sessions, of which queue.
    pub states: Vec<(Option<QueueName>, StateChange)>,
}

/// Messages of one send, and where each goes: most often there is one.
pub type Items = SmallVec<[(Address, Outgoing); 1]>;

/// What became of them.
pub type Receipts = SmallVec<[Receipt; 1]>;

/// What became of a message sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its place in the queue; of a topic, its place among the scheduled, or 0.
    pub seq: Seq,
    /// It was sent before, and that is its place.
    pub duplicate: bool,
    /// The id of the first one, where that is kept: a UUID that is no part of what it is known by.
    pub first_id: Option<u128>,
    /// How many copies were made: none if a topic knows nobody who wants it.
    pub copies: u32,
}

impl Receipt {
    pub(crate) fn new(seq: Seq, copies: u32) -> Self {
        Self { seq, duplicate: false, first_id: None, copies }
    }
}

/// A message of a topic's inbox on its way to be routed.
#[derive(Clone, Debug)]
pub struct ToRoute {
    /// Its place there.
    pub seq: u64,
    /// Where its newest record stands.
    pub pos: Pos,
    /// What was read there; none if that cannot be read.
    pub message: Option<Box<Message>>,
}

/// A rule and the queue that it leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Which queue.
    pub queue: QueueName,
    /// Which messages.
    pub rule: Rule,
}

/// What a topic is and does.
#[derive(Clone, Debug)]
pub struct TopicFacts {
    /// Its name.
    pub name: TopicName,
    /// As declared.
    pub spec: TopicSpec,
    /// When it was declared.
    pub created_at: Timestamp,
    /// Queues with rules.
    pub queues: u64,
    /// Rules of all of them.
    pub rules: u64,
    /// Those of them that are correlations.
    pub correlations: u64,
    /// Messages to be routed later.
    pub scheduled: u64,
    /// Messages that are about to be routed.
    pub waiting: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Names and texts that front ends keep with the topic and the engine gives no meaning.
    pub labels: BTreeMap<String, String>,
    /// Since it was declared.
    pub totals: TopicTotals,
}

/// Counts since the topic was declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicTotals {
    /// Copies made.
    pub copies: u64,
}

/// A message that is to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// Which.
    pub seq: Seq,
    /// Where to.
    pub to: QueueName,
    /// Under this id from then on: whoever receives it takes it for a new one.
    pub message_id: Option<String>,
}

impl Moving {
    /// A message that stays what it is.
    pub fn as_it_is(seq: Seq, to: QueueName) -> Self {
        Self { seq, to, message_id: None }
    }
}

/// Why messages move between queues by an operator's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWhy {
    /// Back to where they came from: counters start anew.
    Redrive,
}

/// A connection that consumers, leases and holds may be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A consumer, named by whoever attaches it; unique while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// A consumer and what it wants.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Chosen by the caller.
    pub consumer: ConsumerId,
    /// Ends with the connection, and so do its leases.
    pub connection: Option<ConnectionId>,
    /// Its leases do not: they are free-standing, as those of a consumer without a connection always are.
    pub free_standing: bool,
    /// From where.
    pub queue: QueueName,
    /// Which messages.
    pub wants: Wants,
    /// How many it takes now.
    pub credit: u32,
    /// Leased, or removed as they are delivered.
    pub take: bool,
    /// Lock of its leases; the queue's if absent.
    pub lock_ms: Option<u64>,
    /// A long poll: the first batch, or this moment, ends the consumer.
    pub once_until: Option<Timestamp>,
}

/// Receives deferred messages by their sequence numbers.
#[derive(Clone, Debug)]
pub struct ReceiveDeferred {
    pub queue: QueueName,
    pub seqs: Vec<Seq>,
    /// The hold of their session, in a queue with sessions.
    pub hold: Option<LeaseToken>,
    /// How long to lock them; the queue's default if absent.
    pub lock_ms: Option<u64>,
    /// Remove them on delivery instead of leasing them.
    pub take: bool,
    /// The connection that the leases end with; none for free-standing leases.
    pub connection: Option<ConnectionId>,
}

/// Which messages a consumer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Of a queue without sessions: any. With sessions: at most `per_session` of one session at a time, in order.
    Any {
        /// 1 for plain consumers, the batch size for an SQS receive.
        per_session: u32,
    },
    /// Of the session that this hold holds.
    Held(LeaseToken),
}

/// Asks to hold a session.
#[derive(Clone, Debug)]
pub struct Accept {
    /// Names the wait, so that it can be given up by `Detach`.
    pub consumer: ConsumerId,
    /// The hold ends with the connection; none makes it free-standing.
    pub connection: Option<ConnectionId>,
    /// Where.
    pub queue: QueueName,
    /// By name, or the next that is ready.
    pub session: Option<SessionId>,
    /// The queue's if absent.
    pub lock_ms: Option<u64>,
    /// How long to wait for the next ready one; a named one is never waited for.
    pub until: Timestamp,
}

/// A new state for a held session; `None` clears it.
#[derive(Clone, Debug)]
pub struct StateChange {
    /// Proof of the hold.
    pub hold: LeaseToken,
    /// The state.
    pub state: Option<Bytes>,
}

/// Which messages to look at.
#[derive(Clone, Debug)]
pub struct Peek {
    /// Where.
    pub queue: QueueName,
    /// From this sequence on.
    pub from: Seq,
    /// At most so many.
    pub max: usize,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Only in this state.
    pub state: Option<MessageState>,
}

/// Where a message stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Waiting for a receiver.
    Ready,
    /// Out to a receiver.
    Locked,
    /// In its place, not yet due.
    Delayed,
    /// To be sent later.
    Scheduled,
    /// Set aside.
    Deferred,
}

/// The answer to one command.
#[derive(Debug)]
pub enum Reply {
    /// Done; nothing to say.
    Done,
    /// Declared; whether it is new.
    Declared { created: bool },
    /// What became of each message sent, in order.
    Sent(Vec<Receipt>),
    /// The same for each send.
    SentEach(Vec<Result<Receipts, Refusal>>),
    /// How many were removed or moved, or how much credit there was.
    Count(u64),
    /// One outcome per lease, in order.
    Settled(Vec<Result<(), Refusal>>),
    /// One new deadline per lease, in order.
    Renewed(Vec<Result<Timestamp, Refusal>>),
    /// A session, or none that was ready in time.
    Accepted(Option<Held>),
    /// Messages, possibly none.
    Delivered(Vec<Grant>),
    /// Where a session's state stands.
    State(Option<Pos>),
    /// What was looked at; `next` continues.
    Peeked { items: Vec<Peeked>, next: Option<Seq> },
    /// Facts about queues.
    Queues(Vec<QueueFacts>),
    /// What a name means.
    Resolved(Resolution),
    /// Facts about sessions; `next` continues.
    Sessions { sessions: Vec<SessionFacts>, next: Option<u32> },
    /// Facts about topics.
    Topics(Vec<TopicFacts>),
    /// Rules, by queue and name.
    Rules(Vec<Binding>),
    /// Where leased messages stand; none for a lease that is over.
    Located(Vec<Option<Pos>>),
    /// The state, and where the journal ended when it was saved. That need not be durable yet.
    Saved {
        /// The end of the journal.
        covered: Pos,
        /// What [`Replay::save`](crate::journal::Replay::save) wrote.
        body: Vec<u8>,
    },
}

/// What a name means to a protocol that ignores case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Nothing has this name, in whatever case.
    Missing,
    /// A queue or topic, in its own spelling.
    Found(Address),
    /// Nothing has exactly this name, and several have it in another case.
    Ambiguous,
}

/// A session in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub session: SessionId,
    /// Proof.
    pub hold: LeaseToken,
    /// When it ends unless renewed.
    pub until: Timestamp,
}

/// A message granted to a receiver: where it is stored, and under which lease.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its place in the queue.
    pub seq: Seq,
    /// Where its newest record stands in the journal.
    pub pos: Pos,
    /// None when it was removed as it was delivered.
    pub lease: Option<LeaseToken>,
    /// When the lease ends unless renewed.
    pub until: Timestamp,
    /// Grants so far, this one included.
    pub receives: u32,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When it was first granted; not known of grants by versions that did not keep it.
    pub first_at: Option<Timestamp>,
    /// Under a hold: nothing was ready behind it in its session.
    pub last: bool,
    /// Of a message that was removed as it was delivered: the older records that its newest one lies over, if any.
    pub under: Option<Box<[Pos]>>,
    /// Of a message that was removed as it was delivered: its bytes stay until they are read.
    pub pin: Option<Pin>,
}

/// A message looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Its place in the queue.
    pub seq: Seq,
    /// Where its newest record stands in the journal.
    pub pos: Pos,
    /// Where it stands in its life.
    pub state: MessageState,
    /// It was set aside, and is again when its lease ends: also while it is out.
    pub deferred: bool,
    /// Grants so far.
    pub receives: u32,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When it was first granted, if it was and that is known.
    pub first_at: Option<Timestamp>,
    /// When it is due, if it is not yet.
    pub due: Option<Timestamp>,
}

/// What a queue is and holds.
#[derive(Clone, Debug)]
pub struct QueueFacts {
    /// Its name.
    pub name: QueueName,
    /// As declared.
    pub spec: QueueSpec,
    /// When it was declared.
    pub created_at: Timestamp,
    /// No delivery at present.
    pub paused: bool,
    /// Waiting for a receiver.
    pub ready: u64,
    /// Out to receivers.
    pub locked: u64,
    /// In place, not yet due.
    pub delayed: u64,
    /// To be sent later.
    pub scheduled: u64,
    /// Set aside.
    pub deferred: u64,
    /// In its own dead-letter set.
    pub dead_lettered: u64,
    /// Bytes of all of them, as sent, and of the states of sessions.
    pub bytes: u64,
    /// When the oldest ready message was enqueued, to the precision of an index block.
    pub oldest_at: Option<Timestamp>,
    /// Tenants that others pass at present.
    pub noisy: Noisy,
    /// When the oldest ready message of all the others was enqueued.
    pub quiet_oldest_at: Option<Timestamp>,
    /// Consumers attached or waiting.
    pub consumers: u64,
    /// Sessions with messages, a hold or a state.
    pub sessions: u64,
    /// Sessions that a receiver holds.
    pub sessions_held: u64,
    /// Sessions with work that nobody holds.
    pub sessions_ready: u64,
    /// Since it was declared.
    pub totals: Totals,
}

/// Tenants of a queue with much of what is out, and what they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noisy {
    /// How many.
    pub tenants: u64,
    /// Their messages that wait for a receiver.
    pub ready: u64,
    /// Their messages out to receivers.
    pub locked: u64,
}

/// Spells the totals once: their names are a part of snapshots and of what front ends show.
macro_rules! totals {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counts since the queue was declared. They survive restarts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals { $($(#[$doc])+ pub $name: u64,)+ }

        impl Totals {
            /// Their names, in the order in which snapshots hold them: new ones come last.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Their values, in the same order.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name),+]
            }

            pub(crate) fn of_values(values: [u64; Self::NAMES.len()]) -> Self {
                let [$($name),+] = values;
                Self { $($name),+ }
            }
        }
    };
}

totals! {
    /// Messages put in.
    sent,
    /// Grants.
    delivered,
    /// Grants of messages that had been granted before.
    redelivered,
    /// Completed, or removed as they were delivered.
    completed,
    /// Failed deliveries by the holder's word.
    abandoned,
    /// Moved to the dead letters.
    dead_lettered,
    /// Set aside.
    deferred,
    /// Expired.
    expired,
    /// Leases of messages that ran out or whose holder vanished.
    lost,
    /// Session holds that ran out or whose holder vanished.
    sessions_lost,
}

impl Totals {
    /// Counts how a message's lease ended, whatever became of the message.
    pub(crate) fn lease_ended(&mut self, cause: Cause) {
        match cause {
            Cause::Released => {}
            Cause::Abandoned => self.abandoned += 1,
            Cause::Lost => self.lost += 1,
        }
    }
}

/// What a session is and holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// Its id.
    pub session: SessionId,
    /// Messages waiting, delayed or out, deferred ones not counted.
    pub messages: u64,
    /// Out to its holder.
    pub locked: u64,
    /// When the hold ends, if somebody holds it explicitly.
    pub held_until: Option<Timestamp>,
    /// Bytes of its state.
    pub state_bytes: u64,
    /// When its state was last set; 0 if it has none, or if that is not known.
    pub state_at: Timestamp,
    /// The sequence of its first message.
    pub first: Option<Seq>,
    /// Nothing of it is delivered before this.
    pub delayed_until: Option<Timestamp>,
}

/// What the core says to a consumer that is attached to a connection.
#[derive(Debug)]
pub enum Notice {
    /// Messages, in order.
    Deliver(Vec<Grant>),
    /// The consumer ended by itself: its queue was deleted or its hold was lost.
    Ended(Refusal),
}
