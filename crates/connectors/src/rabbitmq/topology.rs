//! The queues and exchanges of a Malote queue. `declare` creates them, `find` looks them up.
//!
//! | name | without sessions | with sessions |
//! |---|---|---|
//! | `NAME` | a quorum queue | an exchange `x-consistent-hash` |
//! | `NAME.0` … | – | quorum queues with a single active consumer, bound to the exchange |
//! | `NAME.members` | – | a quorum queue without messages; its consumers are the processes that share the partitions |
//! | `NAME.dlq` | dead letters | dead letters |
//! | `NAME.wait.MS` | messages with a delay of MS, declared when needed | the same |
//! | `NAME.spec` | a stream whose first message is the record of the declared settings | the same |
//!
//! Reading a stream does not consume it, and its first message cannot be changed. If two processes declare a queue at
//! the same time, the first record wins, and the other process gets an error if its settings differ.
//!
//! A broker without streams, such as Malote, keeps the record in a queue with a single active consumer. Its readers take
//! turns, and leave the record at the head.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use malote_model::{QueueName, QueueSpec};

use super::connection::{AmqpConnection, await_answer};
use super::names::QueueNames;
use super::publish::{Publication, Publisher};
use super::record::{QueueRecord, quorum_arguments, set_dead_letter_target};
use super::{refused, values};
use crate::broker::BrokerError;

/// The exchange type of the plugin.
const CONSISTENT_HASH: &str = "x-consistent-hash";
/// Part of the error of a broker without streams.
const NO_STREAMS: &str = "invalid arg 'x-queue-type'";
/// The reply code of an orderly close.
const SUCCESS: u16 = 200;
/// How long to wait for the first record of a stream that another process has just declared.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(5);

/// A queue as it exists in RabbitMQ.
pub(super) struct QueueTopology {
    pub names: QueueNames,
    pub spec: QueueSpec,
    /// 0: no sessions.
    pub partitions: usize,
}

impl QueueTopology {
    fn new(names: QueueNames, record: &QueueRecord) -> Self {
        Self { names, spec: record.spec(), partitions: record.partitions }
    }

    /// A queue that was not declared by Malote, or dead letters. Its settings are unknown.
    fn foreign(names: QueueNames) -> Self {
        Self { names, spec: QueueSpec { failed_max: None, ..QueueSpec::default() }, partitions: 0 }
    }

    /// The exchange and routing key for a message of this session.
    pub(super) fn route(&self, session: Option<&str>) -> (ShortString, ShortString) {
        if self.partitions == 0 {
            return (ShortString::default(), self.names.queue());
        }
        // A routing key has at most 255 bytes. Longer sessions with the same prefix share a partition.
        let session = session.unwrap_or_default();
        let key = &session[..session.floor_char_boundary(255)];
        (self.names.queue(), ShortString::try_new(key).unwrap_or_default())
    }
}

/// Creates the queue, or checks that it exists with these settings.
pub(super) async fn declare(
    connection: &AmqpConnection,
    publisher: &Publisher,
    queue: &QueueName,
    spec: &QueueSpec,
    partitions: usize,
) -> Result<QueueTopology, BrokerError> {
    let names = QueueNames::of(queue)?;
    if names.is_dead_letters() {
        return Err(refused(
            "bad_name",
            format!("`{queue}` holds the dead letters of a queue: declare that queue"),
        ));
    }
    let requested = QueueRecord::of(spec, partitions)?;
    let recorded = match exists(connection, names.spec()).await? {
        true => read_record(connection, &names).await?,
        false => None,
    };
    let existing = match recorded {
        Some(existing) => existing,
        // The queue has no record yet.
        None => {
            declare_record(connection, &names).await?;
            let properties = BasicProperties::default().with_delivery_mode(2);
            let body = requested.to_bytes()?.into();
            let (exchange, key) = (ShortString::default(), names.spec());
            publisher.publish_one(Publication { exchange, key, properties, body }).await?;
            read_record(connection, &names).await?.ok_or_else(|| incomplete(queue))?
        }
    };
    existing.check_same(&requested, queue.as_str())?;
    let channel = connection.channel().await?;
    declare_queue(&channel, names.dead_letters(), quorum_arguments()).await?;
    let arguments = existing.arguments(&names);
    if existing.partitions == 0 {
        declare_queue(&channel, names.queue(), arguments).await?;
    } else {
        let kind = ExchangeKind::Custom(CONSISTENT_HASH.into());
        declare_exchange(&channel, names.queue(), kind).await.map_err(|error| match error {
            BrokerError::Refused { text, .. } if text.contains("unknown exchange type") => {
                let text = format!(
                    "{text}: sessions need `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange`"
                );
                refused("not_supported", text)
            }
            other => other,
        })?;
        declare_queue(&channel, names.members(), quorum_arguments()).await?;
        for number in 0..existing.partitions {
            let partition = names.partition(number);
            declare_queue(&channel, partition.clone(), arguments.clone()).await?;
            // The routing key of this binding is the partition's weight.
            bind(&channel, partition, names.queue(), "1".into()).await?;
        }
    }
    Ok(QueueTopology::new(names, &existing))
}

/// Looks up a queue. The number of partitions comes from its record, not from the URL.
pub(super) async fn find(
    connection: &AmqpConnection,
    queue: &QueueName,
) -> Result<QueueTopology, BrokerError> {
    let names = QueueNames::of(queue)?;
    if names.is_dead_letters() || !exists(connection, names.spec()).await? {
        if !exists(connection, names.queue()).await? {
            let text = format!("RabbitMQ has no queue `{}`", names.queue());
            return Err(refused("queue_not_found", text));
        }
        // Dead letters need a queue even if another program declared the queue itself.
        declare_queue(&connection.channel().await?, names.dead_letters(), quorum_arguments())
            .await?;
        return Ok(QueueTopology::foreign(names));
    }
    let existing = read_record(connection, &names).await?.ok_or_else(|| incomplete(queue))?;
    Ok(QueueTopology::new(names, &existing))
}

fn incomplete(queue: &QueueName) -> BrokerError {
    BrokerError::Busy { text: format!("queue `{queue}` is only partly declared: declare it again") }
}

/// Declares a delay queue and its exchange.
pub(super) async fn declare_delay_queue(
    connection: &AmqpConnection,
    topology: &QueueTopology,
    ms: u64,
) -> Result<ShortString, BrokerError> {
    let (names, channel) = (&topology.names, connection.channel().await?);
    let name = names.delay_queue(ms);
    let mut arguments = quorum_arguments();
    let ttl = lapin::types::AMQPValue::LongLongInt(i64::try_from(ms).unwrap_or(i64::MAX));
    arguments.insert("x-message-ttl".into(), ttl);
    arguments.insert("x-overflow".into(), values::text("reject-publish"));
    // Messages keep their routing key, so that one delay queue serves every session.
    let target = if topology.partitions == 0 { ShortString::default() } else { names.queue() };
    set_dead_letter_target(&mut arguments, target.as_str(), None);
    declare_exchange(&channel, name.clone(), ExchangeKind::Fanout).await?;
    declare_queue(&channel, name.clone(), arguments).await?;
    bind(&channel, name.clone(), name.clone(), ShortString::default()).await?;
    Ok(name)
}

/// The number of ready messages in the queue or in all its partitions.
pub(super) async fn count_ready(
    connection: &AmqpConnection,
    topology: &QueueTopology,
) -> Result<u64, BrokerError> {
    let names = &topology.names;
    let queues = match topology.partitions {
        0 => vec![names.queue()],
        partitions => (0..partitions).map(|number| names.partition(number)).collect(),
    };
    let channel = connection.channel().await?;
    let counts = queues.into_iter().map(|queue| message_count(&channel, queue));
    let counts = futures_util::future::try_join_all(counts).await;
    let _ = channel.close(200, "done".into()).await; // an error has already closed it
    Ok(counts?.into_iter().map(u64::from).sum())
}

async fn message_count(channel: &Channel, queue: ShortString) -> Result<u32, BrokerError> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declare = channel.queue_declare(queue, options, FieldTable::default());
    Ok(await_answer(declare).await?.message_count())
}

async fn exists(connection: &AmqpConnection, queue: ShortString) -> Result<bool, BrokerError> {
    match message_count(&connection.channel().await?, queue).await {
        Ok(_) => Ok(true),
        Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => Ok(false),
        Err(error) => Err(error),
    }
}

async fn declare_queue(
    channel: &Channel,
    queue: ShortString,
    arguments: FieldTable,
) -> Result<(), BrokerError> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    await_answer(channel.queue_declare(queue, options, arguments)).await.map(drop)
}

async fn declare_exchange(
    channel: &Channel,
    name: ShortString,
    kind: ExchangeKind,
) -> Result<(), BrokerError> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    await_answer(channel.exchange_declare(name, kind, options, FieldTable::default())).await
}

async fn bind(
    channel: &Channel,
    queue: ShortString,
    exchange: ShortString,
    key: ShortString,
) -> Result<(), BrokerError> {
    let options = QueueBindOptions::default();
    await_answer(channel.queue_bind(queue, exchange, key, options, FieldTable::default())).await
}

/// Declares the stream for the record of a queue, or the queue that replaces it.
async fn declare_record(
    connection: &AmqpConnection,
    names: &QueueNames,
) -> Result<(), BrokerError> {
    let mut stream = FieldTable::default();
    stream.insert("x-queue-type".into(), values::text("stream"));
    match declare_queue(&connection.channel().await?, names.spec(), stream).await {
        Err(BrokerError::Refused { text, .. }) if text.contains(NO_STREAMS) => {}
        declared => return declared,
    }
    let mut in_turn = FieldTable::default();
    in_turn.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    declare_queue(&connection.channel().await?, names.spec(), in_turn).await
}

/// The record of a queue: the first message of its stream. It is not acknowledged, so that it stays where it is.
async fn read_record(
    connection: &AmqpConnection,
    names: &QueueNames,
) -> Result<Option<QueueRecord>, BrokerError> {
    let channel = connection.channel().await?;
    await_answer(channel.basic_qos(1, BasicQosOptions::default())).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), values::text("first"));
    let options = BasicConsumeOptions::default();
    let consume = channel.basic_consume(names.spec(), ShortString::default(), options, arguments);
    let mut consumer = await_answer(consume).await?;
    let delivery = match tokio::time::timeout(RECORD_WAIT_MAX, consumer.next()).await {
        Ok(Some(Ok(delivery))) => delivery,
        Ok(Some(Err(cause))) => return Err(super::connection::error(cause)),
        Ok(None) | Err(_) => return Ok(None),
    };
    let record = QueueRecord::from_bytes(&delivery.data, names.queue().as_str())?;
    await_answer(channel.close(SUCCESS, "the record was read".into())).await?;
    Ok(Some(record))
}

/// Topologies that were already looked up.
#[derive(Default)]
pub(super) struct TopologyCache {
    all: parking_lot::Mutex<std::collections::HashMap<QueueName, Arc<QueueTopology>>>,
}

/// Bound of the cache. It is cleared when full.
const CACHED_MAX: usize = 10_000;

impl TopologyCache {
    pub(super) fn get(&self, queue: &QueueName) -> Option<Arc<QueueTopology>> {
        self.all.lock().get(queue).cloned()
    }

    pub(super) fn put(&self, queue: &QueueName, topology: QueueTopology) -> Arc<QueueTopology> {
        let (mut all, topology) = (self.all.lock(), Arc::new(topology));
        if all.len() >= CACHED_MAX {
            all.clear();
        }
        all.insert(queue.clone(), topology.clone());
        topology
    }

    pub(super) fn forget(&self, queue: &QueueName) {
        self.all.lock().remove(queue);
    }
}
