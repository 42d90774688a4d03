//! Writing and syncing, as steps. Writing never waits for syncing; what is
//! durable is what was written before a sync began.
//!
//! After any error the journal is poisoned: a failed fsync leaves pages marked
//! clean that never reached the disk, so trying again would lie.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::segment::Segment;
use super::{Chunk, Pos, Stopped};
use crate::disk::Disk;

/// How far the journal has got; shared by everybody.
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

    /// Everything before this was given to the operating system.
    pub fn written(&self) -> Pos {
        Pos::from_u64(self.written.load(Ordering::Acquire))
    }

    /// Everything before this survives a power loss.
    pub fn durable(&self) -> Pos {
        Pos::from_u64(self.durable.load(Ordering::Acquire))
    }

    /// A write or sync failed; nothing more will be accepted.
    pub fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Bytes written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// How long syncs took since the start.
    pub fn syncs(&self) -> &SyncTimes {
        &self.syncs
    }

    /// Nothing more is written or synced.
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

/// A histogram of how long syncs took.
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

    /// Syncs in each bucket, those of the buckets before it not counted.
    pub fn counts(&self) -> [u64; SYNC_BUCKETS_S.len() + 1] {
        std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed))
    }

    /// All of them together, in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Only for the histogram; nothing that is replayed depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

/// Hands chunks to the operating system, in order.
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
        // After the write and before the mark: a sync that sees the mark then
        // finds the segment here, or the sync that took it from here began after the write.
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

/// Makes what was written durable.
pub struct Syncer {
    marks: Arc<Marks>,
    disk: Arc<dyn Disk>,
    /// Generations up to here have had their file's metadata synced.
    settled: u64,
}

impl Syncer {
    pub(super) fn new(marks: Arc<Marks>, disk: Arc<dyn Disk>, settled: u64) -> Self {
        Syncer { marks, disk, settled }
    }

    /// Syncs every file written to since the last sync and returns the new durable mark.
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
        // A file without a name syncs well. Asked before each answer: it takes a thousandth of a sync.
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
