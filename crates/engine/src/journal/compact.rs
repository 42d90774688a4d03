//! Chooses segments to be emptied by copying their live records.
//!
//! A segment without live records is recycled as it is. Copying begins when the journal's files are larger than twice
//! their live content plus a fixed allowance, or when the disk is full. It begins with the emptiest segments, because
//! they cost the least. A segment is free once the next snapshot knows the copies.

use std::collections::{BTreeMap, BTreeSet};

use super::segment::Segment;
use super::{Pos, Replay, SEGMENT_BYTES_MAX, Snapshotter};

/// The minimum budget of live bytes copied for one snapshot; more if the snapshots are large.
const ROUND_BYTES: u64 = 64 << 20;

/// Live bytes by segment, as of a snapshot.
#[derive(Debug, Default)]
pub(super) struct LiveBytes {
    by_generation: BTreeMap<u64, u64>,
    total: u64,
}

impl LiveBytes {
    pub(super) fn of(core: &dyn Replay) -> Self {
        let mut live = LiveBytes::default();
        let (mut last, mut sum) = (0, 0);
        // Neighbours in a queue are usually neighbours in the journal.
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
            // Several queues may share one record: a segment has at most its length of live bytes.
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
    /// Bytes of all files, without surplus spares, which are removed when the broker is idle.
    fn footprint(&self) -> u64 {
        let spares = self.pool.spares().min(self.options.spares) as u64;
        self.segments.bytes() + spares * self.options.segment_bytes + self.snapshot_bytes()
    }

    /// Whether the files are too large for this amount of live data, and copying could help.
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

    /// Bytes of the kept snapshots.
    pub fn snapshot_bytes(&self) -> u64 {
        self.kept.body_bytes * self.kept.covered.len() as u64
    }

    /// Generations of the segments to be emptied now; usually none. Valid only right after a snapshot.
    pub fn victims(&self) -> BTreeSet<u64> {
        let live = self.live.lock();
        let pressed = !self.pool.publish_allowed();
        if self.holds_all() {
            return BTreeSet::new();
        }
        // On a full disk, copying uses half of a reserved segment and frees at least a whole one. Without any spare it
        // cannot begin.
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
            // Live data is written again, so emptying a segment only pays off if less than half of it is live.
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

    /// Records were copied out of these segments: make a snapshot as soon as the copies are durable. Only then are the
    /// segments free.
    pub fn relocated(&mut self, victims: &BTreeSet<u64>) {
        self.relocated = true;
        if cfg!(feature = "mutate-early-recycle") {
            let early = self.segments.release(|segment| victims.contains(&segment.generation));
            early.into_iter().for_each(|file| self.pool.give_back(file));
        }
    }

    /// Removes spare files that are not needed. While much is written, keeps those that will be used before others
    /// become free. Returns how many were removed.
    pub fn trim(&self, busy: bool) -> std::io::Result<usize> {
        // A snapshot frees segments that were begun before the previous one, so two rounds are in flight.
        self.pool.trim(self.options.spares + if busy { 2 * self.pace } else { 0 })
    }
}
