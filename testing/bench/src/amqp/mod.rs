//! `cargo xtask bench amqp`: a server over AMQP 0-9-1, with a client that costs little.
//!
//! With `--url` it is any other broker, for example RabbitMQ. Messages are persistent, queues durable, publications
//! confirmed, and every delivery is acknowledged by itself.

mod client;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use malote_measure::{BenchReport, Latency, Stopwatch, cpu_time_of};

use crate::results::ServerResult;
use crate::server::Server;
use client::{Address, Client};

/// Measure a broker over AMQP 0-9-1
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the data; a temporary directory is created in it and removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measure another broker, as amqp://user:password@host:port/vhost
    #[arg(long)]
    url: Option<Address>,
    /// Process id of the other broker, for its CPU time
    #[arg(long, requires = "url")]
    pid: Option<u32>,
    /// Use quorum queues
    #[arg(long)]
    quorum: bool,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of queues, each with its own connections
    #[arg(long, value_delimiter = ',', default_value = "1,10")]
    queues: Vec<usize>,
    /// Bytes of a body
    #[arg(long, value_delimiter = ',', default_value = "100,1024")]
    bytes: Vec<usize>,
    /// Messages in the queues before consuming starts
    #[arg(long, default_value_t = 200_000)]
    backlog: u64,
    /// Messages per second while latencies are measured
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Only publish this many messages of 100 bytes to the queue `bench-backlog`, and leave them there
    #[arg(long)]
    fill: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Publications without a confirm, and deliveries without an acknowledgement, of each connection.
const IN_FLIGHT: u16 = 1_000;
/// A consumer that gets nothing for this long treats the queue as empty.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// Syncs of a file in the data directory, for comparison with the latency of confirms.
const SYNCS: usize = 300;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure(args))
}

struct Bench {
    address: Address,
    pid: Option<u32>,
    quorum: bool,
    time: Duration,
    backlog: u64,
    /// Makes the names of queues unique.
    next: AtomicU64,
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("cannot create a directory for the data")?;
    let own = match &args.url {
        Some(_) => None,
        None => Some(start(dir.path())?),
    };
    let address = match (&own, args.url) {
        (Some(server), _) => format!("amqp://guest:guest@{}", server.address("AMQP")?).parse()?,
        (None, url) => url.context("no broker to measure")?,
    };
    let bench = Bench {
        address,
        pid: own.as_ref().map(Server::pid).or(args.pid),
        quorum: args.quorum,
        time: Duration::from_secs_f64(args.seconds),
        backlog: args.backlog,
        next: AtomicU64::new(0),
    };
    if let Some(count) = args.fill {
        return bench.fill("bench-backlog", 100, count).await;
    }
    let mut report = BenchReport::new(dir.path(), "in another process on the same cores");
    for &bytes in &args.bytes {
        for &queues in &args.queues {
            report.push(bench.publish(queues, bytes).await?.into());
            report.push(bench.consume(queues, bytes).await?.into());
            report.push(bench.both(queues, bytes).await?.into());
        }
    }
    let (confirms, syncs) = bench.at_rate(args.rate, dir.path()).await?;
    report.push(confirms.into());
    report.push(syncs.into());
    Ok(report.print(args.json)?)
}

fn start(dir: &Path) -> anyhow::Result<Server> {
    let ports = ["--http", "127.0.0.1:0", "--sqs", "off", "--amqp", "127.0.0.1:0"];
    let more = ["--servicebus-admin", "off"];
    Server::start(&dir.join("data"), &[ports.as_slice(), &more].concat(), &["AMQP"])
}

impl Bench {
    /// Declares this number of new queues and returns their names.
    async fn declare(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut client = Client::connect(&self.address).await?;
        let mut names = Vec::new();
        for _ in 0..count {
            let name = format!("bench-{}", self.next.fetch_add(1, Ordering::Relaxed));
            client.declare(&name, self.quorum).await?;
            names.push(name);
        }
        Ok(names)
    }

    async fn delete(&self, names: &[String]) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.address).await?;
        for name in names {
            client.delete(name).await?;
        }
        Ok(())
    }

    fn cpu(&self) -> Option<Duration> {
        self.pid.map(cpu_time_of)
    }

    fn cpu_since(&self, before: Option<Duration>) -> Option<Duration> {
        self.cpu().zip(before).map(|(now, before)| now.saturating_sub(before))
    }

    fn what(&self, verb: &str, queues: usize, bytes: usize) -> String {
        let kind = if self.quorum { "quorum " } else { "" };
        let queues = if queues == 1 { "queue".into() } else { format!("{queues} queues") };
        format!("{verb}, {bytes} B, {kind}{queues}")
    }

    /// Starts a publisher for each queue, until the time is over.
    async fn publishers(
        &self,
        names: &[String],
        bytes: usize,
        stopwatch: Stopwatch,
    ) -> anyhow::Result<Vec<tokio::task::JoinHandle<anyhow::Result<Latency>>>> {
        let mut tasks = Vec::new();
        for name in names {
            let mut client = Client::connect(&self.address).await?;
            client.select_confirms().await?;
            let (name, time) = (name.clone(), self.time);
            tasks.push(tokio::spawn(async move {
                let more = |_| (stopwatch.elapsed() < time).then_some(u64::MAX);
                client.publish(&name, bytes, IN_FLIGHT.into(), more).await
            }));
        }
        Ok(tasks)
    }

    async fn publish(&self, queues: usize, bytes: usize) -> anyhow::Result<ServerResult> {
        let names = self.declare(queues).await?;
        let (cpu, stopwatch) = (self.cpu(), Stopwatch::start());
        let mut latency = Latency::default();
        for task in self.publishers(&names, bytes, stopwatch).await? {
            latency.add(task.await??);
        }
        let elapsed = stopwatch.elapsed();
        let (what, cpu) = (self.what("publish", queues, bytes), self.cpu_since(cpu));
        self.delete(&names).await?;
        let messages = latency.count();
        Ok(ServerResult { what, messages, elapsed, latency, cpu, goal: None, api_latency: None })
    }

    async fn fill(&self, name: &str, bytes: usize, count: u64) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.address).await?;
        client.declare(name, self.quorum).await?;
        client.select_confirms().await?;
        let more = |published| (published < count).then(|| count - published);
        client.publish(name, bytes, IN_FLIGHT.into(), more).await?;
        Ok(())
    }

    async fn consume(&self, queues: usize, bytes: usize) -> anyhow::Result<ServerResult> {
        let names = self.declare(queues).await?;
        for name in &names {
            self.fill(name, bytes, self.backlog / queues as u64).await?;
        }
        let wanted = self.backlog / queues as u64 * queues as u64;
        let (cpu, stopwatch) = (self.cpu(), Stopwatch::start());
        let (messages, elapsed) = self.consume_all(&names, wanted, stopwatch).await?;
        let (what, cpu) = (self.what("consume and ack", queues, bytes), self.cpu_since(cpu));
        self.delete(&names).await?;
        let latency = Latency::default();
        Ok(ServerResult { what, messages, elapsed, latency, cpu, goal: None, api_latency: None })
    }

    /// Consumes until `wanted` messages were acknowledged, or nothing comes any more. Returns their number, and when the
    /// last one came.
    async fn consume_all(
        &self,
        names: &[String],
        wanted: u64,
        stopwatch: Stopwatch,
    ) -> anyhow::Result<(u64, Duration)> {
        let total = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for name in names {
            let mut client = Client::connect(&self.address).await?;
            client.start_consumer(name, IN_FLIGHT).await?;
            let total = total.clone();
            tasks.push(tokio::spawn(async move {
                let mut last = stopwatch.elapsed();
                while total.load(Ordering::Relaxed) < wanted {
                    let Ok(count) = tokio::time::timeout(IDLE_MAX, client.consume()).await else {
                        break;
                    };
                    let count = count?;
                    if count > 0 {
                        total.fetch_add(count, Ordering::Relaxed);
                        last = stopwatch.elapsed();
                    }
                }
                anyhow::Ok(last)
            }));
        }
        let mut last = Duration::ZERO;
        for task in tasks {
            last = last.max(task.await??);
        }
        Ok((total.load(Ordering::Relaxed), last))
    }

    /// Publishes and consumes at the same time.
    async fn both(&self, queues: usize, bytes: usize) -> anyhow::Result<ServerResult> {
        let names = self.declare(queues).await?;
        let (cpu, stopwatch) = (self.cpu(), Stopwatch::start());
        let publishers = self.publishers(&names, bytes, stopwatch).await?;
        let (messages, elapsed) = self.consume_all(&names, u64::MAX, stopwatch).await?;
        let mut latency = Latency::default();
        for task in publishers {
            latency.add(task.await??);
        }
        let (what, cpu) = (self.what("publish and consume", queues, bytes), self.cpu_since(cpu));
        self.delete(&names).await?;
        Ok(ServerResult { what, messages, elapsed, latency, cpu, goal: None, api_latency: None })
    }

    /// Latencies of confirms at a fixed rate, and of syncs of the same disk in between.
    async fn at_rate(&self, rate: u64, dir: &Path) -> anyhow::Result<(ServerResult, ServerResult)> {
        let names = self.declare(1).await?;
        let mut client = Client::connect(&self.address).await?;
        client.select_confirms().await?;
        let before = sync_latency(dir)?;
        let (cpu, stopwatch) = (self.cpu(), Stopwatch::start());
        let more = |published: u64| {
            let due = (stopwatch.elapsed().as_secs_f64() * rate as f64) as u64;
            (stopwatch.elapsed() < self.time).then(|| due.saturating_sub(published))
        };
        let latency = client.publish(&names[0], 100, IN_FLIGHT.into(), more).await?;
        let (elapsed, cpu) = (stopwatch.elapsed(), self.cpu_since(cpu));
        let mut syncs = sync_latency(dir)?;
        syncs.add(before);
        self.delete(&names).await?;
        let (what, messages) = (format!("publish at {rate}/s, 100 B, queue"), latency.count());
        let confirms =
            ServerResult { what, messages, elapsed, latency, cpu, goal: None, api_latency: None };
        let what = "fdatasync of 4 KiB in the same directory".to_owned();
        let messages = syncs.count();
        let (latency, cpu, goal, api_latency) = (syncs, None, None, None);
        let syncs = ServerResult { what, messages, elapsed, latency, cpu, goal, api_latency };
        Ok((confirms, syncs))
    }
}

#[allow(clippy::disallowed_methods)] // a file in a temporary directory
fn sync_latency(dir: &Path) -> anyhow::Result<Latency> {
    let mut file = File::create(dir.join("sync"))?;
    let mut latency = Latency::default();
    for _ in 0..SYNCS {
        file.write_all(&[0; 4096])?;
        let begun = Stopwatch::start();
        file.sync_data()?;
        latency.record(begun.elapsed());
    }
    Ok(latency)
}
