//! State of one connection: its links, and the operations in progress for each.
//!
//! | file | what |
//! |---|---|
//! | `io.rs` | the I/O loop |
//! | `websocket.rs` | the same protocol over WebSocket |
//! | `events.rs` | dispatches events of the peer |
//! | `completion.rs` | handles results of pending operations |
//! | `link.rs` | link states, and the clean-up when a link ends |
//! | `id_map.rs` | maps keyed by ids |
//!
//! The operations are in `ops/`. Nothing here blocks: an operation that takes time is a [`PendingOperation`], polled by
//! the connection's task together with its socket.

pub(crate) mod completion;
mod events;
pub(crate) mod id_map;
pub(crate) mod io;
pub(crate) mod link;
pub(crate) mod websocket;

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use malote_engine::{Connection as EngineConnection, ConsumerId, Outbound};
use malote_model::{Action, QueueName, Settlement};
use malote_wire_amqp::connection::{Config, Connection, LinkId};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::{Str, Symbol};
use tokio::time::Instant;

use crate::limits;
use crate::ops::claims::Claims;
use crate::ops::resolve::Entity;
use crate::ops::send::SendQueue;
use crate::ops::settle::SettleQueue;
use crate::ops::transaction::Transactions;
use crate::{Front, Peer};

pub(crate) use completion::Completion;
use id_map::IdMap;
use link::LinkState;

/// An operation in progress.
pub(crate) type PendingOperation = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// A connection without its socket.
pub(crate) struct Conn {
    pub(crate) front: Arc<Front>,
    pub(crate) amqp: Connection,
    pub(crate) engine: Arc<EngineConnection>,
    pub(crate) pending: FuturesUnordered<PendingOperation>,
    /// Operations that completed when they were first polled.
    pub(crate) completed: VecDeque<Completion>,
    pub(crate) claims: Claims,
    /// Permissions that links need for as long as they are attached.
    pub(crate) required_permissions: HashMap<LinkId, (&'static [Action], Entity)>,
    pub(crate) links: IdMap<LinkId, LinkState>,
    pub(crate) consumers: IdMap<ConsumerId, LinkId>,
    /// Receiving links whose deliveries wait for space in the output buffer.
    pub(crate) blocked_links: HashSet<LinkId>,
    /// Temporary queues, deleted together with the link that created them.
    pub(crate) temporary_queues: HashMap<LinkId, QueueName>,
    pub(crate) settle_queue: SettleQueue,
    pub(crate) send_queue: SendQueue,
    pub(crate) transactions: Transactions,
    /// Bytes of messages being sent to the engine.
    pub(crate) sending_bytes: usize,
    /// Bytes of replies waiting for credit.
    pub(crate) reply_bytes: usize,
    /// Peeks in progress.
    pub(crate) peeks: u32,
    pub(crate) next_key: u64,
    /// The host name that the client used; only for error texts.
    pub(crate) host: String,
    /// The client has sent its open.
    pub(crate) opened: bool,
    /// The connection was closed in an orderly way.
    pub(crate) closed_cleanly: bool,
    /// The caller has authenticated, or does not need to.
    pub(crate) authenticated: bool,
    pub(crate) peer: Peer,
    pub(crate) unauthenticated_since: Instant,
}

impl Conn {
    pub fn new(front: Arc<Front>, engine: Arc<EngineConnection>, peer: Peer) -> Conn {
        let mechanisms = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"];
        let config = Config {
            container_id: Str::from_static("malote"),
            mechanisms: mechanisms.into_iter().map(Symbol::from_static).collect(),
            max_frame_size: limits::FRAME_BYTES_MAX,
            channel_max: limits::CHANNEL_MAX,
            links_max: limits::LINKS_MAX,
            idle_time_out_ms: Some(limits::IDLE_MS),
            // An oversized message is answered with an outcome. Clients that are detached instead cannot report the
            // reason.
            max_message_size_accepted: Some(malote_model::limits::MESSAGE_BYTES_MAX + (1 << 20)),
            // The Python client announces 1 MiB but accepts any size.
            ignore_remote_max_message_size: true,
            // Messages that were never written are released immediately, before their locks expire.
            track_unsent: true,
            incoming_bytes_max: limits::SENDING_BYTES_MAX,
            outgoing_bytes_max: limits::OUTGOING_BYTES_MAX,
            ..Config::default()
        };
        let mut conn = Conn {
            front,
            amqp: Connection::server(config, 0),
            engine,
            pending: FuturesUnordered::new(),
            completed: VecDeque::new(),
            claims: Claims::of(peer.address),
            required_permissions: HashMap::new(),
            links: IdMap::default(),
            consumers: IdMap::default(),
            blocked_links: HashSet::new(),
            temporary_queues: HashMap::new(),
            settle_queue: SettleQueue::default(),
            send_queue: SendQueue::default(),
            transactions: Transactions::default(),
            sending_bytes: 0,
            reply_bytes: 0,
            peeks: 0,
            next_key: 1,
            host: "localhost".to_owned(),
            opened: false,
            closed_cleanly: false,
            authenticated: true,
            peer,
            unauthenticated_since: Instant::now(),
        };
        conn.update_authentication();
        conn
    }

    /// Handles everything that can be handled without waiting.
    pub fn make_progress(&mut self) {
        loop {
            if let Some(completion) = self.completed.pop_front() {
                self.complete(completion);
            } else if let Some(event) = self.amqp.next_event() {
                self.handle_event(event);
            } else if !self.flush_settles() && !self.flush_sends() {
                break;
            }
        }
        for link in std::mem::take(&mut self.blocked_links) {
            self.transmit(link);
            self.browse(link);
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
            Outbound::Deliver(consumer, deliveries) => match self.consumers.get(&consumer) {
                Some(link) => self.deliver(*link, deliveries),
                // The link is already detached, so the client has not seen these.
                None => {
                    let leases = deliveries.iter().filter_map(|delivery| delivery.lease).collect();
                    self.release_leases(leases);
                }
            },
            Outbound::Damaged(consumer, count) => self.unreadable(consumer, count),
            Outbound::Ended(consumer, refusal) => {
                let Some(link) = self.consumers.get(&consumer).copied() else { return };
                let Some(LinkState::Receiver(receiver)) = self.links.get(&link) else { return };
                let error = crate::refusal::refusal_error(&refusal, receiver.lock());
                self.drop_link(link);
                let _ = self.amqp.detach(link, true, Some(error));
            }
        }
    }

    /// Time until the next token expires.
    pub fn token_check_delay(&self) -> Duration {
        let now = self.front.engine.now();
        let left_ms = self.claims.earliest_expiry().map(|end| end.0.saturating_sub(now.0));
        Duration::from_millis(left_ms.unwrap_or(u64::MAX)).min(limits::TOKEN_CHECK_INTERVAL_MAX)
    }

    /// Re-evaluates whether the caller is authenticated, and sets the limits accordingly.
    pub(crate) fn update_authentication(&mut self) {
        let was_authenticated = self.authenticated;
        self.authenticated = self.claims.is_authenticated(&self.front);
        self.amqp.set_peer_limits(if self.authenticated {
            limits::AUTHENTICATED_LIMITS
        } else {
            limits::UNAUTHENTICATED_LIMITS
        });
        // On a server without credentials, every caller counts as authenticated after the open.
        if self.authenticated && self.opened {
            self.peer.known.store(true, Ordering::Relaxed);
        }
        if was_authenticated && !self.authenticated {
            self.unauthenticated_since = Instant::now();
        }
    }

    /// When an unauthenticated caller is disconnected.
    pub fn authentication_deadline(&self) -> Option<Instant> {
        (!self.authenticated).then(|| self.unauthenticated_since + limits::AUTHENTICATION_TIMEOUT)
    }

    /// Checks the permissions of every link again, after a token has expired or permissions have changed. Links covered
    /// by another token stay attached.
    pub fn recheck_permissions(&mut self) {
        self.claims.remove_expired(self.front.engine.now());
        self.update_authentication();
        let check = |(link, (actions, entity)): (&LinkId, &(&[Action], Entity))| {
            let refused = self.claims.check_any(&self.front, actions, entity).err()?;
            Some((*link, refused))
        };
        let refused: Vec<_> = self.required_permissions.iter().filter_map(check).collect();
        for (link, error) in refused {
            self.drop_link(link);
            let _ = self.amqp.detach(link, true, Some(error));
        }
    }

    /// Releases messages that the client has not seen; their delivery does not count as failed.
    pub(crate) fn release_leases(&mut self, leases: Vec<malote_model::LeaseToken>) {
        for leases in leases.chunks(malote_model::limits::SETTLE_BATCH_MAX) {
            let (engine, leases) = (self.front.engine.clone(), leases.to_vec());
            self.start(async move {
                let release = Settlement::Release { delay_ms: 0 };
                // Fails harmlessly for a lease that has expired.
                let _ = engine.settle(None, leases, release, None).await;
                Completion::Ignored
            });
        }
    }

    /// Cancels waits for sessions at shutdown. Returns true once no operation is in progress.
    pub fn is_idle(&mut self) -> bool {
        for link in self.links.values() {
            if let LinkState::Attaching(give_up) = link {
                give_up.cancel();
            }
        }
        self.pending.is_empty() && self.send_queue.is_empty()
    }

    /// Closes the connection because the process is stopping. Clients reconnect.
    pub fn close_for_shutdown(&mut self) {
        let text = "the broker is shutting down";
        self.close(AmqpError::new(condition::CONNECTION_FORCED, text));
    }

    pub fn close(&mut self, error: AmqpError) {
        self.drop_all();
        self.closed_cleanly = true;
        let _ = self.amqp.close(Some(error));
    }
}
