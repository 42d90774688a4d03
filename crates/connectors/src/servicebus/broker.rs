//! `servicebus://`: Azure Service Bus, or Malote by the same protocol, as a broker for workers.
//!
//! Locks last as long as the queue says; retries have no delay, and nothing can be written on a failed message. The
//! connection lives on a thread of its own, so that handlers which never yield cannot starve it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::{Clock, SystemClock};
use malote_model::{
    Address, LeaseToken, Message as Model, QueueName, QueueSpec, Seq, SessionId,
    Settlement as Asked, Timestamp,
};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::convert;
use super::error::{Error, Kind};
use super::{
    Client, Config, Received, Receiver, ReceiverOptions, Sender, SessionReceiver, Settlement,
    Settler,
};
use crate::broker::{Broker, BrokerError, Delivery, Doing, Held, Sent, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: "Service Bus",
    retry_hold: RetryHold::Session,
    declare: false,
    sessions: true,
    fair_sessions: false,
    choose_lock: false,
    session_state: true,
    state_with_settle: false,
    renew: true,
    release: true,
    delay: false,
    schedule: true,
    dead_letter: true,
    changes: false,
    dedup: true,
    atomic_send: false,
    bound_leases: false,
};

/// Messages asked for ahead of a fetch.
const PREFETCH: u32 = 32;
/// What is there now arrives within this, or counts as not there.
const NOW: Duration = Duration::from_millis(20);
/// One wait at the service for a session: if its caller gives up, it goes on for no longer.
const ACCEPT_MAX: Duration = Duration::from_secs(5);
/// Senders that are kept open.
const SENDERS_MAX: usize = 256;

/// A namespace.
pub struct ServiceBus {
    client: Client,
    io: Arc<Io>,
    senders: tokio::sync::Mutex<HashMap<String, Arc<Sender>>>,
    locks: Arc<Locks>,
    chance: Chance,
    clock: SystemClock,
}

/// What is in hand, by tokens of our own: a settlement needs the message and the link that it came over.
#[derive(Default)]
struct Locks {
    next: AtomicU64,
    messages: Mutex<HashMap<LeaseToken, Locked>>,
    sessions: Mutex<HashMap<LeaseToken, Settler>>,
}

#[derive(Clone)]
struct Locked {
    message: Received,
    settler: Settler,
    /// The session's hold, or the source's own number.
    of: LeaseToken,
    in_session: bool,
}

impl Locks {
    fn token(&self) -> LeaseToken {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        LeaseToken { epoch: 0, slot: (next >> 32) as u32, grant: next as u32, random: 0 }
    }

    /// A session was let go: what came of it is settled or goes back.
    fn forget(&self, of: LeaseToken) {
        self.messages.lock().retain(|_, locked| locked.of != of);
        self.sessions.lock().remove(&of);
    }
}

/// A thread with a runtime: what is spawned there goes on whatever handlers do.
struct Io {
    handle: tokio::runtime::Handle,
    _end: DropGuard,
}

impl Io {
    fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, end) = (runtime.handle().clone(), CancellationToken::new());
        let until = end.clone();
        std::thread::Builder::new()
            .name("malote-servicebus".into())
            .spawn(move || runtime.block_on(until.cancelled()))?;
        Ok(Self { handle, _end: end.drop_guard() })
    }

    /// Runs there, to its end: a link that is being opened must not be forgotten half-way. What nobody waits for any
    /// more is dropped then, and so let go.
    async fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, BrokerError> {
        match self.handle.spawn(what).await {
            Ok(done) => done.map_err(BrokerError::from),
            Err(_) => Err(BrokerError::Closed),
        }
    }
}

impl From<Error> for BrokerError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Unreachable { .. } | Error::Lost(_) => Self::Unreachable { text },
            Error::Closed => Self::Closed,
            Error::TooMany(_) => Self::Busy { text },
            Error::Config(_) => Self::Refused { code: "bad_url".into(), text },
            Error::Unreadable(_) => Self::Refused { code: "unreadable".into(), text },
            Error::Refused { kind, condition, .. } => match kind {
                Kind::SessionLockLost | Kind::MessageLockLost => Self::LockLost,
                Kind::Timeout | Kind::Busy | Kind::Released | Kind::Detached => Self::Busy { text },
                Kind::EntityNotFound => Self::Refused { code: "queue_not_found".into(), text },
                Kind::SessionCannotBeLocked => Self::Refused { code: "session_held".into(), text },
                _ => Self::Refused { code: condition, text },
            },
        }
    }
}

fn unsupported(what: &'static str, fix: &'static str) -> BrokerError {
    BrokerError::Unsupported { broker: CAPABILITIES.broker, what, fix }
}

/// The address of a queue; its dead letters have the service's own spelling.
fn entity(queue: &QueueName) -> String {
    match queue.owner() {
        Some(owner) => format!("{owner}/$DeadLetterQueue"),
        None => queue.as_str().to_owned(),
    }
}

impl ServiceBus {
    /// Connects: `servicebus://` and a connection string, or a connection string alone.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let config: Config = url.strip_prefix("servicebus://").unwrap_or(url).parse()?;
        let io = Arc::new(Io::start().map_err(|error| BrokerError::Refused {
            code: "no_thread".into(),
            text: format!("the thread of the connection cannot be started: {error}"),
        })?);
        let client = io.run(Client::connect(config)).await?;
        Ok(Self {
            client,
            io,
            senders: tokio::sync::Mutex::default(),
            locks: Arc::default(),
            chance: Chance::of_system(),
            clock: SystemClock::starting_at(Timestamp(0)),
        })
    }

    async fn sender(&self, queue: &str) -> Result<Arc<Sender>, BrokerError> {
        let mut senders = self.senders.lock().await;
        if let Some(sender) = senders.get(queue).filter(|sender| !sender.is_over()) {
            return Ok(sender.clone());
        }
        if senders.len() >= SENDERS_MAX {
            senders.clear();
        }
        let (client, entity) = (self.client.clone(), queue.to_owned());
        let sender = self.io.run(async move { client.sender(&entity).await }).await?;
        let sender = Arc::new(sender);
        senders.insert(queue.to_owned(), sender.clone());
        Ok(sender)
    }

    async fn send_to(&self, queue: &str, messages: &[Model]) -> Result<Vec<Sent>, BrokerError> {
        let sender = self.sender(queue).await?;
        let mut sent = Vec::with_capacity(messages.len());
        let mut batch = sender.batch();
        for message in messages {
            let id = message.message_id.clone().unwrap_or_else(|| {
                format!("{:016x}{:016x}", self.chance.draw(), self.chance.draw())
            });
            let outgoing = convert::outgoing(message, id.clone(), self.clock.now());
            if !batch.add(&outgoing) {
                if !batch.is_empty() {
                    sender.send_batch(&batch).await?;
                    batch = sender.batch();
                }
                if !batch.add(&outgoing) {
                    sender.send(&outgoing).await?;
                }
            }
            sent.push(Sent { seq: Seq(0), message_id: id, duplicate: false });
        }
        if !batch.is_empty() {
            sender.send_batch(&batch).await?;
        }
        Ok(sent)
    }

    fn source(&self, receiver: AnyReceiver, held: Option<Held>, of: LeaseToken) -> Box<dyn Source> {
        let settler = receiver.receiver().settler();
        let in_session = held.is_some();
        if in_session {
            self.locks.sessions.lock().insert(of, settler.clone());
        }
        let (receiver, locks) = (tokio::sync::Mutex::new(Some(receiver)), self.locks.clone());
        Box::new(LinkSource { receiver, settler, held, of, locks, io: self.io.clone() })
    }
}

/// What the service can do of a settlement.
fn settlement(asked: &Asked) -> Result<Settlement, BrokerError> {
    let plain = |laid: &malote_model::Changes| match laid.is_empty() {
        true => Ok(Default::default()),
        false => Err(unsupported("history on the message", "leave its properties as they are")),
    };
    Ok(match asked {
        Asked::Complete => Settlement::Complete,
        Asked::Abandon { delay_ms, .. } | Asked::Release { delay_ms } if *delay_ms > 0 => {
            return Err(unsupported("durable delay", "set the retry's backoff to none"));
        }
        Asked::Abandon { changes, .. } => Settlement::Abandon { properties: plain(changes)? },
        Asked::Release { .. } => Settlement::Release,
        Asked::Defer { changes } => Settlement::Defer { properties: plain(changes)? },
        Asked::DeadLetter { reason, text, changes } => Settlement::DeadLetter {
            reason: reason.clone(),
            description: text.clone(),
            properties: plain(changes)?,
        },
    })
}

impl Broker for ServiceBus {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, _: &QueueName, _: QueueSpec) -> Doing<'_, ()> {
        Box::pin(async {
            Err(unsupported(
                "declarations over AMQP",
                "make the queue with the service's own tools",
            ))
        })
    }

    fn send(&self, messages: Vec<(Address, Model)>) -> Doing<'_, Vec<Sent>> {
        Box::pin(async move {
            let mut sent = Vec::with_capacity(messages.len());
            let mut rest = &messages[..];
            while let Some((to, _)) = rest.first() {
                let of = rest.iter().take_while(|(other, _)| other == to).count();
                let (now, later) = rest.split_at(of);
                let name = match to {
                    Address::Queue(queue) => entity(queue),
                    Address::Topic(topic) => topic.as_str().to_owned(),
                };
                let now: Vec<Model> = now.iter().map(|(_, message)| message.clone()).collect();
                sent.extend(self.send_to(&name, &now).await?);
                rest = later;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, _: Duration) -> Doing<'_, Box<dyn Source>> {
        let entity = entity(queue);
        Box::pin(async move {
            let client = self.client.clone();
            let options = ReceiverOptions { prefetch: PREFETCH, ..Default::default() };
            let open = async move { client.receiver(&entity, options).await };
            let receiver = AnyReceiver::Plain(Box::new(self.io.run(open).await?));
            Ok(self.source(receiver, None, self.locks.token()))
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        _: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let entity = entity(queue);
        Box::pin(async move {
            let options = ReceiverOptions { prefetch: PREFETCH, ..Default::default() };
            let until = tokio::time::Instant::now() + wait;
            let receiver = loop {
                let (client, entity, session) =
                    (self.client.clone(), entity.clone(), session.clone());
                let left = until.saturating_duration_since(tokio::time::Instant::now());
                let accept = async move {
                    match session {
                        Some(id) => client.session(&entity, id.as_str(), options).await.map(Some),
                        None => {
                            let wait = left.clamp(NOW, ACCEPT_MAX);
                            client.next_session(&entity, options, wait).await
                        }
                    }
                };
                match self.io.run(accept).await? {
                    Some(receiver) => break receiver,
                    None if left > ACCEPT_MAX => {}
                    None => return Ok(None),
                }
            };
            let session = SessionId::new(receiver.id()).map_err(BrokerError::from)?;
            let epoch = u64::try_from(receiver.locked_until_ms()).unwrap_or_default();
            let hold = self.locks.token();
            let held = Held { session, hold, epoch };
            Ok(Some(self.source(AnyReceiver::Session(Box::new(receiver)), Some(held), hold)))
        })
    }

    fn settle(&self, _: &QueueName, items: Vec<Settle>) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        Box::pin(async move {
            let mut all = vec![Err(BrokerError::LockLost); items.len()];
            let mut started = Vec::new();
            for (nth, item) in items.iter().enumerate() {
                if item.state.is_some() {
                    let fix = "keep the state in your own database, with an inbox";
                    all[nth] = Err(unsupported("state and settlement in one step", fix));
                    continue;
                }
                let how = match settlement(&item.settlement) {
                    Ok(how) => how,
                    Err(error) => {
                        all[nth] = Err(error);
                        continue;
                    }
                };
                let Some(locked) = self.locks.messages.lock().remove(&item.lease) else { continue };
                match locked.settler.start([&locked.message], &how).await {
                    Ok(settled) => started.push((nth, locked, settled)),
                    Err(error) => all[nth] = self.not_settled(item.lease, locked, error),
                }
            }
            for (nth, locked, settled) in started {
                let outcome = settled.outcomes().await.pop().unwrap_or(Ok(()));
                all[nth] = match outcome {
                    Ok(()) => Ok(()),
                    Err(error) => self.not_settled(items[nth].lease, locked, error),
                };
            }
            Ok(all)
        })
    }

    fn renew(
        &self,
        _: &QueueName,
        leases: Vec<LeaseToken>,
        _: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        Box::pin(async move {
            let mut all = Vec::with_capacity(leases.len());
            for lease in leases {
                let session = self.locks.sessions.lock().get(&lease).cloned();
                let message = self.locks.messages.lock().get(&lease).cloned();
                let renewed = match (session, message) {
                    (Some(session), _) => session.management().renew_session().await.map(drop),
                    (None, Some(locked)) => {
                        locked.settler.renew_locks([&locked.message]).await.map(drop)
                    }
                    (None, None) => {
                        all.push(Err(BrokerError::LockLost));
                        continue;
                    }
                };
                let renewed = renewed.map_err(BrokerError::from);
                if renewed == Err(BrokerError::LockLost) {
                    self.locks.messages.lock().remove(&lease);
                }
                all.push(renewed);
            }
            Ok(all)
        })
    }

    fn state(&self, _: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        let session = self.locks.sessions.lock().get(&held.hold).cloned();
        Box::pin(async move {
            let session = session.ok_or(BrokerError::LockLost)?;
            Ok(session.management().state().await?)
        })
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            self.senders.lock().await.clear();
            self.client.close().await;
            Ok(())
        })
    }
}

impl ServiceBus {
    /// A settlement that may be tried again keeps its message in hand; a session's locks are gone with its link.
    fn not_settled(
        &self,
        lease: LeaseToken,
        locked: Locked,
        error: Error,
    ) -> Result<(), BrokerError> {
        let error = match error {
            Error::Lost(_) if locked.in_session => BrokerError::LockLost,
            error => BrokerError::from(error),
        };
        if error.is_transient() {
            self.locks.messages.lock().insert(lease, locked);
        }
        Err(error)
    }
}

enum AnyReceiver {
    Plain(Box<Receiver>),
    Session(Box<SessionReceiver>),
}

impl AnyReceiver {
    fn receiver(&self) -> &Receiver {
        match self {
            Self::Plain(receiver) => receiver,
            Self::Session(receiver) => receiver,
        }
    }

    fn receiver_mut(&mut self) -> &mut Receiver {
        match self {
            Self::Plain(receiver) => receiver,
            Self::Session(receiver) => receiver,
        }
    }
}

struct LinkSource {
    /// None once it was closed.
    receiver: tokio::sync::Mutex<Option<AnyReceiver>>,
    settler: Settler,
    held: Option<Held>,
    of: LeaseToken,
    locks: Arc<Locks>,
    /// The connection lives for as long as somebody receives.
    io: Arc<Io>,
}

impl Source for LinkSource {
    fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut receiver = self.receiver.lock().await;
            let receiver = receiver.as_mut().ok_or(BrokerError::Closed)?.receiver_mut();
            let came = receiver.next_many(max.max(1) as usize);
            let came = match tokio::time::timeout(wait.max(NOW), came).await {
                Ok(came) => came.map_err(|error| match error {
                    Error::Lost(_) if self.held.is_some() => BrokerError::LockLost,
                    error => error.into(),
                })?,
                Err(_) => return Ok(Vec::new()),
            };
            let mut all = Vec::with_capacity(came.len());
            for message in came {
                let lease = self.locks.token();
                let (settler, of, in_session) =
                    (self.settler.clone(), self.of, self.held.is_some());
                let delivery = convert::delivery(&message, lease);
                let locked = Locked { message, settler, of, in_session };
                match delivery {
                    Ok(delivery) => {
                        self.locks.messages.lock().insert(lease, locked);
                        all.push(delivery);
                    }
                    // It would be unreadable for everybody.
                    Err(error) => {
                        let how = Settlement::DeadLetter {
                            reason: "Unreadable".into(),
                            description: error.to_string(),
                            properties: Default::default(),
                        };
                        locked.settler.settle([&locked.message], &how).await?;
                    }
                }
            }
            Ok(all)
        })
    }

    fn close(self: Box<Self>) -> Doing<'static, ()> {
        Box::pin(async move {
            if let Some(receiver) = self.receiver.lock().await.take() {
                match receiver {
                    AnyReceiver::Plain(receiver) => receiver.close().await,
                    AnyReceiver::Session(receiver) => receiver.close().await,
                }
            }
            Ok(())
        })
    }
}

impl Drop for LinkSource {
    fn drop(&mut self) {
        // A session's locks are gone with it; other messages in hand can still be settled by their tokens.
        if self.held.is_some() {
            self.locks.forget(self.of);
        }
        // A receiver lets go by itself, on the runtime of its connection.
        let _io = self.io.handle.enter();
        drop(self.receiver.get_mut().take());
    }
}
