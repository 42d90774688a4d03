//! What a queue is in RabbitMQ: made by `declare`, found by everybody else.
//!
//! | | without sessions | with |
//! |---|---|---|
//! | `NAME` | a quorum queue | an exchange `x-consistent-hash` |
//! | `NAME.0` … | – | quorum queues with a single active consumer, bound to it |
//! | `NAME.members` | – | a quorum queue without messages: its consumers are the programs that share the partitions |
//! | `NAME.dlq` | dead letters | dead letters |
//! | `NAME.wait.MS` | messages that wait so long, made when they are needed | the same |
//! | `NAME.spec` | a stream whose first message says what was declared | the same |
//!
//! A stream is read without taking anything from it, by as many as like; its first message cannot be changed. So of two
//! programs that declare at once one is the first, and the other hears what differs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use malote_model::{QueueName, QueueSpec};

use super::link::{Link, answered};
use super::names::Names;
use super::publish::{Parcel, Publisher};
use super::record::{Record, dead_letters, quorum};
use super::{refused, values};
use crate::broker::BrokerError;

/// The plugin's kind of exchange.
const HASHED: &str = "x-consistent-hash";
/// How long the first message of a stream may take that somebody is just making.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// What a queue is.
pub(super) struct Topology {
    pub names: Names,
    pub spec: QueueSpec,
    /// 0 in a queue without sessions.
    pub partitions: usize,
}

impl Topology {
    fn new(names: Names, record: &Record) -> Self {
        Self { names, spec: record.spec(), partitions: record.partitions }
    }

    /// A queue that Malote did not make, or dead letters: nothing is known of it but that it is there.
    fn of_others(names: Names) -> Self {
        Self { names, spec: QueueSpec { failed_max: None, ..QueueSpec::default() }, partitions: 0 }
    }

    /// Where a message of this session goes.
    pub(super) fn route(&self, session: Option<&str>) -> (ShortString, ShortString) {
        if self.partitions == 0 {
            return (ShortString::default(), self.names.queue());
        }
        // A key has at most 255 bytes; sessions that begin alike for longer share a partition.
        let session = session.unwrap_or_default();
        let key = &session[..session.floor_char_boundary(255)];
        (self.names.queue(), ShortString::try_new(key).unwrap_or_default())
    }
}

/// Makes the queue, or finds it just as asked.
pub(super) async fn declare(
    link: &Link,
    publisher: &Publisher,
    queue: &QueueName,
    spec: &QueueSpec,
    partitions: usize,
) -> Result<Topology, BrokerError> {
    let names = Names::of(queue)?;
    if names.is_letters() {
        return Err(refused("bad_name", format!("`{queue}` comes with its queue: declare that")));
    }
    let asked = Record::of(spec, partitions)?;
    let told = match exists(link, names.spec()).await? {
        true => record(link, &names).await?,
        false => None,
    };
    let have = match told {
        Some(have) => have,
        // Nobody has said yet what it is.
        None => {
            let mut stream = FieldTable::default();
            stream.insert("x-queue-type".into(), values::text("stream"));
            durable(&link.channel().await?, names.spec(), stream).await?;
            let properties = BasicProperties::default().with_delivery_mode(2);
            let body = asked.to_bytes()?.into();
            let (exchange, key) = (ShortString::default(), names.spec());
            publisher.publish_one(Parcel { exchange, key, properties, body }).await?;
            record(link, &names).await?.ok_or_else(|| half_made(queue))?
        }
    };
    have.same(&asked, queue.as_str())?;
    let channel = link.channel().await?;
    durable(&channel, names.letters(), quorum()).await?;
    let arguments = have.arguments(&names);
    if have.partitions == 0 {
        durable(&channel, names.queue(), arguments).await?;
    } else {
        let kind = ExchangeKind::Custom(HASHED.into());
        exchange(&channel, names.queue(), kind).await.map_err(|error| match error {
            BrokerError::Refused { text, .. } if text.contains("unknown exchange type") => {
                let text = format!(
                    "{text}: sessions need `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange`"
                );
                refused("not_supported", text)
            }
            other => other,
        })?;
        durable(&channel, names.members(), quorum()).await?;
        for number in 0..have.partitions {
            let partition = names.partition(number);
            durable(&channel, partition.clone(), arguments.clone()).await?;
            // The key of such a binding is the partition's weight.
            bind(&channel, partition, names.queue(), "1".into()).await?;
        }
    }
    Ok(Topology::new(names, &have))
}

/// Finds a queue. Its partitions are those that it was made with, whatever the URL says.
pub(super) async fn find(link: &Link, queue: &QueueName) -> Result<Topology, BrokerError> {
    let names = Names::of(queue)?;
    if names.is_letters() || !exists(link, names.spec()).await? {
        if !exists(link, names.queue()).await? {
            let text = format!("RabbitMQ has no queue `{}`", names.queue());
            return Err(refused("queue_not_found", text));
        }
        // Of a queue that others made, too, dead letters have their place.
        durable(&link.channel().await?, names.letters(), quorum()).await?;
        return Ok(Topology::of_others(names));
    }
    let have = record(link, &names).await?.ok_or_else(|| half_made(queue))?;
    Ok(Topology::new(names, &have))
}

fn half_made(queue: &QueueName) -> BrokerError {
    BrokerError::Busy { text: format!("`{queue}` is half made: declare it again") }
}

/// Makes the place where messages wait for so long, and go on from to their queue.
pub(super) async fn declare_wait(
    link: &Link,
    topology: &Topology,
    ms: u64,
) -> Result<ShortString, BrokerError> {
    let (names, channel) = (&topology.names, link.channel().await?);
    let wait = names.wait(ms);
    let mut arguments = quorum();
    let ttl = lapin::types::AMQPValue::LongLongInt(i64::try_from(ms).unwrap_or(i64::MAX));
    arguments.insert("x-message-ttl".into(), ttl);
    arguments.insert("x-overflow".into(), values::text("reject-publish"));
    // They keep the key that they came with, so that one place serves every session.
    let on = if topology.partitions == 0 { ShortString::default() } else { names.queue() };
    dead_letters(&mut arguments, on.as_str(), None);
    exchange(&channel, wait.clone(), ExchangeKind::Fanout).await?;
    durable(&channel, wait.clone(), arguments).await?;
    bind(&channel, wait.clone(), wait.clone(), ShortString::default()).await?;
    Ok(wait)
}

/// Messages that nobody has, of the queue or of all its partitions.
pub(super) async fn ready(link: &Link, topology: &Topology) -> Result<u64, BrokerError> {
    let names = &topology.names;
    let queues = match topology.partitions {
        0 => vec![names.queue()],
        partitions => (0..partitions).map(|number| names.partition(number)).collect(),
    };
    let channel = link.channel().await?;
    let counts = queues.into_iter().map(|queue| count(&channel, queue));
    let counts = futures_util::future::try_join_all(counts).await;
    let _ = channel.close(200, "done".into()).await; // what was refused has closed it
    Ok(counts?.into_iter().map(u64::from).sum())
}

async fn count(channel: &Channel, queue: ShortString) -> Result<u32, BrokerError> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let asked = channel.queue_declare(queue, options, FieldTable::default());
    Ok(answered(asked).await?.message_count())
}

async fn exists(link: &Link, queue: ShortString) -> Result<bool, BrokerError> {
    match count(&link.channel().await?, queue).await {
        Ok(_) => Ok(true),
        Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => Ok(false),
        Err(error) => Err(error),
    }
}

async fn durable(
    channel: &Channel,
    queue: ShortString,
    arguments: FieldTable,
) -> Result<(), BrokerError> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    answered(channel.queue_declare(queue, options, arguments)).await.map(drop)
}

async fn exchange(
    channel: &Channel,
    name: ShortString,
    kind: ExchangeKind,
) -> Result<(), BrokerError> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    answered(channel.exchange_declare(name, kind, options, FieldTable::default())).await
}

async fn bind(
    channel: &Channel,
    queue: ShortString,
    exchange: ShortString,
    key: ShortString,
) -> Result<(), BrokerError> {
    let options = QueueBindOptions::default();
    answered(channel.queue_bind(queue, exchange, key, options, FieldTable::default())).await
}

/// The first message of the queue's stream, if there is one.
async fn record(link: &Link, names: &Names) -> Result<Option<Record>, BrokerError> {
    let channel = link.channel().await?;
    answered(channel.basic_qos(1, BasicQosOptions::default())).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), values::text("first"));
    let options = BasicConsumeOptions::default();
    let consume = channel.basic_consume(names.spec(), ShortString::default(), options, arguments);
    let mut consumer = answered(consume).await?;
    let delivery = match tokio::time::timeout(FIRST_WAIT, consumer.next()).await {
        Ok(Some(Ok(delivery))) => delivery,
        Ok(Some(Err(cause))) => return Err(super::link::error(cause)),
        Ok(None) | Err(_) => return Ok(None),
    };
    let record = Record::from_bytes(&delivery.data, names.queue().as_str())?;
    answered(channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default())).await?;
    Ok(Some(record))
}

/// What is known of queues, so that nobody asks twice.
#[derive(Default)]
pub(super) struct Known {
    all: parking_lot::Mutex<std::collections::HashMap<QueueName, Arc<Topology>>>,
}

/// Queues that are remembered; beyond it they are asked for again.
const KNOWN_MAX: usize = 10_000;

impl Known {
    pub(super) fn get(&self, queue: &QueueName) -> Option<Arc<Topology>> {
        self.all.lock().get(queue).cloned()
    }

    pub(super) fn put(&self, queue: &QueueName, topology: Topology) -> Arc<Topology> {
        let (mut all, topology) = (self.all.lock(), Arc::new(topology));
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.insert(queue.clone(), topology.clone());
        topology
    }

    /// It may have been deleted.
    pub(super) fn forget(&self, queue: &QueueName) {
        self.all.lock().remove(queue);
    }
}
