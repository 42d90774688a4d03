//! The task of one native connection: writes requests, routes replies and deliveries, and reconnects.
//!
//! It runs on its own thread, so that handlers that never yield cannot delay pongs and renewals. When a socket
//! breaks, the driver resumes the connection on a new one: leases and holds survive, and pending calls fail with an
//! unknown outcome. If the connection cannot be resumed, all sources and holds are lost.
//!
//! Bounds: queued requests, requests without a reply, bytes of one message, and deliveries by the granted credit.

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
use tokio_tungstenite::tungstenite::Message;

use super::codec::{ServerFrame, decode, delivery, encode, settle_requests};
use super::socket::{self, CONNECT_MAX, Socket};
use super::url::NativeUrl;
use crate::broker::{BrokerError, Delivery, Settle};
use crate::retry_delay::RetryDelay;

/// Requests that wait to be written.
pub(super) const REQUESTS_QUEUED_MAX: usize = 1024;
/// The most frames in one WebSocket message. Requests made at the same time are sent together.
const FRAMES_PER_MESSAGE_MAX: usize = 64;
/// Detached consumers to remember: deliveries that the server sent before the detach may still arrive.
const DETACHED_MAX: usize = 1024;
/// Pauses between attempts to reconnect.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How long closing may take.
const CLOSE_MAX: Duration = Duration::from_secs(5);

pub(super) type DeliveryResult = Result<Vec<Delivery>, BrokerError>;

/// A request to the driver.
pub(super) enum DriverRequest {
    /// Sends a frame to the server. `frame` gets the id of the request.
    Call {
        frame: Box<dyn FnOnce(u64) -> ClientFrame + Send>,
        kind: RequestKind,
        reply: Option<oneshot::Sender<Result<AnyReply, BrokerError>>>,
    },
    /// Closes the connection.
    Close(oneshot::Sender<()>),
}

/// What the driver does when a reply arrives.
pub(super) enum RequestKind {
    Other,
    /// If the caller has given up, an accepted session is released. An accept of the next session that still waits at
    /// the server without a caller is reused for the next caller, so there are never more accepts than callers.
    Accept {
        queue: String,
        next: bool,
    },
    /// Registers a consumer; an error ends it.
    Attach {
        consumer: u64,
        to: ConsumerSink,
    },
    /// The same, after its frame was made.
    Attached {
        consumer: u64,
    },
    /// The consumer ends with the reply.
    Detach {
        consumer: u64,
    },
    /// The leases end with the reply.
    Settle(Vec<LeaseToken>),
    /// Leases that are not renewed end with the reply.
    Renew(Vec<LeaseToken>),
}

/// Where the deliveries of a consumer go.
pub(super) struct ConsumerSink {
    pub to: mpsc::UnboundedSender<DeliveryResult>,
    /// The queue to which undelivered messages are released. None for a held session, which is released as a whole.
    pub queue: Option<String>,
}

struct AwaitedRequest {
    kind: RequestKind,
    reply: ReplySender,
}

/// Receives the reply to a request, if anyone waits for it.
type ReplySender = Option<oneshot::Sender<Result<AnyReply, BrokerError>>>;

struct NativeDriver {
    url: Arc<NativeUrl>,
    requests: mpsc::Receiver<DriverRequest>,
    next_id: u64,
    pending: HashMap<u64, AwaitedRequest>,
    consumers: HashMap<u64, ConsumerSink>,
    /// Recently detached consumers, with the queues to which late deliveries are released.
    detached: VecDeque<(u64, Option<String>)>,
    /// Leases with their consumers, and holds, which have no consumer.
    leases: HashMap<LeaseToken, Option<u64>>,
    /// Frames of the driver itself, which release abandoned sessions and messages.
    outgoing: Vec<ClientFrame>,
    requests_max: usize,
    silence_max: Duration,
}

/// Why a socket is no longer used.
enum SocketEnd {
    /// The user closed the connection, and may wait for the end.
    Closed(Option<oneshot::Sender<()>>),
    Lost(String),
}

/// Connects, reports the outcome, and serves until the user closes the connection.
pub(super) async fn drive(
    url: Arc<NativeUrl>,
    requests: mpsc::Receiver<DriverRequest>,
    connected: oneshot::Sender<Result<usize, BrokerError>>,
) {
    let mut driver = NativeDriver {
        url,
        requests,
        next_id: 1,
        pending: HashMap::new(),
        consumers: HashMap::new(),
        detached: VecDeque::new(),
        leases: HashMap::new(),
        outgoing: Vec::new(),
        requests_max: 1,
        silence_max: Duration::from_secs(45),
    };
    let (mut socket, mut welcome) = match socket::open(&driver.url).await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = connected.send(Err(error)); // the caller gave up
            return;
        }
    };
    driver.apply_limits(&welcome);
    if connected.send(Ok(driver.requests_max)).is_err() {
        return;
    }
    loop {
        driver.apply_limits(&welcome);
        let lost = match driver.serve(&mut socket).await {
            SocketEnd::Closed(waiting) => {
                let _ = timeout(CLOSE_MAX, socket::close(&mut socket)).await;
                if let Some(waiting) = waiting {
                    let _ = waiting.send(()); // the caller gave up
                }
                return;
            }
            SocketEnd::Lost(text) => text,
        };
        drop(socket);
        tracing::debug!(
            front = "native",
            error = lost,
            "the connection to the server is lost; reconnecting"
        );
        driver.fail_calls(&lost);
        match driver.reconnect(&welcome, &lost).await {
            Some(reopened) => (socket, welcome) = reopened,
            None => return,
        }
    }
}

impl NativeDriver {
    fn apply_limits(&mut self, welcome: &Welcome) {
        self.requests_max = usize::try_from(welcome.limits.requests_max).unwrap_or(1).max(1);
        self.silence_max = Duration::from_millis(welcome.limits.silence_max_ms.max(1000));
    }

    /// Serves one socket. Reading and writing run concurrently, so that neither blocks the other.
    async fn serve(&mut self, socket: &mut Socket) -> SocketEnd {
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
            let mut requests = Vec::with_capacity(FRAMES_PER_MESSAGE_MAX);
            let mut last_received = Instant::now();
            loop {
                let full = to_write.capacity() == 0;
                let room = !full && self.pending.len() < self.requests_max;
                tokio::select! {
                    biased;
                    result = stream.next() => {
                        last_received = Instant::now();
                        match result {
                            Some(Ok(Message::Binary(bytes))) => {
                                if let Err(error) = self.handle_message(&bytes) {
                                    return SocketEnd::Lost(format!("the server sent an invalid frame: {error}"));
                                }
                            }
                            Some(Ok(Message::Close(_))) | None => {
                                return SocketEnd::Lost("the server closed the connection".into());
                            }
                            Some(Ok(_)) => {}
                            Some(Err(error)) => return SocketEnd::Lost(error.to_string()),
                        }
                    }
                    permit = to_write.reserve(), if full || !self.outgoing.is_empty() => {
                        let Ok(permit) = permit else { continue };
                        let frames: Vec<ClientFrame> = self.outgoing.drain(..).collect();
                        match encode(&frames) {
                            Ok(bytes) if !frames.is_empty() => permit.send(bytes),
                            Ok(_) => {}
                            Err(error) => return SocketEnd::Lost(error.to_string()),
                        }
                    }
                    count = self.requests.recv_many(&mut requests, FRAMES_PER_MESSAGE_MAX), if room => {
                        if count == 0 {
                            return SocketEnd::Closed(None);
                        }
                        let mut frames = Vec::with_capacity(count);
                        let closed = requests.drain(..).find_map(|request| self.handle_request(request, &mut frames));
                        let Ok(bytes) = encode(&frames) else {
                            return SocketEnd::Lost("a request cannot be encoded".into());
                        };
                        // The channel has room, because only this task sends.
                        if !frames.is_empty() && to_write.try_send(bytes).is_err() {
                            return SocketEnd::Lost("the writer has stopped".into());
                        }
                        if closed.is_some() {
                            return SocketEnd::Closed(closed);
                        }
                    }
                    () = tokio::time::sleep_until(last_received + self.silence_max) => {
                        return SocketEnd::Lost("the server sent nothing for too long".into());
                    }
                }
            }
        };
        let end = tokio::select! {
            end = work => end,
            error = write => SocketEnd::Lost(error),
        };
        if let SocketEnd::Closed(_) = end {
            // Requests made before the close are still sent.
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

    /// Turns a request into a frame. Returns the sender of a close request.
    fn handle_request(
        &mut self,
        request: DriverRequest,
        frames: &mut Vec<ClientFrame>,
    ) -> Option<oneshot::Sender<()>> {
        match request {
            DriverRequest::Call { frame, mut kind, reply } => {
                // The caller gave up before the request was sent.
                let dropped = reply.as_ref().is_some_and(oneshot::Sender::is_closed);
                if dropped && matches!(kind, RequestKind::Accept { .. }) {
                    return None;
                }
                let reply = match self.reuse_abandoned_accept(&kind, reply) {
                    Ok(()) => return None,
                    Err(reply) => reply,
                };
                if let RequestKind::Attach { consumer, to } = kind {
                    self.consumers.insert(consumer, to);
                    kind = RequestKind::Attached { consumer };
                }
                frames.push(self.register(frame, kind, reply));
                None
            }
            DriverRequest::Close(closed) => Some(closed),
        }
    }

    /// Uses a pending accept whose caller gave up for a new caller, if there is one.
    fn reuse_abandoned_accept(
        &mut self,
        wanted: &RequestKind,
        reply: ReplySender,
    ) -> Result<(), ReplySender> {
        let RequestKind::Accept { queue: wanted, next: true } = wanted else { return Err(reply) };
        let abandoned = self.pending.values_mut().find(|pending| {
            matches!(&pending.kind, RequestKind::Accept { queue, next: true } if queue == wanted)
                && pending.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
        });
        let Some(abandoned) = abandoned else { return Err(reply) };
        abandoned.reply = reply;
        Ok(())
    }

    fn register(
        &mut self,
        frame: impl FnOnce(u64) -> ClientFrame,
        kind: RequestKind,
        reply: ReplySender,
    ) -> ClientFrame {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, AwaitedRequest { kind, reply });
        frame(id)
    }

    fn handle_message(&mut self, bytes: &[u8]) -> Result<(), rmp_serde::decode::Error> {
        for frame in decode(bytes)? {
            match frame {
                ServerFrame::Reply(reply) => self.handle_reply(reply),
                ServerFrame::Deliver(deliver) => {
                    let all = deliver.messages.into_iter().filter_map(delivery);
                    self.deliver(deliver.consumer, all.collect());
                }
                ServerFrame::Ended(ended) => {
                    self.end_consumer(ended.consumer, BrokerError::from(*ended.problem))
                }
                ServerFrame::Welcome(_) => {}
            }
        }
        Ok(())
    }

    fn deliver(&mut self, consumer: u64, all: Vec<Delivery>) {
        let leases: Vec<LeaseToken> = all.iter().map(|delivery| delivery.lease).collect();
        let queue = match self.consumers.get(&consumer) {
            Some(ConsumerSink { to, queue }) => {
                if to.send(Ok(all)).is_ok() {
                    self.leases.extend(leases.into_iter().map(|lease| (lease, Some(consumer))));
                    return;
                }
                queue.clone()
            }
            None => {
                let mut detached = self.detached.iter().rev();
                detached.find(|(id, _)| *id == consumer).and_then(|(_, queue)| queue.clone())
            }
        };
        if let Some(queue) = queue {
            // The source was closed before these messages arrived, so they were not tried.
            let items = settle_requests(leases.into_iter().map(Settle::release).collect());
            let frame =
                |id| ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None });
            let frame = self.register(frame, RequestKind::Other, None);
            self.outgoing.push(frame);
        }
    }

    /// Detaches a consumer. Deliveries for it may still be on their way.
    fn detach_consumer(&mut self, consumer: u64) {
        if let Some(ConsumerSink { queue, .. }) = self.consumers.remove(&consumer) {
            if self.detached.len() == DETACHED_MAX {
                self.detached.pop_front();
            }
            self.detached.push_back((consumer, queue));
        }
    }

    /// Ends a consumer after an error. Its leases are lost.
    fn end_consumer(&mut self, consumer: u64, why: BrokerError) {
        if let Some(ConsumerSink { to, .. }) = self.consumers.remove(&consumer) {
            self.leases.retain(|_, owner| *owner != Some(consumer));
            let _ = to.send(Err(why)); // the source was dropped
        }
    }

    fn handle_reply(&mut self, reply: Reply<AnyReply>) {
        let Reply { id: Some(id), ok, problem } = reply else { return };
        let Some(AwaitedRequest { kind, reply }) = self.pending.remove(&id) else { return };
        let held = ok.as_ref().and_then(|answer| answer.held.as_ref());
        let held = held.and_then(|held| held.token.parse::<LeaseToken>().ok());
        let result = match problem {
            Some(problem) => Err(BrokerError::from(*problem)),
            None => Ok(ok.unwrap_or_default()),
        };
        match (&kind, &result) {
            (RequestKind::Settle(leases), _) => leases.iter().for_each(|lease| {
                self.leases.remove(lease);
            }),
            (RequestKind::Renew(leases), Ok(answer)) => {
                let each = leases.iter().zip(answer.results.iter().flatten());
                each.filter(|(_, result)| !result.ok).for_each(|(lease, _)| {
                    self.leases.remove(lease);
                });
            }
            (RequestKind::Attached { consumer }, Err(error)) => {
                self.end_consumer(*consumer, error.clone())
            }
            (RequestKind::Detach { consumer }, _) => self.detach_consumer(*consumer),
            _ => {}
        }
        self.leases.extend(held.map(|hold| (hold, None)));
        let unclaimed = reply.is_some_and(|reply| reply.send(result).is_err());
        if let (true, Some(token), RequestKind::Accept { queue, .. }) = (unclaimed, held, kind) {
            let frame =
                |id| ClientFrame::Release(ReleaseFrame { id, queue, token: token.to_string() });
            let frame = self.register(frame, RequestKind::Settle(vec![token]), None);
            self.outgoing.push(frame);
        }
    }

    /// Fails all pending calls with an unknown outcome.
    fn fail_calls(&mut self, text: &str) {
        self.outgoing.clear();
        let all: Vec<AwaitedRequest> = self.pending.drain().map(|(_, pending)| pending).collect();
        for pending in all {
            self.fail(pending.kind, pending.reply, text);
        }
    }

    fn fail(&mut self, kind: RequestKind, reply: ReplySender, text: &str) {
        let error = BrokerError::Unreachable { text: text.to_owned() };
        match kind {
            RequestKind::Attached { consumer } => self.end_consumer(consumer, error.clone()),
            RequestKind::Detach { consumer } => self.detach_consumer(consumer),
            RequestKind::Attach { to, .. } => {
                let _ = to.to.send(Err(error.clone())); // the source was dropped
            }
            _ => {}
        }
        if let Some(reply) = reply {
            let _ = reply.send(Err(error)); // the caller gave up
        }
    }

    /// Opens a new socket and resumes the connection if the server still has it. None if the user closed the
    /// connection.
    async fn reconnect(&mut self, welcome: &Welcome, lost: &str) -> Option<(Socket, Welcome)> {
        let mut backoff = RetryDelay::new(RETRY_FIRST, RETRY_MAX);
        loop {
            match socket::open(&self.url).await {
                Ok((mut socket, fresh)) => match self.resume(&mut socket, welcome).await {
                    Ok(true) => {
                        let secret = welcome.secret.clone();
                        let resumed_welcome =
                            Welcome { connection: welcome.connection, secret, ..fresh };
                        return Some((socket, resumed_welcome));
                    }
                    Ok(false) => {
                        self.lose_leases();
                        return Some((socket, fresh));
                    }
                    Err(()) => {}
                },
                Err(BrokerError::Refused { text, .. }) => {
                    // The server refuses the credentials, so it will not keep the leases either.
                    tracing::warn!(
                        front = "native",
                        error = text,
                        "the server refuses the connection"
                    );
                    self.lose_leases();
                }
                Err(_) => {}
            }
            // Requests made meanwhile fail at once, so that callers can react.
            let until = Instant::now() + backoff.pause();
            while let Ok(request) = tokio::time::timeout_at(until, self.requests.recv()).await {
                match request {
                    None => return None,
                    Some(DriverRequest::Close(closed)) => {
                        let _ = closed.send(());
                        return None;
                    }
                    Some(DriverRequest::Call { reply, kind, .. }) => self.fail(kind, reply, lost),
                }
            }
        }
    }

    /// Whether the server resumed the old connection.
    async fn resume(&mut self, socket: &mut Socket, welcome: &Welcome) -> Result<bool, ()> {
        let id = self.next_id;
        self.next_id += 1;
        let leases = self.leases.keys().map(LeaseToken::to_string).collect();
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

    /// The connection ended, and with it all leases and holds.
    fn lose_leases(&mut self) {
        self.leases.clear();
        for (_, consumer) in self.consumers.drain() {
            let _ = consumer.to.send(Err(BrokerError::LockLost)); // the source was dropped
        }
    }
}
