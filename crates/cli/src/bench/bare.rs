//! What the disk itself can do: the figures that the engine's stand beside.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::measure::{Latency, Watch};

const SEGMENT_BYTES: u64 = 64 << 20;

/// A log and nothing else: zero-filled segments, a checksum a record, one fdatasync a batch.
pub(crate) struct Bare {
    files: Vec<std::fs::File>,
    at: u64,
}

impl Bare {
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
        Ok(Self { files: files.collect::<Result<_, _>>()?, at: 0 })
    }

    /// Writes at the end, round and round over its segments, and waits for the disk.
    fn commit(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.at % SEGMENT_BYTES + bytes.len() as u64 > SEGMENT_BYTES {
            self.at = (self.at / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        }
        let file = &self.files[(self.at / SEGMENT_BYTES) as usize % self.files.len()];
        file.write_all_at(bytes, self.at % SEGMENT_BYTES)?;
        file.sync_data()?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn run(dir: &Path, batch: usize, record: usize, time: Duration) -> anyhow::Result<f64> {
        let mut log = Self::new(dir)?;
        let body = vec![b'x'; record];
        let watch = Watch::start();
        let mut records = 0_u64;
        while watch.elapsed() < time {
            let mut bytes = Vec::with_capacity(batch * (record + 8));
            for _ in 0..batch {
                bytes.extend_from_slice(&(record as u32).to_le_bytes());
                bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
                bytes.extend_from_slice(&body);
            }
            log.commit(&bytes)?;
            records += batch as u64;
        }
        Ok(records as f64 / watch.elapsed().as_secs_f64())
    }

    /// Records a second, each as long as the engine's record of a message of this size.
    pub(crate) fn enqueue(
        dir: &Path,
        size: usize,
        batch: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        Self::run(dir, batch, size + 112, time)
    }

    /// Pairs of a lease and a settlement a second: one record of each kind a batch, as long as the engine's.
    pub(crate) fn lease_complete(dir: &Path, batch: usize, time: Duration) -> anyhow::Result<f64> {
        Ok(Self::run(dir, 2, batch * 6, time)? / 2.0 * batch as f64)
    }
}

/// fdatasync of 4 KiB into zero-filled space, one after the other.
pub(crate) struct Probe {
    pub latency: Latency,
}

impl Probe {
    pub(crate) fn run(dir: &Path, time: Duration) -> anyhow::Result<Self> {
        let mut log = Bare::new(dir)?;
        let mut latency = Latency::new();
        let watch = Watch::start();
        let block = vec![b'x'; 4096];
        while watch.elapsed() < time {
            let one = Watch::start();
            log.commit(&block)?;
            latency.record(one.elapsed());
        }
        latency.finish(watch.elapsed(), Duration::ZERO);
        Ok(Self { latency })
    }
}
