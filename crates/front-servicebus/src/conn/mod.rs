//! One connection: its links, what is under way for each, and what happens to them.
//!
//! | file | what |
//! |---|---|
//! | `link.rs` | what a link is |
//! | `number.rs` | maps that every message asks |
//! | `event.rs` | what the peer says |
//! | `done.rs` | what the engine says |
//! | `sends.rs` | messages that are being stored, in order |
//! | `receiver.rs` | credit and deliveries of a receiving link |
//! | `browser.rs` | a receiving link that looks at messages and leaves them |
//! | `transaction.rs` | work that is staged until it is discharged |
//! | `desk.rs` | requests to `$cbs` and `$management`, and their answers |
//!
//! Nothing here waits: what takes time is [`Work`], polled by the connection's one task beside its socket.

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
use crate::ops::send::Sends;
use crate::ops::settle::Settles;
use crate::ops::transaction::Transactions;
use crate::{Front, Peer};

pub(crate) use completion::Done;
use id_map::ByNumber;
use link::Link;

/// Something under way, and what becomes of it.
pub(crate) type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// A connection, but for its socket.
pub(crate) struct Conn {
    pub(crate) front: Arc<Front>,
    pub(crate) amqp: Connection,
    pub(crate) engine: Arc<EngineConnection>,
    /// What is under way.
    pub(crate) work: FuturesUnordered<Work>,
    /// What was over before it could be waited for.
    pub(crate) ready: VecDeque<Done>,
    pub(crate) claims: Claims,
    /// What links need a token for.
    pub(crate) claimed: HashMap<LinkId, (&'static [Action], Entity)>,
    pub(crate) links: ByNumber<LinkId, Link>,
    pub(crate) consumers: ByNumber<ConsumerId, LinkId>,
    /// Receiving links whose deliveries wait to be written.
    pub(crate) held_up: HashSet<LinkId>,
    /// Queues that links have made, and take along.
    pub(crate) temporary: HashMap<LinkId, QueueName>,
    pub(crate) settles: Settles,
    pub(crate) sends: Sends,
    pub(crate) transactions: Transactions,
    /// Bytes of messages that are being sent.
    pub(crate) sending_bytes: usize,
    /// Bytes of answers that wait.
    pub(crate) answer_bytes: usize,
    /// Peeks that are being carried out.
    pub(crate) peeks: u32,
    pub(crate) next_key: u64,
    /// As the client calls us; for texts.
    pub(crate) host: String,
    /// The client has opened.
    pub(crate) opened: bool,
    /// The client has said good-bye.
    pub(crate) clean: bool,
    /// The caller is known: it has signed in or put a token, or needs neither.
    pub(crate) known: bool,
    pub(crate) peer: Peer,
    pub(crate) unknown_since: Instant,
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
            // Too large a message is answered with an outcome: clients that are detached instead cannot say why.
            max_message_size_borne: Some(malote_model::limits::MESSAGE_BYTES_MAX + (1 << 20)),
            // The Python client says 1 MiB and takes any.
            overrule_max_message_size: true,
            // What the client has not seen comes back at once, whatever its lock says.
            tells_what_left: true,
            incoming_bytes_max: limits::SENDING_BYTES_MAX,
            outgoing_bytes_max: limits::OUTGOING_BYTES_MAX,
            ..Config::default()
        };
        let mut conn = Conn {
            front,
            amqp: Connection::server(config, 0),
            engine,
            work: FuturesUnordered::new(),
            ready: VecDeque::new(),
            claims: Claims::of(peer.address),
            claimed: HashMap::new(),
            links: ByNumber::default(),
            consumers: ByNumber::default(),
            held_up: HashSet::new(),
            temporary: HashMap::new(),
            settles: Settles::default(),
            sends: Sends::default(),
            transactions: Transactions::default(),
            sending_bytes: 0,
            answer_bytes: 0,
            peeks: 0,
            next_key: 1,
            host: "localhost".to_owned(),
            opened: false,
            clean: false,
            known: true,
            peer,
            unknown_since: Instant::now(),
        };
        conn.identify();
        conn
    }

    /// Does all that can be done without waiting.
    pub fn turn(&mut self) {
        loop {
            if let Some(done) = self.ready.pop_front() {
                self.done(done);
            } else if let Some(event) = self.amqp.next_event() {
                self.event(event);
            } else if !self.flush_settles() && !self.flush_sends() {
                break;
            }
        }
        for link in std::mem::take(&mut self.held_up) {
            self.transmit(link);
            self.browse(link);
        }
    }

    /// Begins something. It is handed to the engine before anything else is looked at, so that what comes in order
    /// happens in order; the answer may take its time. The runtime's budget must not come between: it would let what
    /// is over budget be passed by what comes after it.
    pub(crate) fn start(&mut self, work: impl Future<Output = Done> + Send + 'static) {
        let mut work: Work = Box::pin(tokio::task::unconstrained(work));
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => self.ready.push_back(done),
            Poll::Pending => self.work.push(work),
        }
    }

    /// What the engine says by itself.
    pub fn outbound(&mut self, outbound: Outbound) {
        match outbound {
            Outbound::Deliver(consumer, deliveries) => match self.consumers.get(&consumer) {
                Some(link) => self.deliver(*link, deliveries),
                // Detached meanwhile: nobody has seen these.
                None => {
                    let leases = deliveries.iter().filter_map(|delivery| delivery.lease).collect();
                    self.give_back(leases);
                }
            },
            Outbound::Damaged(consumer, count) => self.unreadable(consumer, count),
            Outbound::Ended(consumer, refusal) => {
                let Some(link) = self.consumers.get(&consumer).copied() else { return };
                let Some(Link::Receiver(receiver)) = self.links.get(&link) else { return };
                let error = crate::refusal::of_refusal(&refusal, receiver.lock());
                self.drop_link(link);
                let _ = self.amqp.detach(link, true, Some(error));
            }
        }
    }

    /// How long the first of the client's tokens lasts.
    pub fn tokens_last(&self) -> Duration {
        let now = self.front.engine.now();
        let left_ms = self.claims.first_end().map(|end| end.0.saturating_sub(now.0));
        Duration::from_millis(left_ms.unwrap_or(u64::MAX)).min(limits::TOKEN_LOOK)
    }

    /// Whether the caller is known changed, or may have.
    pub(crate) fn identify(&mut self) {
        let was = self.known;
        self.known = self.claims.is_known(&self.front);
        self.amqp.set_room(if self.known { limits::ROOM } else { limits::UNKNOWN_ROOM });
        // On an open server everybody is known, once it has opened.
        if self.known && self.opened {
            self.peer.known.store(true, Ordering::Relaxed);
        }
        if was && !self.known {
            self.unknown_since = Instant::now();
        }
    }

    /// When a caller that is not known is sent away.
    pub fn known_by(&self) -> Option<Instant> {
        (!self.known).then(|| self.unknown_since + limits::AUTHENTICATE)
    }

    /// Checks every link again: a token has run out, or permissions have changed. Links for which there is another
    /// token stay.
    pub fn check_again(&mut self) {
        self.claims.forget_ended(self.front.engine.now());
        self.identify();
        let check = |(link, (actions, entity)): (&LinkId, &(&[Action], Entity))| {
            let refused = self.claims.check_any(&self.front, actions, entity).err()?;
            Some((*link, refused))
        };
        let refused: Vec<_> = self.claimed.iter().filter_map(check).collect();
        for (link, error) in refused {
            self.drop_link(link);
            let _ = self.amqp.detach(link, true, Some(error));
        }
    }

    /// Leases of messages that nobody has seen come back uncounted.
    pub(crate) fn give_back(&mut self, leases: Vec<malote_model::LeaseToken>) {
        for leases in leases.chunks(malote_model::limits::SETTLE_BATCH_MAX) {
            let (engine, leases) = (self.front.engine.clone(), leases.to_vec());
            self.start(async move {
                let release = Settlement::Release { delay_ms: 0 };
                // One that has run out is back already.
                let _ = engine.settle(None, leases, release, None).await;
                Done::Nothing
            });
        }
    }

    /// The process is stopping: no new work. True once nothing is under way but waits, which end.
    pub fn is_quiet(&mut self) -> bool {
        for link in self.links.values() {
            if let Link::Attaching(give_up) = link {
                give_up.cancel();
            }
        }
        self.work.is_empty() && self.sends.is_empty()
    }

    /// Says that the process is stopping: clients connect again, elsewhere or later.
    pub fn farewell(&mut self) {
        let text = "the broker is stopping";
        self.close(AmqpError::new(condition::CONNECTION_FORCED, text));
    }

    /// Ends the connection and says why.
    pub fn close(&mut self, error: AmqpError) {
        self.drop_all();
        self.clean = true;
        let _ = self.amqp.close(Some(error));
    }
}
