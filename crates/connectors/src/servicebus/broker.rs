//! `servicebus://`: Azure Service Bus, or Malote over the same protocol, as a broker for workers.
//!
//! The queue decides how long locks last. Retries have no delay, and a failed message keeps its properties. The
//! connection runs on its own thread, so that handlers that never yield cannot block it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message as ModelMessage, QueueName, QueueSpec, Seq, SessionId,
    Settlement as ModelSettlement,
};
use parking_lot::Mutex;

use super::convert;
use super::error::{Error, ErrorKind};
use super::{
    Client, Config, Received, Receiver, ReceiverOptions, Sender, SessionReceiver, Settlement,
    Settler,
};
use crate::broker::{
    Broker, BrokerError, BrokerFuture, Delivery, Sent, SessionHold, Settle, Source,
};
use crate::capabilities::{Capabilities, RetryHold};
use crate::io_thread::IoThread;
use crate::system;

/// The capabilities of Service Bus.
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

/// Prefetched messages of a source.
const PREFETCH: u32 = 32;
/// How long to wait for messages before the queue counts as empty.
const EMPTY_WAIT: Duration = Duration::from_millis(20);
/// The longest wait of one request for a session. If the caller gives up, the request waits no longer than this.
const ACCEPT_MAX: Duration = Duration::from_secs(5);
/// Senders that stay open.
const SENDERS_MAX: usize = 256;

/// A Service Bus namespace.
pub struct ServiceBus {
    client: Client,
    io: Arc<IoThread>,
    senders: tokio::sync::Mutex<HashMap<String, Arc<Sender>>>,
    locks: Arc<HeldLocks>,
}

/// Locked messages and sessions by token. To settle a message, its link and the message itself are needed.
#[derive(Default)]
struct HeldLocks {
    next: AtomicU64,
    messages: Mutex<HashMap<LeaseToken, LockedMessage>>,
    sessions: Mutex<HashMap<LeaseToken, Settler>>,
}

#[derive(Clone)]
struct LockedMessage {
    message: Received,
    settler: Settler,
    /// The token of the session's hold, or a token of the source.
    source_token: LeaseToken,
    in_session: bool,
}

impl HeldLocks {
    fn token(&self) -> LeaseToken {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        LeaseToken { epoch: 0, slot: (next >> 32) as u32, grant: next as u32, random: 0 }
    }

    /// Forgets a released session and its messages.
    fn forget(&self, source_token: LeaseToken) {
        self.messages.lock().retain(|_, locked| locked.source_token != source_token);
        self.sessions.lock().remove(&source_token);
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
                ErrorKind::SessionLockLost | ErrorKind::MessageLockLost => Self::LockLost,
                ErrorKind::Timeout
                | ErrorKind::Busy
                | ErrorKind::Released
                | ErrorKind::Detached => Self::Busy { text },
                ErrorKind::EntityNotFound => Self::Refused { code: "queue_not_found".into(), text },
                ErrorKind::SessionCannotBeLocked => {
                    Self::Refused { code: "session_held".into(), text }
                }
                _ => Self::Refused { code: condition, text },
            },
        }
    }
}

fn unsupported(what: &'static str, fix: &'static str) -> BrokerError {
    BrokerError::Unsupported { broker: CAPABILITIES.broker, what, fix }
}

/// The address of a queue. The service has its own name for dead letters.
fn entity(queue: &QueueName) -> String {
    match queue.owner() {
        Some(owner) => format!("{owner}/$DeadLetterQueue"),
        None => queue.as_str().to_owned(),
    }
}

impl ServiceBus {
    /// Connects. The URL is a connection string, with or without `servicebus://` before it.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let config: Config = url.strip_prefix("servicebus://").unwrap_or(url).parse()?;
        let io = Arc::new(IoThread::start("malote-servicebus")?);
        let client = io.run(Client::connect(config)).await?;
        Ok(Self { client, io, senders: tokio::sync::Mutex::default(), locks: Arc::default() })
    }

    async fn sender(&self, queue: &str) -> Result<Arc<Sender>, BrokerError> {
        let mut senders = self.senders.lock().await;
        if let Some(sender) = senders.get(queue).filter(|sender| !sender.is_closed()) {
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

    async fn send_to(
        &self,
        queue: &str,
        messages: &[ModelMessage],
    ) -> Result<Vec<Sent>, BrokerError> {
        let sender = self.sender(queue).await?;
        let mut sent = Vec::with_capacity(messages.len());
        let mut batch = sender.batch();
        for message in messages {
            let id = message.message_id.clone().unwrap_or_else(system::random_id);
            let outgoing = convert::to_service_bus(message, id.clone(), system::now());
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

    fn source(
        &self,
        receiver: AnyReceiver,
        held: Option<SessionHold>,
        source_token: LeaseToken,
    ) -> Box<dyn Source> {
        let settler = receiver.receiver().settler();
        let in_session = held.is_some();
        if in_session {
            self.locks.sessions.lock().insert(source_token, settler.clone());
        }
        let (receiver, locks) = (tokio::sync::Mutex::new(Some(receiver)), self.locks.clone());
        Box::new(ServiceBusSource {
            receiver,
            settler,
            held,
            source_token,
            locks,
            io: self.io.clone(),
        })
    }
}

/// The settlement for the service; an error if it does not support it.
fn settlement(asked: &ModelSettlement) -> Result<Settlement, BrokerError> {
    let plain = |laid: &malote_model::Changes| match laid.is_empty() {
        true => Ok(Default::default()),
        false => Err(unsupported("history on the message", "leave its properties unchanged")),
    };
    Ok(match asked {
        ModelSettlement::Complete => Settlement::Complete,
        ModelSettlement::Abandon { delay_ms, .. } | ModelSettlement::Release { delay_ms }
            if *delay_ms > 0 =>
        {
            return Err(unsupported("durable delay", "set the retry's backoff to none"));
        }
        ModelSettlement::Abandon { changes, .. } => {
            Settlement::Abandon { properties: plain(changes)? }
        }
        ModelSettlement::Release { .. } => Settlement::Release,
        ModelSettlement::Defer { changes } => Settlement::Defer { properties: plain(changes)? },
        ModelSettlement::DeadLetter { reason, text, changes } => Settlement::DeadLetter {
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

    fn declare(&self, _: &QueueName, _: QueueSpec) -> BrokerFuture<'_, ()> {
        Box::pin(async {
            Err(unsupported(
                "queue declarations over AMQP",
                "create the queue with the service's own tools",
            ))
        })
    }

    fn send(&self, messages: Vec<(Address, ModelMessage)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let mut sent = Vec::with_capacity(messages.len());
            let mut rest = &messages[..];
            while let Some((to, _)) = rest.first() {
                let count = rest.iter().take_while(|(other, _)| other == to).count();
                let (now, later) = rest.split_at(count);
                let name = match to {
                    Address::Queue(queue) => entity(queue),
                    Address::Topic(topic) => topic.as_str().to_owned(),
                };
                let now: Vec<ModelMessage> =
                    now.iter().map(|(_, message)| message.clone()).collect();
                sent.extend(self.send_to(&name, &now).await?);
                rest = later;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, _: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
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
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
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
                            let wait = left.clamp(EMPTY_WAIT, ACCEPT_MAX);
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
            let held = SessionHold { session, hold, epoch };
            Ok(Some(self.source(AnyReceiver::Session(Box::new(receiver)), Some(held), hold)))
        })
    }

    fn settle(
        &self,
        _: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        Box::pin(async move {
            let mut all = vec![Err(BrokerError::LockLost); items.len()];
            let mut started = Vec::new();
            for (index, item) in items.iter().enumerate() {
                if item.state.is_some() {
                    let fix = "keep the state in your own database, with an inbox";
                    all[index] = Err(unsupported("state and settlement in one step", fix));
                    continue;
                }
                let settlement = match settlement(&item.settlement) {
                    Ok(settlement) => settlement,
                    Err(error) => {
                        all[index] = Err(error);
                        continue;
                    }
                };
                let Some(locked) = self.locks.messages.lock().remove(&item.lease) else { continue };
                match locked.settler.start([&locked.message], &settlement).await {
                    Ok(settled) => started.push((index, locked, settled)),
                    Err(error) => all[index] = self.settle_failed(item.lease, locked, error),
                }
            }
            for (index, locked, settled) in started {
                let outcome = settled.outcomes().await.pop().unwrap_or(Ok(()));
                all[index] = match outcome {
                    Ok(()) => Ok(()),
                    Err(error) => self.settle_failed(items[index].lease, locked, error),
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
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
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

    fn state(&self, _: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        let session = self.locks.sessions.lock().get(&held.hold).cloned();
        Box::pin(async move {
            let session = session.ok_or(BrokerError::LockLost)?;
            Ok(session.management().state().await?)
        })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            self.senders.lock().await.clear();
            self.client.close().await;
            Ok(())
        })
    }
}

impl ServiceBus {
    /// Keeps the lease of a settlement that may be repeated. Locks of a session end with its link.
    fn settle_failed(
        &self,
        lease: LeaseToken,
        locked: LockedMessage,
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

struct ServiceBusSource {
    /// None once closed.
    receiver: tokio::sync::Mutex<Option<AnyReceiver>>,
    settler: Settler,
    held: Option<SessionHold>,
    source_token: LeaseToken,
    locks: Arc<HeldLocks>,
    /// Keeps the connection's thread running.
    io: Arc<IoThread>,
}

impl Source for ServiceBusSource {
    fn held(&self) -> Option<&SessionHold> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut receiver = self.receiver.lock().await;
            let receiver = receiver.as_mut().ok_or(BrokerError::Closed)?.receiver_mut();
            let messages = receiver.next_many(max.max(1) as usize);
            let messages = match tokio::time::timeout(wait.max(EMPTY_WAIT), messages).await {
                Ok(messages) => messages.map_err(|error| match error {
                    Error::Lost(_) if self.held.is_some() => BrokerError::LockLost,
                    error => error.into(),
                })?,
                Err(_) => return Ok(Vec::new()),
            };
            let mut all = Vec::with_capacity(messages.len());
            for message in messages {
                let lease = self.locks.token();
                let (settler, source_token, in_session) =
                    (self.settler.clone(), self.source_token, self.held.is_some());
                let delivery = convert::delivery(&message, lease);
                let locked = LockedMessage { message, settler, source_token, in_session };
                match delivery {
                    Ok(delivery) => {
                        self.locks.messages.lock().insert(lease, locked);
                        all.push(delivery);
                    }
                    // No receiver could decode it.
                    Err(error) => {
                        let settlement = Settlement::DeadLetter {
                            reason: "Unreadable".into(),
                            description: error.to_string(),
                            properties: Default::default(),
                        };
                        locked.settler.settle([&locked.message], &settlement).await?;
                    }
                }
            }
            Ok(all)
        })
    }

    fn close(self: Box<Self>) -> BrokerFuture<'static, ()> {
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

impl Drop for ServiceBusSource {
    fn drop(&mut self) {
        // Locks of a session end with it. Other locked messages can still be settled by their tokens.
        if self.held.is_some() {
            self.locks.forget(self.source_token);
        }
        // The receiver detaches its link on the runtime of the connection.
        let _io = self.io.handle.enter();
        drop(self.receiver.get_mut().take());
    }
}
