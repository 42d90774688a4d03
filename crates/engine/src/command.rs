//! What can be asked of the engine, and what it answers. Plain data: the core turns a command into events.

#![allow(missing_docs)] // the fields of a command are named for what they are

use bytes::Bytes;
use malote_model::{
    LeaseToken, Message, QueueName, QueueSpec, Refusal, Seq, SessionId, Settlement, Timestamp,
};

use crate::codec::Outgoing;
use crate::core::Relocation;
use crate::journal::{Pin, Pos};

/// One thing asked. All its events stand in one journal group: it happens wholly or not at all.
#[derive(Debug)]
pub enum Command {
    /// Make the queue, or find it just as asked.
    Declare { name: QueueName, spec: Box<QueueSpec> },
    /// Replace the specification.
    Update { name: QueueName, spec: Box<QueueSpec> },
    /// Remove the queue, its dead letters and all they hold.
    Delete { name: QueueName },
    /// Drop every message that is not out to a receiver.
    Purge { queue: QueueName },
    /// Stop or resume delivery; sending and settling go on.
    Pause { queue: QueueName, paused: bool },
    /// Send all or none, to one queue or several.
    Send { items: Vec<(QueueName, Outgoing)> },
    /// Take back scheduled messages.
    Cancel { queue: QueueName, seqs: Vec<Seq> },
    /// Start to consume.
    Attach(Attach),
    /// Add to a consumer's credit, or replace it.
    Credit { consumer: ConsumerId, credit: u32, replace: bool },
    /// End a consumer. What is out to it stays out.
    Detach { consumer: ConsumerId },
    /// The connection is gone: its consumers end, its connection-bound leases and holds come back.
    /// `clean` tells a close from a loss: only a loss counts as a failed delivery.
    Disconnect { connection: ConnectionId, clean: bool },
    /// Deferred messages by their sequences.
    ReceiveDeferred {
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        lock_ms: Option<u64>,
        take: bool,
        connection: Option<ConnectionId>,
    },
    /// What is inside, with tokens of this queue only: a caller who may use one queue has no business with the leases
    /// of another.
    Within { queue: QueueName, command: Box<Command> },
    /// End leases, each on its own outcome; session state, if any, changes with them or not at all.
    Settle { leases: Vec<LeaseToken>, settlement: Settlement, state: Option<StateChange> },
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
    Move { from: QueueName, items: Vec<(Seq, QueueName)>, why: MoveWhy },
    /// Remove one message and send another in its stead, atomically.
    Replace { from: QueueName, seq: Seq, to: QueueName, message: Outgoing },
    /// Look without touching.
    Peek(Peek),
    /// Facts about one queue.
    Describe { queue: QueueName },
    /// Facts about every queue, by name.
    List,
    /// Sessions of a queue, by name, from after `after`.
    Sessions { queue: QueueName, after: Option<SessionId>, max: usize },
    /// The engine to itself: journal copies of live records, so that their segments can be used again.
    Relocate { items: Vec<Relocation> },
    /// The engine to itself: about how many bytes of the journal are live.
    LiveBytes,
    /// The engine to itself: where messages under these leases stand now.
    Locate { leases: Vec<LeaseToken> },
    /// The engine to itself: note in the journal what is durable, so that another snapshot can be made.
    Mark,
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
    /// Whose leases end with the connection; none makes them free-standing.
    pub connection: Option<ConnectionId>,
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
    /// The sequences of what was sent, in order.
    Sent(Vec<Seq>),
    /// How many were removed or moved.
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
    /// Facts about sessions.
    Sessions(Vec<SessionFacts>),
    /// Where leased messages stand; none for a lease that is over.
    Located(Vec<Option<Pos>>),
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
    /// Grants so far.
    pub receives: u32,
    /// Failed deliveries so far.
    pub failed: u32,
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
    /// Bytes of all of them, as sent.
    pub bytes: u64,
    /// When the oldest ready message was enqueued, to the precision of an index block.
    pub oldest_at: Option<Timestamp>,
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

/// Counts since the queue was declared. They survive restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages put in.
    pub sent: u64,
    /// Grants.
    pub delivered: u64,
    /// Grants of messages that had been granted before.
    pub redelivered: u64,
    /// Completed, or removed as they were delivered.
    pub completed: u64,
    /// Failed deliveries by the holder's word.
    pub abandoned: u64,
    /// Moved to the dead letters.
    pub dead_lettered: u64,
    /// Set aside.
    pub deferred: u64,
    /// Expired.
    pub expired: u64,
    /// Leases of messages that ran out or whose holder vanished.
    pub lost: u64,
    /// Session holds that ran out or whose holder vanished.
    pub sessions_lost: u64,
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

/// A message to send, as a caller writes it: `Outgoing` is made from it outside the core.
pub type Sending = (QueueName, Message);
