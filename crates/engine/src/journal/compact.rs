//! Which segments are to be emptied, so that they can be used again although something in them lives.
//!
//! A segment in which nothing lives is recycled as it is. Copying begins when the journal's files take more than
//! twice what lives in them and a fixed allowance, or when the disk is full; and then with the emptiest segments,
//! because they cost the least. What was copied is free once the next snapshot knows it.

use std::collections::{BTreeMap, BTreeSet};

use super::segment::Segment;
use super::{Pos, Replay, SEGMENT_BYTES_MAX, Snapshotter};

/// Live bytes copied for one snapshot, at least; more when the snapshots themselves are large.
const ROUND_BYTES: u64 = 64 << 20;

/// Live bytes by segment, as of a snapshot.
#[derive(Debug, Default)]
pub(super) struct Live {
    by_generation: BTreeMap<u64, u64>,
    total: u64,
}

impl Live {
    pub(super) fn of(core: &dyn Replay) -> Self {
        let mut live = Live::default();
        let (mut last, mut sum) = (0, 0);
        // Neighbours in a queue are mostly neighbours in the journal.
        core.live(&mut |pos: Pos, bytes| {
            if pos.generation() != last {
                live.add(last, sum);
                (last, sum) = (pos.generation(), 0);
            }
            sum += bytes;
        });
        live.add(last, sum);
        live
    }

    fn add(&mut self, generation: u64, bytes: u64) {
        if bytes > 0 {
            // Several queues may share one record: a segment holds no more than it is long.
            let live = self.by_generation.entry(generation).or_default();
            let more = bytes.min(SEGMENT_BYTES_MAX.saturating_sub(*live));
            *live += more;
            self.total += more;
        }
    }

    pub(super) fn has(&self, generation: u64) -> bool {
        self.by_generation.contains_key(&generation)
    }
}

impl Snapshotter {
    /// Bytes of all files, surplus spares not counted: those are given up when nobody writes.
    fn footprint(&self) -> u64 {
        let spares = self.pool.spares().min(self.options.spares) as u64;
        self.segments.bytes() + spares * self.options.segment_bytes + self.snapshot_bytes()
    }

    /// Whether the files take more than this much that lives justifies, and there is something to be had.
    pub fn wasteful(&self, live_bytes: u64) -> bool {
        if self.holds_all() {
            return false;
        }
        let allowed = live_bytes.saturating_mul(2).saturating_add(self.options.compact_floor_bytes);
        self.segments.count() > 1 && self.footprint() > allowed
    }

    /// Live bytes as of the last snapshot.
    pub fn live_bytes(&self) -> u64 {
        self.live.lock().total
    }

    /// Bytes of the snapshots that are kept.
    pub fn snapshot_bytes(&self) -> u64 {
        self.kept.body_bytes * self.kept.covered.len() as u64
    }

    /// Generations of the segments to be emptied now; mostly none. Only good right after a snapshot.
    pub fn victims(&self) -> BTreeSet<u64> {
        let live = self.live.lock();
        let pressed = !self.pool.publish_allowed();
        if self.holds_all() {
            return BTreeSet::new();
        }
        // Of the segments kept for settling, a copy under pressure takes half of one, and gives back at least one
        // whole. Without any there is nothing to begin with.
        if pressed && self.pool.spares() == 0 || !pressed && !self.wasteful(live.total) {
            return BTreeSet::new();
        }
        let (mut budget, mut excess) = (self.options.segment_bytes / 2, u64::MAX);
        if !pressed {
            budget = ROUND_BYTES.max(4 * self.kept.body_bytes);
            let allowed = 2 * live.total + self.options.compact_floor_bytes;
            excess = self.footprint().saturating_sub(allowed);
        }
        let covered = self.covered();
        let usable = |segment: &Segment| {
            segment.end().is_some_and(|end| end <= covered) && !segment.is_quarantined()
        };
        let mut candidates: Vec<(u64, u64, u64)> = Vec::new();
        for segment in self.segments.all() {
            let bytes = live.by_generation.get(&segment.generation).copied().unwrap_or(0);
            // Whatever lives is written again: less than half, or nothing is won.
            if usable(&segment) && bytes > 0 && bytes <= segment.file.len / 2 {
                candidates.push((bytes, segment.file.len, segment.generation));
            }
        }
        candidates.sort_unstable();
        let mut victims = BTreeSet::new();
        for (bytes, len, generation) in candidates {
            if excess == 0 || bytes > budget {
                break;
            }
            victims.insert(generation);
            budget -= bytes;
            excess = excess.saturating_sub(len - bytes);
        }
        victims
    }

    /// Records were copied out of these: a snapshot is worth making as soon as the copies are durable. Not before it
    /// is made are the segments free.
    pub fn relocated(&mut self, victims: &BTreeSet<u64>) {
        self.relocated = true;
        if cfg!(feature = "mutate-early-recycle") {
            let early = self.segments.release(|segment| victims.contains(&segment.generation));
            early.into_iter().for_each(|file| self.pool.give_back(file));
        }
    }

    /// Gives up spare files beyond those that are kept ready and, while much is written, those that will be used
    /// before others are free again. Tells how many.
    pub fn trim(&self, busy: bool) -> std::io::Result<usize> {
        // What is free after a snapshot was begun before the last one: two rounds are on their way.
        self.pool.trim(self.options.spares + if busy { 2 * self.pace } else { 0 })
    }
}
