//! [`Engine`]: the handle that front ends use. It is cheap to clone and has one async function per operation.
//!
//! Every function returns once its result is as durable as the queue promises. Messages are encoded and decoded here,
//! in the caller's task, so that the core's single thread only copies bytes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, Seq, SessionId, Settlement,
    Timestamp, limits,
};
use uuid::Uuid;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::codec::{DeadLetter, EncodedMessage, Stored, Unreadable};
use crate::command::{
    Accept, AcceptedSession, Attach, Command, ConnectionId, ConsumerId, Items, MessageState,
    Receipt, Receipts, ReceiveDeferred, Reply, StateChange, Wants,
};
use crate::connection::{Connection, Outbox};
use crate::housekeeping::HousekeepingStats;
use crate::journal::{Backups, Marks, Pool, Segments};
use crate::mailbox::Mailbox;

/// A handle to a running engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<EngineShared>,
}

pub(crate) struct EngineShared {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) segments: Segments,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) chance: Chance,
    pub(crate) marks: Arc<Marks>,
    pub(crate) pool: Pool,
    pub(crate) backups: Backups,
    pub(crate) stats: Arc<HousekeepingStats>,
    pub(crate) damaged: AtomicU64,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The request was refused. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The disk or the engine failed. The outcome is unknown, and the engine accepts no more requests.
    #[error(
        "the broker failed and accepts no more requests: the outcome is unknown; restart it and try again"
    )]
    Poisoned,
    /// The broker is stopping and accepts no new requests.
    #[error("the broker is stopping")]
    Stopping,
    /// A stored message cannot be read.
    #[error("message {seq} of queue `{queue}` is damaged on disk; run `malote verify` for details")]
    Damaged { queue: QueueName, seq: Seq },
}

/// The result of sending a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The sequence number in the queue. For a topic: the sequence number of a scheduled message, otherwise 0.
    pub seq: Seq,
    /// The sender's id, or the generated one. For a duplicate: the id of the first message, if the engine generated it.
    pub message_id: String,
    /// The message was sent before. Nothing was stored, and `seq` is that of the first one.
    pub duplicate: bool,
    /// For a topic: the number of copies that its rules made. `None` for a queue, and for a scheduled message, which
    /// has not been routed yet.
    pub copies: Option<u32>,
}

/// How the engine writes the message ids that it generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdFormat {
    /// A UUID with hyphens: `67e55044-10b1-426f-9247-bb680e5fe0c8`.
    Hyphenated,
    /// A UUID without hyphens: `67e5504410b1426f9247bb680e5fe0c8`.
    Simple,
}

impl IdFormat {
    fn format(self, id: Uuid) -> String {
        match self {
            Self::Hyphenated => id.to_string(),
            Self::Simple => id.simple().to_string(),
        }
    }
}

/// The validated and encoded messages of one send.
pub struct EncodedBatch {
    items: Items,
}

impl EncodedBatch {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// The id of a message that is being sent.
pub(crate) struct AssignedId {
    id: String,
    to_topic: bool,
}

impl Sent {
    pub(crate) fn of(receipt: Receipt, assigned: AssignedId) -> Self {
        let Receipt { seq, duplicate, first_id, copies, .. } = receipt;
        let routed = assigned.to_topic && seq == Seq(0);
        let message_id = first_id.map_or(assigned.id, |id| Uuid::from_u128(id).to_string());
        Self { seq, message_id, duplicate, copies: routed.then_some(copies) }
    }
}

/// A request to receive messages.
#[derive(Clone, Debug)]
pub struct Receive {
    pub queue: QueueName,
    /// The maximum number of messages.
    pub max: u32,
    /// How long to wait for the first message.
    pub wait_ms: u64,
    /// The duration of the lock; the queue's default if absent.
    pub lock_ms: Option<u64>,
    /// Remove the messages on delivery, for at-most-once delivery.
    pub take: bool,
    /// Receive only from the session of this hold.
    pub hold: Option<LeaseToken>,
    /// In a queue with sessions and without a hold: the maximum number of messages of one session.
    pub per_session: u32,
}

/// A message that was delivered to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub seq: Seq,
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
    /// Under a hold: no other message of the session was ready when this one was granted. More may have arrived since.
    pub last: bool,
    pub stored: Stored,
}

/// A message as [`Engine::peek`] returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedMessage {
    pub seq: Seq,
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
    /// The stored message, or an error if it is damaged on disk.
    pub stored: Result<Stored, Unreadable>,
}

impl PeekedMessage {
    /// Why the message was dead-lettered, if it was.
    pub fn dead(&self) -> Option<&DeadLetter> {
        match &self.stored {
            Ok(stored) => stored.dead.as_ref(),
            Err(unreadable) => unreadable.dead.as_deref(),
        }
    }
}

pub(crate) type EngineResult<T> = Result<T, EngineError>;
type Item = (Address, EncodedMessage);

macro_rules! answer {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            Ok($pattern) => Ok::<_, $crate::handle::EngineError>($value),
            Ok(other) => unreachable!("the core answered {other:?}"),
            Err(error) => Err(error),
        }
    };
}
pub(crate) use answer;

impl Engine {
    /// The time of the engine's clock, which never goes backwards.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// A new unique id, for front ends.
    pub fn new_id(&self) -> Uuid {
        self.shared.chance.uuid_v7(self.now())
    }

    /// Makes the engine look at its clock, after a test has moved a manual clock.
    pub fn wake(&self) {
        self.shared.mailbox.wake();
    }

    /// Whether the disk or the engine has failed. A failed engine accepts no requests until it is restarted.
    pub fn is_poisoned(&self) -> bool {
        self.shared.mailbox.is_poisoned()
    }

    /// The progress of the journal, and the duration of its syncs.
    pub fn journal(&self) -> &Marks {
        &self.shared.marks
    }

    /// Creates a queue, or checks that it exists with these settings. Returns whether it was created.
    pub async fn declare(&self, name: QueueName, spec: QueueSpec) -> EngineResult<bool> {
        self.declare_for(None, name, spec).await
    }

    pub(crate) async fn declare_for(
        &self,
        connection: Option<ConnectionId>,
        name: QueueName,
        spec: QueueSpec,
    ) -> EngineResult<bool> {
        let command = Command::Declare { name, spec: Box::new(spec), connection };
        answer!(self.ask(command).await, Reply::Declared { created } => created)
    }

    /// Replaces the settings of a queue.
    pub async fn update(&self, name: QueueName, spec: QueueSpec) -> EngineResult<()> {
        answer!(self.ask(Command::Update { name, spec: Box::new(spec) }).await, Reply::Done => ())
    }

    /// Deletes a queue with its dead letters and all messages.
    pub async fn delete(&self, name: QueueName) -> EngineResult<()> {
        answer!(self.ask(Command::Delete { name }).await, Reply::Done => ())
    }

    /// Pauses or resumes delivery.
    pub async fn pause(&self, queue: QueueName, paused: bool) -> EngineResult<()> {
        answer!(self.ask(Command::Pause { queue, paused }).await, Reply::Done => ())
    }

    /// Sends all messages or none, to queues and topics. Waits while too much is being sent.
    pub async fn send(
        &self,
        messages: Vec<(impl Into<Address>, Message)>,
    ) -> EngineResult<Vec<Sent>> {
        self.send_unless(messages, std::future::pending()).await
    }

    /// Like [`Engine::send`], but stops waiting for admission when `enough` completes: then it returns
    /// [`Refusal::Busy`] and nothing was sent. Once the messages are admitted, it always waits for the outcome.
    pub async fn send_unless(
        &self,
        messages: Vec<(impl Into<Address>, Message)>,
        enough: impl Future<Output = ()>,
    ) -> EngineResult<Vec<Sent>> {
        let messages: Vec<(Address, Message)> =
            messages.into_iter().map(|(to, message)| (to.into(), message)).collect();
        let debug_log = tracing::enabled!(tracing::Level::DEBUG);
        let about: Vec<_> = messages
            .iter()
            .filter(|_| debug_log)
            .map(|(to, m)| (to.clone(), m.session.clone()))
            .collect();
        let (items, assigned) = self.outgoing(messages)?;
        let bytes = publishing_bytes(&items);
        let sent = self.shared.mailbox.publish(Command::Send { items }, bytes, enough).await;
        let sent = answer!(sent, Reply::Sent(sent) => sent)?;
        for ((to, session), (sent, assigned)) in about.iter().zip(sent.iter().zip(&assigned)) {
            let (session, seq) = (session.as_ref().map(SessionId::as_str), sent.seq.0);
            let message_id = &assigned.id;
            tracing::debug!(%to, session, message_id, seq, duplicate = sent.duplicate, "sent");
        }
        Ok(sent
            .into_iter()
            .zip(assigned)
            .map(|(receipt, assigned)| Sent::of(receipt, assigned))
            .collect())
    }

    /// Validates and encodes messages for one destination, for [`Engine::send_each`].
    pub fn encode_batch(
        &self,
        to: &Address,
        messages: impl ExactSizeIterator<Item = Message>,
        ids: IdFormat,
    ) -> EngineResult<EncodedBatch> {
        let messages = messages.map(|message| (to.clone(), message));
        Ok(EncodedBatch { items: self.checked(messages, ids, |_, _| ())? })
    }

    /// Sends several batches in order. Each batch is atomic and has its own result.
    pub async fn send_each(
        &self,
        batches: Vec<EncodedBatch>,
    ) -> EngineResult<Vec<Result<Receipts, Refusal>>> {
        let bytes = batches.iter().map(|batch| publishing_bytes(&batch.items)).sum();
        let sends = batches.into_iter().map(|batch| batch.items).collect();
        let command = Command::SendEach { sends };
        let sent = self.shared.mailbox.publish(command, bytes, std::future::pending()).await;
        answer!(sent, Reply::SentEach(each) => each)
    }

    pub(crate) fn outgoing(
        &self,
        messages: Vec<(Address, Message)>,
    ) -> EngineResult<(Vec<Item>, Vec<AssignedId>)> {
        let mut assigned = Vec::with_capacity(messages.len());
        let note = |to: &Address, id| {
            assigned.push(AssignedId { id, to_topic: matches!(to, Address::Topic(_)) });
        };
        let items = self.checked(messages.into_iter(), IdFormat::Hyphenated, note)?;
        Ok((items.into_vec(), assigned))
    }

    /// Checks and encodes the messages of one send. Calls `note` with the id of each message: the sender's, or a new one
    /// in the format `ids`.
    fn checked(
        &self,
        messages: impl ExactSizeIterator<Item = (Address, Message)>,
        ids: IdFormat,
        mut note: impl FnMut(&Address, String),
    ) -> EngineResult<Items> {
        if messages.len() > limits::SEND_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "messages in one send",
                limit: limits::SEND_BATCH_MAX as u64,
            }
            .into());
        }
        let mut items = Items::with_capacity(messages.len());
        let mut bytes = 0_u64;
        for (to, mut message) in messages {
            let id_given = message.message_id.is_none();
            let new_id = || ids.format(self.shared.chance.uuid_v7(self.now()));
            let id = message.message_id.get_or_insert_with(new_id);
            let outgoing = match &to {
                Address::Queue(_) => {
                    let outgoing = EncodedMessage::new(&message, id_given)?;
                    note(&to, message.message_id.take().unwrap_or_default());
                    outgoing
                }
                Address::Topic(_) => {
                    // Rules can use it, and copies keep it.
                    message.origin_id.get_or_insert_with(|| id.clone());
                    note(&to, id.clone());
                    EncodedMessage::to_topic(message, id_given)?
                }
            };
            bytes += outgoing.size() as u64;
            if bytes > limits::SEND_BYTES_MAX {
                return Err(Refusal::BatchTooLarge {
                    what: "bytes in one send",
                    limit: limits::SEND_BYTES_MAX,
                }
                .into());
            }
            items.push((to, outgoing));
        }
        Ok(items)
    }

    /// Cancels scheduled messages. If one does not exist, none is cancelled.
    pub async fn cancel(&self, from: impl Into<Address>, seqs: Vec<Seq>) -> EngineResult<u64> {
        let from = from.into();
        answer!(self.ask(Command::Cancel { from, seqs }).await, Reply::Count(n) => n)
    }

    /// Waits for messages. Dropping the future loses no message.
    pub async fn receive(&self, receive: Receive) -> EngineResult<Vec<Delivery>> {
        self.receive_for(None, receive).await
    }

    pub(crate) async fn receive_for(
        &self,
        connection: Option<ConnectionId>,
        receive: Receive,
    ) -> EngineResult<Vec<Delivery>> {
        let Receive { queue, max, wait_ms, lock_ms, take, hold, per_session } = receive;
        let wait = wait_ms.min(limits::ACCEPT_WAIT_MS_MAX);
        let attach = Attach {
            consumer: self.shared.mailbox.new_consumer(),
            connection,
            free_standing: connection.is_none(),
            queue: queue.clone(),
            wants: hold.map_or(Wants::Any { per_session }, Wants::Held),
            credit: max,
            take,
            lock_ms,
            once_until: Some(self.now().plus_ms(wait)),
            priority: 0,
            exclusive: false,
        };
        loop {
            let attach = Attach { consumer: self.shared.mailbox.new_consumer(), ..attach.clone() };
            let waiting = WaitGuard {
                mailbox: &self.shared.mailbox,
                consumer: attach.consumer,
                armed: wait > 0,
            };
            let reply = self.ask(Command::Attach(attach)).await;
            waiting.over();
            let grants = answer!(reply, Reply::Delivered(grants) => grants)?;
            let granted = !grants.is_empty();
            let deliveries = self.deliveries(&queue, grants).await?;
            // All granted messages were damaged and are no longer in the queue: receive the next ones.
            if !granted || !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    /// Receives deferred messages by their sequence numbers. If one does not exist, none is received.
    pub async fn receive_deferred(
        &self,
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        lock_ms: Option<u64>,
        take: bool,
    ) -> EngineResult<Vec<Delivery>> {
        let receive =
            ReceiveDeferred { queue: queue.clone(), seqs, hold, lock_ms, take, connection: None };
        let command = Command::ReceiveDeferred(receive);
        let grants = answer!(self.ask(command).await, Reply::Delivered(grants) => grants)?;
        self.deliveries(&queue, grants).await
    }

    /// Ends leases, each with its own result, and optionally changes a session's state. If `queue` is given, tokens of
    /// other queues are refused as lost, so that access to one queue does not allow settling messages of another.
    pub async fn settle(
        &self,
        queue: Option<&QueueName>,
        leases: Vec<LeaseToken>,
        settlement: Settlement,
        state: Option<StateChange>,
    ) -> EngineResult<Vec<Result<(), Refusal>>> {
        let debug_log =
            tracing::enabled!(tracing::Level::DEBUG).then(|| (leases.clone(), settlement.word()));
        let command = within(queue, Command::Settle { leases, settlement, state });
        let each = answer!(self.ask(command).await, Reply::Settled(each) => each)?;
        if let Some((leases, outcome)) = debug_log {
            for (lease, done) in leases.iter().zip(&each) {
                tracing::debug!(%lease, outcome, ok = done.is_ok(), "settled");
            }
        }
        Ok(each)
    }

    /// Renews leases or session holds, counted from now.
    pub async fn renew(
        &self,
        queue: Option<&QueueName>,
        leases: Vec<LeaseToken>,
        lock_ms: Option<u64>,
    ) -> EngineResult<Vec<Result<Timestamp, Refusal>>> {
        answer!(self.ask(within(queue, Command::Renew { leases, lock_ms })).await, Reply::Renewed(each) => each)
    }

    /// Acquires a session by id, or the next one that becomes ready within `wait_ms`.
    pub async fn accept(
        &self,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> EngineResult<Option<AcceptedSession>> {
        self.accept_for(None, queue, session, wait_ms, lock_ms).await
    }

    pub(crate) async fn accept_for(
        &self,
        connection: Option<ConnectionId>,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> EngineResult<Option<AcceptedSession>> {
        let wait = wait_ms.min(limits::ACCEPT_WAIT_MS_MAX);
        let consumer = self.shared.mailbox.new_consumer();
        let until = self.now().plus_ms(wait);
        let accept = Accept { consumer, connection, queue, session, lock_ms, until };
        let waiting = WaitGuard { mailbox: &self.shared.mailbox, consumer, armed: wait > 0 };
        let reply = self.ask(Command::Accept(accept)).await;
        waiting.over();
        answer!(reply, Reply::Accepted(held) => held)
    }

    /// Releases a session hold. Leased messages of the session are returned; nothing is counted.
    pub async fn release_session(
        &self,
        queue: Option<&QueueName>,
        hold: LeaseToken,
    ) -> EngineResult<()> {
        answer!(self.ask(within(queue, Command::ReleaseSession { hold })).await, Reply::Done => ())
    }

    /// Sets or clears the state of a held session.
    pub async fn set_state(
        &self,
        queue: Option<&QueueName>,
        change: StateChange,
    ) -> EngineResult<()> {
        answer!(self.ask(within(queue, Command::SetState { change })).await, Reply::Done => ())
    }

    /// Reads the state of a session. A given hold must be valid; without one, this is an operator's read.
    pub async fn get_state(
        &self,
        queue: QueueName,
        session: SessionId,
        hold: Option<LeaseToken>,
    ) -> EngineResult<Option<Bytes>> {
        let command = || Command::GetState { queue: queue.clone(), session: session.clone(), hold };
        let damaged = EngineError::Damaged { queue: queue.clone(), seq: Seq(0) };
        for _ in 0..2 {
            let pos = answer!(self.ask(command()).await, Reply::State(pos) => pos)?;
            let Some(pos) = pos else { return Ok(None) };
            match self.shared.segments.read(pos) {
                // Compaction moved it in the meantime: ask for its new position.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(_) => break,
                Ok((kind, bytes)) => {
                    return crate::codec::state_of(kind, &bytes).ok_or(damaged).map(Some);
                }
            }
        }
        Err(damaged)
    }

    /// Ends the hold of a session, on behalf of an operator.
    pub async fn break_session(&self, queue: QueueName, session: SessionId) -> EngineResult<()> {
        answer!(self.ask(Command::BreakSession { queue, session }).await, Reply::Done => ())
    }

    /// Opens a connection that consumers, leases and session holds can be bound to.
    pub fn connect(&self) -> (Connection, Outbox) {
        Connection::new(self.clone())
    }

    /// Sends a command to the core and waits for the reply.
    pub(crate) async fn ask(&self, command: Command) -> EngineResult<Reply> {
        self.shared.mailbox.ask(command).await
    }

    /// Number of messages that could not be read for delivery since the start.
    pub fn damaged(&self) -> u64 {
        self.shared.damaged.load(Ordering::Relaxed)
    }
}

/// The admission cost of messages in bytes.
pub(crate) fn publishing_bytes(items: &[Item]) -> usize {
    items.iter().map(|(_, message)| message.size() + 64).sum()
}

/// Restricts a command to tokens of this queue.
fn within(queue: Option<&QueueName>, command: Command) -> Command {
    match queue {
        Some(queue) => Command::Within { queue: queue.clone(), command: Box::new(command) },
        None => command,
    }
}

/// Cancels a waiting request when its future is dropped.
struct WaitGuard<'a> {
    mailbox: &'a Mailbox,
    consumer: ConsumerId,
    armed: bool,
}

impl WaitGuard<'_> {
    fn over(mut self) {
        self.armed = false;
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.mailbox.cancel_wait(self.consumer);
        }
    }
}
