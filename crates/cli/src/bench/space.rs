//! Disk use after a drain, bytes written per message, and the cost of delayed messages.

use std::path::Path;
use std::time::Duration;

use malote_engine::Engine;
use malote_measure::{ProcessCpu, Stopwatch};
use malote_model::{QueueSpec, When};

use super::engine::{body, open, queue, receive_batch};
use super::process::resident_bytes;

const BATCH: usize = 1000;

/// Disk use after a drain.
pub(super) struct Drained {
    pub disk_bytes: u64,
    pub live_bytes: u64,
}

impl Drained {
    /// The goal for [`Drained::disk_bytes`].
    pub(super) fn bytes_max(&self) -> u64 {
        2 * self.live_bytes + (256 << 20)
    }
}

/// Sends 1 KiB messages, completes all but every hundredth, and waits until compaction has met the goal, at most a minute.
pub(super) fn drained(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    messages: usize,
) -> anyhow::Result<Drained> {
    let (engine, running, data) = open(dir, QueueSpec::default(), runtime)?;
    runtime.block_on(async {
        for _ in 0..messages / BATCH {
            // Every hundredth is delayed, so that each segment keeps some live messages.
            let each = (0..BATCH).map(|n| {
                let mut message = body(1024);
                if n % 100 == 0 {
                    message.when = When::Delay(3_600_000);
                }
                (queue(), message)
            });
            engine.send(each.collect()).await?;
        }
        while receive_batch(engine.clone(), BATCH as u32, 1).await? > 0 {}
        anyhow::Ok(())
    })?;
    let live_bytes = (messages / 100 * 1100) as u64;
    let watch = Stopwatch::start();
    let mut drained = Drained { disk_bytes: bytes_in(data.path()), live_bytes };
    // Compaction advances with the journal, so a few messages are sent and received meanwhile.
    while drained.disk_bytes > drained.bytes_max() && watch.elapsed() < Duration::from_secs(60) {
        runtime.block_on(trickle(&engine))?;
        drained.disk_bytes = bytes_in(data.path());
    }
    runtime.block_on(running.stop());
    Ok(drained)
}

async fn trickle(engine: &Engine) -> anyhow::Result<()> {
    engine.send((0..BATCH).map(|_| (queue(), body(100))).collect::<Vec<_>>()).await?;
    while receive_batch(engine.clone(), BATCH as u32, 1).await? > 0 {}
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(())
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Bytes that the device wrote while messages were sent and received.
pub(super) struct Written {
    pub messages: u64,
    pub payload_bytes: u64,
    /// `None` if the device has no counters.
    pub device_bytes: Option<u64>,
}

/// Sends and receives messages, and counts the bytes that the device writes.
pub(super) fn written(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    time: Duration,
) -> anyhow::Result<Written> {
    let (engine, running, data) = open(dir, QueueSpec::default(), runtime)?;
    let before = device_bytes(data.path());
    let watch = Stopwatch::start();
    let mut messages = 0_u64;
    runtime.block_on(async {
        while watch.elapsed() < time {
            let each: Vec<_> = (0..BATCH).map(|_| (queue(), body(1024))).collect();
            engine.send(each).await?;
            messages += receive_batch(engine.clone(), BATCH as u32, 1).await?;
        }
        anyhow::Ok(())
    })?;
    runtime.block_on(running.stop());
    let after = device_bytes(data.path());
    let device_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Written { messages, payload_bytes: messages * 1024, device_bytes })
}

/// Bytes written so far by the device of a directory, from the counters of the kernel.
fn device_bytes(dir: &Path) -> Option<u64> {
    let device = rustix::fs::stat(dir).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

/// The cost of delayed messages: memory, and CPU time to be sent and to become ready.
pub(super) struct Delayed {
    pub messages: u64,
    pub send_ns: f64,
    pub due_ns: f64,
    pub bytes_each: f64,
}

pub(super) fn delayed(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    messages: u64,
) -> anyhow::Result<Delayed> {
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let before = resident_bytes();
    let cpu = ProcessCpu::start();
    // All become due within two seconds, well after the last one was sent.
    let (first, spread) = (engine.now().0 + 30_000, 2000);
    runtime.block_on(async {
        for batch in 0..messages / BATCH as u64 {
            let now = engine.now().0;
            let each = (0..BATCH as u64).map(|n| {
                let mut message = body(100);
                let due = first + (batch * BATCH as u64 + n) % spread;
                message.when = When::Delay(due.saturating_sub(now).max(1));
                (queue(), message)
            });
            engine.send(each.collect::<Vec<_>>()).await?;
        }
        anyhow::Ok(())
    })?;
    let send_ns = cpu.elapsed().as_nanos() as f64 / messages as f64;
    let bytes_each = resident_bytes().saturating_sub(before) as f64 / messages as f64;
    while engine.now().0 < first {
        std::thread::sleep(Duration::from_millis(10));
    }
    let cpu = ProcessCpu::start();
    let facts = runtime.block_on(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let facts = engine.describe(queue()).await?;
            if facts.delayed == 0 {
                return anyhow::Ok(facts);
            }
        }
    })?;
    let due_ns = cpu.elapsed().as_nanos() as f64 / facts.ready.max(1) as f64;
    runtime.block_on(running.stop());
    Ok(Delayed { messages, send_ns, due_ns, bytes_each })
}
