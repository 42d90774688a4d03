//! `malote://HOST:PORT` and `malote+tls://`: a Malote server, over its native connection (docs/protocols/http.md).
//!
//! `url.rs` parses the URL, `socket.rs` opens the WebSocket, `codec.rs` encodes the frames of `wire-native`, and
//! `driver.rs` keeps the connection alive. `source.rs` implements `Source`, and this file implements `Broker`.

mod codec;
mod driver;
mod socket;
mod source;
mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_model::{Address, LeaseToken, Message, QueueName, QueueSpec, Seq, SessionId};
use malote_wire_native::body::BodyContent;
use malote_wire_native::frame::{
    AcceptFrame, AnyReply, ClientFrame, DeclareFrame, DepthFrame, GetStateFrame, ListSessionsFrame,
    ReleaseFrame, RenewFrame, SendFrame, SettleFrame,
};
use malote_wire_native::message::NewMessage;
use malote_wire_native::settle::LeaseResult;
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::codec::settle_requests;
use self::driver::{DriverRequest, REQUESTS_QUEUED_MAX, RequestKind, drive};
use self::source::NativeSource;
use self::url::NativeUrl;
use crate::broker::{Broker, BrokerError, BrokerFuture, Sent, SessionHold, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;
use crate::io_thread::IoRuntime;
use crate::system::millis;

/// A Malote server has all capabilities.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: "the Malote server",
    retry_hold: RetryHold::Session,
    declare: true,
    sessions: true,
    fair_sessions: true,
    choose_lock: true,
    session_state: true,
    state_with_settle: true,
    renew: true,
    release: true,
    delay: true,
    schedule: true,
    dead_letter: true,
    changes: true,
    dedup: true,
    atomic_send: true,
    bound_leases: true,
};

/// Pending accepts. Each counts as a request without a reply, and settlements need room as well.
const ACCEPTS_MAX: usize = 256;
/// The most leases of one settle or renew frame.
const LEASES_MAX: usize = malote_model::limits::SETTLE_BATCH_MAX;
/// How long a fetch waits before the queue counts as empty: a multiple of the recent latency, within these bounds.
const EMPTY_WAIT_MIN: Duration = Duration::from_millis(10);
const EMPTY_WAIT_MAX: Duration = Duration::from_secs(1);
const LATENCY_FACTOR: u32 = 4;

/// A Malote server.
pub struct NativeBroker {
    driver: DriverHandle,
    accept_permits: Arc<Semaphore>,
}

type BoxedFrame = Box<dyn FnOnce(u64) -> ClientFrame + Send>;

/// Sends requests to the driver.
#[derive(Clone)]
struct DriverHandle {
    requests: mpsc::Sender<DriverRequest>,
    next_consumer: Arc<AtomicU64>,
    /// A moving average of the time from a fetch to its first message, in nanoseconds.
    latency_ns: Arc<AtomicU64>,
}

impl DriverHandle {
    /// How long to wait before the queue counts as empty.
    fn empty_wait(&self) -> Duration {
        let latency = Duration::from_nanos(self.latency_ns.load(Ordering::Relaxed));
        (latency * LATENCY_FACTOR).clamp(EMPTY_WAIT_MIN, EMPTY_WAIT_MAX)
    }

    fn record_latency(&self, latency: Duration) {
        let average = self.latency_ns.load(Ordering::Relaxed);
        let latency = u64::try_from(latency.min(EMPTY_WAIT_MAX).as_nanos()).unwrap_or(u64::MAX);
        // Concurrent updates may overwrite each other: it is only an estimate.
        self.latency_ns.store((average * 7 + latency) / 8, Ordering::Relaxed);
    }

    async fn call(
        &self,
        kind: RequestKind,
        frame: impl FnOnce(u64) -> ClientFrame + Send + 'static,
    ) -> Result<AnyReply, BrokerError> {
        let (reply, answer) = oneshot::channel();
        let accepting = match &kind {
            RequestKind::Accept { queue, .. } => Some(queue.clone()),
            _ => None,
        };
        let request = DriverRequest::Call { frame: Box::new(frame), kind, reply: Some(reply) };
        self.requests.send(request).await.map_err(|_| BrokerError::Closed)?;
        let mut pending = PendingCall { driver: self, accepting, answer };
        (&mut pending.answer).await.unwrap_or(Err(BrokerError::Closed))
    }
}

/// Waits for a reply. If the caller gives up, an accepted session is released.
struct PendingCall<'a> {
    driver: &'a DriverHandle,
    accepting: Option<String>,
    answer: oneshot::Receiver<Result<AnyReply, BrokerError>>,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.answer.close();
        let (Some(queue), Ok(Ok(answer))) = (self.accepting.take(), self.answer.try_recv()) else {
            return;
        };
        let Some(held) = answer.held else { return };
        let ended = held.token.parse().into_iter().collect();
        let frame = move |id| ClientFrame::Release(ReleaseFrame { id, queue, token: held.token });
        let request = DriverRequest::Call {
            frame: Box::new(frame),
            kind: RequestKind::Settle(ended),
            reply: None,
        };
        // If the channel is full, the session ends with its lock or with the connection.
        let _ = self.driver.requests.try_send(request);
    }
}

impl NativeBroker {
    /// Connects. A connection that is lost later is reopened.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let url = Arc::new(NativeUrl::parse(url)?);
        let (requests, wanted) = mpsc::channel(REQUESTS_QUEUED_MAX);
        let (connected, outcome) = oneshot::channel();
        let runtime = IoRuntime::new("malote-native")?;
        runtime.start(move || drive(url, wanted, connected))?;
        let requests_max = outcome.await.unwrap_or(Err(BrokerError::Closed))?;
        let driver = DriverHandle {
            requests,
            next_consumer: Arc::new(AtomicU64::new(1)),
            latency_ns: Arc::new(AtomicU64::new(0)),
        };
        Ok(Self {
            driver,
            accept_permits: Arc::new(Semaphore::new(ACCEPTS_MAX.min(requests_max / 2).max(1))),
        })
    }
}

fn lease_results(results: Option<Vec<LeaseResult>>, count: usize) -> Vec<Result<(), BrokerError>> {
    let one = |result: LeaseResult| match (result.ok, result.problem) {
        (true, _) => Ok(()),
        (false, Some(problem)) => Err(BrokerError::from(*problem)),
        (false, None) => Err(BrokerError::LockLost),
    };
    let mut all: Vec<_> = results.unwrap_or_default().into_iter().map(one).collect();
    let no_answer = BrokerError::Unreachable { text: "the server's reply lacks a result".into() };
    all.resize(count, Err(no_answer));
    all
}

impl Broker for NativeBroker {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let spec = spec.into();
            let frame =
                move |id| ClientFrame::Declare(DeclareFrame { id, queue: Some(queue), spec });
            self.driver.call(RequestKind::Other, frame).await.map(drop)
        })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let messages =
                messages.into_iter().map(|(to, message)| NewMessage::new(to, message)).collect();
            let frame = move |id| ClientFrame::Send(SendFrame { id, messages, transaction: None });
            let answer = self.driver.call(RequestKind::Other, frame).await?;
            let sent = answer.messages.unwrap_or_default().into_iter().map(|one| Sent {
                seq: Seq(one.seq),
                message_id: one.id,
                duplicate: one.duplicate,
            });
            Ok(sent.collect())
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut source = NativeSource::new(&self.driver, queue, lock, None);
            source.attach().await?;
            Ok(Box::new(source) as Box<dyn Source>)
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let _room = self.accept_permits.acquire().await.map_err(|_| BrokerError::Closed)?;
            let (of, name) = (queue.clone(), session.map(|id| id.as_str().to_owned()));
            let (wait_ms, lock_ms) =
                (millis(wait).min(malote_model::limits::ACCEPT_WAIT_MS_MAX), millis(lock));
            let next = name.is_none() && wait_ms > 0;
            let kind = RequestKind::Accept { queue: queue.clone(), next };
            let frame = move |id| {
                ClientFrame::Accept(AcceptFrame {
                    id,
                    queue: of,
                    session: name,
                    wait_ms,
                    lock_ms: Some(lock_ms),
                })
            };
            let answer = self.driver.call(kind, frame).await?;
            let Some(accepted) = answer.held else { return Ok(None) };
            let invalid = |_| BrokerError::Unreachable {
                text: "the server granted an invalid session".into(),
            };
            let held = SessionHold {
                session: SessionId::new(&accepted.session).map_err(invalid)?,
                hold: accepted.token.parse().map_err(invalid)?,
                epoch: accepted.until.saturating_sub(lock_ms),
            };
            let source = NativeSource::new(&self.driver, queue, lock, Some(held));
            Ok(Some(Box::new(source) as Box<dyn Source>))
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut all = Vec::with_capacity(items.len());
            let mut items = items.into_iter().peekable();
            while items.peek().is_some() {
                let some: Vec<Settle> = items.by_ref().take(LEASES_MAX).collect();
                let count = some.len();
                let kind = RequestKind::Settle(some.iter().map(|item| item.lease).collect());
                let (queue, items) = (queue.clone(), settle_requests(some));
                let frame = move |id| {
                    ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None })
                };
                all.append(&mut lease_results(self.driver.call(kind, frame).await?.results, count));
            }
            Ok(all)
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut all = Vec::with_capacity(leases.len());
            for some in leases.chunks(LEASES_MAX) {
                let count = some.len();
                let leases = some.iter().map(LeaseToken::to_string).collect();
                let (queue, lock_ms) = (queue.clone(), millis(lock));
                let frame = move |id| {
                    ClientFrame::Renew(RenewFrame { id, queue, leases, lock_ms: Some(lock_ms) })
                };
                let kind = RequestKind::Renew(some.to_vec());
                all.append(&mut lease_results(self.driver.call(kind, frame).await?.results, count));
            }
            Ok(all)
        })
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        let queue = queue.as_str().to_owned();
        let (session, token) = (held.session.as_str().to_owned(), Some(held.hold.to_string()));
        Box::pin(async move {
            let frame =
                move |id| ClientFrame::GetState(GetStateFrame { id, queue, session, token });
            let answer = self.driver.call(RequestKind::Other, frame).await?;
            Ok(answer.state.map(BodyContent::into_bytes))
        })
    }

    fn peek_state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> BrokerFuture<'_, Option<Bytes>> {
        let (queue, session) = (queue.as_str().to_owned(), session.as_str().to_owned());
        Box::pin(async move {
            let frame =
                move |id| ClientFrame::GetState(GetStateFrame { id, queue, session, token: None });
            let answer = self.driver.call(RequestKind::Other, frame).await?;
            Ok(answer.state.map(BodyContent::into_bytes))
        })
    }

    fn list_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> BrokerFuture<'_, (Vec<SessionId>, Option<u32>)> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let (after, max) = ((from > 0).then(|| from.to_string()), max as u64);
            let frame = move |id| {
                ClientFrame::ListSessions(ListSessionsFrame { id, queue, after, max: Some(max) })
            };
            let answer = self.driver.call(RequestKind::Other, frame).await?;
            let all = answer.sessions.unwrap_or_default().into_iter();
            let ids = all.filter_map(|one| SessionId::new(&one.session).ok()).collect();
            Ok((ids, answer.next.and_then(|next| next.parse().ok())))
        })
    }

    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let frame = move |id| ClientFrame::Depth(DepthFrame { id, queue });
            let answer = self.driver.call(RequestKind::Other, frame).await?;
            let no_answer =
                || BrokerError::Unreachable { text: "the server's reply lacks the depth".into() };
            answer.depth.map(|depth| Depth::from(*depth)).ok_or_else(no_answer)
        })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            let (closed, done) = oneshot::channel();
            if self.driver.requests.send(DriverRequest::Close(closed)).await.is_ok() {
                let _ = done.await; // a driver that has ended is closed
            }
            Ok(())
        })
    }
}
