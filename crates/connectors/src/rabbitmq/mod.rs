//! `amqp://` and `amqps://`: RabbitMQ 3.10 and later, by AMQP 0-9-1.
//!
//! | file | has |
//! |---|---|
//! | `target.rs`, `transport.rs`, `link.rs` | the URL, the connections and how they come back |
//! | `names.rs`, `record.rs`, `topology.rs` | what a queue is made of, and what was declared |
//! | `convert.rs`, `values.rs` | a message on the wire |
//! | `publish.rs`, `wait.rs` | sending, now and later |
//! | `way.rs`, `feed.rs`, `plain.rs`, `sessions/` | receiving, without and with sessions |
//! | `settle.rs` | what settlements mean |
//!
//! Quorum queues only: what was confirmed is on the disks of a majority. What moves a message (a retry of a queue without
//! sessions, a dead letter) stores it in its new place before it is gone from the old one: after a crash in between it
//! is in both. Handlers that must not do a thing twice use an inbox. docs/reference/rabbitmq.md is for users.

mod convert;
mod feed;
mod link;
mod names;
mod plain;
mod publish;
mod record;
mod sessions;
mod settle;
mod target;
mod topology;
mod transport;
mod values;
mod wait;
mod way;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Seq, SessionId, Sessions, Timestamp, When,
};
use parking_lot::Mutex;

use self::convert::{Marks, outgoing};
use self::link::{Io, Link};
use self::plain::Counter;
use self::publish::{Parcel, Publisher};
use self::sessions::Hall;
use self::target::Target;
use self::topology::{Known, Topology};
use crate::broker::{Broker, BrokerError, Doing, Held, Sent, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;

/// How it is called in messages.
const BROKER: &str = "RabbitMQ";
/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: BROKER,
    retry_hold: RetryHold::Partition,
    declare: true,
    sessions: true,
    fair_sessions: false,
    choose_lock: false,
    session_state: false,
    state_with_settle: false,
    renew: true,
    release: true,
    delay: true,
    schedule: true,
    dead_letter: true,
    changes: true,
    dedup: false,
    atomic_send: false,
    bound_leases: true,
};

/// How long a message may wait in its place: RabbitMQ takes unsettled messages back after half an hour.
const RETRY_HOLD_MAX: Duration = Duration::from_secs(20 * 60);

/// A RabbitMQ server or cluster, and a virtual host of it.
pub struct RabbitMq {
    tools: Arc<Tools>,
    known: Known,
    places: Mutex<HashMap<QueueName, Place>>,
}

/// What everything here uses.
struct Tools {
    target: Arc<Target>,
    /// Messages come over this connection …
    inn: Arc<Link>,
    /// … and leave, with all that is declared, over this one: the server stops reading it when it is short of memory.
    out: Arc<Link>,
    publisher: Publisher,
    /// Waiting queues that are there.
    waits: Mutex<HashSet<String>>,
    chance: Chance,
    numbers: AtomicU32,
    grants: AtomicU64,
    io: Io,
}

impl Tools {
    fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Proof of a lease, of no other process: it means nothing but here.
    fn token(&self, of: u32) -> LeaseToken {
        let grant = self.grants.fetch_add(1, Ordering::Relaxed);
        LeaseToken { epoch: of, slot: (grant >> 32) as u32, grant: grant as u32, random: 0 }
    }
}

/// Where messages of a queue are settled.
#[derive(Clone)]
enum Place {
    Plain(Arc<Counter>),
    Sessions(Arc<Hall>),
}

fn refused(code: &str, text: String) -> BrokerError {
    BrokerError::Refused { code: code.into(), text }
}

fn new_id(chance: &Chance) -> String {
    format!("{:016x}{:016x}", chance.draw(), chance.draw())
}

#[allow(clippy::disallowed_methods)] // the door to time for what is written down; waits use tokio's clock
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn wall_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

fn wall_us() -> u64 {
    u64::try_from(wall().as_micros()).unwrap_or(u64::MAX)
}

impl RabbitMq {
    /// Connects; what cannot be reached now is an error, what is lost later is reached again.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let target = Arc::new(Target::of(url)?);
        let io = Io::start()?;
        let inn = Arc::new(Link::new(target.clone(), "malote: receives", &io));
        let out = Arc::new(Link::new(target.clone(), "malote: sends", &io));
        inn.connection().await?;
        let tools = Tools {
            target,
            inn,
            publisher: Publisher::new(out.clone()),
            out,
            waits: Mutex::default(),
            chance: Chance::of_system(),
            numbers: AtomicU32::new(1),
            grants: AtomicU64::new(1),
            io,
        };
        Ok(Self { tools: Arc::new(tools), known: Known::default(), places: Mutex::default() })
    }

    async fn topology(&self, queue: &QueueName) -> Result<Arc<Topology>, BrokerError> {
        if let Some(topology) = self.known.get(queue) {
            return Ok(topology);
        }
        let found = topology::find(&self.tools.out, queue).await?;
        Ok(self.known.put(queue, found))
    }

    async fn place(&self, queue: &QueueName) -> Result<Place, BrokerError> {
        if let Some(place) = self.places.lock().get(queue) {
            return Ok(place.clone());
        }
        let topology = self.topology(queue).await?;
        let mut places = self.places.lock();
        let tools = self.tools.clone();
        let place = places.entry(queue.clone()).or_insert_with(|| match topology.partitions {
            0 => Place::Plain(Arc::new(Counter::new(tools, topology))),
            _ => Place::Sessions(Hall::new(tools, topology)),
        });
        Ok(place.clone())
    }

    /// A queue that is not there any more may be made anew, of another kind.
    fn still<T>(&self, queue: &QueueName, found: Result<T, BrokerError>) -> Result<T, BrokerError> {
        if let Err(BrokerError::Refused { code, .. }) = &found
            && code == "queue_not_found"
        {
            self.known.forget(queue);
            self.places.lock().remove(queue);
        }
        found
    }

    /// A message on its way to a queue.
    async fn to_queue(
        &self,
        queue: &QueueName,
        message: &Message,
        id: &str,
    ) -> Result<Parcel, BrokerError> {
        let topology = self.topology(queue).await?;
        let spec = &topology.spec;
        match (&spec.sessions, &message.session) {
            (Sessions::None, _) => {}
            (Sessions::Dynamic, Some(_)) => {}
            (Sessions::Fixed(ids), Some(id)) if ids.contains(id) => {}
            (_, Some(id)) => {
                let text = format!("`{queue}` takes no messages of the session `{id}`");
                return Err(refused("session_not_listed", text));
            }
            (_, None) => {
                let text = format!("`{queue}` has sessions: give the message one");
                return Err(refused("session_required", text));
            }
        }
        let bytes = message.body.bytes.len() as u64;
        if bytes > spec.message_bytes_max {
            let most = spec.message_bytes_max;
            let text = format!("`{queue}` takes messages of up to {most} bytes, not of {bytes}");
            return Err(refused("message_too_large", text));
        }
        let now = Timestamp(wall_ms());
        let in_order = topology.partitions > 0;
        // A delay keeps the place: only in a session can anybody tell.
        let (not_before, at) = match message.when {
            When::Now | When::Delay(0) => (None, None),
            When::Delay(ms) if in_order && Duration::from_millis(ms) <= RETRY_HOLD_MAX => {
                (Some(now.plus_ms(ms)), None)
            }
            When::Delay(_) if in_order => {
                return Err(BrokerError::Unsupported {
                    broker: BROKER,
                    what: "delay of more than 20 minutes in a session",
                    fix: "send it for a time: then it has no place in its session before",
                });
            }
            When::Delay(ms) => (None, Some(now.plus_ms(ms))),
            When::At(at) => (None, Some(at).filter(|at| *at > now)),
        };
        let (mut exchange, key) = topology.route(message.session.as_ref().map(SessionId::as_str));
        if let Some(at) = at {
            exchange = wait::place(&self.tools, &topology, at).await?;
        }
        let id = Some(id);
        let marks =
            Marks { id, enqueued_at: now, failed: 0, receives: 0, not_before, at, dead: None };
        let properties = outgoing(message, &marks)?;
        Ok(Parcel { exchange, key, properties, body: message.body.bytes.clone() })
    }

    async fn parcel(
        &self,
        to: &Address,
        message: &Message,
        id: &str,
    ) -> Result<Parcel, BrokerError> {
        let topic = match to {
            Address::Queue(queue) => return self.to_queue(queue, message, id).await,
            Address::Topic(topic) => topic,
        };
        if message.when != When::Now {
            return Err(BrokerError::Unsupported {
                broker: BROKER,
                what: "messages to an exchange for later",
                fix: "send them to a queue",
            });
        }
        let short = |text: &str, what: &str| {
            let name = lapin::types::ShortString::try_new(text);
            name.map_err(|_| {
                refused("bad_name", format!("{what} `{text}` has more than 255 bytes"))
            })
        };
        let session = message.session.as_ref().map(SessionId::as_str);
        let key = message.key.as_deref().or(session).unwrap_or_default();
        let enqueued_at = Timestamp(wall_ms());
        let marks = Marks {
            id: Some(id),
            enqueued_at,
            failed: 0,
            receives: 0,
            not_before: None,
            at: None,
            dead: None,
        };
        Ok(Parcel {
            exchange: short(topic.as_str(), "the topic")?,
            key: short(key, "the key")?,
            properties: outgoing(message, &marks)?,
            body: message.body.bytes.clone(),
        })
    }
}

impl Broker for RabbitMq {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        let queue = queue.clone();
        Box::pin(async move {
            let Tools { out, publisher, target, .. } = &*self.tools;
            let made = topology::declare(out, publisher, &queue, &spec, target.partitions).await?;
            self.known.put(&queue, made);
            Ok(())
        })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        Box::pin(async move {
            let (mut parcels, mut sent) =
                (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
            for (to, message) in &messages {
                let id = message.message_id.clone();
                let id = id.unwrap_or_else(|| new_id(&self.tools.chance));
                parcels.push(self.parcel(to, message, &id).await?);
                sent.push(Sent { seq: Seq(0), message_id: id, duplicate: false });
            }
            let stored = self.tools.publisher.publish(parcels).await?;
            for (one, (to, _)) in stored.into_iter().zip(&messages) {
                if let (Err(BrokerError::Refused { .. }), Address::Queue(queue)) = (&one, to) {
                    self.known.forget(queue);
                }
                one?;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, _: Duration) -> Doing<'_, Box<dyn Source>> {
        let queue = queue.clone();
        Box::pin(async move {
            match self.place(&queue).await? {
                Place::Plain(counter) => self.still(&queue, counter.open().await),
                Place::Sessions(_) => {
                    let text = format!("`{queue}` has sessions: use a worker with sessions");
                    Err(refused("session_required", text))
                }
            }
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        _: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let queue = queue.clone();
        Box::pin(async move {
            match (self.place(&queue).await?, session) {
                (Place::Sessions(hall), None) => self.still(&queue, hall.next(wait).await),
                (Place::Sessions(hall), Some(id)) => self.still(&queue, hall.named(id, wait).await),
                (Place::Plain(_), _) => {
                    let text = format!("`{queue}` has no sessions: use a worker without");
                    Err(refused("no_sessions", text))
                }
            }
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let place = self.places.lock().get(queue).cloned();
        Box::pin(async move {
            Ok(match place {
                Some(Place::Plain(counter)) => counter.settle(items).await,
                Some(Place::Sessions(hall)) => hall.settle(items).await,
                None => vec![Err(BrokerError::LockLost); items.len()],
            })
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        _: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let place = self.places.lock().get(queue).cloned();
        // There is no lock that could run out: a lease lives as long as its channel.
        let one = move |lease| match &place {
            Some(Place::Plain(counter)) => counter.renew(lease),
            Some(Place::Sessions(hall)) => hall.renew(lease),
            None => Err(BrokerError::LockLost),
        };
        Box::pin(async move { Ok(leases.into_iter().map(one).collect()) })
    }

    fn state(&self, _: &QueueName, _: &Held) -> Doing<'_, Option<Bytes>> {
        Box::pin(async {
            Err(BrokerError::Unsupported {
                broker: BROKER,
                what: "session state",
                fix: "keep the state in your own database",
            })
        })
    }

    /// What nobody has is told by the server; what is out, and fetched ahead, is known of this process only. Nobody
    /// counts what waits for its time, nor sessions.
    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        let queue = queue.clone();
        Box::pin(async move {
            let topology = self.topology(&queue).await?;
            let counted = topology::ready(&self.tools.out, &topology).await;
            let there = self.still(&queue, counted)?;
            let (here, in_flight) = match self.places.lock().get(&queue) {
                Some(Place::Plain(counter)) => counter.here(),
                Some(Place::Sessions(hall)) => hall.here(),
                None => (0, 0),
            };
            let (ready, uncounted_sessions) = (there + here, topology.partitions > 0);
            Ok(Depth { ready, in_flight, uncounted_sessions, ..Depth::default() })
        })
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            self.tools.inn.close().await;
            self.tools.out.close().await;
            self.places.lock().clear();
            Ok(())
        })
    }
}
