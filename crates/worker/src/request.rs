//! Requests and their replies.
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! # #[cfg(feature = "embedded")] {
//! use malote::testing::TestBroker;
//! use malote::{Failure, QueueSpec, Reply, Worker};
//!
//! async fn double(n: u32, reply: Reply) -> Result<(), Failure> {
//!     reply.send(&(2 * n)).await
//! }
//!
//! let broker = TestBroker::new()?;
//! broker.malote().declare("sums", QueueSpec::default()).await?;
//! let worker = Worker::new(broker.malote(), "sums").handle(double).start().await?;
//! let doubled: u32 = broker.malote().request("sums", &21).await?.json()?;
//! assert_eq!(doubled, 42);
//! # drop(worker);
//! # }
//! # Ok::<(), malote::Error>(()) }).unwrap();
//! ```
//!
//! A client gets all its replies through one queue, which its first request opens. By default this is an exclusive
//! queue that is deleted with the connection. With [`Malote::replies_through`] it is a session of an existing queue.
//!
//! A request expires when its caller stops waiting, so that no worker spends time on it. A reply that arrives later is
//! dropped and counted.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Delivery, Settle, Source};
use malote_model::{
    Address, DeadLetterTarget, Durability, Message, QueueName, QueueSpec, SessionId, Value, limits,
};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::Error;
use crate::client::{Malote, json_message, queue_name, refused};
use crate::clock::delay_millis;
use crate::extract::FromDelivery;
use crate::incoming::Incoming;
use crate::outcome::Failure;

/// The default time-out of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pending requests of one client.
const PENDING_MAX: usize = 10_000;
/// Replies in one fetch.
const FETCH_MAX: u32 = 256;
/// The lock of replies and of the session for them. The session is renewed after each third of it.
const LOCK: Duration = Duration::from_secs(30);
/// The pause after a failed fetch.
const PAUSE: Duration = Duration::from_millis(200);
/// The prefix of names of reply queues. The HTTP API uses the same.
const REPLY_PREFIX: &str = "reply-";

/// A random id, so that no other client can forge a reply.
fn random_id() -> String {
    #[allow(clippy::disallowed_methods)] // a secret must not be reproducible
    uuid::Uuid::new_v4().simple().to_string()
}

impl Malote {
    /// Sends a value as JSON and waits for the reply: `malote.request("sums", &question).await?.json()?`.
    pub fn request<T: Serialize>(&self, queue: &str, value: &T) -> RequestBuilder {
        let (to, message) = (queue_name(queue), json_message(value));
        RequestBuilder { malote: self.clone(), to, message, timeout: TIMEOUT }
    }

    /// Receives replies through a session of this existing queue, with an id of this client's own. Use it if the broker
    /// has no exclusive queues. Call it before the first request.
    #[must_use]
    pub fn replies_through(&self, queue: &str) -> Self {
        let mut malote = self.clone();
        malote.replies = Arc::new(ReplyQueues::new(Some(queue_name(queue))));
        malote
    }

    /// The number of replies that arrived after their request had timed out.
    pub fn late_replies(&self) -> u64 {
        self.replies.late.load(Ordering::Relaxed)
    }
}

/// A request to send. Set its fields, then `.await` it.
#[must_use = "the request is sent when this is awaited"]
pub struct RequestBuilder {
    malote: Malote,
    to: Result<QueueName, Error>,
    message: Result<Message, Error>,
    timeout: Duration,
}

impl RequestBuilder {
    fn with(mut self, change: impl FnOnce(&mut Message)) -> Self {
        if let Ok(message) = &mut self.message {
            change(message);
        }
        self
    }

    /// How long to wait for the reply (default 30 s). The request message expires at the same time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The session of the request. Requests of a session are handled in order.
    pub fn session(mut self, session: impl AsRef<str>) -> Self {
        match SessionId::new(session.as_ref()) {
            Ok(session) => self.with(|message| message.session = Some(session)),
            Err(refusal) => {
                self.message = Err(Error::Broker(refused("bad_session_id", refusal)));
                self
            }
        }
    }

    /// The subject. A worker selects the handler by it.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.with(|message| message.subject = Some(subject.into()))
    }

    /// Sets a property.
    pub fn property(self, name: impl Into<String>, value: Value) -> Self {
        self.with(|message| message.properties.set(name, value))
    }

    async fn send(self) -> Result<ReplyMessage, Error> {
        let (to, mut message) = (self.to?, self.message?);
        let until = tokio::time::Instant::now() + self.timeout;
        let queue = to.as_str().to_owned();
        let no_reply = || Error::NoReply { queue: queue.clone(), timeout: self.timeout };
        let opened = tokio::time::timeout_at(until, self.malote.replies.open(&self.malote));
        let reply_queue = opened.await.map_err(|_| no_reply())??;
        let mut pending = reply_queue.register()?;
        message.reply_to = Some(reply_queue.queue.as_str().to_owned());
        message.reply_to_session = reply_queue.session.as_ref().map(|id| id.as_str().to_owned());
        message.correlation_id = Some(pending.correlation_id.clone());
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        message.ttl_ms = Some(delay_millis(left).max(1));
        let send = self.malote.broker().send(vec![(Address::Queue(to), message)]);
        tokio::time::timeout_at(until, send).await.map_err(|_| no_reply())??;
        match tokio::time::timeout_at(until, &mut pending.reply).await {
            Ok(Ok(delivery)) => Ok(ReplyMessage(delivery)),
            Ok(Err(_)) => {
                let text =
                    "the reply queue of this client was closed; send the request again".to_owned();
                Err(Error::Broker(BrokerError::Unreachable { text }))
            }
            Err(_) => Err(no_reply()),
        }
    }
}

impl IntoFuture for RequestBuilder {
    type Output = Result<ReplyMessage, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyMessage(Delivery);

impl ReplyMessage {
    /// The body, decoded from JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let bytes = &self.message().body.bytes;
        serde_json::from_slice(bytes).map_err(|error| Error::Decode(error.to_string()))
    }

    /// The whole message.
    pub fn message(&self) -> &Message {
        &self.0.message
    }
}

/// The reply queue of a client. It is opened by the first request, and again after it was lost.
pub(crate) struct ReplyQueues {
    /// An existing queue to use a session of.
    shared_queue: Option<Result<QueueName, Error>>,
    current: tokio::sync::Mutex<Option<Arc<ReplyQueue>>>,
    late: Arc<AtomicU64>,
    receiver: Mutex<Option<AbortHandle>>,
}

impl Drop for ReplyQueues {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.lock().take() {
            receiver.abort();
        }
    }
}

struct ReplyQueue {
    queue: QueueName,
    session: Option<SessionId>,
    /// Pending requests by correlation id. None after the queue was closed.
    pending: Mutex<Option<HashMap<String, oneshot::Sender<Delivery>>>>,
}

/// A request that waits for its reply. Dropping it removes it from the pending requests.
struct PendingRequest {
    reply_queue: Arc<ReplyQueue>,
    correlation_id: String,
    reply: oneshot::Receiver<Delivery>,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(pending) = self.reply_queue.pending.lock().as_mut() {
            pending.remove(&self.correlation_id);
        }
    }
}

impl Default for ReplyQueues {
    fn default() -> Self {
        Self::new(None)
    }
}

impl ReplyQueues {
    fn new(shared_queue: Option<Result<QueueName, Error>>) -> Self {
        let (current, late, receiver) = Default::default();
        Self { shared_queue, current, late, receiver }
    }

    /// Stops receiving replies. Pending requests fail.
    pub(crate) async fn close(&self) {
        if let Some(receiver) = self.receiver.lock().take() {
            receiver.abort();
        }
        if let Some(reply_queue) = self.current.lock().await.take() {
            reply_queue.pending.lock().take();
        }
    }

    /// The open reply queue. Opens one if there is none.
    async fn open(&self, malote: &Malote) -> Result<Arc<ReplyQueue>, Error> {
        let mut current = self.current.lock().await;
        if let Some(open) = current.as_ref().filter(|queue| queue.pending.lock().is_some()) {
            return Ok(open.clone());
        }
        let broker = malote.broker().clone();
        let (queue, session) = match &self.shared_queue {
            Some(queue) => {
                let id = SessionId::new(&format!("{REPLY_PREFIX}{}", random_id()));
                let id = id.map_err(|error| Error::Broker(refused("bad_session_id", error)))?;
                (queue.clone()?, Some(id))
            }
            None => {
                let queue = queue_name(&format!("{REPLY_PREFIX}{}", random_id()))?;
                broker.declare(&queue, reply_queue_spec()).await?;
                (queue, None)
            }
        };
        let source = open_source(&*broker, &queue, session.as_ref()).await?;
        let pending = Mutex::new(Some(HashMap::new()));
        let opened = Arc::new(ReplyQueue { queue, session, pending });
        let receive = opened.clone().receive_replies(broker, source, self.late.clone());
        *self.receiver.lock() = Some(tokio::spawn(receive).abort_handle());
        Ok(current.insert(opened).clone())
    }
}

/// Callers do not survive a power loss, so their replies need not either.
fn reply_queue_spec() -> QueueSpec {
    QueueSpec {
        exclusive: true,
        durability: Durability::Relaxed,
        dead_letter: DeadLetterTarget::Drop,
        message_bytes_max: limits::MESSAGE_BYTES_MAX,
        ..QueueSpec::default()
    }
}

async fn open_source(
    broker: &dyn Broker,
    queue: &QueueName,
    session: Option<&SessionId>,
) -> Result<Box<dyn Source>, BrokerError> {
    let Some(session) = session else { return broker.open(queue, LOCK).await };
    let held = broker.accept(queue, Some(session.clone()), LOCK, Duration::ZERO).await?;
    held.ok_or_else(|| BrokerError::Busy {
        text: format!("session `{session}` is held by another client"),
    })
}

impl ReplyQueue {
    fn register(self: &Arc<Self>) -> Result<PendingRequest, Error> {
        let busy = |text: String| Error::Broker(BrokerError::Busy { text });
        let (correlation_id, (sender, reply)) = (random_id(), oneshot::channel());
        let mut pending = self.pending.lock();
        let all = pending.as_mut().ok_or_else(|| {
            busy("the reply queue of this client was closed; send the request again".to_owned())
        })?;
        if all.len() >= PENDING_MAX {
            return Err(busy(format!("{PENDING_MAX} requests of this client wait for replies")));
        }
        all.insert(correlation_id.clone(), sender);
        drop(pending);
        Ok(PendingRequest { reply_queue: self.clone(), correlation_id, reply })
    }

    /// Passes replies to pending requests until the queue is lost. Pending requests fail then, and the next request
    /// opens a new queue.
    async fn receive_replies(
        self: Arc<Self>,
        broker: Arc<dyn Broker>,
        source: Box<dyn Source>,
        late: Arc<AtomicU64>,
    ) {
        let _close = CloseOnDrop(self.clone());
        loop {
            let deliveries = match source.fetch(FETCH_MAX, LOCK / 3).await {
                Ok(deliveries) => deliveries,
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(_) => return,
            };
            if let Some(held) = source.held()
                && let Ok(renewed) = broker.renew(&self.queue, vec![held.hold], LOCK).await
                && renewed.first().is_some_and(|result| result == &Err(BrokerError::LockLost))
            {
                return;
            }
            let complete =
                deliveries.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
            for delivery in deliveries {
                let id = delivery.message.correlation_id.as_deref().unwrap_or_default();
                let pending = self.pending.lock().as_mut().and_then(|all| all.remove(id));
                // Sending fails if the request timed out in this moment.
                if pending.is_none_or(|request| request.send(delivery).is_err()) {
                    late.fetch_add(1, Ordering::Relaxed);
                }
            }
            // If this fails, the replies are delivered again and dropped as late.
            let _ = broker.settle(&self.queue, complete).await;
        }
    }
}

/// Fails the pending requests by dropping their senders.
struct CloseOnDrop(Arc<ReplyQueue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.pending.lock().take();
    }
}

/// Sends a reply to the sender of the message.
pub struct Reply(Arc<Incoming>);

impl Reply {
    /// Whether the sender expects a reply.
    pub fn is_wanted(&self) -> bool {
        self.0.message().reply_to.is_some()
    }

    /// Sends a value as JSON. Does nothing if the sender expects no reply, or its reply queue does not exist any more.
    pub async fn send<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        let message = json_message(value)?;
        self.send_message(message).await
    }

    /// Sends a message. Its session and correlation id are replaced.
    pub async fn send_message(&self, mut message: Message) -> Result<(), Failure> {
        let request = self.0.message();
        let Some(to) = &request.reply_to else { return Ok(()) };
        let bad = |error: &dyn std::fmt::Display| {
            Failure::dead(
                "BadReplyTo",
                format_args!("the reply address `{to}` is invalid: {error}"),
            )
        };
        let queue = QueueName::new(to).map_err(|error| bad(&error))?;
        let session = request.reply_to_session.as_deref().map(SessionId::new).transpose();
        message.session = session.map_err(|error| bad(&error))?;
        message.correlation_id =
            request.correlation_id.clone().or_else(|| request.message_id.clone());
        match self.0.broker.send(vec![(Address::Queue(queue), message)]).await {
            Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => {
                tracing::debug!(to, "reply dropped: the reply queue does not exist any more");
                Ok(())
            }
            sent => Ok(sent.map(drop)?),
        }
    }
}

impl FromDelivery for Reply {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.clone()))
    }
}
