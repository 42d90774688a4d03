//! `malote://HOST:PORT` and `malote+tls://`: a Malote server, over its native connection (docs/protocols/http.md).
//!
//! `target.rs` parses the URL, `codec.rs` encodes the frames of `wire-native`, and `driver.rs` keeps the socket connected.
//! This file implements the `Broker` trait on top of them.

mod codec;
mod driver;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_model::{Address, LeaseToken, Message, QueueName, QueueSpec, Seq, SessionId};
use malote_wire_native::body::BodyContent;
use malote_wire_native::frame::{
    AcceptFrame, AnyReply, AttachFrame, ClientFrame, CreditFrame, DeclareFrame, DepthFrame,
    DetachFrame, GetStateFrame, ListSessionsFrame, ReleaseFrame, RenewFrame, SendFrame,
    SettleFrame,
};
use malote_wire_native::message::NewMessage;
use malote_wire_native::receive::ReceiveMode;
use malote_wire_native::settle::LeaseResult;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};

use self::codec::settle_requests;
use self::driver::{ASKS_MAX, About, Ask, Consumer, Said, drive};
use self::target::Target;
use crate::broker::{Broker, BrokerError, Delivery, Doing, Held, Sent, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;

/// What it can do: everything.
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

/// Accepts that wait at the server: it counts each as a request without an answer, and settlements must find room.
const ACCEPTS_MAX: usize = 256;
/// Leases of one settle or renew frame.
const LEASES_MAX: usize = malote_model::limits::SETTLE_BATCH_MAX;
/// What is there now arrives within a few times what messages took lately, or counts as not there; within these bounds.
const NOW_MIN: Duration = Duration::from_millis(10);
const NOW_MAX: Duration = Duration::from_secs(1);
const NOW_TIMES: u32 = 4;

/// A Malote server.
pub struct Native {
    line: Line,
    accepts: Arc<Semaphore>,
}

type BoxedFrame = Box<dyn FnOnce(u64) -> ClientFrame + Send>;

/// The way to the driver.
#[derive(Clone)]
struct Line {
    asks: mpsc::Sender<Ask>,
    next_consumer: Arc<AtomicU64>,
    /// How long messages that were there took lately from being asked for, in nanoseconds.
    way_ns: Arc<AtomicU64>,
}

impl Line {
    /// How long it takes to know that nothing is there.
    fn now(&self) -> Duration {
        let way = Duration::from_nanos(self.way_ns.load(Ordering::Relaxed));
        (way * NOW_TIMES).clamp(NOW_MIN, NOW_MAX)
    }

    fn arrived_after(&self, way: Duration) {
        let known = self.way_ns.load(Ordering::Relaxed);
        let way = u64::try_from(way.min(NOW_MAX).as_nanos()).unwrap_or(u64::MAX);
        // Two at the same time may forget one of them: it is an estimate.
        self.way_ns.store((known * 7 + way) / 8, Ordering::Relaxed);
    }

    async fn call(
        &self,
        about: About,
        frame: impl FnOnce(u64) -> ClientFrame + Send + 'static,
    ) -> Result<AnyReply, BrokerError> {
        let (reply, answer) = oneshot::channel();
        let accepting = match &about {
            About::Accept { queue, .. } => Some(queue.clone()),
            _ => None,
        };
        let ask = Ask::Call { frame: Box::new(frame), about, reply: Some(reply) };
        self.asks.send(ask).await.map_err(|_| BrokerError::Closed)?;
        let mut calling = Calling { line: self, accepting, answer };
        (&mut calling.answer).await.unwrap_or(Err(BrokerError::Closed))
    }
}

/// Waits for an answer. A session that was given and that nobody hears of is let go.
struct Calling<'a> {
    line: &'a Line,
    accepting: Option<String>,
    answer: oneshot::Receiver<Result<AnyReply, BrokerError>>,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.answer.close();
        let (Some(queue), Ok(Ok(answer))) = (self.accepting.take(), self.answer.try_recv()) else {
            return;
        };
        let Some(held) = answer.held else { return };
        let over = held.token.parse().into_iter().collect();
        let frame = move |id| ClientFrame::Release(ReleaseFrame { id, queue, token: held.token });
        let ask = Ask::Call { frame: Box::new(frame), about: About::Settle(over), reply: None };
        // A full line: its lock ends it, or the end of the connection.
        let _ = self.line.asks.try_send(ask);
    }
}

impl Native {
    /// Connects; what cannot be reached now is an error, what is lost later is reached again.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let target = Arc::new(Target::of(url)?);
        let (asks, wanted) = mpsc::channel(ASKS_MAX);
        let (connected, outcome) = oneshot::channel();
        let start = |e: std::io::Error| BrokerError::Refused {
            code: "no_thread".into(),
            text: format!("the thread of the connection cannot be started: {e}"),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(start)?;
        std::thread::Builder::new()
            .name("malote-native".into())
            .spawn(move || runtime.block_on(drive(target, wanted, connected)))
            .map_err(start)?;
        let requests_max = outcome.await.unwrap_or(Err(BrokerError::Closed))?;
        let line = Line {
            asks,
            next_consumer: Arc::new(AtomicU64::new(1)),
            way_ns: Arc::new(AtomicU64::new(0)),
        };
        Ok(Self {
            line,
            accepts: Arc::new(Semaphore::new(ACCEPTS_MAX.min(requests_max / 2).max(1))),
        })
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn each(results: Option<Vec<LeaseResult>>, count: usize) -> Vec<Result<(), BrokerError>> {
    let one = |result: LeaseResult| match (result.ok, result.problem) {
        (true, _) => Ok(()),
        (false, Some(problem)) => Err(BrokerError::from(*problem)),
        (false, None) => Err(BrokerError::LockLost),
    };
    let mut all: Vec<_> = results.unwrap_or_default().into_iter().map(one).collect();
    let unsaid = BrokerError::Unreachable { text: "the server did not say".into() };
    all.resize(count, Err(unsaid));
    all
}

impl Broker for Native {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let spec = spec.into();
            let frame =
                move |id| ClientFrame::Declare(DeclareFrame { id, queue: Some(queue), spec });
            self.line.call(About::Nothing, frame).await.map(drop)
        })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        Box::pin(async move {
            let messages =
                messages.into_iter().map(|(to, message)| NewMessage::new(to, message)).collect();
            let frame = move |id| ClientFrame::Send(SendFrame { id, messages, transaction: None });
            let answer = self.line.call(About::Nothing, frame).await?;
            let sent = answer.messages.unwrap_or_default().into_iter().map(|one| Sent {
                seq: Seq(one.seq),
                message_id: one.id,
                duplicate: one.duplicate,
            });
            Ok(sent.collect())
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut source = PushedSource::new(&self.line, queue, lock, None);
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
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let _room = self.accepts.acquire().await.map_err(|_| BrokerError::Closed)?;
            let (of, name) = (queue.clone(), session.map(|id| id.as_str().to_owned()));
            let (wait_ms, lock_ms) =
                (ms(wait).min(malote_model::limits::ACCEPT_WAIT_MS_MAX), ms(lock));
            let next = name.is_none() && wait_ms > 0;
            let about = About::Accept { queue: queue.clone(), next };
            let frame = move |id| {
                ClientFrame::Accept(AcceptFrame {
                    id,
                    queue: of,
                    session: name,
                    wait_ms,
                    lock_ms: Some(lock_ms),
                })
            };
            let answer = self.line.call(about, frame).await?;
            let Some(accepted) = answer.held else { return Ok(None) };
            let wrong = |_| BrokerError::Unreachable { text: "it holds what is no session".into() };
            let held = Held {
                session: SessionId::new(&accepted.session).map_err(wrong)?,
                hold: accepted.token.parse().map_err(wrong)?,
                epoch: accepted.until.saturating_sub(lock_ms),
            };
            let source = PushedSource::new(&self.line, queue, lock, Some(held));
            Ok(Some(Box::new(source) as Box<dyn Source>))
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut all = Vec::with_capacity(items.len());
            let mut items = items.into_iter().peekable();
            while items.peek().is_some() {
                let some: Vec<Settle> = items.by_ref().take(LEASES_MAX).collect();
                let count = some.len();
                let about = About::Settle(some.iter().map(|item| item.lease).collect());
                let (queue, items) = (queue.clone(), settle_requests(some));
                let frame = move |id| {
                    ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None })
                };
                all.append(&mut each(self.line.call(about, frame).await?.results, count));
            }
            Ok(all)
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let mut all = Vec::with_capacity(leases.len());
            for some in leases.chunks(LEASES_MAX) {
                let count = some.len();
                let leases = some.iter().map(LeaseToken::to_string).collect();
                let (queue, lock_ms) = (queue.clone(), ms(lock));
                let frame = move |id| {
                    ClientFrame::Renew(RenewFrame { id, queue, leases, lock_ms: Some(lock_ms) })
                };
                let about = About::Renew(some.to_vec());
                all.append(&mut each(self.line.call(about, frame).await?.results, count));
            }
            Ok(all)
        })
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        let queue = queue.as_str().to_owned();
        let (session, token) = (held.session.as_str().to_owned(), Some(held.hold.to_string()));
        Box::pin(async move {
            let frame =
                move |id| ClientFrame::GetState(GetStateFrame { id, queue, session, token });
            let answer = self.line.call(About::Nothing, frame).await?;
            Ok(answer.state.map(BodyContent::into_bytes))
        })
    }

    fn look_at_state(&self, queue: &QueueName, session: &SessionId) -> Doing<'_, Option<Bytes>> {
        let (queue, session) = (queue.as_str().to_owned(), session.as_str().to_owned());
        Box::pin(async move {
            let frame =
                move |id| ClientFrame::GetState(GetStateFrame { id, queue, session, token: None });
            let answer = self.line.call(About::Nothing, frame).await?;
            Ok(answer.state.map(BodyContent::into_bytes))
        })
    }

    fn look_at_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> Doing<'_, (Vec<SessionId>, Option<u32>)> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let (after, max) = ((from > 0).then(|| from.to_string()), max as u64);
            let frame = move |id| {
                ClientFrame::ListSessions(ListSessionsFrame { id, queue, after, max: Some(max) })
            };
            let answer = self.line.call(About::Nothing, frame).await?;
            let all = answer.sessions.unwrap_or_default().into_iter();
            let ids = all.filter_map(|one| SessionId::new(&one.session).ok()).collect();
            Ok((ids, answer.next.and_then(|next| next.parse().ok())))
        })
    }

    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        let queue = queue.as_str().to_owned();
        Box::pin(async move {
            let frame = move |id| ClientFrame::Depth(DepthFrame { id, queue });
            let answer = self.line.call(About::Nothing, frame).await?;
            let unsaid = || BrokerError::Unreachable { text: "the server did not say".into() };
            answer.depth.map(|depth| Depth::from(*depth)).ok_or_else(unsaid)
        })
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            let (closed, done) = oneshot::channel();
            if self.line.asks.send(Ask::Close(closed)).await.is_ok() {
                let _ = done.await; // gone is closed, too
            }
            Ok(())
        })
    }
}

/// A consumer of the connection, and what was pushed to it and not fetched.
struct PushedSource {
    line: Line,
    queue: String,
    lock: Duration,
    consumer: u64,
    held: Option<Held>,
    pushed: Mutex<Pushed>,
    /// It was let go by `close`, which waits: there is nothing left for `drop`.
    closed: bool,
}

struct Pushed {
    from_driver: mpsc::UnboundedReceiver<Said>,
    /// Given to `from_driver`'s other end with the attach.
    to_source: Option<mpsc::UnboundedSender<Said>>,
    here: std::collections::VecDeque<Delivery>,
    /// Credit that the server has and has not used.
    credit: u32,
}

impl PushedSource {
    fn new(line: &Line, queue: String, lock: Duration, held: Option<Held>) -> Self {
        let (to_source, from_driver) = mpsc::unbounded_channel();
        let consumer = line.next_consumer.fetch_add(1, Ordering::Relaxed);
        let here = std::collections::VecDeque::new();
        let pushed = Pushed { from_driver, to_source: Some(to_source), here, credit: 0 };
        let pushed = Mutex::new(pushed);
        Self { line: line.clone(), queue, lock, consumer, held, pushed, closed: false }
    }

    /// The attach, once: who takes deliveries, and the frame.
    fn attaching(&self, to: mpsc::UnboundedSender<Said>, credit: u32) -> (About, BoxedFrame) {
        let (consumer, queue, lock_ms) = (self.consumer, self.queue.clone(), ms(self.lock));
        let session_token = self.held.as_ref().map(|held| held.hold.to_string());
        let to = Consumer { to, queue: self.held.is_none().then(|| queue.clone()) };
        let frame = move |id| {
            ClientFrame::Attach(AttachFrame {
                id,
                consumer,
                queue,
                credit,
                mode: ReceiveMode::Lock,
                lock_ms: Some(lock_ms),
                session_token,
                per_session: 1,
            })
        };
        (About::Attach { consumer, to }, Box::new(frame))
    }

    /// Attaches without credit and waits for the answer.
    async fn attach(&mut self) -> Result<(), BrokerError> {
        let Some(to) = self.pushed.get_mut().to_source.take() else { return Ok(()) };
        let (about, frame) = self.attaching(to, 0);
        self.line.call(about, frame).await.map(drop)
    }

    /// Gives the server credit for so many; the first time it attaches, and does not wait for the answer: what is
    /// wrong ends the consumer.
    async fn want(&self, pushed: &mut Pushed, max: u32) -> Result<(), BrokerError> {
        let more = max.saturating_sub(pushed.credit);
        // What has credit left has nothing ready: of a session, little is enough for whatever comes.
        let enough = more == 0 || (self.held.is_some() && pushed.credit > max / 4);
        if enough && pushed.to_source.is_none() {
            return Ok(());
        }
        // From here on nothing waits: what is noted and what is asked are one step.
        let room = self.line.asks.reserve().await.map_err(|_| BrokerError::Closed)?;
        let (about, frame): (About, BoxedFrame) = match pushed.to_source.take() {
            Some(to) => self.attaching(to, max),
            None => {
                let consumer = self.consumer;
                let frame = move |id| {
                    ClientFrame::Credit(CreditFrame { id, consumer, credit: more, replace: false })
                };
                (About::Nothing, Box::new(frame))
            }
        };
        room.send(Ask::Call { frame, about, reply: None });
        pushed.credit = pushed.credit.max(max);
        Ok(())
    }

    fn letting_go(&mut self) -> LettingGo {
        self.closed = true;
        let pushed = self.pushed.get_mut();
        let mut leases: Vec<LeaseToken> = pushed.here.drain(..).map(|d| d.lease).collect();
        pushed.from_driver.close();
        while let Ok(said) = pushed.from_driver.try_recv() {
            leases.extend(said.unwrap_or_default().into_iter().map(|delivery| delivery.lease));
        }
        let attached = pushed.to_source.is_none();
        let (queue, consumer) = (self.queue.clone(), self.consumer);
        LettingGo {
            queue,
            consumer,
            attached,
            hold: self.held.take().map(|held| held.hold),
            leases,
        }
    }
}

/// What is to be given back.
struct LettingGo {
    queue: String,
    consumer: u64,
    attached: bool,
    hold: Option<LeaseToken>,
    leases: Vec<LeaseToken>,
}

impl LettingGo {
    /// What to ask, in this order. A hold takes its messages with it, and its consumer.
    fn asks(self) -> Vec<(About, BoxedFrame)> {
        let Self { queue, consumer, attached, hold, leases } = self;
        if let Some(hold) = hold {
            let mut over = leases;
            over.push(hold);
            let token = hold.to_string();
            let frame = move |id| ClientFrame::Release(ReleaseFrame { id, queue, token });
            return vec![(About::Settle(over), Box::new(frame))];
        }
        let mut asks: Vec<(About, BoxedFrame)> = Vec::new();
        if attached {
            let about = About::Detach { consumer };
            asks.push((
                about,
                Box::new(move |id| ClientFrame::Detach(DetachFrame { id, consumer })),
            ));
        }
        if !leases.is_empty() {
            let items = leases.iter().map(|&lease| Settle::release(lease));
            let items = settle_requests(items.collect());
            asks.push((
                About::Settle(leases),
                Box::new(move |id| {
                    ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None })
                }),
            ));
        }
        asks
    }
}

impl Source for PushedSource {
    fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut pushed = self.pushed.lock().await;
            let pushed = &mut *pushed;
            while let Ok(said) = pushed.from_driver.try_recv() {
                pushed.arrived(said?);
            }
            if pushed.here.is_empty() {
                self.want(pushed, max).await?;
                let (asked, now) = (tokio::time::Instant::now(), self.line.now());
                match tokio::time::timeout(wait.max(now), pushed.from_driver.recv()).await {
                    Err(_) => return Ok(Vec::new()),
                    Ok(None) => return Err(BrokerError::Closed),
                    Ok(Some(said)) => pushed.arrived(said?),
                }
                // What is slower was sent meanwhile, or says nothing about the way.
                if wait.is_zero() || self.held.is_some() {
                    self.line.arrived_after(asked.elapsed());
                }
                while let Ok(said) = pushed.from_driver.try_recv() {
                    pushed.arrived(said?);
                }
            }
            let count = pushed.here.len().min(max as usize);
            Ok(pushed.here.drain(..count).collect())
        })
    }

    fn close(mut self: Box<Self>) -> Doing<'static, ()> {
        let going = self.letting_go();
        let line = self.line.clone();
        Box::pin(async move {
            let mut outcome = Ok(());
            for (about, frame) in going.asks() {
                match line.call(about, frame).await {
                    Ok(_) | Err(BrokerError::LockLost) => {}
                    Err(error) => outcome = Err(error),
                }
            }
            outcome
        })
    }
}

impl Pushed {
    fn arrived(&mut self, deliveries: Vec<Delivery>) {
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_sub(count);
        self.here.extend(deliveries);
    }
}

impl Drop for PushedSource {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let going = self.letting_go();
        for (about, frame) in going.asks() {
            // A full line: the lock ends it, or the end of the connection.
            let _ = self.line.asks.try_send(Ask::Call { frame, about, reply: None });
        }
    }
}
