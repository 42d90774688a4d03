//! `amqp://` and `amqps://`: RabbitMQ 3.10 and later, over AMQP 0-9-1.
//!
//! | file | contains |
//! |---|---|
//! | `url.rs`, `transport.rs`, `connection.rs` | the URL, the connections and reconnecting |
//! | `names.rs`, `record.rs`, `topology.rs` | the queues and exchanges of a Malote queue, and its declared settings |
//! | `convert.rs`, `values.rs` | encoding and decoding of messages |
//! | `publish.rs`, `delay_queues.rs` | sending, now and later |
//! | `tracked_channel.rs`, `prefetch.rs`, `plain.rs`, `sessions/` | receiving, without and with sessions |
//! | `settle.rs` | settlements |
//!
//! All queues are quorum queues: confirmed messages are on the disks of a majority of nodes. To move a message (a
//! retry in a queue without sessions, a dead letter), the connector publishes it to the new queue before it
//! acknowledges it in the old one. After a crash in between, it is in both. Handlers that must not run twice use an
//! inbox. The user documentation is docs/reference/rabbitmq.md.

mod connection;
mod convert;
mod delay_queues;
mod names;
mod plain;
mod prefetch;
mod publish;
mod record;
mod sessions;
mod settle;
mod topology;
mod tracked_channel;
mod transport;
mod url;
mod values;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Seq, SessionId, Sessions, Timestamp, When,
};
use parking_lot::Mutex;

use self::connection::AmqpConnection;
use self::convert::{DeliveryMetadata, encode_properties};
use self::plain::PlainQueue;
use self::publish::{Publication, Publisher};
use self::sessions::PartitionedQueue;
use self::topology::{QueueTopology, TopologyCache};
use self::url::AmqpUrl;
use crate::broker::{Broker, BrokerError, BrokerFuture, Sent, SessionHold, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;
use crate::io_thread::IoThread;
use crate::system;

/// The broker's name in errors.
const BROKER: &str = "RabbitMQ";
/// The capabilities of RabbitMQ.
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

/// The longest delay of a message in a session. It stays unsettled meanwhile, and RabbitMQ requeues unsettled messages
/// after half an hour.
const RETRY_HOLD_MAX: Duration = Duration::from_secs(20 * 60);

/// A virtual host of a RabbitMQ server or cluster.
pub struct RabbitMq {
    context: Arc<RabbitContext>,
    topologies: TopologyCache,
    open_queues: Mutex<HashMap<QueueName, OpenQueue>>,
}

/// State shared by all queues and sources.
struct RabbitContext {
    url: Arc<AmqpUrl>,
    /// Used for receiving and settling.
    consume_connection: Arc<AmqpConnection>,
    /// For publishing and declaring. A server that is short of memory stops reading from publishing connections.
    publish_connection: Arc<AmqpConnection>,
    publisher: Publisher,
    /// Names of delay queues that exist.
    declared_delay_queues: Mutex<HashSet<String>>,
    next_number: AtomicU32,
    next_grant: AtomicU64,
    io: IoThread,
}

impl RabbitContext {
    fn next_channel_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// A token for a lease. It is valid only in this process.
    fn new_lease(&self, channel: u32) -> LeaseToken {
        let grant = self.next_grant.fetch_add(1, Ordering::Relaxed);
        LeaseToken { epoch: channel, slot: (grant >> 32) as u32, grant: grant as u32, random: 0 }
    }
}

/// A queue with leases or consumers of this process.
#[derive(Clone)]
enum OpenQueue {
    Plain(Arc<PlainQueue>),
    Sessions(Arc<PartitionedQueue>),
}

fn refused(code: &str, text: String) -> BrokerError {
    BrokerError::Refused { code: code.into(), text }
}

fn now_ms() -> u64 {
    system::now().0
}

fn now_us() -> u64 {
    u64::try_from(system::since_epoch().as_micros()).unwrap_or(u64::MAX)
}

impl RabbitMq {
    /// Connects. A connection that is lost later is reopened when it is needed.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let url = Arc::new(AmqpUrl::parse(url)?);
        let io = IoThread::start("malote-rabbitmq")?;
        let consume_connection =
            Arc::new(AmqpConnection::new(url.clone(), "malote: receives", &io));
        let publish_connection = Arc::new(AmqpConnection::new(url.clone(), "malote: sends", &io));
        consume_connection.connection().await?;
        let context = RabbitContext {
            url,
            consume_connection,
            publisher: Publisher::new(publish_connection.clone()),
            publish_connection,
            declared_delay_queues: Mutex::default(),
            next_number: AtomicU32::new(1),
            next_grant: AtomicU64::new(1),
            io,
        };
        Ok(Self {
            context: Arc::new(context),
            topologies: TopologyCache::default(),
            open_queues: Mutex::default(),
        })
    }

    async fn topology(&self, queue: &QueueName) -> Result<Arc<QueueTopology>, BrokerError> {
        if let Some(topology) = self.topologies.get(queue) {
            return Ok(topology);
        }
        let topology = topology::find(&self.context.publish_connection, queue).await?;
        Ok(self.topologies.put(queue, topology))
    }

    async fn open_queue(&self, queue: &QueueName) -> Result<OpenQueue, BrokerError> {
        if let Some(open_queue) = self.open_queues.lock().get(queue) {
            return Ok(open_queue.clone());
        }
        let topology = self.topology(queue).await?;
        let mut open_queues = self.open_queues.lock();
        let context = self.context.clone();
        let open_queue =
            open_queues.entry(queue.clone()).or_insert_with(|| match topology.partitions {
                0 => OpenQueue::Plain(Arc::new(PlainQueue::new(context, topology))),
                _ => OpenQueue::Sessions(PartitionedQueue::new(context, topology)),
            });
        Ok(open_queue.clone())
    }

    /// Forgets a queue that was deleted: it may be declared again with other settings.
    fn forget_if_deleted<T>(
        &self,
        queue: &QueueName,
        result: Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        if let Err(BrokerError::Refused { code, .. }) = &result
            && code == "queue_not_found"
        {
            self.topologies.forget(queue);
            self.open_queues.lock().remove(queue);
        }
        result
    }

    /// A message for a queue. Checks the queue's settings.
    async fn message_to_queue(
        &self,
        queue: &QueueName,
        message: &Message,
        id: &str,
    ) -> Result<Publication, BrokerError> {
        let topology = self.topology(queue).await?;
        let spec = &topology.spec;
        match (&spec.sessions, &message.session) {
            (Sessions::None, _) => {}
            (Sessions::Dynamic, Some(_)) => {}
            (Sessions::Fixed(ids), Some(id)) if ids.contains(id) => {}
            (_, Some(id)) => {
                let text = format!(
                    "queue `{queue}` has a fixed list of sessions, without `{id}`: use one of the listed sessions"
                );
                return Err(refused("session_not_listed", text));
            }
            (_, None) => {
                let text = format!("queue `{queue}` has sessions: set the session of the message");
                return Err(refused("session_required", text));
            }
        }
        let bytes = message.body.bytes.len() as u64;
        if bytes > spec.message_bytes_max {
            let max = spec.message_bytes_max;
            let text = format!(
                "the message has {bytes} bytes; queue `{queue}` allows {max}: send a smaller one"
            );
            return Err(refused("message_too_large", text));
        }
        let now = Timestamp(now_ms());
        let in_order = topology.partitions > 0;
        // A delayed message keeps its position. Only in a session does the position matter.
        let (not_before, at) = match message.when {
            When::Now | When::Delay(0) => (None, None),
            When::Delay(ms) if in_order && Duration::from_millis(ms) <= RETRY_HOLD_MAX => {
                (Some(now.plus_ms(ms)), None)
            }
            When::Delay(_) if in_order => {
                return Err(BrokerError::Unsupported {
                    broker: BROKER,
                    what: "delay of more than 20 minutes in a session",
                    fix: "schedule the message with `at`: it then has no position in its session before",
                });
            }
            When::Delay(ms) => (None, Some(now.plus_ms(ms))),
            When::At(at) => (None, Some(at).filter(|at| *at > now)),
        };
        let (mut exchange, key) = topology.route(message.session.as_ref().map(SessionId::as_str));
        if let Some(at) = at {
            exchange = delay_queues::exchange_for(&self.context, &topology, at).await?;
        }
        let id = Some(id);
        let metadata = DeliveryMetadata {
            id,
            enqueued_at: now,
            failed: 0,
            receives: 0,
            not_before,
            at,
            dead: None,
        };
        let properties = encode_properties(message, &metadata)?;
        Ok(Publication { exchange, key, properties, body: message.body.bytes.clone() })
    }

    async fn publication(
        &self,
        to: &Address,
        message: &Message,
        id: &str,
    ) -> Result<Publication, BrokerError> {
        let topic = match to {
            Address::Queue(queue) => return self.message_to_queue(queue, message, id).await,
            Address::Topic(topic) => topic,
        };
        if message.when != When::Now {
            return Err(BrokerError::Unsupported {
                broker: BROKER,
                what: "scheduled messages to an exchange",
                fix: "send them to a queue",
            });
        }
        let short = |text: &str, what: &str| {
            let name = lapin::types::ShortString::try_new(text);
            name.map_err(|_| {
                refused("bad_name", format!("{what} `{text}` is longer than 255 bytes: shorten it"))
            })
        };
        let session = message.session.as_ref().map(SessionId::as_str);
        let key = message.key.as_deref().or(session).unwrap_or_default();
        let enqueued_at = Timestamp(now_ms());
        let metadata = DeliveryMetadata {
            id: Some(id),
            enqueued_at,
            failed: 0,
            receives: 0,
            not_before: None,
            at: None,
            dead: None,
        };
        Ok(Publication {
            exchange: short(topic.as_str(), "the topic")?,
            key: short(key, "the key")?,
            properties: encode_properties(message, &metadata)?,
            body: message.body.bytes.clone(),
        })
    }
}

impl Broker for RabbitMq {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        let queue = queue.clone();
        Box::pin(async move {
            let RabbitContext { publish_connection, publisher, url, .. } = &*self.context;
            let made =
                topology::declare(publish_connection, publisher, &queue, &spec, url.partitions)
                    .await?;
            self.topologies.put(&queue, made);
            Ok(())
        })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let (mut publications, mut sent) =
                (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
            for (to, message) in &messages {
                let id = message.message_id.clone();
                let id = id.unwrap_or_else(system::random_id);
                publications.push(self.publication(to, message, &id).await?);
                sent.push(Sent { seq: Seq(0), message_id: id, duplicate: false });
            }
            let stored = self.context.publisher.publish(publications).await?;
            for (one, (to, _)) in stored.into_iter().zip(&messages) {
                if let (Err(BrokerError::Refused { .. }), Address::Queue(queue)) = (&one, to) {
                    self.topologies.forget(queue);
                }
                one?;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, _: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        let queue = queue.clone();
        Box::pin(async move {
            match self.open_queue(&queue).await? {
                OpenQueue::Plain(plain) => self.forget_if_deleted(&queue, plain.open().await),
                OpenQueue::Sessions(_) => {
                    let text = format!("queue `{queue}` has sessions: use a worker with sessions");
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
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let queue = queue.clone();
        Box::pin(async move {
            match (self.open_queue(&queue).await?, session) {
                (OpenQueue::Sessions(partitioned), None) => {
                    self.forget_if_deleted(&queue, partitioned.accept_next(wait).await)
                }
                (OpenQueue::Sessions(partitioned), Some(id)) => {
                    self.forget_if_deleted(&queue, partitioned.accept_named(id, wait).await)
                }
                (OpenQueue::Plain(_), _) => {
                    let text =
                        format!("queue `{queue}` has no sessions: use a worker without sessions");
                    Err(refused("no_sessions", text))
                }
            }
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let open_queue = self.open_queues.lock().get(queue).cloned();
        Box::pin(async move {
            Ok(match open_queue {
                Some(OpenQueue::Plain(plain)) => plain.settle(items).await,
                Some(OpenQueue::Sessions(partitioned)) => partitioned.settle(items).await,
                None => vec![Err(BrokerError::LockLost); items.len()],
            })
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        _: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let open_queue = self.open_queues.lock().get(queue).cloned();
        // A lease has no deadline: it ends with its channel.
        let one = move |lease| match &open_queue {
            Some(OpenQueue::Plain(plain)) => plain.renew(lease),
            Some(OpenQueue::Sessions(partitioned)) => partitioned.renew(lease),
            None => Err(BrokerError::LockLost),
        };
        Box::pin(async move { Ok(leases.into_iter().map(one).collect()) })
    }

    fn state(&self, _: &QueueName, _: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        Box::pin(async {
            Err(BrokerError::Unsupported {
                broker: BROKER,
                what: "session state",
                fix: "keep the state in your own database",
            })
        })
    }

    /// RabbitMQ reports the ready messages. Leased and prefetched messages are counted in this process only. Delayed
    /// messages and sessions are not counted.
    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let queue = queue.clone();
        Box::pin(async move {
            let topology = self.topology(&queue).await?;
            let counted = topology::count_ready(&self.context.publish_connection, &topology).await;
            let on_server = self.forget_if_deleted(&queue, counted)?;
            let (prefetched, in_flight) = match self.open_queues.lock().get(&queue) {
                Some(OpenQueue::Plain(plain)) => plain.local_counts(),
                Some(OpenQueue::Sessions(partitioned)) => partitioned.local_counts(),
                None => (0, 0),
            };
            let (ready, uncounted_sessions) = (on_server + prefetched, topology.partitions > 0);
            Ok(Depth { ready, in_flight, uncounted_sessions, ..Depth::default() })
        })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            self.context.consume_connection.close().await;
            self.context.publish_connection.close().await;
            self.open_queues.lock().clear();
            Ok(())
        })
    }
}
