//! `malote bench worker`: how fast a worker with an empty handler empties a queue, and how soon a message begins.
//!
//! The queue is filled first. What is measured is from the worker's start until the broker has taken the last outcome,
//! on disk. Embedded, the engine is in the worker's process; over the native connection, the server is a process of its
//! own; with `--url` it is any broker that there is a connector for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use malote::model::{Body, Sessions as QueueSessions};
use malote::{
    Address, Capability, Malote, Message, QueueName, QueueSpec, SessionId, State, Worker,
};
use parking_lot::Mutex;

use super::measure::{Cpu, Latency, Watch};
use super::report::{Report, Worked};
use super::server::{Server, cpu_of};

/// Measures a worker with empty handlers
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to put the data; a temporary directory beside it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Another broker to measure, by its URL; its queues `bench-…` are empty, or not there if it can make them
    #[arg(long)]
    url: Option<String>,
    /// The process of that other broker, for its processor time
    #[arg(long, requires = "url")]
    pid: Option<u32>,
    /// Handlers at once
    #[arg(long, value_delimiter = ',', default_value = "1,50,100")]
    slots: Vec<usize>,
    /// Messages of each measurement; a tenth of them for fewer than ten slots
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Sessions that the messages of a queue with sessions are spread over
    #[arg(long, default_value_t = 1000)]
    sessions: u64,
    /// Only measurements whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// As in the figures of other systems that these are compared with.
const BODY_BYTES: usize = 256;
/// Messages of one send while a queue is filled, and such sends under way.
const FILL_BATCH: u64 = 1000;
const FILLS: usize = 4;
/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(1);
/// Without an outcome for so long there is something wrong.
const STALLED: Duration = Duration::from_secs(60);
/// Messages a second, and for how long, when it is measured how soon they begin.
const PACES: [u32; 2] = [100, 500];
const PACED: Duration = Duration::from_secs(3);

/// At that many slots.
const GOAL_SLOTS: usize = 100;
const GOAL_EMBEDDED: f64 = 150_000.0;
const GOAL_NATIVE: f64 = 50_000.0;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure(args))
}

/// A broker to measure.
struct Bench<'a> {
    name: &'static str,
    malote: Malote,
    /// Of a broker that is a process of its own.
    pid: Option<u32>,
    goal: Option<f64>,
    args: &'a Args,
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("no directory for the data")?;
    let mut report = Report::worked(dir.path());
    if let Some(url) = &args.url {
        let malote = Malote::connect(url).await?;
        let bench = Bench { name: "other broker", malote, pid: args.pid, goal: None, args: &args };
        bench.all(&mut report).await?;
        return report.print(args.json);
    }
    let data = dir.path().join("embedded");
    let malote = Malote::open(&data.to_string_lossy()).await?;
    let goal = Some(GOAL_EMBEDDED);
    Bench { name: "embedded", malote, pid: None, goal, args: &args }.all(&mut report).await?;

    let server = start(dir.path())?;
    let malote = Malote::connect(&format!("malote://{}", host(server.at("HTTP API")?))).await?;
    let (pid, goal) = (Some(server.pid()), Some(GOAL_NATIVE));
    Bench { name: "native", malote, pid, goal, args: &args }.all(&mut report).await?;
    report.print(args.json)
}

fn start(dir: &Path) -> anyhow::Result<Server> {
    let ports = ["--http", "127.0.0.1:0", "--sqs", "off", "--amqp", "off"];
    let ports = [ports.as_slice(), &["--servicebus-admin", "off"]].concat();
    Server::start(&dir.join("server"), &ports, &["HTTP API"])
}

fn host(at: &str) -> &str {
    at.split_once('/').map_or(at, |(host, _)| host)
}

/// What a handler does that does nothing.
async fn nothing() {}

/// When messages began, counted from when they were sent.
type Began = Arc<Mutex<Latency>>;

async fn began(malote::Body(body): malote::Body, watch: State<Watch>, began: State<Began>) {
    let sent = body.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    began.lock().record(watch.elapsed().saturating_sub(Duration::from_nanos(sent)));
}

impl Bench<'_> {
    async fn all(self, report: &mut Report) -> anyhow::Result<()> {
        for sessions in [false, true] {
            let kind = if sessions { "sessions" } else { "plain" };
            if sessions && !self.malote.broker().capabilities().has(Capability::Sessions) {
                continue;
            }
            for &slots in &self.args.slots {
                let what = format!("{}, {kind}, {slots} slots", self.name);
                if self.wanted(&what) {
                    let queue = format!("bench-{kind}-{slots}");
                    report.push_worked(self.empty(what, &queue, slots, sessions).await?);
                }
            }
        }
        for pace in PACES {
            let what = format!("{}, sent to begun, {pace}/s", self.name);
            if self.wanted(&what) {
                report.push_worked(self.paced(what, pace).await?);
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

    /// A full queue until it is empty.
    async fn empty(
        &self,
        what: String,
        queue: &str,
        slots: usize,
        sessions: bool,
    ) -> anyhow::Result<Worked> {
        let messages = if slots < 10 { self.args.messages / 10 } else { self.args.messages }.max(1);
        self.declare(queue, sessions).await?;
        self.fill(queue, messages, sessions).await?;
        let worker = Worker::new(&self.malote, queue).handle(nothing);
        let worker = if sessions { worker.sessions(slots) } else { worker.slots(slots) };

        let (server, worked, watch) = (self.pid.map(cpu_of), Cpu::start(), Watch::start());
        let running = worker.start().await?;
        let (mut last, mut since) = (0, Watch::start());
        loop {
            let counts = running.counts();
            if counts.done >= messages {
                break;
            }
            if counts.done > last {
                (last, since) = (counts.done, Watch::start());
            }
            ensure!(since.elapsed() < STALLED, "{what}: nothing happens any more: {counts:?}");
            tokio::time::sleep(LOOK).await;
        }
        let (elapsed, worker_cpu) = (watch.elapsed(), worked.elapsed());
        let server_cpu =
            self.pid.zip(server).map(|(pid, before)| cpu_of(pid).saturating_sub(before));
        running.stop();
        let counts = running.ended().await?.counts;
        ensure!(counts.started == messages, "{what}: {messages} were sent: {counts:?}");
        let goal = self.goal.filter(|_| slots == GOAL_SLOTS && !sessions);
        Ok(Worked { what, messages, elapsed, worker_cpu, server_cpu, latency: None, goal })
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
        let mut under_way = std::collections::VecDeque::new();
        for first in (0..messages).step_by(FILL_BATCH as usize) {
            let batch = (first..messages.min(first + FILL_BATCH)).map(message).collect();
            let malote = self.malote.clone();
            under_way.push_back(tokio::spawn(async move { malote.send_all(batch).await }));
            if under_way.len() >= FILLS
                && let Some(sent) = under_way.pop_front()
            {
                sent.await??;
            }
        }
        for sent in under_way {
            sent.await??;
        }
        Ok(())
    }

    /// Messages at a pace that leaves time: how soon each begins.
    async fn paced(&self, what: String, pace: u32) -> anyhow::Result<Worked> {
        let queue = format!("bench-paced-{pace}");
        self.declare(&queue, false).await?;
        let (watch, latency) = (Watch::start(), Began::new(Mutex::new(Latency::new())));
        let worker = Worker::new(&self.malote, &queue).handle(began);
        let running = worker.state(watch).state(latency.clone()).start().await?;
        let to = Address::Queue(QueueName::new(&queue)?);
        let (server, worked, begun) = (self.pid.map(cpu_of), Cpu::start(), Watch::start());
        let messages = u64::from(pace) * PACED.as_secs();
        let mut every = tokio::time::interval(Duration::from_secs(1) / pace);
        let mut sending = tokio::task::JoinSet::new();
        for _ in 0..messages {
            every.tick().await;
            let (malote, to) = (self.malote.clone(), to.clone());
            sending.spawn(async move {
                let mut bytes = vec![b'x'; BODY_BYTES];
                let sent = watch.elapsed().as_nanos() as u64;
                bytes[..8].copy_from_slice(&sent.to_be_bytes());
                let body = Body { bytes: bytes.into(), ..Body::default() };
                malote.send_all(vec![(to, Message { body, ..Message::default() })]).await
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        let since = Watch::start();
        while running.counts().done < messages {
            ensure!(since.elapsed() < STALLED, "{what}: {:?}", running.counts());
            tokio::time::sleep(LOOK).await;
        }
        let (elapsed, worker_cpu) = (begun.elapsed(), worked.elapsed());
        let server_cpu =
            self.pid.zip(server).map(|(pid, before)| cpu_of(pid).saturating_sub(before));
        running.stop();
        running.ended().await?;
        let latency = std::mem::replace(&mut *latency.lock(), Latency::new());
        let (latency, goal) = (Some(latency), None);
        Ok(Worked { what, messages, elapsed, worker_cpu, server_cpu, latency, goal })
    }
}
