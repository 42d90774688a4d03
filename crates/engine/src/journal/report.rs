//! What recovery found and did, for the log and for the user.

use std::collections::{BTreeMap, BTreeSet};

use super::Pos;

/// Missing queues and topics that are reported one by one.
pub const ORPHANS_MAX: usize = 1000;

/// A part of the journal that was durable and can no longer be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file it is in.
    pub file: String,
    /// First lost position.
    pub from: Pos,
    /// The next intact group, or the end of the segment.
    pub to: Pos,
}

/// Records that name a queue or topic whose declaration was lost to damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The number by which the records name it. Nothing else is known about it.
    pub id: u32,
    /// The queue that its messages are in now; none if there were no messages, only rules or settings of a topic.
    pub recovered: Option<String>,
    /// How many records.
    pub records: u64,
    /// Where the first of them stands.
    pub first: Pos,
    /// Where the last of them stands.
    pub last: Pos,
    /// Generations of segments with records that are in no queue: rules and settings of a topic, states of sessions.
    /// These segments are kept for ever.
    pub unplaced: BTreeSet<u64>,
}

impl Orphan {
    pub(crate) fn new(id: u32, pos: Pos) -> Self {
        let unplaced = BTreeSet::new();
        Self { id, recovered: None, records: 0, first: pos, last: pos, unplaced }
    }
}

/// A replay came to another state than the one that was served when the journal was written: a defect of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The record that says so.
    pub at: Pos,
    /// What is different.
    pub what: String,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.what, self.at)
    }
}

/// What [`recover`](super::recover) found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What the snapshot that was restored covers.
    pub snapshot: Option<Pos>,
    /// Frames applied after it.
    pub frames: u64,
    /// Groups applied after it.
    pub groups: u64,
    /// The highest position that was known to be durable.
    pub durable: Pos,
    /// Where the journal was cut: the end of the last whole group.
    pub cut: Pos,
    /// Intact frames behind the cut: written, never durable, and given up.
    pub discarded_frames: u64,
    /// Unreadable parts below the durable position. Their segments are kept for ever.
    pub damaged: Vec<Damage>,
    /// Records behind the snapshot whose queue or topic is missing, at most [`ORPHANS_MAX`] of those.
    pub orphans: Vec<Orphan>,
    /// The replay came to another state than the one that was served. No segment is recycled until the next start.
    pub diverged: Option<Divergence>,
    /// Segment files whose header cannot be read; left alone.
    pub unreadable_segments: Vec<String>,
    /// Snapshots that cannot be read; left alone until newer ones replace them.
    pub invalid_snapshots: Vec<String>,
    /// Files that are not the journal's; left alone.
    pub unknown_files: Vec<String>,
    /// Segments in use.
    pub segments: usize,
    /// Spare files.
    pub spares: usize,
    /// Generation that appending goes on in.
    pub generation: u64,
}

/// What [`verify`](super::verify) found in one segment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// File name.
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// What it holds.
    pub state: SegmentState,
    /// Intact frames by kind; kind 0 is the journal's own.
    pub frames: BTreeMap<u8, u64>,
}

/// What a segment file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// A generation that belongs to the journal.
    Used(u64),
    /// Nothing that the journal needs.
    Spare,
    /// Its header cannot be read.
    Unreadable,
}

/// What [`verify`](super::verify) found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Each segment file.
    pub segments: Vec<SegmentReport>,
    /// Snapshot files and what they cover; `None` if unreadable.
    pub snapshots: Vec<(String, Option<Pos>)>,
    /// As a recovery would report it.
    pub recovery: Report,
    /// Why a recovery would refuse to start.
    pub refused: Option<String>,
}
