//! `malote bench engine`: the embedded engine and the raw disk, measured in one run.
//!
//! The reference is a bare segmented log, which writes as many bytes into zero-filled space with one fdatasync per batch.
//! It is measured before and after the engine, because the speed of a shared disk changes within minutes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use malote_engine::{Engine, Receive, Settings};
use malote_measure::{BenchReport, Latency, ProcessCpu, Stopwatch};
use malote_model::{
    Body, BodyKind, Message, QueueName, QueueSpec, SessionId, Sessions, Settlement,
};

use super::backlog::Backlog;
use super::bare_log::BareLog;
use super::process::BackgroundCpu;
use super::{routes, rows, space};

/// Measure the engine, and the raw disk as a reference
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Directory for the data; a temporary directory is created in it and removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Messages per batch in the pipelined measurements
    #[arg(long, default_value_t = 1000)]
    batch: usize,
    /// Largest number of sessions
    #[arg(long, default_value_t = 1_000_000)]
    sessions: u64,
    /// Number of messages in the large backlog
    #[arg(long, default_value_t = 10_000_000)]
    backlog: u64,
    /// Number of delayed messages
    #[arg(long, default_value_t = 1_000_000)]
    delayed: u64,
    /// Largest number of rules of a topic; filters that are tried one by one get a hundredth of it
    #[arg(long, default_value_t = 100_000)]
    rules: usize,
    /// Run only measurements whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Batches in flight in a pipelined measurement.
const IN_FLIGHT: usize = 8;

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let dir = tempfile::Builder::new()
        .prefix("malote-bench-")
        .tempdir_in(&args.dir)
        .context("cannot create a directory for the data")?;
    let mut report = BenchReport::new(dir.path(), "in the same process");
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let time = Duration::from_secs_f64(args.seconds);

    let disk = BareLog::sync_latency(dir.path(), time / 2)?;
    report.condition(
        "disk",
        format!(
            "4 KiB into zero-filled space, fdatasync p50 {:.0} µs, p99 {:.0} µs",
            disk.micros(0.5),
            disk.micros(0.99)
        ),
    );
    for size in [100, 1024] {
        let name = format!("enqueue {size} B");
        if wanted(&name) {
            enqueue(&runtime, dir.path(), &args, size, time, &mut report)?;
        }
        let name = format!("lease + complete {size} B");
        if wanted(&name) {
            lease_complete(&runtime, dir.path(), &args, size, time, &mut report)?;
        }
    }
    if wanted("one in flight") {
        let published = publish(&runtime, dir.path(), 1, time)?;
        let disk_after = BareLog::sync_latency(dir.path(), time / 2)?;
        report.push(rows::one_in_flight(&published, &disk, &disk_after));
    }
    if wanted("64 publishers") {
        report.push(rows::publishers(64, &publish(&runtime, dir.path(), 64, time)?));
    }
    if wanted("sessions") {
        let mut one_session = None;
        for sessions in [1, 1000, args.sessions] {
            let cost = session_cost(&runtime, dir.path(), sessions, args.sessions, args.batch)?;
            let one_session = *one_session.get_or_insert(cost.cpu_ns);
            report.push(rows::sessions(sessions, &cost, one_session));
        }
    }
    for sessions in [false, true] {
        let name = if sessions { "backlog, sessions" } else { "backlog, no sessions" };
        if wanted(name) {
            let backlog = Backlog::measure(dir.path(), args.backlog, sessions)?;
            report.push(rows::backlog(sessions, &backlog));
        }
    }
    if wanted("delayed") {
        report.push(rows::delayed(&space::delayed(&runtime, dir.path(), args.delayed)?));
    }
    for kind in routes::KINDS {
        if wanted(&format!("rules, {kind}")) {
            let few = routes::cost(&runtime, dir.path(), kind, 100)?;
            // Filters that are tried one by one would take minutes with all rules.
            let one_by_one = routes::tried_one_by_one(kind);
            let rules = if one_by_one { (args.rules / 100).max(100) } else { args.rules };
            let many = routes::cost(&runtime, dir.path(), kind, rules)?;
            report.push(rows::rules(kind, rules, few, many, one_by_one));
        }
    }
    if wanted("disk after a drain") {
        let messages = args.backlog.min(1_000_000) as usize;
        report.push(rows::drained(&space::drained(&runtime, dir.path(), messages)?));
    }
    if wanted("written") {
        report.push(rows::written(&space::written(&runtime, dir.path(), time * 2)?));
    }
    Ok(report.print(args.json)?)
}

pub(super) fn queue() -> QueueName {
    QueueName::new("bench").expect("the name is valid")
}

pub(super) fn body(size: usize) -> Message {
    Message {
        body: Body { bytes: Bytes::from(vec![b'x'; size]), kind: BodyKind::Bytes },
        ..Message::default()
    }
}

pub(super) fn open(
    dir: &Path,
    spec: QueueSpec,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<(Engine, malote_engine::Running, tempfile::TempDir)> {
    let data = tempfile::Builder::new().prefix("data-").tempdir_in(dir)?;
    let (engine, running) = Engine::open(Settings::at(data.path()))?;
    runtime.block_on(engine.declare(queue(), spec))?;
    // Spare segments are created in the background. The measurement starts once they exist.
    let before = Stopwatch::start();
    while running.spares() < 2 && before.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((engine, running, data))
}

fn enqueue(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    args: &Args,
    size: usize,
    time: Duration,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let bare_before = BareLog::enqueue(dir, size, args.batch, time / 2)?;
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let batch = args.batch;
    let send = move || {
        let (engine, message) = (engine.clone(), body(size));
        async move {
            let messages = (0..batch).map(|_| (queue(), message.clone())).collect();
            engine.send(messages).await?;
            Ok(batch as u64)
        }
    };
    let (n, elapsed, cpu) = in_flight(runtime, time, send)?;
    runtime.block_on(running.stop());
    let bare_after = BareLog::enqueue(dir, size, args.batch, time / 2)?;
    report.push(rows::rate(
        format!("enqueue {size} B, {IN_FLIGHT} × {} in flight", args.batch),
        n,
        elapsed,
        cpu,
        (bare_before + bare_after) / 2.0,
    ));
    Ok(())
}

/// Repeats an operation in [`IN_FLIGHT`] tasks until the time is over or it returns 0. Returns the number of messages, the
/// elapsed time and the CPU time.
pub(super) fn in_flight<O>(
    runtime: &tokio::runtime::Runtime,
    time: Duration,
    operation: impl Fn() -> O + Clone + Send + 'static,
) -> anyhow::Result<(u64, Duration, Duration)>
where
    O: Future<Output = anyhow::Result<u64>> + Send,
{
    let (cpu, watch) = (ProcessCpu::start(), Stopwatch::start());
    let n = runtime.block_on(async {
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|_| {
                let operation = operation.clone();
                tokio::spawn(async move {
                    let mut n = 0;
                    while watch.elapsed() < time {
                        match operation().await? {
                            0 => break,
                            more => n += more,
                        }
                    }
                    anyhow::Ok(n)
                })
            })
            .collect();
        let mut n = 0;
        for task in tasks {
            n += task.await??;
        }
        anyhow::Ok(n)
    })?;
    Ok((n, watch.elapsed(), cpu.elapsed()))
}

/// Receives and completes one batch. Returns 0 if the queue is empty.
pub(super) async fn receive_batch(
    engine: Engine,
    max: u32,
    per_session: u32,
) -> anyhow::Result<u64> {
    let (wait_ms, lock_ms, take, hold) = (0, None, false, None);
    let receive = Receive { queue: queue(), max, wait_ms, lock_ms, take, hold, per_session };
    let got = engine.receive(receive).await?;
    let n = got.len() as u64;
    if n > 0 {
        let leases = got.into_iter().filter_map(|d| d.lease).collect();
        engine.settle(None, leases, Settlement::Complete, None).await?;
    }
    Ok(n)
}

fn lease_complete(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    args: &Args,
    size: usize,
    time: Duration,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let batch = args.batch.min(1000);
    let bare_before = BareLog::lease_complete(dir, batch, time / 2)?;
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let stock = ((time.as_secs_f64() * 900_000.0) as usize).min(4_000_000 * 100 / size.max(100));
    runtime.block_on(async {
        for _ in 0..stock / batch {
            engine.send((0..batch).map(|_| (queue(), body(size))).collect()).await?;
        }
        anyhow::Ok(())
    })?;
    let receive = move || receive_batch(engine.clone(), batch as u32, 1);
    let (n, elapsed, cpu) = in_flight(runtime, time, receive)?;
    runtime.block_on(running.stop());
    let bare_after = BareLog::lease_complete(dir, batch, time / 2)?;
    report.push(rows::rate(
        format!("lease + complete {size} B, {IN_FLIGHT} × {batch} in flight"),
        n,
        elapsed,
        cpu,
        (bare_before + bare_after) / 2.0,
    ));
    Ok(())
}

/// The latencies of publishers, and what they took together.
pub(super) struct Published {
    pub latency: Latency,
    elapsed: Duration,
    cpu: Duration,
}

impl Published {
    /// Messages per second.
    pub(super) fn rate(&self) -> f64 {
        self.latency.count() as f64 / self.elapsed.as_secs_f64()
    }

    pub(super) fn cpu_micros_each(&self) -> f64 {
        self.cpu.as_nanos() as f64 / 1000.0 / self.latency.count().max(1) as f64
    }
}

/// Runs publishers that each wait for the answer before they send again.
fn publish(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    count: usize,
    time: Duration,
) -> anyhow::Result<Published> {
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let cpu = ProcessCpu::start();
    let watch = Stopwatch::start();
    let latency = runtime.block_on(async {
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    let mut latency = Latency::default();
                    let message = body(100);
                    while watch.elapsed() < time {
                        let one = Stopwatch::start();
                        engine.send(vec![(queue(), message.clone())]).await?;
                        latency.record(one.elapsed());
                    }
                    anyhow::Ok(latency)
                })
            })
            .collect();
        let mut all = Latency::default();
        for task in tasks {
            all.add(task.await??);
        }
        anyhow::Ok(all)
    })?;
    let (elapsed, cpu) = (watch.elapsed(), cpu.elapsed());
    runtime.block_on(running.stop());
    Ok(Published { latency, elapsed, cpu })
}

/// The cost of a message with a session.
pub(super) struct SessionCost {
    pub messages: u64,
    pub send_ns: f64,
    pub receive_ns: f64,
    /// CPU time per operation, without the background threads.
    pub cpu_ns: f64,
    /// CPU time of the background threads per operation.
    pub background_ns: f64,
}

/// Sends, receives and completes messages of this many sessions, on top of a backlog.
fn session_cost(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    sessions: u64,
    backlog: u64,
    batch: usize,
) -> anyhow::Result<SessionCost> {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let (engine, running, _data) = open(dir, spec, runtime)?;
    // Independent of the number of sessions, so that the results can be compared.
    const MEASURED: u64 = 200_000;
    let id = |n: u64| SessionId::new(&format!("session-{n:07}")).expect("the id is valid");
    let send = |from: u64, to: u64| {
        let engine = engine.clone();
        async move {
            let mut at = from;
            while at < to {
                let end = (at + batch as u64).min(to);
                let messages = (at..end).map(|n| {
                    let mut message = body(100);
                    message.session = Some(id(n % sessions));
                    (queue(), message)
                });
                engine.send(messages.collect()).await?;
                at = end;
            }
            anyhow::Ok(())
        }
    };
    runtime.block_on(send(0, backlog))?;
    // Wait for snapshots and spare segments of the backlog, which are not measured.
    std::thread::sleep(Duration::from_secs(4));
    let (cpu, background, watch) =
        (ProcessCpu::start(), BackgroundCpu::start(), Stopwatch::start());
    runtime.block_on(send(backlog, backlog + MEASURED))?;
    let send_time = watch.elapsed();
    let watch = Stopwatch::start();
    let received = runtime.block_on(async {
        let mut received = 0_u64;
        while received < MEASURED {
            let per_session = if sessions == 1 { batch as u32 } else { 1 };
            match receive_batch(engine.clone(), batch as u32, per_session).await? {
                0 => break,
                n => received += n,
            }
        }
        anyhow::Ok(received)
    })?;
    let receive_time = watch.elapsed();
    let each = |spent: Duration| spent.as_nanos() as f64 / (MEASURED + received) as f64;
    let (cpu, background) = (cpu.elapsed(), background.elapsed());
    let (cpu_ns, background_ns) = (each(cpu.saturating_sub(background)), each(background));
    runtime.block_on(running.stop());
    Ok(SessionCost {
        messages: MEASURED,
        send_ns: send_time.as_nanos() as f64 / MEASURED as f64,
        receive_ns: receive_time.as_nanos() as f64 / received.max(1) as f64,
        cpu_ns,
        background_ns,
    })
}
