//! `malote bench servicebus`: a server by AMQP 1.0, driven by our own Service Bus client.
//!
//! The server is a process of its own on the same machine; with `--at` it is any other. With `--plain` nothing is used
//! that only Service Bus has: single messages under way on links to one queue, accepted once, no tokens and no sessions.

use std::collections::VecDeque;
use std::io::Write as _;
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use malote_connectors::servicebus::{
    BATCH_FORMAT, Client, Config, Credential, Message, Receiver, ReceiverOptions, Sender, Settled,
    Settlement,
};
use serde_json::json;

use super::measure::{Latency, Watch};
use super::report::{Report, Served};
use super::server::{Server, cpu_of};

/// Measures a server by AMQP 1.0, as Service Bus speaks it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to put the data; a temporary directory beside it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Another server to measure, as host:port; its queue `bench` is there and empty
    #[arg(long, value_name = "HOST:PORT", requires = "plain")]
    at: Option<String>,
    /// The process of that other server, for its processor time
    #[arg(long, requires = "at")]
    pid: Option<u32>,
    /// Only what every AMQP 1.0 broker has
    #[arg(long)]
    plain: bool,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Sessions; with `--plain`, links at once
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    sessions: Vec<usize>,
    /// Messages that are there to be received, at most
    #[arg(long, default_value_t = 150_000)]
    backlog: u64,
    /// For programs
    #[arg(long)]
    json: bool,
}

const BODY_BYTES: usize = 1024;
/// Messages of one batch.
const BATCH: usize = 100;
/// Batches under way on one connection.
const BATCHES: usize = 8;
/// Single messages under way on one link.
const SINGLES: usize = 200;
/// Messages that a receiver asks for ahead.
const PREFETCH: u32 = 500;
/// Messages that are settled together, and how many such groups are under way.
const GROUP: usize = 100;
const GROUPS: usize = 4;
/// Connections at once, if there are as many sessions.
const CONNECTIONS: usize = 4;
/// How long a queue is emptied.
const EMPTYING_MAX: Duration = Duration::from_secs(600);
/// How long a receiver waits before it takes the queue for empty.
const DRY: Duration = Duration::from_secs(2);

const GOAL_SEND: f64 = 40_000.0;
const GOAL_RECEIVE: f64 = 25_000.0;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure(args))
}

/// Whom to measure, and how.
struct Bench {
    at: (String, u16),
    pid: Option<u32>,
    plain: bool,
    time: Duration,
    backlog: u64,
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("no directory for the data")?;
    let own = match &args.at {
        Some(_) => None,
        None => Some(start(dir.path(), &args.sessions)?),
    };
    let at = match (&own, &args.at) {
        (Some(server), _) => server.at("AMQP")?,
        (None, at) => at.as_deref().context("there is no server")?,
    };
    let (host, port) = at.rsplit_once(':').context("`--at` is host:port")?;
    let bench = Bench {
        at: (host.to_owned(), port.parse().context("`--at` is host:port")?),
        pid: own.as_ref().map(Server::pid).or(args.pid),
        plain: args.plain,
        time: Duration::from_secs_f64(args.seconds),
        backlog: args.backlog,
    };
    let mut report = Report::served(dir.path());
    for &sessions in &args.sessions {
        let (sent, received) = match args.plain {
            true => bench.plain(sessions).await?,
            false => bench.sessions(sessions).await?,
        };
        report.push_served(sent, None);
        report.push_served(received, None);
    }
    report.print(args.json)
}

/// A server with a queue for each number of sessions, and one without.
fn start(dir: &Path, sessions: &[usize]) -> anyhow::Result<Server> {
    let queue = |name: String, sessions: bool| json!({ "Name": name, "Properties": { "RequiresSession": sessions, "LockDuration": "PT5M" } });
    let mut queues: Vec<_> = sessions.iter().map(|n| queue(format!("bench-{n}"), true)).collect();
    queues.push(queue("bench".to_owned(), false));
    let entities =
        json!({ "UserConfig": { "Namespaces": [{ "Name": "bench", "Queues": queues }] } });
    let file = dir.join("config.json");
    crate::files::create(&file)?.write_all(entities.to_string().as_bytes())?;
    let file = file.to_string_lossy();
    let ports = ["--http", "127.0.0.1:0", "--sqs", "off", "--amqp", "127.0.0.1:0"];
    let more = ["--servicebus-admin", "off", "--servicebus-config", &file];
    Server::start(&dir.join("data"), &[ports.as_slice(), &more].concat(), &["AMQP"])
}

/// What one task has done.
struct Done {
    messages: u64,
    latency: Latency,
    /// When the last of them was answered.
    last: Duration,
}

impl Bench {
    async fn client(&self) -> anyhow::Result<Client> {
        let (host, port) = self.at.clone();
        let credential = match self.plain {
            true => Credential::Anonymous,
            // Any is good: the server is open on this machine. But tokens are put, as clients do.
            false => Credential::Key { name: "bench".to_owned(), key: "bench".to_owned() },
        };
        Ok(Client::connect(Config::plain(host, port, credential)).await?)
    }

    /// Batches in, whole sessions out.
    async fn sessions(&self, sessions: usize) -> anyhow::Result<(Served, Served)> {
        let queue = format!("bench-{sessions}");
        let connections = sessions.min(CONNECTIONS);
        let (mut senders, mut batches) = (Vec::new(), Vec::new());
        for nth in 0..connections {
            let sender = self.client().await?.sender(&queue).await?;
            // Each session's batches come over one connection only, so that they have an order.
            let own = (nth..sessions).step_by(connections).map(|nth| batch_of(&sender, nth));
            let own = own.collect::<anyhow::Result<Vec<Bytes>>>()?;
            batches.extend(own.iter().cloned());
            senders.push((sender, own));
        }
        let what = format!("send in batches of {BATCH}, 1 KiB, {sessions} sessions");
        let run =
            |(sender, own), watch, time| send(sender, BATCH_FORMAT, own, BATCHES, watch, time);
        let sent = self.all(what, senders, GOAL_SEND, run).await?;

        self.fill(&queue, BATCH_FORMAT, &batches, BATCH as u64, sent.messages).await?;
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(self.client().await?);
        }
        let mut receivers = Vec::new();
        for nth in 0..sessions {
            let options = ReceiverOptions { prefetch: PREFETCH, ..ReceiverOptions::default() };
            let client = &clients[nth % connections];
            receivers.push(client.session(&queue, &session(nth), options).await?);
        }
        let what = format!("receive and complete, 1 KiB, {sessions} sessions");
        let received = self.all(what, receivers, GOAL_RECEIVE, receive).await?;
        for client in clients {
            client.close().await;
        }
        Ok((sent, received))
    }

    /// Single messages in and out, as any broker takes them.
    async fn plain(&self, links: usize) -> anyhow::Result<(Served, Served)> {
        let queue = "bench";
        let message = vec![Message::new(vec![b'x'; BODY_BYTES]).encode()];
        let mut senders = Vec::new();
        for _ in 0..links {
            senders.push(self.client().await?.sender(queue).await?);
        }
        let what = format!("send one by one, {SINGLES} under way, 1 KiB, {links} links");
        let run = |sender, watch, time| send(sender, 0, message.clone(), SINGLES, watch, time);
        let sent = self.all(what, senders, 0.0, run).await?;

        self.fill(queue, 0, &message, 1, sent.messages).await?;
        let confirmed = ReceiverOptions { prefetch: PREFETCH, ..ReceiverOptions::default() };
        let options = ReceiverOptions { unconfirmed: true, ..confirmed };
        let mut receivers = Vec::new();
        for _ in 0..links {
            receivers.push(Box::new(self.client().await?.receiver(queue, options).await?));
        }
        let what = format!("receive and accept, 1 KiB, {links} links");
        let received = self.all(what, receivers, 0.0, receive).await?;
        // The next measurement begins with an empty queue.
        let rest = Box::new(self.client().await?.receiver(queue, options).await?);
        receive(rest, Watch::start(), EMPTYING_MAX).await?;
        Ok((sent, received))
    }

    /// Adds what is missing to a backlog that has so many.
    async fn fill(
        &self,
        queue: &str,
        format: u32,
        payloads: &[Bytes],
        each: u64,
        there: u64,
    ) -> anyhow::Result<()> {
        let sender = self.client().await?.sender(queue).await?;
        let missing = self.backlog.saturating_sub(there).div_ceil(each);
        let mut under_way = VecDeque::new();
        for nth in 0..missing {
            let payload = payloads[nth as usize % payloads.len()].clone();
            under_way.push_back(sender.start_encoded(format, payload).await?);
            if under_way.len() >= SINGLES
                && let Some(first) = under_way.pop_front()
            {
                first.outcome().await?;
            }
        }
        for sent in under_way {
            sent.outcome().await?;
        }
        Ok(())
    }

    /// All at work for that long; the server's processor time meanwhile.
    async fn all<T, F>(
        &self,
        what: String,
        each: Vec<T>,
        goal: f64,
        run: impl Fn(T, Watch, Duration) -> F,
    ) -> anyhow::Result<Served>
    where
        F: Future<Output = anyhow::Result<Done>> + Send + 'static,
    {
        let (cpu, watch) = (self.pid.map(cpu_of), Watch::start());
        let tasks: Vec<_> =
            each.into_iter().map(|one| tokio::spawn(run(one, watch, self.time))).collect();
        let (mut latency, mut messages, mut last) = (Latency::new(), 0, Duration::ZERO);
        for task in tasks {
            let done = task.await??;
            latency.add(done.latency);
            messages += done.messages;
            last = last.max(done.last);
        }
        let cpu = self.pid.zip(cpu).map(|(pid, before)| cpu_of(pid).saturating_sub(before));
        let goal = (goal > 0.0).then_some(goal);
        Ok(Served { what, messages, elapsed: last, latency, cpu, goal })
    }
}

fn session(nth: usize) -> String {
    format!("session-{nth}")
}

/// A batch of one session, encoded once: the client's own work is not what is measured.
fn batch_of(sender: &Sender, nth: usize) -> anyhow::Result<Bytes> {
    let message =
        Message { session_id: Some(session(nth)), ..Message::new(vec![b'x'; BODY_BYTES]) };
    let mut batch = sender.batch();
    for _ in 0..BATCH {
        anyhow::ensure!(batch.add(&message), "the queue takes no batch of {BATCH} KiB");
    }
    Ok(batch.encode().1)
}

/// Sends again and again; its latency is that of a transfer.
async fn send(
    sender: Sender,
    format: u32,
    payloads: Vec<Bytes>,
    under_way_max: usize,
    watch: Watch,
    time: Duration,
) -> anyhow::Result<Done> {
    let (mut latency, mut transfers, mut nth) = (Latency::new(), 0, 0);
    let mut under_way = VecDeque::new();
    while watch.elapsed() < time {
        let payload = payloads[nth % payloads.len()].clone();
        nth += 1;
        under_way.push_back((Watch::start(), sender.start_encoded(format, payload).await?));
        if under_way.len() >= under_way_max
            && let Some((begun, sent)) = under_way.pop_front()
        {
            sent.outcome().await?;
            latency.record(begun.elapsed());
            transfers += 1;
        }
    }
    for (begun, sent) in under_way {
        sent.outcome().await?;
        latency.record(begun.elapsed());
        transfers += 1;
    }
    let each = if format == BATCH_FORMAT { BATCH as u64 } else { 1 };
    Ok(Done { messages: transfers * each, latency, last: watch.elapsed() })
}

/// Receives and completes until the time is over or nothing comes; its latency is that of a settlement.
async fn receive(
    mut receiver: impl DerefMut<Target = Receiver>,
    watch: Watch,
    time: Duration,
) -> anyhow::Result<Done> {
    let (mut latency, mut messages, mut last) = (Latency::new(), 0, watch.elapsed());
    let mut under_way = VecDeque::new();
    let mut waited = Duration::ZERO;
    while watch.elapsed() < time {
        let next = receiver.next_many(GROUP);
        let Ok(some) = tokio::time::timeout(DRY, next).await else {
            waited = DRY;
            break;
        };
        let some = some?;
        let settled = receiver.start(&some, &Settlement::Complete).await?;
        under_way.push_back((Watch::start(), settled));
        if under_way.len() >= GROUPS
            && let Some((begun, settled)) = under_way.pop_front()
        {
            messages += completed(settled).await?;
            latency.record(begun.elapsed());
            last = watch.elapsed();
        }
    }
    for (begun, settled) in under_way {
        messages += completed(settled).await?;
        latency.record(begun.elapsed());
        // When the queue is dry these were answered long ago, while nothing came.
        last = last.max(watch.elapsed().saturating_sub(waited));
    }
    Ok(Done { messages, latency, last })
}

async fn completed(settled: Settled) -> anyhow::Result<u64> {
    let outcomes = settled.outcomes().await;
    let count = outcomes.len() as u64;
    outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(count)
}
