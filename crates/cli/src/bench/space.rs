//! What the disk holds and what it had to write: after a queue was drained, and per message that went through.

use std::path::Path;
use std::time::Duration;

use malote_engine::Engine;
use malote_model::{QueueSpec, When};

use super::engine::{body, open, queue, take_batch};
use super::measure::{Cpu, Watch, resident_bytes};

const BATCH: usize = 1000;

/// Bytes on disk after a drain, and bytes that are live.
pub(crate) struct Drained {
    pub disk_bytes: u64,
    pub live_bytes: u64,
}

/// Fills with 1 KiB messages, takes all but every hundredth, and waits for the housekeeping to settle.
pub(crate) fn drained(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    messages: usize,
) -> anyhow::Result<Drained> {
    let (engine, running, data) = open(dir, QueueSpec::default(), runtime)?;
    runtime.block_on(async {
        for _ in 0..messages / BATCH {
            // Every hundredth waits for an hour: it is what stays behind in every segment.
            let each = (0..BATCH).map(|n| {
                let mut message = body(1024);
                if n % 100 == 0 {
                    message.when = When::Delay(3_600_000);
                }
                (queue(), message)
            });
            engine.send(each.collect()).await?;
        }
        while take_batch(engine.clone(), BATCH as u32, 1).await? > 0 {}
        anyhow::Ok(())
    })?;
    let live_bytes = (messages / 100 * 1100) as u64;
    let bound = 2 * live_bytes + (256 << 20);
    let watch = Watch::start();
    let mut disk_bytes = bytes_in(data.path());
    // A trickle keeps the journal moving, as a living broker does.
    while disk_bytes > bound && watch.elapsed() < Duration::from_secs(60) {
        runtime.block_on(trickle(&engine))?;
        disk_bytes = bytes_in(data.path());
    }
    runtime.block_on(running.stop());
    Ok(Drained { disk_bytes, live_bytes })
}

async fn trickle(engine: &Engine) -> anyhow::Result<()> {
    engine.send((0..BATCH).map(|_| (queue(), body(100))).collect::<Vec<_>>()).await?;
    while take_batch(engine.clone(), BATCH as u32, 1).await? > 0 {}
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(())
}

#[allow(clippy::disallowed_methods)] // looks at sizes, touches nothing
fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Bytes that the device wrote for a message that went in and out.
pub(crate) struct Written {
    pub messages: u64,
    pub payload_bytes: u64,
    /// None where the device does not count.
    pub device_bytes: Option<u64>,
}

/// A queue that is drained as it is filled, and what the device wrote meanwhile.
pub(crate) fn written(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    time: Duration,
) -> anyhow::Result<Written> {
    let (engine, running, data) = open(dir, QueueSpec::default(), runtime)?;
    let before = device_bytes(data.path());
    let watch = Watch::start();
    let mut messages = 0_u64;
    runtime.block_on(async {
        while watch.elapsed() < time {
            let each: Vec<_> = (0..BATCH).map(|_| (queue(), body(1024))).collect();
            engine.send(each).await?;
            messages += take_batch(engine.clone(), BATCH as u32, 1).await?;
        }
        anyhow::Ok(())
    })?;
    runtime.block_on(running.stop());
    let after = device_bytes(data.path());
    let device_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Written { messages, payload_bytes: messages * 1024, device_bytes })
}

/// Bytes written so far by the device under a directory, by the system's own counters.
#[allow(clippy::disallowed_methods)] // the system's counters, not data
fn device_bytes(dir: &Path) -> Option<u64> {
    let device = rustix::fs::stat(dir).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

/// Delayed messages: what each costs in memory, and in processor time to come in and to become due.
pub(crate) struct Delayed {
    pub messages: u64,
    pub send_ns: f64,
    pub due_ns: f64,
    pub bytes_each: f64,
}

pub(crate) fn delayed(
    runtime: &tokio::runtime::Runtime,
    dir: &Path,
    messages: u64,
) -> anyhow::Result<Delayed> {
    let (engine, running, _data) = open(dir, QueueSpec::default(), runtime)?;
    let before = resident_bytes();
    let cpu = Cpu::start();
    // All are due in the same few seconds, well after the last was sent.
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
    let cpu = Cpu::start();
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
