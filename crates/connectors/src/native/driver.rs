//! One native connection, from its first socket to its last: a task that writes what is asked and hands out what is said.
//!
//! It runs on a thread of its own, so that handlers which never yield cannot keep it from answering pings and
//! renewing locks. When a socket breaks, the connection is resumed: its leases and holds live on, and calls under way
//! fail with an unknown outcome. When it cannot be resumed, every source and hold is lost.
//!
//! Bounds: asks in the channel, calls without an answer, bytes of one message, deliveries by the credit given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use malote_model::LeaseToken;
use malote_wire_native::frame::{
    AnyReply, ClientFrame, ReleaseFrame, Reply, ResumeFrame, SettleFrame, Welcome,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::codec::{ServerFrame, decode, delivery, encode, settle_requests};
use super::target::Target;
use crate::broker::{BrokerError, Delivery, Settle};
use crate::dial::{DialError, Stream, dial};

/// Calls that wait to be written.
pub(super) const ASKS_MAX: usize = 1024;
/// Frames written as one message at most: what callers do at the same time goes out together.
const JOIN_MAX: usize = 64;
/// A server's message: its largest delivery, and what stands around it.
const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// Consumers that were let go and are remembered: what the server sent them before it knew may come behind its answer.
const GONE_MAX: usize = 1024;
/// How long a connection, and its welcome, may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long to wait before another try; doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How long an orderly end may take.
const CLOSE_MAX: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<Box<dyn Stream>>;
pub(super) type Said = Result<Vec<Delivery>, BrokerError>;

/// What a caller wants of the driver.
pub(super) enum Ask {
    /// Asks the server. `frame` gets the number of the request.
    Call {
        frame: Box<dyn FnOnce(u64) -> ClientFrame + Send>,
        about: About,
        reply: Option<oneshot::Sender<Result<AnyReply, BrokerError>>>,
    },
    /// An orderly end.
    Close(oneshot::Sender<()>),
}

/// What the driver must know of a request when its answer comes.
pub(super) enum About {
    Nothing,
    /// Of a session that nobody waits for any more it lets go. One that waits at the server for the next session and
    /// for nobody here is taken over by whoever asks next: so there are never more than callers.
    Accept {
        queue: String,
        next: bool,
    },
    /// Deliveries go there from now on; a refusal ends the consumer.
    Attach {
        consumer: u64,
        to: Consumer,
    },
    /// The same, once its frame was made.
    Attached {
        consumer: u64,
    },
    /// The consumer is over when it is answered.
    Detach {
        consumer: u64,
    },
    /// These leases are over when it is answered.
    Settle(Vec<LeaseToken>),
    /// Of these, those are over that are not renewed.
    Renew(Vec<LeaseToken>),
}

/// Who takes deliveries.
pub(super) struct Consumer {
    pub to: mpsc::UnboundedSender<Said>,
    /// The queue to which what nobody takes is given back; none of a held session, which goes back as a whole.
    pub queue: Option<String>,
}

struct Waiting {
    about: About,
    reply: Replies,
}

/// Who waits for an answer.
type Replies = Option<oneshot::Sender<Result<AnyReply, BrokerError>>>;

struct Driver {
    target: Arc<Target>,
    asks: mpsc::Receiver<Ask>,
    next_id: u64,
    waiting: HashMap<u64, Waiting>,
    consumers: HashMap<u64, Consumer>,
    /// Those who were let go last, with the queues to which what comes for them is given back.
    gone: VecDeque<(u64, Option<String>)>,
    /// Leases that this side knows of, each with its consumer, and holds, with none.
    known: HashMap<LeaseToken, Option<u64>>,
    /// What the driver itself has to say: a session or messages that nobody waited for.
    own: Vec<ClientFrame>,
    requests_max: usize,
    silence_max: Duration,
}

/// Why a socket is done.
enum End {
    /// By its user's word; whoever said it waits.
    Closed(Option<oneshot::Sender<()>>),
    Lost(String),
}

/// Connects, tells how that went, and serves until its user lets go.
pub(super) async fn drive(
    target: Arc<Target>,
    asks: mpsc::Receiver<Ask>,
    connected: oneshot::Sender<Result<usize, BrokerError>>,
) {
    let mut driver = Driver {
        target,
        asks,
        next_id: 1,
        waiting: HashMap::new(),
        consumers: HashMap::new(),
        gone: VecDeque::new(),
        known: HashMap::new(),
        own: Vec::new(),
        requests_max: 1,
        silence_max: Duration::from_secs(45),
    };
    let (mut socket, mut welcome) = match open(&driver.target).await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = connected.send(Err(error)); // whoever asked may be gone
            return;
        }
    };
    driver.take_limits(&welcome);
    if connected.send(Ok(driver.requests_max)).is_err() {
        return;
    }
    loop {
        driver.take_limits(&welcome);
        let lost = match driver.serve(&mut socket).await {
            End::Closed(told) => {
                let _ = timeout(CLOSE_MAX, say_goodbye(&mut socket)).await;
                if let Some(told) = told {
                    let _ = told.send(()); // whoever asked may be gone
                }
                return;
            }
            End::Lost(text) => text,
        };
        drop(socket);
        tracing::debug!(front = "native", error = lost, "the socket broke");
        driver.fail_calls(&lost);
        match driver.come_back(&welcome, &lost).await {
            Some(again) => (socket, welcome) = again,
            None => return,
        }
    }
}

/// ServerFrame that it is over, and waits until the server has given back what was still out. A process that ends before that
/// looks like one that was lost: its messages would count as failed.
async fn say_goodbye(socket: &mut Socket) {
    if socket.close(None).await.is_ok() {
        while let Some(Ok(_)) = socket.next().await {}
    }
}

/// A socket with its welcome.
async fn open(target: &Target) -> Result<(Socket, Welcome), BrokerError> {
    let unreachable = |text: String| BrokerError::Unreachable { text };
    let opened = timeout(CONNECT_MAX, async {
        let dialed = dial(&target.host, target.port, &target.tls).await;
        let at = |why| format!("{}:{}: {why}", target.host, target.port);
        let stream = dialed.map_err(|error| match error {
            DialError::Unreachable(why) => unreachable(at(why)),
            DialError::Wrong(why) => BrokerError::Refused { code: "bad_tls".into(), text: at(why) },
        })?;
        let wrong = |e: &dyn std::fmt::Display| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!("{}:{}: {e}", target.host, target.port),
        };
        let mut request = target.url().into_client_request().map_err(|e| wrong(&e))?;
        let headers = request.headers_mut();
        let protocol = "malote.v1.msgpack".parse().map_err(|e| wrong(&e))?;
        headers.insert("sec-websocket-protocol", protocol);
        if let Some(basic) = target.authorization() {
            headers.insert("authorization", basic.parse().map_err(|e| wrong(&e))?);
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(config))
                .await
                .map_err(refused_upgrade)?;
        loop {
            match socket.next().await {
                Some(Ok(Message::Binary(bytes))) => {
                    let says = decode(&bytes).map_err(|e| unreachable(e.to_string()))?;
                    if let Some(ServerFrame::Welcome(welcome)) = says.into_iter().next() {
                        return Ok((socket, welcome));
                    }
                    return Err(unreachable("it says no welcome".into()));
                }
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(unreachable(e.to_string())),
                None => return Err(unreachable("it closed the connection".into())),
            }
        }
    });
    opened.await.unwrap_or_else(|_| {
        Err(unreachable(format!("{}:{} does not answer", target.host, target.port)))
    })
}

fn refused_upgrade(error: tokio_tungstenite::tungstenite::Error) -> BrokerError {
    use tokio_tungstenite::tungstenite::Error;
    match error {
        Error::Http(response) if response.status().is_client_error() => {
            let code = match response.status().as_u16() {
                401 => "unauthenticated",
                403 => "forbidden",
                429 => return BrokerError::Busy { text: "too many connections are open".into() },
                _ => "not_malote",
            };
            let text = format!(
                "the server answered {}: is it Malote, and are user and password right?",
                response.status()
            );
            BrokerError::Refused { code: code.into(), text }
        }
        error => BrokerError::Unreachable { text: error.to_string() },
    }
}

impl Driver {
    fn take_limits(&mut self, welcome: &Welcome) {
        self.requests_max = usize::try_from(welcome.limits.requests_max).unwrap_or(1).max(1);
        self.silence_max = Duration::from_millis(welcome.limits.silence_max_ms.max(1000));
    }

    /// Serves one socket: writes and reads side by side, so that neither waits for the other.
    async fn serve(&mut self, socket: &mut Socket) -> End {
        let (mut sink, mut stream) = socket.split();
        let (to_write, mut written) = mpsc::channel::<Vec<u8>>(4);
        let write = async {
            while let Some(bytes) = written.recv().await {
                if let Err(error) = sink.send(Message::Binary(bytes.into())).await {
                    return error.to_string();
                }
            }
            std::future::pending().await
        };
        let work = async {
            let mut asks = Vec::with_capacity(JOIN_MAX);
            let mut heard = Instant::now();
            loop {
                let full = to_write.capacity() == 0;
                let room = !full && self.waiting.len() < self.requests_max;
                tokio::select! {
                    biased;
                    said = stream.next() => {
                        heard = Instant::now();
                        match said {
                            Some(Ok(Message::Binary(bytes))) => {
                                if let Err(error) = self.hear(&bytes) {
                                    return End::Lost(format!("it says what is no frame: {error}"));
                                }
                            }
                            Some(Ok(Message::Close(_))) | None => {
                                return End::Lost("the server closed the connection".into());
                            }
                            Some(Ok(_)) => {}
                            Some(Err(error)) => return End::Lost(error.to_string()),
                        }
                    }
                    permit = to_write.reserve(), if full || !self.own.is_empty() => {
                        let Ok(permit) = permit else { continue };
                        let frames: Vec<ClientFrame> = self.own.drain(..).collect();
                        match encode(&frames) {
                            Ok(bytes) if !frames.is_empty() => permit.send(bytes),
                            Ok(_) => {}
                            Err(error) => return End::Lost(error.to_string()),
                        }
                    }
                    count = self.asks.recv_many(&mut asks, JOIN_MAX), if room => {
                        if count == 0 {
                            return End::Closed(None);
                        }
                        let mut frames = Vec::with_capacity(count);
                        let closed = asks.drain(..).find_map(|ask| self.take(ask, &mut frames));
                        let Ok(bytes) = encode(&frames) else {
                            return End::Lost("a request cannot be written".into());
                        };
                        // There is room: nobody else writes.
                        if !frames.is_empty() && to_write.try_send(bytes).is_err() {
                            return End::Lost("nothing can be written".into());
                        }
                        if closed.is_some() {
                            return End::Closed(closed);
                        }
                    }
                    () = tokio::time::sleep_until(heard + self.silence_max) => {
                        return End::Lost("the server is silent".into());
                    }
                }
            }
        };
        let end = tokio::select! {
            end = work => end,
            error = write => End::Lost(error),
        };
        if let End::Closed(_) = end {
            // What was asked before the end is said before it.
            written.close();
            let rest = async {
                while let Some(bytes) = written.recv().await {
                    if sink.send(Message::Binary(bytes.into())).await.is_err() {
                        return;
                    }
                }
            };
            let _ = timeout(CLOSE_MAX, rest).await;
        }
        end
    }

    /// What a caller wants becomes a frame. Some of an end.
    fn take(&mut self, ask: Ask, frames: &mut Vec<ClientFrame>) -> Option<oneshot::Sender<()>> {
        match ask {
            Ask::Call { frame, mut about, reply } => {
                // Nobody waits any more, and it was not begun: it need not be.
                let dropped = reply.as_ref().is_some_and(oneshot::Sender::is_closed);
                if dropped && matches!(about, About::Accept { .. }) {
                    return None;
                }
                let reply = match self.take_over(&about, reply) {
                    Ok(()) => return None,
                    Err(reply) => reply,
                };
                if let About::Attach { consumer, to } = about {
                    self.consumers.insert(consumer, to);
                    about = About::Attached { consumer };
                }
                frames.push(self.number(frame, about, reply));
                None
            }
            Ask::Close(closed) => Some(closed),
        }
    }

    /// Whether an accept that nobody waits for any more does for this one.
    fn take_over(&mut self, wanted: &About, reply: Replies) -> Result<(), Replies> {
        let About::Accept { queue: wanted, next: true } = wanted else { return Err(reply) };
        let left = self.waiting.values_mut().find(|waiting| {
            matches!(&waiting.about, About::Accept { queue, next: true } if queue == wanted)
                && waiting.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
        });
        let Some(left) = left else { return Err(reply) };
        left.reply = reply;
        Ok(())
    }

    fn number(
        &mut self,
        frame: impl FnOnce(u64) -> ClientFrame,
        about: About,
        reply: Replies,
    ) -> ClientFrame {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, Waiting { about, reply });
        frame(id)
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<(), rmp_serde::decode::Error> {
        for frame in decode(bytes)? {
            match frame {
                ServerFrame::Reply(reply) => self.answered(reply),
                ServerFrame::Deliver(deliver) => {
                    let all = deliver.messages.into_iter().filter_map(delivery);
                    self.deliver(deliver.consumer, all.collect());
                }
                ServerFrame::Ended(ended) => {
                    self.end(ended.consumer, BrokerError::from(*ended.problem))
                }
                ServerFrame::Welcome(_) => {}
            }
        }
        Ok(())
    }

    fn deliver(&mut self, consumer: u64, all: Vec<Delivery>) {
        let leases: Vec<LeaseToken> = all.iter().map(|delivery| delivery.lease).collect();
        let queue = match self.consumers.get(&consumer) {
            Some(Consumer { to, queue }) => {
                if to.send(Ok(all)).is_ok() {
                    self.known.extend(leases.into_iter().map(|lease| (lease, Some(consumer))));
                    return;
                }
                queue.clone()
            }
            None => {
                let mut gone = self.gone.iter().rev();
                gone.find(|(id, _)| *id == consumer).and_then(|(_, queue)| queue.clone())
            }
        };
        if let Some(queue) = queue {
            // The source was let go while they were on their way: they were not tried.
            let items = settle_requests(leases.into_iter().map(Settle::release).collect());
            let frame =
                |id| ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None });
            let frame = self.number(frame, About::Nothing, None);
            self.own.push(frame);
        }
    }

    /// Nothing is to come for it any more, but something may be on its way.
    fn let_go(&mut self, consumer: u64) {
        if let Some(Consumer { queue, .. }) = self.consumers.remove(&consumer) {
            if self.gone.len() == GONE_MAX {
                self.gone.pop_front();
            }
            self.gone.push_back((consumer, queue));
        }
    }

    /// A consumer ended by itself: what it had is lost.
    fn end(&mut self, consumer: u64, why: BrokerError) {
        if let Some(Consumer { to, .. }) = self.consumers.remove(&consumer) {
            self.known.retain(|_, of| *of != Some(consumer));
            let _ = to.send(Err(why)); // let go already
        }
    }

    fn answered(&mut self, reply: Reply<AnyReply>) {
        let Reply { id: Some(id), ok, problem } = reply else { return };
        let Some(Waiting { about, reply }) = self.waiting.remove(&id) else { return };
        let held = ok.as_ref().and_then(|answer| answer.held.as_ref());
        let held = held.and_then(|held| held.token.parse::<LeaseToken>().ok());
        let result = match problem {
            Some(problem) => Err(BrokerError::from(*problem)),
            None => Ok(ok.unwrap_or_default()),
        };
        match (&about, &result) {
            (About::Settle(leases), _) => leases.iter().for_each(|lease| {
                self.known.remove(lease);
            }),
            (About::Renew(leases), Ok(answer)) => {
                let each = leases.iter().zip(answer.results.iter().flatten());
                each.filter(|(_, result)| !result.ok).for_each(|(lease, _)| {
                    self.known.remove(lease);
                });
            }
            (About::Attached { consumer }, Err(error)) => self.end(*consumer, error.clone()),
            (About::Detach { consumer }, _) => self.let_go(*consumer),
            _ => {}
        }
        self.known.extend(held.map(|hold| (hold, None)));
        let unheard = reply.is_some_and(|reply| reply.send(result).is_err());
        if let (true, Some(token), About::Accept { queue, .. }) = (unheard, held, about) {
            let frame =
                |id| ClientFrame::Release(ReleaseFrame { id, queue, token: token.to_string() });
            let frame = self.number(frame, About::Settle(vec![token]), None);
            self.own.push(frame);
        }
    }

    /// Calls under way: nobody knows what became of them.
    fn fail_calls(&mut self, text: &str) {
        self.own.clear();
        let all: Vec<Waiting> = self.waiting.drain().map(|(_, waiting)| waiting).collect();
        for waiting in all {
            self.fail(waiting.about, waiting.reply, text);
        }
    }

    fn fail(&mut self, about: About, reply: Replies, text: &str) {
        let error = BrokerError::Unreachable { text: text.to_owned() };
        match about {
            About::Attached { consumer } => self.end(consumer, error.clone()),
            About::Detach { consumer } => self.let_go(consumer),
            About::Attach { to, .. } => {
                let _ = to.to.send(Err(error.clone())); // let go already
            }
            _ => {}
        }
        if let Some(reply) = reply {
            let _ = reply.send(Err(error)); // whoever asked may be gone
        }
    }

    /// Another socket: for the same connection if the server still has it. None once its user let go.
    async fn come_back(&mut self, welcome: &Welcome, lost: &str) -> Option<(Socket, Welcome)> {
        let mut pause = RETRY_FIRST;
        loop {
            match open(&self.target).await {
                Ok((mut socket, fresh)) => match self.resume(&mut socket, welcome).await {
                    Ok(true) => {
                        let secret = welcome.secret.clone();
                        let kept = Welcome { connection: welcome.connection, secret, ..fresh };
                        return Some((socket, kept));
                    }
                    Ok(false) => {
                        self.lose_all();
                        return Some((socket, fresh));
                    }
                    Err(()) => {}
                },
                Err(BrokerError::Refused { text, .. }) => {
                    // A server that refuses this user now will not keep its leases either.
                    tracing::warn!(
                        front = "native",
                        error = text,
                        "the server refuses this worker"
                    );
                    self.lose_all();
                }
                Err(_) => {}
            }
            // What is asked meanwhile fails at once: a caller may have another way.
            let until = Instant::now() + pause;
            while let Ok(ask) = tokio::time::timeout_at(until, self.asks.recv()).await {
                match ask {
                    None => return None,
                    Some(Ask::Close(closed)) => {
                        let _ = closed.send(());
                        return None;
                    }
                    Some(Ask::Call { reply, about, .. }) => self.fail(about, reply, lost),
                }
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Whether the server gives the old connection back.
    async fn resume(&mut self, socket: &mut Socket, welcome: &Welcome) -> Result<bool, ()> {
        let id = self.next_id;
        self.next_id += 1;
        let leases = self.known.keys().map(LeaseToken::to_string).collect();
        let (connection, secret) = (welcome.connection, welcome.secret.clone());
        let frame =
            ClientFrame::Resume(ResumeFrame { id, connection, secret, leases: Some(leases) });
        let bytes = encode(&[frame]).map_err(|_| ())?;
        let resumed = timeout(CONNECT_MAX, async {
            socket.send(Message::Binary(bytes.into())).await.map_err(|_| ())?;
            loop {
                let Some(Ok(message)) = socket.next().await else { return Err(()) };
                let Message::Binary(bytes) = message else { continue };
                for frame in decode(&bytes).map_err(|_| ())? {
                    if let ServerFrame::Reply(reply) = frame
                        && reply.id == Some(id)
                    {
                        return Ok(reply.problem.is_none());
                    }
                }
            }
        });
        resumed.await.unwrap_or(Err(()))
    }

    /// The connection is over, and all that was bound to it.
    fn lose_all(&mut self) {
        self.known.clear();
        for (_, consumer) in self.consumers.drain() {
            let _ = consumer.to.send(Err(BrokerError::LockLost)); // let go already
        }
    }
}
