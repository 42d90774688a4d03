//! The commands and replies of the core. They are plain data; the core turns a command into events.

use std::collections::BTreeMap;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, Rule, Seq, SessionId, Settlement,
    Timestamp, TopicName, TopicSpec,
};

use smallvec::SmallVec;

use crate::codec::EncodedMessage;
use crate::core::Relocation;
use crate::event::QueueId;
use crate::facts::{QueueFacts, SessionFacts, TopicFacts};
use crate::journal::{Pin, Pos};

/// A command. All its events are in one journal group, so it takes effect completely or not at all.
#[derive(Debug)]
pub enum Command {
    /// Create the queue, or check that it exists with these settings. An exclusive queue belongs to the connection.
    Declare { name: QueueName, spec: Box<QueueSpec>, connection: Option<ConnectionId> },
    /// Replace the settings of a queue.
    Update { name: QueueName, spec: Box<QueueSpec> },
    /// Delete the queue with its dead letters and all messages.
    Delete { name: QueueName },
    /// Delete all messages that are not leased. With `leased`, also delete leased messages and forget de-duplication
    /// keys.
    Purge { queue: QueueName, leased: bool },
    /// Delete those of these messages that are ready. Each comes with its session.
    PurgeThese { queue: QueueName, items: Vec<(Seq, Option<SessionId>)> },
    /// Complete messages whose leases have ended and that no other receiver has, if they were received no earlier than
    /// the given time. Refused in queues with sessions, where only the lease protects the order.
    CompleteLate { queue: QueueName, items: Vec<(Seq, Timestamp)> },
    /// Pause or resume delivery. Sending and settling continue.
    Pause { queue: QueueName, paused: bool },
    /// Send all messages or none, to queues and topics.
    Send { items: Vec<(Address, EncodedMessage)> },
    /// Several sends in order. Each is atomic on its own.
    SendEach { sends: Vec<Items> },
    /// Commit a transaction: all of it or nothing.
    Commit { work: TransactionWork },
    /// Cancel scheduled messages.
    Cancel { from: Address, seqs: Vec<Seq> },
    /// Attach a consumer.
    Attach(Attach),
    /// Add to a consumer's credit, or replace it. The reply contains the previous credit.
    Credit { consumer: ConsumerId, credit: u32, replace: bool },
    /// Detach a consumer. Messages leased to it stay leased.
    Detach { consumer: ConsumerId },
    /// The connection ended: its consumers end, and its leases and session holds are released. A clean close does not
    /// count as a failed delivery; a lost connection does.
    Disconnect { connection: ConnectionId, clean: bool },
    /// Receive deferred messages by their sequence numbers.
    ReceiveDeferred(ReceiveDeferred),
    /// Run a command with tokens of this queue only, so that access to one queue does not allow settling messages of
    /// another.
    Within { queue: QueueName, command: Box<Command> },
    /// End leases, each with its own result. A session state changes with them or not at all.
    Settle { leases: Vec<LeaseToken>, settlement: Settlement, state: Option<StateChange> },
    /// Dead-letter messages that could not be read, each with the error.
    Damaged { leases: Vec<(LeaseToken, String)> },
    /// Renew leases or session holds, counted from now.
    Renew { leases: Vec<LeaseToken>, lock_ms: Option<u64> },
    /// Acquire a session: by id, or the next one that is ready.
    Accept(Accept),
    /// Release a session hold.
    ReleaseSession { hold: LeaseToken },
    /// Set or clear the state of a held session.
    SetState { change: StateChange },
    /// Find the record of a session's state. Without a hold, this is an operator's read.
    GetState { queue: QueueName, session: SessionId, hold: Option<LeaseToken> },
    /// End the hold of a session, on behalf of an operator.
    BreakSession { queue: QueueName, session: SessionId },
    /// Move dead letters, or other messages that are not leased, to other queues.
    Move { from: QueueName, items: Vec<MoveItem>, why: MoveWhy },
    /// Atomically remove one message and send another.
    Replace { from: QueueName, seq: Seq, to: QueueName, message: EncodedMessage },
    /// Create a topic, or check that it exists with these settings.
    DeclareTopic { name: TopicName, spec: Box<TopicSpec> },
    /// Replace the settings of a topic, except for its kind.
    UpdateTopic { name: TopicName, spec: Box<TopicSpec> },
    /// Delete a topic and its subscriptions. Other bound queues stay.
    DeleteTopic { name: TopicName },
    /// Replace the labels of a topic.
    LabelTopic { name: TopicName, labels: BTreeMap<String, String> },
    /// Create a subscription: its queue and its rules. Without rules, it gets the default of the topic's kind.
    Subscribe { name: QueueName, spec: Box<QueueSpec>, rules: Option<Vec<Rule>> },
    /// Add a rule that copies messages to a queue, or passes them to another topic.
    Bind { topic: TopicName, target: Address, rule: Box<Rule> },
    /// Replace the rule of the same name.
    Rebind { topic: TopicName, target: Address, rule: Box<Rule> },
    /// Remove a rule.
    Unbind { topic: TopicName, target: Address, rule: String },
    /// Route messages of a topic's inbox after they were read: the answer to `Effect::Route`.
    Route { topic: QueueId, items: Vec<InboxItem> },
    /// Describe one topic.
    DescribeTopic { name: TopicName },
    /// List topics by name after a given one, at most [`malote_model::limits::LIST_MAX`].
    ListTopics { after: Option<TopicName>, max: usize },
    /// List rules of a topic, or of one target of it, by target and name, after a given one.
    Rules {
        topic: TopicName,
        target: Option<Address>,
        after: Option<(Address, String)>,
        max: usize,
    },
    /// Peek at messages without changing them.
    Peek(Peek),
    /// Describe one queue.
    Describe { queue: QueueName },
    /// List queues by name after a given one, at most [`malote_model::limits::LIST_MAX`].
    List { after: Option<QueueName>, max: usize },
    /// Find the queue or topic of a name, for protocols that ignore case.
    Resolve { name: QueueName },
    /// List sessions of a queue from a slot on, in no meaningful order.
    Sessions { queue: QueueName, from: u32, max: usize },
    /// Describe one session.
    Session { queue: QueueName, session: SessionId },
    /// Internal: journal copies of live records, so that their segments can be recycled.
    Relocate { items: Vec<Relocation> },
    /// Internal: the approximate number of live journal bytes.
    LiveBytes,
    /// Internal: find the current records of leased messages.
    Locate { leases: Vec<LeaseToken> },
    /// Internal: record the durable position in the journal, so that another snapshot can be made.
    Mark,
    /// Internal: serialize all state as in a snapshot. This blocks the core; it is only for a journal that cannot be
    /// replayed.
    Save,
}

impl Command {
    /// Whether its reply may wait for future messages.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Attach(_) | Self::Accept(_))
    }

    /// Approximate heap size in bytes. Senders count the messages of sends.
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
    /// Approximate heap size in bytes, for replies that may be large.
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

/// The operations of a transaction.
#[derive(Debug, Default)]
pub struct TransactionWork {
    pub sends: Vec<(Address, EncodedMessage)>,
    /// Leases to end, with their queues and settlements. An invalid lease refuses the whole transaction.
    pub settles: Vec<(Option<QueueName>, LeaseToken, Settlement)>,
    /// Changes of session states, with their queues.
    pub states: Vec<(Option<QueueName>, StateChange)>,
}

/// The messages of one send with their destinations; usually one.
pub type Items = SmallVec<[(Address, EncodedMessage); 1]>;

pub type Receipts = SmallVec<[Receipt; 1]>;

/// The result for one message of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sequence number in the queue. For a topic: the sequence number of a scheduled message, otherwise 0.
    pub seq: Seq,
    /// The message was sent before; `seq` is that of the first one.
    pub duplicate: bool,
    /// The id of the first message, if it is a UUID and differs from the de-duplication key.
    pub first_id: Option<u128>,
    /// The number of copies; 0 if no rule of a topic matched.
    pub copies: u32,
    /// A queue was full and dead-lettered the message ([`malote_model::Overflow::DeadLetterNewest`]).
    pub overflowed: bool,
}

impl Receipt {
    pub(crate) fn new(seq: Seq, copies: u32) -> Self {
        Self { seq, duplicate: false, first_id: None, copies, overflowed: false }
    }
}

/// A message in a topic's inbox that is to be routed.
#[derive(Clone, Debug)]
pub struct InboxItem {
    pub seq: u64,
    /// The position of its newest record.
    pub pos: Pos,
    /// The message, once it was read; `None` if it cannot be read.
    pub message: Option<Box<Message>>,
}

/// A rule, and the queue or topic that it copies messages to.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    pub target: Address,
    pub rule: Rule,
}

/// A message to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveItem {
    pub seq: Seq,
    pub to: QueueName,
    /// A new message id, so that receivers treat it as a new message.
    pub message_id: Option<String>,
}

impl MoveItem {
    /// Moves a message without changing it.
    pub fn unchanged(seq: Seq, to: QueueName) -> Self {
        Self { seq, to, message_id: None }
    }
}

/// Why an operator moves messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWhy {
    /// Back to the queue that they came from. Counters are reset.
    Redrive,
}

/// Identifies a connection that consumers, leases and session holds can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Identifies a consumer. Chosen by the caller; unique while the consumer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// A consumer to attach.
#[derive(Clone, Debug)]
pub struct Attach {
    pub consumer: ConsumerId,
    /// The consumer ends with this connection, and so do its leases.
    pub connection: Option<ConnectionId>,
    /// The leases outlive the connection. Without a connection, leases are always free-standing.
    pub free_standing: bool,
    pub queue: QueueName,
    pub wants: Wants,
    /// How many messages the consumer accepts now.
    pub credit: u32,
    /// Remove messages on delivery instead of leasing them.
    pub take: bool,
    /// The duration of its locks; the queue's default if absent.
    pub lock_ms: Option<u64>,
    /// For a long poll: the consumer ends with its first batch, or at this time.
    pub once_until: Option<Timestamp>,
    /// Consumers with a higher priority are served first, while they have credit.
    pub priority: i32,
    /// Refused if the queue has consumers; while it is attached, no other consumer can attach.
    pub exclusive: bool,
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

/// Which messages a consumer receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Any message. In a queue with sessions: at most `per_session` messages of one session at a time, in order.
    Any {
        /// 1 for consumers that receive one message at a time; the batch size for receives that take a batch of one
        /// session.
        per_session: u32,
    },
    /// Messages of the session of this hold.
    Held(LeaseToken),
}

/// A request to acquire a session.
#[derive(Clone, Debug)]
pub struct Accept {
    /// Identifies the request while it waits, so that `Detach` can cancel it.
    pub consumer: ConsumerId,
    /// The hold ends with this connection; none for a free-standing hold.
    pub connection: Option<ConnectionId>,
    pub queue: QueueName,
    /// The session id; `None` for the next one that is ready.
    pub session: Option<SessionId>,
    /// The duration of the lock; the queue's default if absent.
    pub lock_ms: Option<u64>,
    /// How long to wait for the next ready session. A session given by id is never waited for.
    pub until: Timestamp,
}

/// A new state for a held session; `None` clears it.
#[derive(Clone, Debug)]
pub struct StateChange {
    pub hold: LeaseToken,
    pub state: Option<Bytes>,
}

/// Which messages to peek at.
#[derive(Clone, Debug)]
pub struct Peek {
    pub queue: QueueName,
    /// The first sequence number.
    pub from: Seq,
    /// The maximum number of messages.
    pub max: usize,
    /// Only messages of this session.
    pub session: Option<SessionId>,
    /// Only messages in this state.
    pub state: Option<MessageState>,
}

/// The state of a message in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// It can be delivered.
    Ready,
    /// It is leased to a receiver.
    Locked,
    /// It keeps its position, but is not due yet.
    Delayed,
    /// It will be enqueued later.
    Scheduled,
    /// It can only be received by its sequence number.
    Deferred,
}

/// The reply to a command.
#[derive(Debug)]
pub enum Reply {
    /// The command succeeded.
    Done,
    /// Whether the queue, topic or rule was created.
    Declared { created: bool },
    /// One result for each message, in order.
    Sent(Vec<Receipt>),
    /// One result for each send, in order.
    SentEach(Vec<Result<Receipts, Refusal>>),
    /// The number of messages removed or moved, or a consumer's previous credit.
    Count(u64),
    /// One result for each lease, in order.
    Settled(Vec<Result<(), Refusal>>),
    /// One new deadline for each lease, in order.
    Renewed(Vec<Result<Timestamp, Refusal>>),
    /// The session, or `None` if none became ready in time.
    Accepted(Option<AcceptedSession>),
    /// The messages; possibly none.
    Delivered(Vec<MessageGrant>),
    /// The record of a session's state.
    State(Option<Pos>),
    /// The messages; the next page begins at `next`.
    Peeked { items: Vec<Peeked>, next: Option<Seq> },
    /// A page of queues.
    Queues(Vec<QueueFacts>),
    /// What a name refers to.
    Resolved(Resolution),
    /// The sessions; the next page begins at `next`.
    Sessions { sessions: Vec<SessionFacts>, next: Option<u32> },
    /// A page of topics.
    Topics(Vec<TopicFacts>),
    /// A page of rules, by target and name.
    Rules(Vec<Binding>),
    /// The records of leased messages; `None` if the lease has ended.
    Located(Vec<Option<Pos>>),
    /// All state, and the end of the journal when it was saved, which may not be durable yet.
    Saved {
        covered: Pos,
        /// The output of [`Replay::save`](crate::journal::Replay::save).
        body: Vec<u8>,
    },
}

/// The queue or topic of a name, for protocols that ignore case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Neither a queue nor a topic has this name, in any case.
    Missing,
    /// A queue or topic, in its own spelling.
    Found(Address),
    /// No name matches exactly, and several match in another case.
    Ambiguous,
}

/// A session that was acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedSession {
    pub session: SessionId,
    /// The token of the hold.
    pub hold: LeaseToken,
    /// When the hold ends, unless it is renewed.
    pub until: Timestamp,
}

/// A message granted to a receiver: the position of its record, and its lease.
#[derive(Clone, Debug)]
pub struct MessageGrant {
    pub seq: Seq,
    /// The position of its newest record.
    pub pos: Pos,
    /// `None` if the message was removed on delivery.
    pub lease: Option<LeaseToken>,
    /// When the lease ends, unless it is renewed.
    pub until: Timestamp,
    /// Number of deliveries, including this one.
    pub receives: u32,
    /// Number of failed deliveries.
    pub failed: u32,
    /// When the message was first delivered. Older versions did not record it.
    pub first_at: Option<Timestamp>,
    /// Under a hold: no other message of the session was ready.
    pub last: bool,
    /// For a message that was removed on delivery: the older records that its newest record builds on.
    pub under: Option<Box<[Pos]>>,
    /// For a message that was removed on delivery: keeps its segments until it is read.
    pub pin: Option<Pin>,
}

/// A message in the reply to a peek.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    pub seq: Seq,
    /// The position of its newest record.
    pub pos: Pos,
    pub state: MessageState,
    /// The message is deferred. Also true while a deferred message is leased: it is deferred again when the lease ends.
    pub deferred: bool,
    /// Number of deliveries.
    pub receives: u32,
    /// Number of failed deliveries.
    pub failed: u32,
    /// When the message was first delivered, if that is known.
    pub first_at: Option<Timestamp>,
    /// When a delayed or scheduled message becomes due.
    pub due: Option<Timestamp>,
}

/// A notice to a consumer that is attached to a connection.
#[derive(Debug)]
pub enum Notice {
    /// Messages, in order.
    Deliver(Vec<MessageGrant>),
    /// The engine ended the consumer: its queue was deleted or its hold was lost.
    Ended(Refusal),
}
