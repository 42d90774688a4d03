//! Writing and syncing, as steps. Writing never waits for syncing; what was written before a sync began is durable
//! after it.
//!
//! After any error the journal is poisoned: a failed fsync marks pages as clean that never reached the disk, so
//! retrying would report a false success.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::segment::Segment;
use super::{Chunk, Pos, Stopped};
use crate::disk::Disk;

/// The progress of the journal.
#[derive(Default)]
pub struct Marks {
    written: AtomicU64,
    durable: AtomicU64,
    poisoned: AtomicBool,
    written_bytes: AtomicU64,
    syncs: SyncTimes,
    /// Segments written to since they were last synced.
    touched: Mutex<Vec<Arc<Segment>>>,
}

impl Marks {
    pub(super) fn new(at: Pos) -> Arc<Self> {
        let marks = Marks::default();
        marks.written.store(at.get(), Ordering::Relaxed);
        marks.durable.store(at.get(), Ordering::Relaxed);
        Arc::new(marks)
    }

    /// Everything before this was passed to the operating system.
    pub fn written(&self) -> Pos {
        Pos::from_u64(self.written.load(Ordering::Acquire))
    }

    /// Everything before this survives a power loss.
    pub fn durable(&self) -> Pos {
        Pos::from_u64(self.durable.load(Ordering::Acquire))
    }

    /// Whether a write or sync failed. Then nothing more is accepted.
    pub fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Bytes written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// The duration of syncs since the start.
    pub fn syncs(&self) -> &SyncTimes {
        &self.syncs
    }

    /// Prevents all further writes and syncs.
    pub(super) fn stop(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    fn check(&self) -> io::Result<()> {
        if self.poisoned() {
            return Err(io::Error::other(Stopped));
        }
        Ok(())
    }

    fn poison<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.stop();
        }
        result
    }
}

/// Upper bounds of the buckets of [`SyncTimes`], in seconds; the last bucket has none.
pub const SYNC_BUCKETS_S: [f64; 12] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0];

/// A histogram of the duration of syncs.
#[derive(Default)]
pub struct SyncTimes {
    buckets: [AtomicU64; SYNC_BUCKETS_S.len() + 1],
    sum_ns: AtomicU64,
}

impl SyncTimes {
    fn record(&self, took: Duration) {
        let at = SYNC_BUCKETS_S.partition_point(|&bound| bound < took.as_secs_f64());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The number of syncs in each bucket, not cumulative.
    pub fn counts(&self) -> [u64; SYNC_BUCKETS_S.len() + 1] {
        std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed))
    }

    /// The total duration in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Only for the histogram; no replayed state depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

/// Writes chunks, in order.
pub struct Writer {
    marks: Arc<Marks>,
}

impl Writer {
    pub(super) fn new(marks: Arc<Marks>) -> Self {
        Writer { marks }
    }

    pub(super) fn marks(&self) -> &Arc<Marks> {
        &self.marks
    }

    /// Writes a chunk and moves the written mark to its end.
    pub fn write(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.marks.check()?;
        assert!(self.marks.written() < chunk.end(), "chunks are written in order");
        let result = chunk.segment.file.file.write_at(chunk.padded(), chunk.offset.into());
        self.marks.poison(result)?;
        // This must happen after the write and before the mark. A sync that sees the mark then finds the segment here,
        // unless an earlier sync took it, which began after the write.
        let mut touched = self.marks.touched.lock();
        if !touched.iter().any(|segment| Arc::ptr_eq(segment, &chunk.segment)) {
            touched.push(chunk.segment.clone());
        }
        drop(touched);
        self.marks.written_bytes.fetch_add(chunk.bytes().len() as u64, Ordering::Relaxed);
        self.marks.written.store(chunk.end().get(), Ordering::Release);
        Ok(())
    }
}

/// Makes written data durable.
pub struct Syncer {
    marks: Arc<Marks>,
    disk: Arc<dyn Disk>,
    /// The metadata of files up to this generation is synced.
    settled: u64,
}

impl Syncer {
    pub(super) fn new(marks: Arc<Marks>, disk: Arc<dyn Disk>, settled: u64) -> Self {
        Syncer { marks, disk, settled }
    }

    /// Syncs every file written to since the last sync. Returns the new durable mark.
    pub fn sync(&mut self) -> io::Result<Pos> {
        self.marks.check()?;
        let sample = self.marks.written();
        let began = now();
        let touched = std::mem::take(&mut *self.marks.touched.lock());
        for segment in &touched {
            let result = self.sync_segment(segment);
            self.marks.poison(result)?;
        }
        self.marks.syncs.record(now().duration_since(began));
        self.marks.durable.store(sample.get(), Ordering::Release);
        Ok(sample)
    }

    fn sync_segment(&mut self, segment: &Segment) -> io::Result<()> {
        if cfg!(feature = "mutate-no-fsync") {
            return Ok(());
        }
        // Syncing a removed file succeeds, so check before each sync. This takes a thousandth of the sync's time.
        segment.check_linked()?;
        let file = &segment.file;
        if file.fresh && segment.generation > self.settled {
            file.file.sync_all()?;
            self.disk.sync_dir()?;
            self.settled = segment.generation;
            return Ok(());
        }
        file.file.sync_data()
    }
}
