//! The results of recovery and verification.

use std::collections::{BTreeMap, BTreeSet};

use super::Pos;

/// The maximum number of missing queues and topics in a report.
pub const ORPHANS_MAX: usize = 1000;

/// A part of the journal that was durable and is unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub file: String,
    /// The first lost position.
    pub from: Pos,
    /// The next intact group, or the end of the segment.
    pub to: Pos,
}

/// Records of a queue or topic whose declaration was lost to damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The id in the records. Nothing else is known about the queue or topic.
    pub id: u32,
    /// The queue that contains its messages now; `None` if there were only rules or settings of a topic.
    pub recovered: Option<String>,
    pub records: u64,
    pub first: Pos,
    pub last: Pos,
    /// Generations of segments with records that are in no queue: rules and settings of topics, session states. These
    /// segments are never recycled.
    pub unplaced: BTreeSet<u64>,
}

impl Orphan {
    pub(crate) fn new(id: u32, pos: Pos) -> Self {
        let unplaced = BTreeSet::new();
        Self { id, recovered: None, records: 0, first: pos, last: pos, unplaced }
    }
}

/// A replay did not reproduce the state that was served when the journal was written. This is a bug in the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The digest that differs.
    pub at: Pos,
    pub what: String,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.what, self.at)
    }
}

/// The result of [`recover`](super::recover).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The position that the restored snapshot covers.
    pub snapshot: Option<Pos>,
    /// Frames applied after the snapshot.
    pub frames: u64,
    /// Groups applied after the snapshot.
    pub groups: u64,
    /// The highest position that was known to be durable.
    pub durable: Pos,
    /// Where the journal was cut: the end of the last complete group.
    pub cut: Pos,
    /// Intact frames after the cut: written, never durable, and discarded.
    pub discarded_frames: u64,
    /// Unreadable parts before the durable position. Their segments are never recycled.
    pub damaged: Vec<Damage>,
    /// Records after the snapshot whose queue or topic is missing, at most [`ORPHANS_MAX`].
    pub orphans: Vec<Orphan>,
    /// The replay did not reproduce the served state. No segment is recycled until the next start.
    pub diverged: Option<Divergence>,
    /// Segment files with an unreadable header. They are left as they are.
    pub unreadable_segments: Vec<String>,
    /// Unreadable snapshots. They are left until newer ones replace them.
    pub invalid_snapshots: Vec<String>,
    /// Files that do not belong to the journal. They are left as they are.
    pub unknown_files: Vec<String>,
    pub segments: usize,
    pub spares: usize,
    /// The generation of the current segment.
    pub generation: u64,
}

/// The result of [`verify`](super::verify) for one segment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    pub file: String,
    pub bytes: u64,
    pub state: SegmentState,
    /// Intact frames by kind; kind 0 is the journal's own.
    pub frames: BTreeMap<u8, u64>,
}

/// The content of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// A generation of the journal.
    Used(u64),
    /// Nothing that the journal needs.
    Spare,
    /// Its header is unreadable.
    Unreadable,
}

/// The result of [`verify`](super::verify).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    pub segments: Vec<SegmentReport>,
    /// Snapshot files and their positions; `None` if unreadable.
    pub snapshots: Vec<(String, Option<Pos>)>,
    /// What a recovery would report.
    pub recovery: RecoveryReport,
    /// Why a recovery would refuse to start.
    pub refused: Option<String>,
}
