//! State of one connection: its channels, and the operations in progress for them.
//!
//! | file | what |
//! |---|---|
//! | `handshake.rs` | from the protocol header to `open-ok` |
//! | `io.rs` | the I/O loop |
//! | `frames.rs` | frames → channels; opening and closing them |
//! | `dispatch.rs` | methods → operations |
//! | `channel.rs` | the state of a channel |
//! | `confirms.rs` | publisher confirms |
//! | `completion.rs` | results of operations that took time |
//! | `leaving.rs` | consumers whose channel has ended |
//!
//! The operations are in `ops/`. Nothing here blocks: an operation that takes time is a [`PendingOperation`], polled by
//! the connection's task together with its socket.

pub(crate) mod channel;
pub(crate) mod completion;
pub(crate) mod confirms;
pub(crate) mod dispatch;
mod frames;
pub(crate) mod handshake;
pub(crate) mod io;
mod leaving;

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use malote_engine::{Connection as EngineConnection, ConsumerId, Outbound};
use malote_http::Share;
use malote_model::{Action, AuditAction, AuditEntry, QueueName, Resource};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use self::channel::Channel;
pub(crate) use self::completion::Completion;
use self::handshake::Session;
use crate::ops::publish::SendQueue;
use crate::ops::reply_to::DirectReply;
use crate::ops::settle::SettleQueue;
use crate::registry::{Inquiry, Traffic};
use crate::wire::error::{Exception, ReplyCode, Scope};
use crate::wire::frame::{FrameDecoder, put_method};
use crate::wire::method::{EncodeMethod, Method, basic, connection};
use crate::wire::text::ShortString;
use crate::{Front, Peer, limits};

/// An operation in progress.
pub(crate) type PendingOperation = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// A connection without its socket.
pub(crate) struct Conn {
    pub(crate) front: Arc<Front>,
    pub(crate) engine: Arc<EngineConnection>,
    pub(crate) session: Arc<Session>,
    /// Messages may have the `user-id` of another user.
    pub(crate) impersonates: bool,
    pub(crate) peer: Peer,
    /// Unique in the process.
    pub(crate) number: u64,
    pub(crate) input: BytesMut,
    decoder: FrameDecoder,
    pub(crate) out: BytesMut,
    pub(crate) channels: HashMap<u16, Channel>,
    next_serial: u64,
    /// The channels and tags of the engine's consumers.
    pub(crate) consumers: HashMap<ConsumerId, (u16, ShortString)>,
    /// Consumers that are about to be detached.
    pub(crate) leaving: HashMap<ConsumerId, leaving::LeavingConsumer>,
    pub(crate) pending: FuturesUnordered<PendingOperation>,
    /// Operations that completed when they were first polled.
    completed: VecDeque<Completion>,
    pub(crate) send_queue: SendQueue,
    pub(crate) settle_queue: SettleQueue,
    /// Bytes of publications on their way to the engine.
    pub(crate) sending_bytes: usize,
    /// Bytes of requests that wait for an earlier request of their channel.
    held_bytes: usize,
    /// Unacknowledged messages of all channels.
    pub(crate) unacked: usize,
    /// Bytes of all transactions that are not committed.
    pub(crate) staged_bytes: usize,
    /// Bytes of all bodies that have not arrived completely.
    pub(crate) unfinished_bytes: usize,
    /// This connection's share of what all connections may use for them.
    unfinished_share: Option<Share>,
    /// Bytes of messages that shared prefetch limits hold back.
    pub(crate) held_back_bytes: usize,
    /// Exclusive queues of this connection.
    pub(crate) own_queues: HashSet<QueueName>,
    /// Channels that may have confirms to send.
    pub(crate) confirming: Vec<u16>,
    /// Channels whose consumers may need credit, or that hold messages back.
    pub(crate) hungry: Vec<u16>,
    /// Channels whose consumers get credit once the output buffer has room.
    pub(crate) starved: Vec<u16>,
    pub(crate) direct_replies: mpsc::Receiver<DirectReply>,
    pub(crate) reply_sender: mpsc::Sender<DirectReply>,
    /// Bytes of direct replies that wait for this connection.
    pub(crate) reply_bytes: Arc<AtomicUsize>,
    /// Requests of the management API.
    pub(crate) inquiries: mpsc::Receiver<Inquiry>,
    pub(crate) traffic: Traffic,
    /// `connection.blocked` was sent.
    pub(crate) blocked: bool,
    /// The server has sent `connection.close`, and waits for `close-ok` until then.
    closing: Option<Instant>,
    /// The client has sent `connection.close`. What it sent before is still carried out.
    closed_by_client: bool,
    /// Nothing follows but the bytes in `out`.
    finished: bool,
    /// The connection was closed in an orderly way.
    pub(crate) closed_cleanly: bool,
}

impl Conn {
    pub fn new(
        front: Arc<Front>,
        engine: Arc<EngineConnection>,
        session: Session,
        peer: Peer,
        input: BytesMut,
        decoder: FrameDecoder,
        inquiries: mpsc::Receiver<Inquiry>,
    ) -> Self {
        let (reply_sender, direct_replies) = mpsc::channel(limits::REPLIES_MAX);
        let number = front.connections.fetch_add(1, Ordering::Relaxed);
        let impersonates = front.impersonates(&session.who);
        Self {
            front,
            engine,
            session: Arc::new(session),
            impersonates,
            peer,
            number,
            input,
            decoder,
            out: BytesMut::new(),
            channels: HashMap::new(),
            next_serial: 1,
            consumers: HashMap::new(),
            leaving: HashMap::new(),
            pending: FuturesUnordered::new(),
            completed: VecDeque::new(),
            send_queue: SendQueue::default(),
            settle_queue: SettleQueue::default(),
            sending_bytes: 0,
            held_bytes: 0,
            unacked: 0,
            staged_bytes: 0,
            unfinished_bytes: 0,
            unfinished_share: None,
            held_back_bytes: 0,
            own_queues: HashSet::new(),
            confirming: Vec::new(),
            hungry: Vec::new(),
            starved: Vec::new(),
            direct_replies,
            reply_sender,
            reply_bytes: Arc::default(),
            inquiries,
            traffic: Traffic::default(),
            blocked: false,
            closing: None,
            closed_by_client: false,
            finished: false,
            closed_cleanly: false,
        }
    }

    /// Handles everything that can be handled without waiting.
    pub fn make_progress(&mut self) {
        loop {
            self.read_frames();
            if let Some(completion) = self.completed.pop_front() {
                self.complete(completion);
            } else if !self.flush_sends()
                && !self.flush_settles()
                && !self.flush_credit()
                && !self.end_channels()
            {
                break;
            }
        }
        self.flush_confirms();
        self.answer_close();
    }

    /// Ends all channels once the client has closed the connection and everything before that is done. Returns whether
    /// there were any.
    fn end_channels(&mut self) -> bool {
        let idle = |channel: &Channel| !channel.busy && channel.waiting.is_empty();
        let ends = self.closed_by_client
            && self.sending_bytes == 0
            && !self.channels.is_empty()
            && self.channels.values().all(idle);
        if ends {
            self.flush_confirms();
            let numbers: Vec<u16> = self.channels.keys().copied().collect();
            numbers.into_iter().for_each(|number| self.drop_channel(number));
        }
        ends
    }

    /// Answers the client's `connection.close` once its channels and consumers have ended.
    fn answer_close(&mut self) {
        if self.closed_by_client
            && !self.finished
            && self.sending_bytes == 0
            && self.channels.is_empty()
            && self.leaving.is_empty()
        {
            self.put(0, &connection::CloseOk {});
            self.closed_cleanly = true;
            self.finished = true;
        }
    }

    /// Channels may have work for their consumers.
    pub(crate) fn feed(&mut self, number: u16) {
        if self.hungry.last() != Some(&number) {
            self.hungry.push(number);
        }
    }

    /// Starts an operation. It is polled once immediately, so that operations reach the engine in order.
    /// `unconstrained` is needed for the same reason: an operation that exhausted the task budget would be overtaken by
    /// later ones.
    pub(crate) fn start(&mut self, work: impl Future<Output = Completion> + Send + 'static) {
        let mut work: PendingOperation = Box::pin(tokio::task::unconstrained(work));
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completion) => self.completed.push_back(completion),
            Poll::Pending => self.pending.push(work),
        }
    }

    /// Handles a notification from the engine.
    pub fn outbound(&mut self, outbound: Outbound) {
        match outbound {
            Outbound::Deliver(consumer, deliveries) => self.deliver(consumer, deliveries),
            Outbound::Damaged(consumer, count) => self.damaged(consumer, count),
            Outbound::Ended(consumer, _) => self.consumer_ended(consumer),
        }
    }

    /// The open channel of this number, if it is still the same one.
    pub(crate) fn channel_of(&mut self, number: u16, serial: u64) -> Option<&mut Channel> {
        self.channels
            .get_mut(&number)
            .filter(|channel| channel.serial == serial && !channel.closing)
    }

    pub(crate) fn put(&mut self, channel: u16, method: &impl EncodeMethod) {
        put_method(&mut self.out, channel, method);
    }

    pub(crate) fn reply(&mut self, channel: u16, reply: Option<Method>) {
        if let Some(reply) = reply {
            self.put(channel, &reply);
        }
    }

    /// Closes a channel or the connection because of an exception.
    pub(crate) fn fail(&mut self, number: u16, exception: Exception) {
        match exception.scope {
            Scope::Channel => self.close_channel(number, &exception),
            Scope::Connection => self.close_connection(&exception),
        }
    }

    /// Sends `connection.close`. From then on, only `close-ok` is read.
    pub(crate) fn close_connection(&mut self, exception: &Exception) {
        if self.closing.is_some() || self.finished {
            return;
        }
        tracing::debug!(conn = self.number, %exception, front = "rabbitmq", "closing the connection");
        self.put(0, &exception.connection_close());
        self.closing = Some(Instant::now() + limits::CLOSE_TIMEOUT);
        let numbers: Vec<u16> = self.channels.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.drop_channel(number));
        self.closed_cleanly = true;
    }

    /// Checks a permission.
    pub(crate) fn allow<'a>(
        &self,
        action: Action,
        on: impl Into<Resource<'a>>,
        what: &str,
        name: &str,
    ) -> Result<(), Exception> {
        allow(&self.front, &self.session, action, on.into(), what, name)
    }

    /// Records an administrative operation.
    pub(crate) fn audit(&self, action: AuditAction, object: &str) -> AuditEntry {
        let entry = AuditEntry::new(self.session.protocol, action);
        entry.by(&self.session.who).from(self.peer.address).on(object)
    }

    /// Closes the connection if its virtual host is being deleted or is already gone.
    pub fn recheck_vhost(&mut self) {
        let name = self.session.host.name();
        if self.front.is_deleting(name) || !self.front.vhosts.lock().contains(name) {
            let detail = format!("vhost '{name}' is deleted");
            self.close_connection(&Exception::new(ReplyCode::ConnectionForced, detail));
        }
    }

    /// Checks the permissions of consumers again, after they have changed.
    pub fn recheck_permissions(&mut self) {
        if !self.front.access.knows(&self.session.who) {
            let detail = format!("user '{}' is deleted", self.session.user);
            return self.close_connection(&Exception::new(ReplyCode::ConnectionForced, detail));
        }
        self.impersonates = self.front.impersonates(&self.session.who);
        let mut lost = Vec::new();
        for channel in self.channels.values() {
            for consumer in channel.consumers.values() {
                let shown = self.session.host.shown(consumer.queue.as_str());
                if self.allow(Action::Receive, &consumer.queue, "queue", &shown).is_err() {
                    lost.push(consumer.id);
                }
            }
        }
        for id in lost {
            self.detach(id);
            self.consumer_ended(id);
        }
    }

    /// Closes channels with a message that was not acknowledged in time.
    pub fn check_consumer_timeouts(&mut self) {
        let Some(limit) = self.front.consumer_timeout else { return };
        let late = |channel: &Channel| {
            let oldest = channel.unacked.first_key_value();
            oldest.is_some_and(|(_, unacked)| unacked.since.elapsed() > limit)
        };
        let late = self.channels.iter().filter(|(_, channel)| !channel.closing && late(channel));
        let numbers: Vec<u16> = late.map(|(&number, _)| number).collect();
        for number in numbers {
            let detail = format!(
                "delivery acknowledgement on channel {number} timed out. Timeout value used: {} ms. This timeout value \
                 can be configured, see consumers doc guide to learn more",
                limit.as_millis()
            );
            let exception = Exception::new(ReplyCode::PreconditionFailed, detail);
            self.close_channel(number, &exception.caused_by(basic::Ack::default().id()));
        }
    }

    /// Sends `connection.blocked`, if the client supports it.
    pub(crate) fn block(&mut self) {
        if self.blocked {
            return;
        }
        self.blocked = true;
        if self.session.capabilities.connection_blocked {
            let reason = ShortString::from_static("low on disk");
            self.put(0, &connection::Blocked { reason });
        }
        let engine = self.front.engine.clone();
        self.start(async move {
            loop {
                tokio::time::sleep(limits::BLOCKED_RETRY).await;
                // Sending nothing is refused while publishing is.
                if engine.send(Vec::<(QueueName, _)>::new()).await.is_ok() {
                    return Completion::Unblocked;
                }
            }
        });
    }

    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
        if self.session.capabilities.connection_blocked && self.closing.is_none() {
            self.put(0, &connection::Unblocked {});
        }
    }

    /// After the socket has ended: what was received still reaches the engine, although nothing is answered.
    pub async fn finish(&mut self) {
        let numbers: Vec<u16> = self.channels.keys().copied().collect();
        let clean = self.closed_cleanly;
        for number in numbers {
            // After an unexpected end, messages stay leased until the engine's connection is lost, which counts them.
            match clean {
                true => self.drop_channel(number),
                false => self.abandon_channel(number),
            }
        }
        self.flush_sends();
        self.flush_settles();
        let ended = async {
            while let Some(completion) = self.pending.next().await {
                drop(completion);
            }
        };
        let _ = timeout(limits::CLOSE_TIMEOUT, ended).await;
    }
}

/// Checks a permission: `access to queue 'q' in vhost '/' refused for user 'u'`.
pub(crate) fn allow(
    front: &Front,
    session: &Session,
    action: Action,
    on: Resource<'_>,
    what: &str,
    name: &str,
) -> Result<(), Exception> {
    front.access.check(&session.who, action, on).map_err(|_| {
        let (host, user) = (session.host.name(), &session.user);
        let detail =
            format!("access to {what} '{name}' in vhost '{host}' refused for user '{user}'");
        Exception::new(ReplyCode::AccessRefused, detail)
    })
}

/// Checks a topic permission: whether the caller may use a routing key with an exchange.
pub(crate) fn allow_key(
    front: &Front,
    session: &Session,
    action: Action,
    exchange: &str,
    key: &str,
) -> Result<(), Exception> {
    let (host, user) = (session.host.name(), &session.user);
    if front.users.may_use_key(&session.who, action, host, exchange, key) {
        return Ok(());
    }
    Err(Exception::new(
        ReplyCode::AccessRefused,
        format!(
            "access to topic '{key}' in exchange '{exchange}' in vhost '{host}' refused for user '{user}'"
        ),
    ))
}
