//! The speed of the raw disk, as a reference for the figures of the engine.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use malote_measure::{Latency, Stopwatch};

const SEGMENT_BYTES: u64 = 64 << 20;
/// Bytes that the engine adds to the body of a message in its journal.
const MESSAGE_OVERHEAD_BYTES: usize = 112;
/// Bytes that a lease or a settlement takes in the journal.
const SETTLEMENT_BYTES: usize = 6;

/// A log without a broker: zero-filled segments, a checksum for each record, one fdatasync for each batch.
pub(super) struct BareLog {
    files: Vec<std::fs::File>,
    written: u64,
}

impl BareLog {
    fn new(dir: &Path) -> anyhow::Result<Self> {
        let files = (0..3).map(|n| {
            let path = dir.join(format!("bare-{n}"));
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)?;
            let zeros = vec![0; 1 << 20];
            for mib in 0..SEGMENT_BYTES >> 20 {
                file.write_all_at(&zeros, mib << 20)?;
            }
            file.sync_all()?;
            anyhow::Ok(file)
        });
        Ok(Self { files: files.collect::<Result<_, _>>()?, written: 0 })
    }

    /// Appends and syncs. After the last segment, it reuses the first.
    fn commit(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.written % SEGMENT_BYTES + bytes.len() as u64 > SEGMENT_BYTES {
            self.written = (self.written / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        }
        let file = &self.files[(self.written / SEGMENT_BYTES) as usize % self.files.len()];
        file.write_all_at(bytes, self.written % SEGMENT_BYTES)?;
        file.sync_data()?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Records per second.
    fn rate(dir: &Path, batch: usize, record_bytes: usize, time: Duration) -> anyhow::Result<f64> {
        let mut log = Self::new(dir)?;
        let body = vec![b'x'; record_bytes];
        let stopwatch = Stopwatch::start();
        let mut records = 0_u64;
        while stopwatch.elapsed() < time {
            let mut bytes = Vec::with_capacity(batch * (record_bytes + 8));
            for _ in 0..batch {
                bytes.extend_from_slice(&(record_bytes as u32).to_le_bytes());
                bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
                bytes.extend_from_slice(&body);
            }
            log.commit(&bytes)?;
            records += batch as u64;
        }
        Ok(records as f64 / stopwatch.elapsed().as_secs_f64())
    }

    /// Messages per second, if only their journal records are written.
    pub(super) fn enqueue(
        dir: &Path,
        body_bytes: usize,
        batch: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        Self::rate(dir, batch, body_bytes + MESSAGE_OVERHEAD_BYTES, time)
    }

    /// Leased and completed messages per second, if only their journal records are written. The engine writes one record
    /// of leases and one of settlements for each batch.
    pub(super) fn lease_complete(dir: &Path, batch: usize, time: Duration) -> anyhow::Result<f64> {
        Ok(Self::rate(dir, 2, batch * SETTLEMENT_BYTES, time)? / 2.0 * batch as f64)
    }

    /// Latency of writing and syncing 4 KiB into zero-filled space, one after the other.
    pub(super) fn sync_latency(dir: &Path, time: Duration) -> anyhow::Result<Latency> {
        let mut log = Self::new(dir)?;
        let mut latency = Latency::default();
        let stopwatch = Stopwatch::start();
        let block = vec![b'x'; 4096];
        while stopwatch.elapsed() < time {
            let commit = Stopwatch::start();
            log.commit(&block)?;
            latency.record(commit.elapsed());
        }
        Ok(latency)
    }
}
