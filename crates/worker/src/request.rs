//! Requests and their answers.
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use malote::testing::TestBroker;
//! use malote::{Failure, QueueSpec, Reply, Worker};
//!
//! /// Whoever is asked answers with what the request names.
//! async fn double(n: u32, reply: Reply) -> Result<(), Failure> {
//!     reply.send(&(2 * n)).await
//! }
//!
//! let broker = TestBroker::new()?;
//! broker.malote().declare("sums", QueueSpec::default()).await?;
//! let worker = Worker::new(broker.malote(), "sums").handle(double).start().await?;
//! let answer: u32 = broker.malote().request("sums", &21).await?.json()?;
//! assert_eq!(answer, 42);
//! # drop(worker);
//! # Ok::<(), malote::Error>(()) }).unwrap();
//! ```
//!
//! A client has one place for answers, made with its first request: a queue of its own, which goes with its connection,
//! or a session of a queue that is there ([`Malote::answers_through`]). A request expires when nobody waits for its
//! answer any more, so nobody works on it in vain; an answer that comes later is counted and dropped.

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
use crate::client::{Malote, json_message, name, refused};
use crate::extract::FromDelivery;
use crate::incoming::Incoming;
use crate::outcome::Failure;

/// How long an answer is waited for unless it is said.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Requests of one client that wait at once.
const WAITING_MAX: usize = 10_000;
/// Answers fetched at once.
const FETCH: u32 = 256;
/// Answers are settled at once: no lock lasts as long. A session is renewed after each third of it.
const LOCK: Duration = Duration::from_secs(30);
/// How soon a broker that did not answer is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Names of reply queues begin so, here as over HTTP.
const REPLY_PREFIX: &str = "reply-";

/// Whoever can guess it could answer in another's name.
fn unguessable() -> String {
    #[allow(clippy::disallowed_methods)] // a secret is not part of any run that a seed replays
    uuid::Uuid::new_v4().simple().to_string()
}

impl Malote {
    /// Sends a value as JSON and waits for the answer: `malote.request("sums", &question).await?.json()?`.
    pub fn request<T: Serialize>(&self, queue: &str, value: &T) -> Asking {
        let (to, message) = (name(queue), json_message(value));
        Asking { malote: self.clone(), to, message, timeout: TIMEOUT }
    }

    /// Answers come to a session of this queue, whose id is this client's own: where queues cannot be declared, or
    /// should not be. To be said before the first request.
    #[must_use]
    pub fn answers_through(&self, queue: &str) -> Self {
        let mut malote = self.clone();
        malote.replies = Arc::new(Replies::through(Some(name(queue))));
        malote
    }

    /// Answers that came when nobody waited for them any more.
    pub fn late_answers(&self) -> u64 {
        self.replies.late.load(Ordering::Relaxed)
    }
}

/// A request about to be sent: say more about it, then `.await` it.
#[must_use = "a request is sent by `.await`"]
pub struct Asking {
    malote: Malote,
    to: Result<QueueName, Error>,
    message: Result<Message, Error>,
    timeout: Duration,
}

impl Asking {
    fn with(mut self, change: impl FnOnce(&mut Message)) -> Self {
        if let Ok(message) = &mut self.message {
            change(message);
        }
        self
    }

    /// How long to wait for the answer; half a minute unless it is said. Then the request expires, too.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Its session: requests of one are handled in order.
    pub fn session(mut self, session: impl AsRef<str>) -> Self {
        match SessionId::new(session.as_ref()) {
            Ok(session) => self.with(|message| message.session = Some(session)),
            Err(refusal) => {
                self.message = Err(Error::Broker(refused("bad_session_id", refusal)));
                self
            }
        }
    }

    /// What it is about: the type that a worker finds its handler by.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.with(|message| message.subject = Some(subject.into()))
    }

    /// A property.
    pub fn property(self, name: impl Into<String>, value: Value) -> Self {
        self.with(|message| message.properties.set(name, value))
    }

    async fn ask(self) -> Result<Answer, Error> {
        let (to, mut message) = (self.to?, self.message?);
        let until = tokio::time::Instant::now() + self.timeout;
        let queue = to.as_str().to_owned();
        let late = || Error::NoAnswer { queue: queue.clone(), timeout: self.timeout };
        let opened = tokio::time::timeout_at(until, self.malote.replies.desk(&self.malote));
        let desk = opened.await.map_err(|_| late())??;
        let mut waiting = desk.wait()?;
        message.reply_to = Some(desk.queue.as_str().to_owned());
        message.reply_to_session = desk.session.as_ref().map(|id| id.as_str().to_owned());
        message.correlation_id = Some(waiting.correlation_id.clone());
        let left = until.saturating_duration_since(tokio::time::Instant::now()).as_millis();
        message.ttl_ms =
            Some(u64::try_from(left).unwrap_or(u64::MAX).clamp(1, limits::DELAY_MS_MAX));
        let send = self.malote.broker().send(vec![(Address::Queue(to), message)]);
        tokio::time::timeout_at(until, send).await.map_err(|_| late())??;
        match tokio::time::timeout_at(until, &mut waiting.answer).await {
            Ok(Ok(delivery)) => Ok(Answer(delivery)),
            Ok(Err(_)) => {
                let text = "the queue of its answers is gone".to_owned();
                Err(Error::Broker(BrokerError::Unreachable { text }))
            }
            Err(_) => Err(late()),
        }
    }
}

impl IntoFuture for Asking {
    type Output = Result<Answer, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// What somebody said to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Delivery);

impl Answer {
    /// The body, read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let bytes = &self.message().body.bytes;
        serde_json::from_slice(bytes).map_err(|error| Error::Decode(error.to_string()))
    }

    /// The message: body, properties and all.
    pub fn message(&self) -> &Message {
        &self.0.message
    }
}

/// Where answers come in, once there is such a place.
pub(crate) struct Replies {
    through: Option<Result<QueueName, Error>>,
    desk: tokio::sync::Mutex<Option<Arc<Desk>>>,
    late: Arc<AtomicU64>,
    pump: Mutex<Option<AbortHandle>>,
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(pump) = self.pump.lock().take() {
            pump.abort();
        }
    }
}

struct Desk {
    queue: QueueName,
    session: Option<SessionId>,
    /// None when the place is gone.
    waiting: Mutex<Option<HashMap<String, oneshot::Sender<Delivery>>>>,
}

/// A request whose answer is waited for. Dropped, nobody waits any more.
struct Waiting {
    desk: Arc<Desk>,
    correlation_id: String,
    answer: oneshot::Receiver<Delivery>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiting) = self.desk.waiting.lock().as_mut() {
            waiting.remove(&self.correlation_id);
        }
    }
}

impl Default for Replies {
    fn default() -> Self {
        Self::through(None)
    }
}

impl Replies {
    fn through(through: Option<Result<QueueName, Error>>) -> Self {
        let (desk, late, pump) = Default::default();
        Self { through, desk, late, pump }
    }

    /// Nobody waits for answers any more.
    pub(crate) async fn end(&self) {
        if let Some(pump) = self.pump.lock().take() {
            pump.abort();
        }
        if let Some(desk) = self.desk.lock().await.take() {
            desk.waiting.lock().take();
        }
    }

    /// The place, made anew when it is gone.
    async fn desk(&self, malote: &Malote) -> Result<Arc<Desk>, Error> {
        let mut desk = self.desk.lock().await;
        if let Some(desk) = desk.as_ref().filter(|desk| desk.waiting.lock().is_some()) {
            return Ok(desk.clone());
        }
        let broker = malote.broker().clone();
        let (queue, session) = match &self.through {
            Some(queue) => {
                let mine = SessionId::new(&format!("{REPLY_PREFIX}{}", unguessable()));
                let mine = mine.map_err(|error| Error::Broker(refused("bad_session_id", error)))?;
                (queue.clone()?, Some(mine))
            }
            None => {
                let queue = name(&format!("{REPLY_PREFIX}{}", unguessable()))?;
                broker.declare(&queue, spec()).await?;
                (queue, None)
            }
        };
        let source = open(&*broker, &queue, session.as_ref()).await?;
        let waiting = Mutex::new(Some(HashMap::new()));
        let opened = Arc::new(Desk { queue, session, waiting });
        let pump = opened.clone().pump(broker, source, self.late.clone());
        *self.pump.lock() = Some(tokio::spawn(pump).abort_handle());
        Ok(desk.insert(opened).clone())
    }
}

/// Answers are for those who wait now: none needs to survive a power loss.
fn spec() -> QueueSpec {
    QueueSpec {
        exclusive: true,
        durability: Durability::Relaxed,
        dead_letter: DeadLetterTarget::Drop,
        message_bytes_max: limits::MESSAGE_BYTES_MAX,
        ..QueueSpec::default()
    }
}

async fn open(
    broker: &dyn Broker,
    queue: &QueueName,
    session: Option<&SessionId>,
) -> Result<Box<dyn Source>, BrokerError> {
    let Some(session) = session else { return broker.open(queue, LOCK).await };
    let held = broker.accept(queue, Some(session.clone()), LOCK, Duration::ZERO).await?;
    held.ok_or_else(|| BrokerError::Busy { text: format!("session `{session}` is not free") })
}

impl Desk {
    fn wait(self: &Arc<Self>) -> Result<Waiting, Error> {
        let busy = |text: &str| Error::Broker(BrokerError::Busy { text: text.into() });
        let (correlation_id, (sender, answer)) = (unguessable(), oneshot::channel());
        let mut waiting = self.waiting.lock();
        let all = waiting.as_mut().ok_or_else(|| busy("the queue of answers is made anew"))?;
        if all.len() >= WAITING_MAX {
            return Err(busy("too many requests of this client wait for their answers"));
        }
        all.insert(correlation_id.clone(), sender);
        drop(waiting);
        Ok(Waiting { desk: self.clone(), correlation_id, answer })
    }

    /// Hands answers out until the place is gone; then whoever waits is told, and the next request makes it anew.
    async fn pump(
        self: Arc<Self>,
        broker: Arc<dyn Broker>,
        source: Box<dyn Source>,
        late: Arc<AtomicU64>,
    ) {
        let _gone = Gone(self.clone());
        loop {
            let some = match source.fetch(FETCH, LOCK / 3).await {
                Ok(some) => some,
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(_) => return,
            };
            if let Some(held) = source.held()
                && let Ok(each) = broker.renew(&self.queue, vec![held.hold], LOCK).await
                && each.first().is_some_and(|one| one == &Err(BrokerError::LockLost))
            {
                return;
            }
            let done = some.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
            for delivery in some {
                let id = delivery.message.correlation_id.as_deref().unwrap_or_default();
                let waiting = self.waiting.lock().as_mut().and_then(|all| all.remove(id));
                // Gone between the two lines: then nobody wants it.
                if waiting.is_none_or(|waiting| waiting.send(delivery).is_err()) {
                    late.fetch_add(1, Ordering::Relaxed);
                }
            }
            // What was not settled comes again, and nobody waits for it then.
            let _ = broker.settle(&self.queue, done).await;
        }
    }
}

/// Tells those who wait, by their dropped senders.
struct Gone(Arc<Desk>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.waiting.lock().take();
    }
}

/// The way back to whoever sent the message, if it is waited for.
pub struct Reply(Arc<Incoming>);

impl Reply {
    /// Whether anybody asked.
    pub fn is_wanted(&self) -> bool {
        self.0.message().reply_to.is_some()
    }

    /// Sends a value as JSON to whoever asked. If nobody did, or nobody is there any more, nothing happens.
    pub async fn send<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        let message = json_message(value)?;
        self.send_message(message).await
    }

    /// Sends any message; where it goes and what it answers is set here.
    pub async fn send_message(&self, mut message: Message) -> Result<(), Failure> {
        let asked = self.0.message();
        let Some(to) = &asked.reply_to else { return Ok(()) };
        let bad = |error: &dyn std::fmt::Display| {
            Failure::dead("BadReplyTo", format_args!("`{to}` is no queue: {error}"))
        };
        let queue = QueueName::new(to).map_err(|error| bad(&error))?;
        let session = asked.reply_to_session.as_deref().map(SessionId::new).transpose();
        message.session = session.map_err(|error| bad(&error))?;
        message.correlation_id = asked.correlation_id.clone().or_else(|| asked.message_id.clone());
        match self.0.broker.send(vec![(Address::Queue(queue), message)]).await {
            Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => {
                tracing::debug!(to, "whoever asked is gone");
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
