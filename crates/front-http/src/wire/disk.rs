//! What is on the disk.

use malote_engine::DiskFacts;
use serde::Serialize;

/// Files and room, in bytes, and what housekeeping did since the start.
#[derive(Debug, Serialize)]
pub struct DiskOut {
    /// Journal segments in use.
    pub journal_bytes: u64,
    /// Of those, what was live at the last snapshot, about.
    pub live_bytes: u64,
    /// Segment files that wait to be used.
    pub spare_bytes: u64,
    /// Snapshots.
    pub snapshot_bytes: u64,
    /// Room on the disk; 0 when it does not tell.
    pub free_bytes: u64,
    /// Whether there is room enough to send.
    pub publish_allowed: bool,
    /// Records copied by compaction.
    pub copied: u64,
    /// Segments used again.
    pub recycled: u64,
    /// Read again and verified.
    pub scrubbed_bytes: u64,
    /// Damaged parts of the journal.
    pub damaged: u64,
    /// Replays of the journal that came to another state than the one served.
    pub diverged: u64,
}

impl From<DiskFacts> for DiskOut {
    fn from(facts: DiskFacts) -> Self {
        Self {
            journal_bytes: facts.journal_bytes,
            live_bytes: facts.live_bytes,
            spare_bytes: facts.spare_bytes,
            snapshot_bytes: facts.snapshot_bytes,
            free_bytes: facts.free_bytes,
            publish_allowed: facts.publish_allowed,
            copied: facts.copied,
            recycled: facts.recycled,
            scrubbed_bytes: facts.scrubbed_bytes,
            damaged: facts.damaged,
            diverged: facts.diverged,
        }
    }
}
