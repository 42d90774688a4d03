//! `cargo xtask bench worker`: how fast a worker with empty handlers drains a queue, and how soon a message is handled.
//!
//! The queue is filled first. The measurement lasts from the start of the worker until the last settlement is on disk.
//! Embedded, the engine runs in the process of the worker. Over the native connection, the server is another process. With
//! `--url`, the broker is any for which there is a connector.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use malote::model::{Body, Sessions as QueueSessions};
use malote::{
    Address, Capability, Malote, Message, QueueName, QueueSpec, SessionId, State, Worker,
};
use malote_measure::{BenchReport, Latency, ProcessCpu, Stopwatch, cpu_time_of};
use parking_lot::Mutex;

use crate::results::WorkerResult;
use crate::server::Server;

/// Measure a worker with empty handlers
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the data; a temporary directory is created in it and removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measure another broker; its queues `bench-…` must be empty, or missing if the worker can create them
    #[arg(long)]
    url: Option<String>,
    /// Process id of the other broker, for its CPU time
    #[arg(long, requires = "url")]
    pid: Option<u32>,
    /// Number of concurrent handlers
    #[arg(long, value_delimiter = ',', default_value = "1,50,100")]
    slots: Vec<usize>,
    /// Messages per measurement; a tenth of it for fewer than ten slots
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Number of sessions in a queue with sessions
    #[arg(long, default_value_t = 1000)]
    sessions: u64,
    /// Run only measurements whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The same size as in the benchmarks of the systems in `cargo xtask compare`.
const BODY_BYTES: usize = 256;
/// Messages per send while a queue is filled.
const FILL_BATCH: u64 = 1000;
/// Sends in flight while a queue is filled.
const FILLS: usize = 4;
/// Time between two checks whether the worker is done.
const POLL: Duration = Duration::from_millis(1);
/// A worker that settles nothing for this long is an error.
const STALLED: Duration = Duration::from_secs(60);
/// Messages per second when the latency is measured.
const PACES: [u32; 2] = [100, 500];
/// How long messages are sent at each pace.
const PACED: Duration = Duration::from_secs(3);

/// The goals are for this many slots.
const GOAL_SLOTS: usize = 100;
const GOAL_EMBEDDED: f64 = 150_000.0;
const GOAL_NATIVE: f64 = 50_000.0;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure(args))
}

struct Bench<'a> {
    name: &'static str,
    malote: Malote,
    /// Process id of the broker, if that is another process.
    pid: Option<u32>,
    goal: Option<f64>,
    args: &'a Args,
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("cannot create a directory for the data")?;
    let mut report = BenchReport::new(
        dir.path(),
        "is the worker; a server is another process on the same cores",
    );
    if let Some(url) = &args.url {
        let malote = Malote::connect(url).await?;
        let bench = Bench { name: "other broker", malote, pid: args.pid, goal: None, args: &args };
        bench.run(&mut report).await?;
        return Ok(report.print(args.json)?);
    }
    let data = dir.path().join("embedded");
    let malote = Malote::open(&data.to_string_lossy()).await?;
    let goal = Some(GOAL_EMBEDDED);
    Bench { name: "embedded", malote, pid: None, goal, args: &args }.run(&mut report).await?;

    let server = start(dir.path())?;
    let malote =
        Malote::connect(&format!("malote://{}", host(server.address("HTTP API")?))).await?;
    let (pid, goal) = (Some(server.pid()), Some(GOAL_NATIVE));
    Bench { name: "native", malote, pid, goal, args: &args }.run(&mut report).await?;
    Ok(report.print(args.json)?)
}

fn start(dir: &Path) -> anyhow::Result<Server> {
    let ports = ["--http", "127.0.0.1:0", "--sqs", "off", "--amqp", "off"];
    let ports = [ports.as_slice(), &["--servicebus-admin", "off"]].concat();
    Server::start(&dir.join("server"), &ports, &["HTTP API"])
}

fn host(at: &str) -> &str {
    at.split_once('/').map_or(at, |(host, _)| host)
}

/// The empty handler.
async fn nothing() {}

/// Latencies from send to the start of the handler.
type StartLatency = Arc<Mutex<Latency>>;

/// The handler that measures. The body begins with the time of the send.
async fn record_start(
    malote::Body(body): malote::Body,
    stopwatch: State<Stopwatch>,
    latency: State<StartLatency>,
) {
    let sent = body.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    latency.lock().record(stopwatch.elapsed().saturating_sub(Duration::from_nanos(sent)));
}

impl Bench<'_> {
    async fn run(self, report: &mut BenchReport) -> anyhow::Result<()> {
        for sessions in [false, true] {
            let kind = if sessions { "sessions" } else { "plain" };
            if sessions && !self.malote.broker().capabilities().has(Capability::Sessions) {
                continue;
            }
            for &slots in &self.args.slots {
                let what = format!("{}, {kind}, {slots} slots", self.name);
                if self.wanted(&what) {
                    let queue = format!("bench-{kind}-{slots}");
                    let result = self.drain(what, &queue, slots, sessions).await?;
                    report.push(result.into());
                }
            }
        }
        for pace in PACES {
            let what = format!("{}, send to start, {pace}/s", self.name);
            if self.wanted(&what) {
                report.push(self.paced(what, pace).await?.into());
            }
        }
        Ok(self.malote.close().await?)
    }

    fn wanted(&self, what: &str) -> bool {
        self.args.only.as_ref().is_none_or(|only| what.contains(only.as_str()))
    }

    async fn declare(&self, queue: &str, sessions: bool) -> anyhow::Result<()> {
        if !self.malote.broker().capabilities().has(Capability::Declare) {
            return Ok(());
        }
        let sessions = if sessions { QueueSessions::Dynamic } else { QueueSessions::None };
        let spec = QueueSpec { sessions, ..QueueSpec::default() };
        Ok(self.malote.declare(queue, spec).await?)
    }

    /// Fills a queue and lets the worker drain it.
    async fn drain(
        &self,
        what: String,
        queue: &str,
        slots: usize,
        sessions: bool,
    ) -> anyhow::Result<WorkerResult> {
        let messages = if slots < 10 { self.args.messages / 10 } else { self.args.messages }.max(1);
        self.declare(queue, sessions).await?;
        self.fill(queue, messages, sessions).await?;
        let worker = Worker::new(&self.malote, queue).handle(nothing);
        let worker = if sessions { worker.sessions(slots) } else { worker.slots(slots) };

        let (server, cpu, stopwatch) =
            (self.pid.map(cpu_time_of), ProcessCpu::start(), Stopwatch::start());
        let running = worker.start().await?;
        let (mut last, mut since) = (0, Stopwatch::start());
        loop {
            let counts = running.counts();
            if counts.done >= messages {
                break;
            }
            if counts.done > last {
                (last, since) = (counts.done, Stopwatch::start());
            }
            ensure!(
                since.elapsed() < STALLED,
                "{what}: no message was settled for {STALLED:?}: {counts:?}"
            );
            tokio::time::sleep(POLL).await;
        }
        let (elapsed, worker_cpu) = (stopwatch.elapsed(), cpu.elapsed());
        let server_cpu =
            self.pid.zip(server).map(|(pid, before)| cpu_time_of(pid).saturating_sub(before));
        running.stop();
        let counts = running.ended().await?.counts;
        ensure!(counts.started == messages, "{what}: {messages} were sent: {counts:?}");
        let goal = self.goal.filter(|_| slots == GOAL_SLOTS && !sessions);
        Ok(WorkerResult { what, messages, elapsed, worker_cpu, server_cpu, latency: None, goal })
    }

    async fn fill(&self, queue: &str, messages: u64, sessions: bool) -> anyhow::Result<()> {
        let to = Address::Queue(QueueName::new(queue)?);
        let bytes = bytes::Bytes::from(vec![b'x'; BODY_BYTES]);
        let mut ids = Vec::new();
        for nth in 0..self.args.sessions.max(1) {
            ids.push(SessionId::new(&format!("session-{nth}"))?);
        }
        let message = |nth: u64| {
            let session = sessions.then(|| ids[nth as usize % ids.len()].clone());
            let body = Body { bytes: bytes.clone(), ..Body::default() };
            (to.clone(), Message { body, session, ..Message::default() })
        };
        let mut in_flight = std::collections::VecDeque::new();
        for first in (0..messages).step_by(FILL_BATCH as usize) {
            let batch = (first..messages.min(first + FILL_BATCH)).map(message).collect();
            let malote = self.malote.clone();
            in_flight.push_back(tokio::spawn(async move { malote.send_all(batch).await }));
            if in_flight.len() >= FILLS
                && let Some(sent) = in_flight.pop_front()
            {
                sent.await??;
            }
        }
        for sent in in_flight {
            sent.await??;
        }
        Ok(())
    }

    /// Sends messages at a fixed rate and measures how soon each is handled.
    async fn paced(&self, what: String, pace: u32) -> anyhow::Result<WorkerResult> {
        let queue = format!("bench-paced-{pace}");
        self.declare(&queue, false).await?;
        let (stopwatch, latency) =
            (Stopwatch::start(), StartLatency::new(Mutex::new(Latency::default())));
        let worker = Worker::new(&self.malote, &queue).handle(record_start);
        let running = worker.state(stopwatch).state(latency.clone()).start().await?;
        let to = Address::Queue(QueueName::new(&queue)?);
        let (server, cpu, sending_since) =
            (self.pid.map(cpu_time_of), ProcessCpu::start(), Stopwatch::start());
        let messages = u64::from(pace) * PACED.as_secs();
        let mut every = tokio::time::interval(Duration::from_secs(1) / pace);
        let mut sending = tokio::task::JoinSet::new();
        for _ in 0..messages {
            every.tick().await;
            let (malote, to) = (self.malote.clone(), to.clone());
            sending.spawn(async move {
                let mut bytes = vec![b'x'; BODY_BYTES];
                let sent = stopwatch.elapsed().as_nanos() as u64;
                bytes[..8].copy_from_slice(&sent.to_be_bytes());
                let body = Body { bytes: bytes.into(), ..Body::default() };
                malote.send_all(vec![(to, Message { body, ..Message::default() })]).await
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        let since = Stopwatch::start();
        while running.counts().done < messages {
            ensure!(since.elapsed() < STALLED, "{what}: {:?}", running.counts());
            tokio::time::sleep(POLL).await;
        }
        let (elapsed, worker_cpu) = (sending_since.elapsed(), cpu.elapsed());
        let server_cpu =
            self.pid.zip(server).map(|(pid, before)| cpu_time_of(pid).saturating_sub(before));
        running.stop();
        running.ended().await?;
        let latency = std::mem::take(&mut *latency.lock());
        let (latency, goal) = (Some(latency), None);
        Ok(WorkerResult { what, messages, elapsed, worker_cpu, server_cpu, latency, goal })
    }
}
