//! RabbitMQ clients under kill -9, with lapin, which shares no code with the server.
//!
//! | queue | consumers | what it shows |
//! |---|---|---|
//! | `line` | three, one of them active (`x-single-active-consumer`) | the order of each publisher, across kills and handovers |
//! | `plain` | three that acknowledge, requeue, leave, or acknowledge in transactions | no loss, flags, the order of first deliveries |
//! | `ordered` | three, with sessions (`x-sessions`) | the order of each session, one holder at a time |
//! | `copy`, `judged` | one each, bound to one exchange | both queues get every message, or none |
//! | `dead` | one | messages that were rejected in `judged`, with their `x-death` |
//!
//! A consumer knows that its acknowledgements were processed only after `tx.commit-ok`. Such a message must never come
//! back. Every other message that was seen before must come back with the flag `redelivered`.

mod consumers;
mod publishers;
mod record;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Pace;
use super::clients::Shared;
use super::server::Server;
use consumers::{Role, consume};
use publishers::publish;
use record::Record;

const PUBLISHERS: u64 = 3;
const QUEUES: [&str; 6] = ["line", "plain", "ordered", "copy", "judged", "dead"];
const EXCHANGE: &str = "news";
const DEAD_EXCHANGE: &str = "graves";
/// Publications and deliveries after each restart, at least, so that clients are connected when it is killed.
const WORK_MIN: [u64; 2] = [50, 200];
const UP_MIN: Duration = Duration::from_millis(50);
/// How long to wait at the end until the queues are empty.
const EMPTY_MAX: Duration = Duration::from_secs(60);
/// A request that takes longer is given up, together with its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the tasks share.
struct Load {
    amqp: SocketAddr,
    shared: Arc<Shared>,
    record: Record,
}

/// Kills and restarts the server `cycles` times. Returns whether there was no violation.
pub fn run(cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("cannot create a data directory")?;
    let mut server = Server::new(binary, dir.path())?;
    let amqp = server.listen_amqp()?;
    server.start()?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let shared = Shared::new(server.at, super::PADDING_MAX);
    let load = Arc::new(Load { amqp, shared: shared.clone(), record: Record::default() });
    runtime.block_on(declare(&load)).context("cannot declare the queues")?;
    let tasks = start(&runtime, &load, seed);
    let publications = &load.record.publications;
    let done = || [publications.load(Ordering::Relaxed), shared.history().deliveries];
    let pace = Pace { up_min: UP_MIN, work_min: WORK_MIN, done: &done };
    let cycled = super::cycle(&mut server, &shared, cycles, seed, &pace)?;
    shared.set_paused(true);
    shared.wait_until_drained();
    let left = runtime.block_on(wait_until_empty(&load))?;
    println!("Amqp: {cycled}");
    load.record.print();
    let fine = shared.finish(Vec::new())?;
    runtime.block_on(async {
        for task in tasks {
            task.await.context("a client panicked")?;
        }
        anyhow::Ok(())
    })?;
    if !left.is_empty() {
        println!("not empty at the end: {}", left.join(", "));
    }
    let unused = load.record.unused();
    if !unused.is_empty() {
        println!("never happened: {}; the run proves nothing about it", unused.join(", "));
    }
    Ok(fine && left.is_empty() && unused.is_empty())
}

fn start(runtime: &Runtime, load: &Arc<Load>, seed: u64) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    for n in 0..PUBLISHERS {
        tasks.push(runtime.spawn(publish(load.clone(), n, seed)));
    }
    let three = [Role::Line, Role::Plain, Role::Ordered].into_iter().flat_map(|role| [role; 3]);
    let roles = three.chain([Role::Transaction, Role::Copy, Role::Judged, Role::Dead]);
    for (n, role) in (0_u64..).zip(roles) {
        tasks.push(runtime.spawn(consume(load.clone(), role, seed ^ (0x7ece_0000 + n))));
    }
    tasks
}

impl Load {
    /// Connects to the server that runs now. Returns the connection and the number of kills before it: what arrives
    /// on it after the next kill comes from a server that is gone.
    async fn connect(&self) -> Result<(Connection, u64)> {
        let kills = self.shared.history().kills;
        let url = format!("amqp://guest:guest@{}/%2f", self.amqp);
        let connecting = Connection::connect(&url, ConnectionProperties::default());
        let connection = timeout(PATIENCE, connecting).await??;
        ensure!(self.shared.history().kills == kills, "the server was killed meanwhile");
        Ok((connection, kills))
    }

    /// Waits until the server accepts connections again, or all clients stop.
    async fn reconnect(&self) -> Option<(Connection, u64)> {
        while !self.shared.is_done() {
            match self.connect().await {
                Ok(connected) => return Some(connected),
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
        None
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

async fn declare(load: &Load) -> Result<()> {
    let (connection, _) = load.connect().await?;
    let channel = connection.create_channel().await?;
    for exchange in [EXCHANGE, DEAD_EXCHANGE] {
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default();
        channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, durable, none).await?;
    }
    for queue in QUEUES {
        let mut arguments = FieldTable::default();
        let argument = match queue {
            "line" => Some(("x-single-active-consumer", AMQPValue::Boolean(true))),
            "ordered" => Some(("x-sessions", AMQPValue::Boolean(true))),
            "judged" => Some(("x-dead-letter-exchange", text(DEAD_EXCHANGE))),
            _ => None,
        };
        if let Some((name, value)) = argument {
            arguments.insert(name.into(), value);
        }
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(queue.into(), durable, arguments).await?;
    }
    for (exchange, queue) in [(EXCHANGE, "copy"), (EXCHANGE, "judged"), (DEAD_EXCHANGE, "dead")] {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(queue.into(), exchange.into(), "".into(), options, none).await?;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

/// Waits until no queue has a message. Returns the queues that still have some, with their number.
async fn wait_until_empty(load: &Load) -> Result<Vec<String>> {
    let (connection, _) = load.connect().await?;
    let channel = connection.create_channel().await?;
    let begun = Instant::now();
    loop {
        let mut left = Vec::new();
        for queue in QUEUES {
            let count = message_count(&channel, queue).await?;
            if count > 0 {
                left.push(format!("{queue} ({count})"));
            }
        }
        if left.is_empty() || begun.elapsed() > EMPTY_MAX {
            return Ok(left);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The messages of a queue that are ready.
async fn message_count(channel: &Channel, queue: &str) -> Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
    Ok(declared.message_count())
}

/// Counts one more.
fn count(counter: &std::sync::atomic::AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
