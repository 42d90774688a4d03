//! What recovery found and did, for the log and for the user.

use std::collections::BTreeMap;

use super::Pos;

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
