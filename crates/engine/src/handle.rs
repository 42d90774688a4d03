//! `Engine`: what a front end holds. Clone-cheap, one async function per verb.
//!
//! Every function returns once what it says is as durable as the queue promises. Messages are encoded and decoded
//! here, in the caller's own task, so that the one thread of the core only copies bytes.

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
use crate::codec::{DeadLetter, Outgoing, Stored, Unreadable};
use crate::command::{
    Accept, Attach, Command, ConnectionId, ConsumerId, Held, Items, MessageState, MoveWhy, Moving,
    Peek, Receipt, ReceiveDeferred, Reply, StateChange, Wants,
};
use crate::connection::{Connection, Outbox};
use crate::housekeeping::Ledger;
use crate::journal::{Backups, Marks, Pool, Segments};
use crate::mailbox::Mailbox;

/// The engine as its callers see it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) segments: Segments,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) chance: Chance,
    pub(crate) marks: Arc<Marks>,
    pub(crate) pool: Pool,
    pub(crate) backups: Backups,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) damaged: AtomicU64,
}

/// Why an answer is not the one asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The caller asked for something it may not have. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The disk failed, or the engine itself: the outcome is unknown and the engine accepts nothing more.
    #[error(
        "the broker failed and accepts nothing more: the outcome is unknown; restart it and try again"
    )]
    Poisoned,
    /// The broker is stopping and takes nothing new.
    #[error("the broker is stopping")]
    Stopping,
    /// A stored message cannot be read.
    #[error("message {seq} of queue `{queue}` is damaged on disk; `malote verify` tells more")]
    Damaged {
        /// Whose.
        queue: QueueName,
        /// Which.
        seq: Seq,
    },
}

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its place in the queue; of a topic, its place among the scheduled, or 0.
    pub seq: Seq,
    /// The sender's id, or the one that was given. Of a duplicate the first one's, if that was given by the engine.
    pub message_id: String,
    /// It was sent before, and that is its place: nothing was stored.
    pub duplicate: bool,
    /// Of a topic: how many copies its rules made. None of a queue, which has the message itself, and of what is
    /// scheduled, which has not been routed.
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

/// Messages of one send, checked and encoded.
pub struct Parcel {
    items: Items,
}

impl Parcel {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// What is known of a message before it is sent.
pub(crate) struct Given {
    id: String,
    to_topic: bool,
}

impl Sent {
    pub(crate) fn of(receipt: Receipt, given: Given) -> Self {
        let Receipt { seq, duplicate, first_id, copies } = receipt;
        let routed = given.to_topic && seq == Seq(0);
        let message_id = first_id.map_or(given.id, |id| Uuid::from_u128(id).to_string());
        Self { seq, message_id, duplicate, copies: routed.then_some(copies) }
    }
}

/// A receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// From where.
    pub queue: QueueName,
    /// At most so many.
    pub max: u32,
    /// How long to wait for the first.
    pub wait_ms: u64,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
    /// Remove them as they are delivered: at most once.
    pub take: bool,
    /// Only of this held session.
    pub hold: Option<LeaseToken>,
    /// Of a session queue without a hold: how many of one session.
    pub per_session: u32,
}

/// A message in hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Its place in the queue.
    pub seq: Seq,
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
    /// Under a hold: nothing was ready behind it in its session when it was granted. More may have come since.
    pub last: bool,
    /// The message as stored.
    pub stored: Stored,
}

/// A message looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its place in the queue.
    pub seq: Seq,
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
    /// The message as stored, unless the disk holds it no longer whole.
    pub stored: Result<Stored, Unreadable>,
}

impl Seen {
    /// Why it is a dead letter, if it is one and that can be read.
    pub fn dead(&self) -> Option<&DeadLetter> {
        match &self.stored {
            Ok(stored) => stored.dead.as_ref(),
            Err(unreadable) => unreadable.dead.as_deref(),
        }
    }
}

/// Which dead letters to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The oldest, up to a number.
    Oldest(usize),
    /// Exactly these; one that is not there refuses all.
    These(Vec<Seq>),
}

pub(crate) type Answer<T> = Result<T, EngineError>;
type Item = (Address, Outgoing);

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
    /// The engine's clock: wall-clock milliseconds that never step back.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// A new id, unique without asking anyone: for names that a front end makes up.
    pub fn new_id(&self) -> Uuid {
        self.shared.chance.uuid_v7(self.now())
    }

    /// Looks what is due, now. For whoever moves a clock by hand.
    pub fn wake(&self) {
        self.shared.mailbox.wake();
    }

    /// Whether the disk or the engine itself failed: it accepts nothing more until a restart.
    pub fn is_poisoned(&self) -> bool {
        self.shared.mailbox.is_poisoned()
    }

    /// How far the journal has got, and how long its syncs take.
    pub fn journal(&self) -> &Marks {
        &self.shared.marks
    }

    /// Makes the queue, or finds it just as asked. Tells whether it is new.
    pub async fn declare(&self, name: QueueName, spec: QueueSpec) -> Answer<bool> {
        self.declare_for(None, name, spec).await
    }

    pub(crate) async fn declare_for(
        &self,
        connection: Option<ConnectionId>,
        name: QueueName,
        spec: QueueSpec,
    ) -> Answer<bool> {
        let command = Command::Declare { name, spec: Box::new(spec), connection };
        answer!(self.ask(command).await, Reply::Declared { created } => created)
    }

    /// Replaces the specification of a queue.
    pub async fn update(&self, name: QueueName, spec: QueueSpec) -> Answer<()> {
        answer!(self.ask(Command::Update { name, spec: Box::new(spec) }).await, Reply::Done => ())
    }

    /// Removes a queue, its dead letters and all they hold.
    pub async fn delete(&self, name: QueueName) -> Answer<()> {
        answer!(self.ask(Command::Delete { name }).await, Reply::Done => ())
    }

    /// Stops or resumes delivery.
    pub async fn pause(&self, queue: QueueName, paused: bool) -> Answer<()> {
        answer!(self.ask(Command::Pause { queue, paused }).await, Reply::Done => ())
    }

    /// Sends all or none, to queues and topics. Waits while too much is being sent.
    pub async fn send(&self, messages: Vec<(impl Into<Address>, Message)>) -> Answer<Vec<Sent>> {
        self.send_unless(messages, std::future::pending()).await
    }

    /// As [`Engine::send`], but once `enough` is over it no longer waits for room: [`Refusal::Busy`], nothing sent.
    /// What has found room is not affected: its outcome is always awaited.
    pub async fn send_unless(
        &self,
        messages: Vec<(impl Into<Address>, Message)>,
        enough: impl Future<Output = ()>,
    ) -> Answer<Vec<Sent>> {
        let messages: Vec<(Address, Message)> =
            messages.into_iter().map(|(to, message)| (to.into(), message)).collect();
        let told = tracing::enabled!(tracing::Level::DEBUG);
        let about: Vec<_> = messages
            .iter()
            .filter(|_| told)
            .map(|(to, m)| (to.clone(), m.session.clone()))
            .collect();
        let (items, given) = self.outgoing(messages)?;
        let bytes = publishing_bytes(&items);
        let sent = self.shared.mailbox.publish(Command::Send { items }, bytes, enough).await;
        let sent = answer!(sent, Reply::Sent(sent) => sent)?;
        for ((to, session), (sent, given)) in about.iter().zip(sent.iter().zip(&given)) {
            let (session, seq) = (session.as_ref().map(SessionId::as_str), sent.seq.0);
            let message_id = &given.id;
            tracing::debug!(%to, session, message_id, seq, duplicate = sent.duplicate, "sent");
        }
        Ok(sent.into_iter().zip(given).map(|(receipt, given)| Sent::of(receipt, given)).collect())
    }

    /// Checks and encodes messages that go to one place together, for [`Engine::send_each`].
    pub fn parcel(
        &self,
        to: &Address,
        messages: impl ExactSizeIterator<Item = Message>,
        ids: IdFormat,
    ) -> Answer<Parcel> {
        let messages = messages.map(|message| (to.clone(), message));
        Ok(Parcel { items: self.checked(messages, ids, |_, _| ())? })
    }

    /// Sends that came together, one after the other; each is all or none on its own and has its own answer.
    pub async fn send_each(&self, parcels: Vec<Parcel>) -> Answer<Vec<Result<(), Refusal>>> {
        let bytes = parcels.iter().map(|parcel| publishing_bytes(&parcel.items)).sum();
        let sends = parcels.into_iter().map(|parcel| parcel.items).collect();
        let command = Command::SendEach { sends };
        let sent = self.shared.mailbox.publish(command, bytes, std::future::pending()).await;
        let each = answer!(sent, Reply::SentEach(each) => each)?;
        Ok(each.into_iter().map(|receipts| receipts.map(drop)).collect())
    }

    pub(crate) fn outgoing(
        &self,
        messages: Vec<(Address, Message)>,
    ) -> Answer<(Vec<Item>, Vec<Given>)> {
        let mut given = Vec::with_capacity(messages.len());
        let note = |to: &Address, id| {
            given.push(Given { id, to_topic: matches!(to, Address::Topic(_)) });
        };
        let items = self.checked(messages.into_iter(), IdFormat::Hyphenated, note)?;
        Ok((items.into_vec(), given))
    }

    /// Checks and encodes the messages of one send. Calls `note` with the id of each message: the sender's, or a new one
    /// in the format `ids`.
    fn checked(
        &self,
        messages: impl ExactSizeIterator<Item = (Address, Message)>,
        ids: IdFormat,
        mut note: impl FnMut(&Address, String),
    ) -> Answer<Items> {
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
                    let outgoing = Outgoing::new(&message, id_given)?;
                    note(&to, message.message_id.take().unwrap_or_default());
                    outgoing
                }
                Address::Topic(_) => {
                    // Rules may look at it, and copies of theirs keep it.
                    message.origin_id.get_or_insert_with(|| id.clone());
                    note(&to, id.clone());
                    Outgoing::to_topic(message, id_given)?
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

    /// Takes back scheduled messages; one that is not there refuses all.
    pub async fn cancel(&self, from: impl Into<Address>, seqs: Vec<Seq>) -> Answer<u64> {
        let from = from.into();
        answer!(self.ask(Command::Cancel { from, seqs }).await, Reply::Count(n) => n)
    }

    /// Waits for messages. Dropping the future takes no message with it.
    pub async fn receive(&self, receive: Receive) -> Answer<Vec<Delivery>> {
        self.receive_for(None, receive).await
    }

    pub(crate) async fn receive_for(
        &self,
        connection: Option<ConnectionId>,
        receive: Receive,
    ) -> Answer<Vec<Delivery>> {
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
        };
        loop {
            let attach = Attach { consumer: self.shared.mailbox.new_consumer(), ..attach.clone() };
            let waiting = Waiting {
                mailbox: &self.shared.mailbox,
                consumer: attach.consumer,
                armed: wait > 0,
            };
            let reply = self.ask(Command::Attach(attach)).await;
            waiting.over();
            let grants = answer!(reply, Reply::Delivered(grants) => grants)?;
            let granted = !grants.is_empty();
            let deliveries = self.deliveries(&queue, grants).await;
            // All of them were damaged and are gone from the queue: the next ones, then.
            if !granted || !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    /// Deferred messages by their sequences; one that is not there refuses all.
    pub async fn receive_deferred(
        &self,
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        lock_ms: Option<u64>,
        take: bool,
    ) -> Answer<Vec<Delivery>> {
        let receive =
            ReceiveDeferred { queue: queue.clone(), seqs, hold, lock_ms, take, connection: None };
        let command = Command::ReceiveDeferred(receive);
        let grants = answer!(self.ask(command).await, Reply::Delivered(grants) => grants)?;
        Ok(self.deliveries(&queue, grants).await)
    }

    /// Ends leases, each on its own outcome, and with them, if given, changes a session's state. With a queue, tokens
    /// of other queues are refused as lost: whoever may use one queue has no business with the leases of another.
    pub async fn settle(
        &self,
        queue: Option<&QueueName>,
        leases: Vec<LeaseToken>,
        settlement: Settlement,
        state: Option<StateChange>,
    ) -> Answer<Vec<Result<(), Refusal>>> {
        let told =
            tracing::enabled!(tracing::Level::DEBUG).then(|| (leases.clone(), settlement.word()));
        let command = within(queue, Command::Settle { leases, settlement, state });
        let each = answer!(self.ask(command).await, Reply::Settled(each) => each)?;
        if let Some((leases, outcome)) = told {
            for (lease, done) in leases.iter().zip(&each) {
                tracing::debug!(%lease, outcome, ok = done.is_ok(), "settled");
            }
        }
        Ok(each)
    }

    /// Prolongs leases or session holds, counted from now.
    pub async fn renew(
        &self,
        queue: Option<&QueueName>,
        leases: Vec<LeaseToken>,
        lock_ms: Option<u64>,
    ) -> Answer<Vec<Result<Timestamp, Refusal>>> {
        answer!(self.ask(within(queue, Command::Renew { leases, lock_ms })).await, Reply::Renewed(each) => each)
    }

    /// Holds a session by name, or the next that is ready within `wait_ms`; none is a clean `None`.
    pub async fn accept(
        &self,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> Answer<Option<Held>> {
        self.accept_for(None, queue, session, wait_ms, lock_ms).await
    }

    pub(crate) async fn accept_for(
        &self,
        connection: Option<ConnectionId>,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> Answer<Option<Held>> {
        let wait = wait_ms.min(limits::ACCEPT_WAIT_MS_MAX);
        let consumer = self.shared.mailbox.new_consumer();
        let until = self.now().plus_ms(wait);
        let accept = Accept { consumer, connection, queue, session, lock_ms, until };
        let waiting = Waiting { mailbox: &self.shared.mailbox, consumer, armed: wait > 0 };
        let reply = self.ask(Command::Accept(accept)).await;
        waiting.over();
        answer!(reply, Reply::Accepted(held) => held)
    }

    /// Lets go of a held session; what is out of it comes back uncounted.
    pub async fn release_session(&self, queue: Option<&QueueName>, hold: LeaseToken) -> Answer<()> {
        answer!(self.ask(within(queue, Command::ReleaseSession { hold })).await, Reply::Done => ())
    }

    /// Sets or clears the state of a held session.
    pub async fn set_state(&self, queue: Option<&QueueName>, change: StateChange) -> Answer<()> {
        answer!(self.ask(within(queue, Command::SetState { change })).await, Reply::Done => ())
    }

    /// The state of a session. With a hold it must be valid; without one an operator looks.
    pub async fn get_state(
        &self,
        queue: QueueName,
        session: SessionId,
        hold: Option<LeaseToken>,
    ) -> Answer<Option<Bytes>> {
        let command = || Command::GetState { queue: queue.clone(), session: session.clone(), hold };
        let damaged = EngineError::Damaged { queue: queue.clone(), seq: Seq(0) };
        for _ in 0..2 {
            let pos = answer!(self.ask(command()).await, Reply::State(pos) => pos)?;
            let Some(pos) = pos else { return Ok(None) };
            match self.shared.segments.read(pos) {
                // Compaction moved it away in between: it is found where it is now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(_) => break,
                Ok((kind, bytes)) => {
                    return crate::codec::state_of(kind, &bytes).ok_or(damaged).map(Some);
                }
            }
        }
        Err(damaged)
    }

    /// Takes a session from its holder.
    pub async fn break_session(&self, queue: QueueName, session: SessionId) -> Answer<()> {
        answer!(self.ask(Command::BreakSession { queue, session }).await, Reply::Done => ())
    }

    /// Moves dead letters of `queue` to `to`, or to where they came from. Tells how many.
    pub async fn redrive(
        &self,
        queue: QueueName,
        which: Which,
        to: Option<QueueName>,
    ) -> Answer<u64> {
        self.redrive_permitted(queue, which, to, |_| true).await
    }

    /// The same, but leaves those where they are whose destination is not permitted: dead letters of one queue may
    /// have come from several.
    pub async fn redrive_permitted(
        &self,
        queue: QueueName,
        which: Which,
        to: Option<QueueName>,
        permitted: impl Fn(&QueueName) -> bool + Send,
    ) -> Answer<u64> {
        let from = queue.dead_letters();
        let mut moved = 0;
        let mut next = Seq(0);
        loop {
            let batch = match &which {
                Which::Oldest(max) => {
                    let left = max.saturating_sub(moved as usize).min(limits::RECEIVE_BATCH_MAX);
                    if left == 0 {
                        return Ok(moved);
                    }
                    let peek = Peek {
                        queue: from.clone(),
                        from: next,
                        max: left,
                        session: None,
                        state: Some(MessageState::Ready),
                    };
                    self.seen(peek).await?
                }
                Which::These(seqs) => {
                    let mut all = Vec::with_capacity(seqs.len());
                    for &seq in seqs {
                        let peek = Peek {
                            queue: from.clone(),
                            from: seq,
                            max: 1,
                            session: None,
                            state: None,
                        };
                        let mut seen = self.seen(peek).await?;
                        if seen.0.first().is_none_or(|first| first.seq != seq) {
                            let what = "dead-lettered";
                            return Err(Refusal::MessageNotFound { queue: from, seq, what }.into());
                        }
                        all.append(&mut seen.0);
                    }
                    (all, None)
                }
            };
            let (seen, more) = batch;
            let items = seen.iter().filter_map(|s| {
                let home = s.dead().map(|dead| dead.from.clone());
                let to = to.clone().or(home).filter(|to| permitted(to))?;
                Some(Moving::as_it_is(s.seq, to))
            });
            let items: Vec<_> = items.collect();
            if !items.is_empty() {
                let command = Command::Move { from: from.clone(), items, why: MoveWhy::Redrive };
                moved += answer!(self.ask(command).await, Reply::Count(n) => n)?;
            }
            match more {
                Some(more) if matches!(which, Which::Oldest(_)) => next = more,
                _ => return Ok(moved),
            }
        }
    }

    /// Moves ready messages of one queue, each to its target; one that cannot move refuses all. Their counters start
    /// anew, as after a redrive.
    pub async fn move_ready(&self, from: QueueName, items: Vec<Moving>) -> Answer<u64> {
        let command = Command::Move { from, items, why: MoveWhy::Redrive };
        answer!(self.ask(command).await, Reply::Count(n) => n)
    }

    /// Removes one message of `from` and sends another in its stead to `to`, atomically: edit and resend.
    pub async fn resend(
        &self,
        from: QueueName,
        seq: Seq,
        to: QueueName,
        message: Message,
    ) -> Answer<Sent> {
        let (mut items, mut ids) = self.outgoing(vec![(to.into(), message)])?;
        let (Some((Address::Queue(to), message)), Some(message_id)) = (items.pop(), ids.pop())
        else {
            unreachable!("one message in, one out")
        };
        let command = Command::Replace { from, seq, to, message };
        match answer!(self.ask(command).await, Reply::Sent(sent) => sent)?[..] {
            [receipt] => Ok(Sent::of(receipt, message_id)),
            _ => unreachable!("one message in, one out"),
        }
    }

    /// A connection that consumers, leases and holds can be bound to.
    pub fn connect(&self) -> (Connection, Outbox) {
        Connection::new(self.clone())
    }

    /// Asks the core and waits for its answer.
    pub(crate) async fn ask(&self, command: Command) -> Answer<Reply> {
        self.shared.mailbox.ask(command).await
    }

    /// Messages that could not be read when they should have been delivered, since the start.
    pub fn damaged(&self) -> u64 {
        self.shared.damaged.load(Ordering::Relaxed)
    }
}

/// What messages take of the room for those that are being sent.
pub(crate) fn publishing_bytes(items: &[Item]) -> usize {
    items.iter().map(|(_, message)| message.size() + 64).sum()
}

/// The command, with tokens of this queue only.
fn within(queue: Option<&QueueName>, command: Command) -> Command {
    match queue {
        Some(queue) => Command::Within { queue: queue.clone(), command: Box::new(command) },
        None => command,
    }
}

/// Gives up a wait when the caller goes away in the middle of it.
struct Waiting<'a> {
    mailbox: &'a Mailbox,
    consumer: ConsumerId,
    armed: bool,
}

impl Waiting<'_> {
    fn over(mut self) {
        self.armed = false;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.mailbox.give_up(self.consumer);
        }
    }
}
