//! `cargo xtask bench servicebus`: a server over AMQP 1.0, with our own Service Bus client.
//!
//! The server runs on the same machine. With `--at` it is any other. With `--plain`, the client uses no feature of Service
//! Bus that other AMQP 1.0 brokers lack: no batches, no sessions and no tokens.

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use malote_connectors::servicebus::{
    BATCH_FORMAT, Client, Config, Credential, Message, PendingSettlement, Receiver,
    ReceiverOptions, Sender, Settlement,
};
use malote_measure::{BenchReport, Latency, Stopwatch, cpu_time_of};
use serde_json::json;

use crate::results::ServerResult;
use crate::server::Server;

/// Measure a server over AMQP 1.0, as Service Bus clients use it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the data; a temporary directory is created in it and removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measure another server, as host:port; its queue `bench` must exist and be empty
    #[arg(long, value_name = "HOST:PORT", requires = "plain")]
    at: Option<String>,
    /// Process id of the other server, for its CPU time
    #[arg(long, requires = "at")]
    pid: Option<u32>,
    /// Use only what every AMQP 1.0 broker has
    #[arg(long)]
    plain: bool,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of sessions; with --plain, number of links
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    sessions: Vec<usize>,
    /// Messages in the queue before receiving starts
    #[arg(long, default_value_t = 150_000)]
    backlog: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const BODY_BYTES: usize = 1024;
/// Messages per batch.
const BATCH: usize = 100;
/// Batches in flight per connection.
const BATCHES: usize = 8;
/// Single messages in flight per link.
const SINGLES: usize = 200;
/// Credit of a receiver.
const PREFETCH: u32 = 500;
/// Messages that are settled together.
const GROUP: usize = 100;
/// Groups of settlements in flight.
const GROUPS: usize = 4;
/// Number of connections; fewer if there are fewer sessions.
const CONNECTIONS: usize = 4;
/// Time limit for emptying a queue.
const EMPTYING_MAX: Duration = Duration::from_secs(600);
/// A receiver that gets no message for this long treats the queue as empty.
const IDLE_MAX: Duration = Duration::from_secs(2);

const GOAL_SEND: f64 = 40_000.0;
const GOAL_RECEIVE: f64 = 25_000.0;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure(args))
}

struct Bench {
    address: (String, u16),
    pid: Option<u32>,
    plain: bool,
    time: Duration,
    backlog: u64,
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("cannot create a directory for the data")?;
    let own = match &args.at {
        Some(_) => None,
        None => Some(start(dir.path(), &args.sessions)?),
    };
    let at = match (&own, &args.at) {
        (Some(server), _) => server.address("AMQP")?,
        (None, at) => at.as_deref().context("no server to measure")?,
    };
    let (host, port) = at.rsplit_once(':').context("`--at` is host:port")?;
    let bench = Bench {
        address: (host.to_owned(), port.parse().context("`--at` is host:port")?),
        pid: own.as_ref().map(Server::pid).or(args.pid),
        plain: args.plain,
        time: Duration::from_secs_f64(args.seconds),
        backlog: args.backlog,
    };
    let mut report = BenchReport::new(dir.path(), "in another process on the same cores");
    for &sessions in &args.sessions {
        let (sent, received) = match args.plain {
            true => bench.plain(sessions).await?,
            false => bench.sessions(sessions).await?,
        };
        report.push(sent.into());
        report.push(received.into());
    }
    Ok(report.print(args.json)?)
}

/// Starts a server with a queue for each number of sessions, and one without sessions.
#[allow(clippy::disallowed_methods)] // a settings file in a temporary directory
fn start(dir: &Path, sessions: &[usize]) -> anyhow::Result<Server> {
    let queue = |name: String, sessions: bool| json!({ "Name": name, "Properties": { "RequiresSession": sessions, "LockDuration": "PT5M" } });
    let mut queues: Vec<_> = sessions.iter().map(|n| queue(format!("bench-{n}"), true)).collect();
    queues.push(queue("bench".to_owned(), false));
    let entities =
        json!({ "UserConfig": { "Namespaces": [{ "Name": "bench", "Queues": queues }] } });
    let file = dir.join("config.json");
    std::fs::write(&file, entities.to_string())?;
    let file = file.to_string_lossy();
    let ports = ["--http", "127.0.0.1:0", "--sqs", "off", "--amqp", "127.0.0.1:0"];
    let more = ["--servicebus-admin", "off", "--servicebus-config", &file];
    Server::start(&dir.join("data"), &[ports.as_slice(), &more].concat(), &["AMQP"])
}

/// The result of one task.
struct TaskResult {
    messages: u64,
    latency: Latency,
    /// When the last answer arrived.
    last: Duration,
}

impl Bench {
    async fn client(&self) -> anyhow::Result<Client> {
        let (host, port) = self.address.clone();
        let credential = match self.plain {
            true => Credential::Anonymous,
            // The server needs no credentials on this machine, but the client sends tokens as others do.
            false => Credential::Key { name: "bench".to_owned(), key: "bench".to_owned() },
        };
        Ok(Client::connect(Config::plain(host, port, credential)).await?)
    }

    /// Sends batches, then receives with session receivers.
    async fn sessions(&self, sessions: usize) -> anyhow::Result<(ServerResult, ServerResult)> {
        let queue = format!("bench-{sessions}");
        let connections = sessions.min(CONNECTIONS);
        let (mut senders, mut batches) = (Vec::new(), Vec::new());
        for nth in 0..connections {
            let sender = self.client().await?.sender(&queue).await?;
            // All batches of a session use one connection, so that they stay in order.
            let own = (nth..sessions).step_by(connections).map(|nth| batch_of(&sender, nth));
            let own = own.collect::<anyhow::Result<Vec<Bytes>>>()?;
            batches.extend(own.iter().cloned());
            senders.push((sender, own));
        }
        let what = format!("send in batches of {BATCH}, 1 KiB, {sessions} sessions");
        let run = |(sender, own), stopwatch, time| {
            send(sender, BATCH_FORMAT, own, BATCHES, stopwatch, time)
        };
        let sent = self.run_tasks(what, senders, GOAL_SEND, run).await?;

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
        let received = self.run_tasks(what, receivers, GOAL_RECEIVE, receive).await?;
        for client in clients {
            client.close().await;
        }
        Ok((sent, received))
    }

    /// Sends and receives single messages.
    async fn plain(&self, links: usize) -> anyhow::Result<(ServerResult, ServerResult)> {
        let queue = "bench";
        let message = vec![Message::new(vec![b'x'; BODY_BYTES]).encode()];
        let mut senders = Vec::new();
        for _ in 0..links {
            senders.push(self.client().await?.sender(queue).await?);
        }
        let what = format!("send one by one, {SINGLES} in flight, 1 KiB, {links} links");
        let run =
            |sender, stopwatch, time| send(sender, 0, message.clone(), SINGLES, stopwatch, time);
        let sent = self.run_tasks(what, senders, 0.0, run).await?;

        self.fill(queue, 0, &message, 1, sent.messages).await?;
        let confirmed = ReceiverOptions { prefetch: PREFETCH, ..ReceiverOptions::default() };
        let options = ReceiverOptions { unconfirmed: true, ..confirmed };
        let mut receivers = Vec::new();
        for _ in 0..links {
            receivers.push(Box::new(self.client().await?.receiver(queue, options).await?));
        }
        let what = format!("receive and accept, 1 KiB, {links} links");
        let received = self.run_tasks(what, receivers, 0.0, receive).await?;
        // The next measurement begins with an empty queue.
        let rest = Box::new(self.client().await?.receiver(queue, options).await?);
        receive(rest, Stopwatch::start(), EMPTYING_MAX).await?;
        Ok((sent, received))
    }

    /// Sends messages until the queue, which has `existing`, has the backlog.
    async fn fill(
        &self,
        queue: &str,
        format: u32,
        payloads: &[Bytes],
        messages_each: u64,
        existing: u64,
    ) -> anyhow::Result<()> {
        let sender = self.client().await?.sender(queue).await?;
        let missing = self.backlog.saturating_sub(existing).div_ceil(messages_each);
        let mut in_flight = VecDeque::new();
        for nth in 0..missing {
            let payload = payloads[nth as usize % payloads.len()].clone();
            in_flight.push_back(sender.start_encoded(format, payload).await?);
            if in_flight.len() >= SINGLES
                && let Some(first) = in_flight.pop_front()
            {
                first.outcome().await?;
            }
        }
        for sent in in_flight {
            sent.outcome().await?;
        }
        Ok(())
    }

    /// Runs one task for each item and adds up their results.
    async fn run_tasks<T, F>(
        &self,
        what: String,
        items: Vec<T>,
        goal: f64,
        run: impl Fn(T, Stopwatch, Duration) -> F,
    ) -> anyhow::Result<ServerResult>
    where
        F: Future<Output = anyhow::Result<TaskResult>> + Send + 'static,
    {
        let (cpu, stopwatch) = (self.pid.map(cpu_time_of), Stopwatch::start());
        let tasks: Vec<_> =
            items.into_iter().map(|item| tokio::spawn(run(item, stopwatch, self.time))).collect();
        let (mut latency, mut messages, mut last) = (Latency::default(), 0, Duration::ZERO);
        for task in tasks {
            let result = task.await??;
            latency.add(result.latency);
            messages += result.messages;
            last = last.max(result.last);
        }
        let cpu = self.pid.zip(cpu).map(|(pid, before)| cpu_time_of(pid).saturating_sub(before));
        let goal = (goal > 0.0).then_some(goal);
        Ok(ServerResult { what, messages, elapsed: last, latency, cpu, goal, api_latency: None })
    }
}

fn session(nth: usize) -> String {
    format!("session-{nth}")
}

/// A batch of one session. It is encoded once, because the work of the client is not measured.
fn batch_of(sender: &Sender, nth: usize) -> anyhow::Result<Bytes> {
    let message =
        Message { session_id: Some(session(nth)), ..Message::new(vec![b'x'; BODY_BYTES]) };
    let mut batch = sender.batch();
    for _ in 0..BATCH {
        anyhow::ensure!(batch.add(&message), "the queue does not accept a batch of {BATCH} KiB");
    }
    Ok(batch.encode().1)
}

/// Sends until the time is over. The latency is that of a transfer.
async fn send(
    sender: Sender,
    format: u32,
    payloads: Vec<Bytes>,
    in_flight_max: usize,
    stopwatch: Stopwatch,
    time: Duration,
) -> anyhow::Result<TaskResult> {
    let (mut latency, mut transfers, mut nth) = (Latency::default(), 0, 0);
    let mut in_flight = VecDeque::new();
    while stopwatch.elapsed() < time {
        let payload = payloads[nth % payloads.len()].clone();
        nth += 1;
        in_flight.push_back((Stopwatch::start(), sender.start_encoded(format, payload).await?));
        if in_flight.len() >= in_flight_max
            && let Some((begun, sent)) = in_flight.pop_front()
        {
            sent.outcome().await?;
            latency.record(begun.elapsed());
            transfers += 1;
        }
    }
    for (begun, sent) in in_flight {
        sent.outcome().await?;
        latency.record(begun.elapsed());
        transfers += 1;
    }
    let each = if format == BATCH_FORMAT { BATCH as u64 } else { 1 };
    Ok(TaskResult { messages: transfers * each, latency, last: stopwatch.elapsed() })
}

/// Receives and completes until the time is over or the queue is empty. The latency is that of a settlement.
async fn receive(
    mut receiver: impl DerefMut<Target = Receiver>,
    stopwatch: Stopwatch,
    time: Duration,
) -> anyhow::Result<TaskResult> {
    let (mut latency, mut messages, mut last) = (Latency::default(), 0, stopwatch.elapsed());
    let mut in_flight = VecDeque::new();
    let mut waited = Duration::ZERO;
    while stopwatch.elapsed() < time {
        let next = receiver.next_many(GROUP);
        let Ok(messages_received) = tokio::time::timeout(IDLE_MAX, next).await else {
            waited = IDLE_MAX;
            break;
        };
        let messages_received = messages_received?;
        let settled = receiver.start(&messages_received, &Settlement::Complete).await?;
        in_flight.push_back((Stopwatch::start(), settled));
        if in_flight.len() >= GROUPS
            && let Some((begun, settled)) = in_flight.pop_front()
        {
            messages += completed(settled).await?;
            latency.record(begun.elapsed());
            last = stopwatch.elapsed();
        }
    }
    for (begun, settled) in in_flight {
        messages += completed(settled).await?;
        latency.record(begun.elapsed());
        // If the queue is empty, these answers arrived while the receiver was idle.
        last = last.max(stopwatch.elapsed().saturating_sub(waited));
    }
    Ok(TaskResult { messages, latency, last })
}

async fn completed(settled: PendingSettlement) -> anyhow::Result<u64> {
    let outcomes = settled.outcomes().await;
    let count = outcomes.len() as u64;
    outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(count)
}
