//! `malote bench engine`: the embedded engine beside the raw disk, in one run.
//!
//! Every figure of the engine stands beside that of a bare segmented log which writes the same batch bytes into
//! zero-filled space with one fdatasync a batch, measured in the same run, before and after: disks and neighbours
//! change by the minute, ratios much less.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use malote_engine::{Engine, Receive, Settings};
use malote_model::{
    Body, BodyKind, Message, QueueName, QueueSpec, SessionId, Sessions, Settlement,
};

use super::backlog::Backlog;
use super::bare::{Bare, Probe};
use super::measure::{Behind, Cpu, Latency, Watch};
use super::report::{Report, Row};
use super::{routes, space};

/// Measures the embedded engine against the raw disk
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to put the data; a temporary directory beside it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Messages of one batch in the pipelined measurements
    #[arg(long, default_value_t = 1000)]
    batch: usize,
    /// The largest number of sessions
    #[arg(long, default_value_t = 1_000_000)]
    sessions: u64,
    /// Messages of the large backlog
    #[arg(long, default_value_t = 10_000_000)]
    backlog: u64,
    /// Delayed messages
    #[arg(long, default_value_t = 1_000_000)]
    delayed: u64,
    /// The largest number of rules of a topic; those that are asked one by one have a hundredth
    #[arg(long, default_value_t = 100_000)]
    rules: usize,
    /// Only measurements whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Batches in flight when a measurement is pipelined.
const IN_FLIGHT: usize = 8;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let dir = tempfile::Builder::new()
        .prefix("malote-bench-")
        .tempdir_in(&args.dir)
        .context("no directory for the data")?;
    let mut report = Report::new(dir.path());
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let time = Duration::from_secs_f64(args.seconds);

    let probe = Probe::run(dir.path(), time / 2)?;
    report.disk(&probe);
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
        let latency = publishers(&runtime, dir.path(), 1, time)?;
        let again = Probe::run(dir.path(), time / 2)?;
        report.one_in_flight(&latency, &probe, &again);
    }
    if wanted("64 publishers") {
        let latency = publishers(&runtime, dir.path(), 64, time)?;
        report.publishers(64, &latency);
    }
    if wanted("sessions") {
        let mut base = None;
        for sessions in [1, 1000, args.sessions] {
            let row = session_cost(&runtime, dir.path(), sessions, args.sessions, args.batch)?;
            let base = *base.get_or_insert(row.cpu_ns);
            report.sessions(sessions, &row, base);
        }
    }
    for sessions in [false, true] {
        let name = if sessions { "backlog, ten a session" } else { "backlog, plain" };
        if wanted(name) {
            report.backlog(sessions, &Backlog::measure(dir.path(), args.backlog, sessions)?);
        }
    }
    if wanted("delayed") {
        report.delayed(&space::delayed(&runtime, dir.path(), args.delayed)?);
    }
    for kind in routes::KINDS {
        if wanted(&format!("rules, {kind}")) {
            let few = routes::cost(&runtime, dir.path(), kind, 100)?;
            // Those that are asked one by one would take minutes with all of them.
            let scanned = matches!(kind, "headers" | "sql");
            let rules = if scanned { (args.rules / 100).max(100) } else { args.rules };
            let many = routes::cost(&runtime, dir.path(), kind, rules)?;
            report.rules(kind, rules, few, many, scanned);
        }
    }
    if wanted("disk after a drain") {
        report.drained(&space::drained(
            &runtime,
            dir.path(),
            args.backlog.min(1_000_000) as usize,
        )?);
    }
    if wanted("written") {
        report.written(&space::written(&runtime, dir.path(), time * 2)?);
    }
    report.print(args.json)
}

pub(super) fn queue() -> QueueName {
    QueueName::new("bench").expect("a good name")
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
    // The spare segments are made in the background; a measurement starts when they are there.
    let before = Watch::start();
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
    report: &mut Report,
) -> anyhow::Result<()> {
    let bare_before = Bare::enqueue(dir, size, args.batch, time / 2)?;
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
    let bare_after = Bare::enqueue(dir, size, args.batch, time / 2)?;
    report.push(Row::rate(
        format!("enqueue {size} B, {IN_FLIGHT} × {} in flight", args.batch),
        n,
        elapsed,
        cpu,
        (bare_before + bare_after) / 2.0,
    ));
    Ok(())
}

/// [`IN_FLIGHT`] tasks that repeat an operation until the time is over or it has nothing more to do: messages, and the
/// time and processor time they took.
pub(super) fn in_flight<O>(
    runtime: &tokio::runtime::Runtime,
    time: Duration,
    operation: impl Fn() -> O + Clone + Send + 'static,
) -> anyhow::Result<(u64, Duration, Duration)>
where
    O: Future<Output = anyhow::Result<u64>> + Send,
{
    let (cpu, watch) = (Cpu::start(), Watch::start());
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

/// Receives and completes one batch; 0 when nothing is left.
pub(super) async fn take_batch(engine: Engine, max: u32, per_session: u32) -> anyhow::Result<u64> {
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
    report: &mut Report,
) -> anyhow::Result<()> {
    let batch = args.batch.min(1000);
    let bare_before = Bare::lease_complete(dir, batch, time / 2)?;
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let stock = ((time.as_secs_f64() * 900_000.0) as usize).min(4_000_000 * 100 / size.max(100));
    runtime.block_on(async {
        for _ in 0..stock / batch {
            engine.send((0..batch).map(|_| (queue(), body(size))).collect()).await?;
        }
        anyhow::Ok(())
    })?;
    let take = move || take_batch(engine.clone(), batch as u32, 1);
    let (n, elapsed, cpu) = in_flight(runtime, time, take)?;
    runtime.block_on(running.stop());
    let bare_after = Bare::lease_complete(dir, batch, time / 2)?;
    report.push(Row::rate(
        format!("lease + complete {size} B, {IN_FLIGHT} × {batch} in flight"),
        n,
        elapsed,
        cpu,
        (bare_before + bare_after) / 2.0,
    ));
    Ok(())
}

/// Publishers that each wait for the answer before they send again.
fn publishers(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    count: usize,
    time: Duration,
) -> anyhow::Result<Latency> {
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let cpu = Cpu::start();
    let watch = Watch::start();
    let mut all = runtime.block_on(async {
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    let mut latency = Latency::new();
                    let message = body(100);
                    while watch.elapsed() < time {
                        let one = Watch::start();
                        engine.send(vec![(queue(), message.clone())]).await?;
                        latency.record(one.elapsed());
                    }
                    anyhow::Ok(latency)
                })
            })
            .collect();
        let mut all = Latency::new();
        for task in tasks {
            all.add(task.await??);
        }
        anyhow::Ok(all)
    })?;
    all.finish(watch.elapsed(), cpu.elapsed());
    runtime.block_on(running.stop());
    Ok(all)
}

/// What a message through a session costs.
pub(crate) struct SessionCost {
    pub messages: u64,
    pub send_ns: f64,
    pub take_ns: f64,
    /// Of the operations themselves, and of what snapshots and spare segments took meanwhile.
    pub cpu_ns: f64,
    pub behind_ns: f64,
}

/// The same number of messages over more and more sessions: accept by the ring, receive, complete.
fn session_cost(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    sessions: u64,
    backlog: u64,
    batch: usize,
) -> anyhow::Result<SessionCost> {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let (engine, running, _data) = open(dir, spec, runtime)?;
    // The backlog is the same however many sessions it is spread over, and so is what is measured on top of it.
    const MEASURED: u64 = 200_000;
    let id = |n: u64| SessionId::new(&format!("session-{n:07}")).expect("a good id");
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
    // Snapshots and spare segments are made behind the backlog; what is measured is the operations.
    std::thread::sleep(Duration::from_secs(4));
    let (cpu, behind, watch) = (Cpu::start(), Behind::start(), Watch::start());
    runtime.block_on(send(backlog, backlog + MEASURED))?;
    let send_time = watch.elapsed();
    let watch = Watch::start();
    let taken = runtime.block_on(async {
        let mut taken = 0_u64;
        while taken < MEASURED {
            let per_session = if sessions == 1 { batch as u32 } else { 1 };
            match take_batch(engine.clone(), batch as u32, per_session).await? {
                0 => break,
                n => taken += n,
            }
        }
        anyhow::Ok(taken)
    })?;
    let take_time = watch.elapsed();
    let each = |spent: Duration| spent.as_nanos() as f64 / (MEASURED + taken) as f64;
    let (cpu, behind) = (cpu.elapsed(), behind.elapsed());
    let (cpu_ns, behind_ns) = (each(cpu.saturating_sub(behind)), each(behind));
    runtime.block_on(running.stop());
    Ok(SessionCost {
        messages: MEASURED,
        send_ns: send_time.as_nanos() as f64 / MEASURED as f64,
        take_ns: take_time.as_nanos() as f64 / taken.max(1) as f64,
        cpu_ns,
        behind_ns,
    })
}
