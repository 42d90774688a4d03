//! The journal: an append-only log in segments, made durable by group commit, replayed at the start, and kept short by
//! snapshots.
//!
//! Reading order: `pos` and `frame` (the format), `appender` and `writer` (append, write, sync), `pipeline` (the
//! threads), `recovery` (opening), `snapshot`, `compact`, `pool`, `scrub`, `backup` and `restore`.
//!
//! Every part is a synchronous step, so that the simulation can run them in one thread and crash between any two. The
//! journal does not know the meaning of frames; the core's [`Replay`] does.

mod appender;
mod backup;
mod compact;
mod frame;
mod header;
mod pipeline;
mod pool;
mod pos;
mod reading;
mod recovery;
mod replay;
mod report;
mod restore;
mod scan;
mod scrub;
mod segment;
mod snapshot;
mod survey;
mod verify;
mod writer;

use std::io::Read;

pub use appender::{AppendError, Appender, Chunk, Chunks, FrameRef, GroupPosition};
pub use backup::{Backup, Backups};
pub use frame::{
    FLAG_CONT, FLAG_MORE, FRAME_HEADER_BYTES, Frame, FrameError, KIND_MARK, decode_frame,
};
pub use header::{HEADER_BYTES, Header, HeaderBlock, decode_header};
pub use pipeline::{Callbacks, Commit, Pipeline, Stopped};
pub(crate) use pool::blocked_by;
pub use pool::{Pool, SpareMaker, SpareStep};
pub use pos::{Pos, SEGMENT_BYTES_MAX};
pub use reading::{FrameReader, ReadMode};
pub use recovery::{RecoverError, Recovered, recover};
pub use report::{
    Damage, Divergence, ORPHANS_MAX, Orphan, RecoveryReport, SegmentReport, SegmentState,
    VerifyReport,
};
pub use restore::{RestoreError, Restored, check_backup, restore};
pub use scrub::{Scrubbed, Scrubber};
pub use segment::{Pin, Segments};
pub use snapshot::{Snapshot, SnapshotError, Snapshotted, Snapshotter, decode_snapshot};
pub use verify::{verify, verify_with};
pub use writer::{Marks, SYNC_BUCKETS_S, SyncTimes, Syncer, Writer};

pub use crate::format::NotUnderstood;

/// The state that is rebuilt from the journal. The core implements it.
pub trait Replay {
    /// Replaces the state with the output of [`Replay::save`]. After an error, the state must be empty: the journal may
    /// be replayed from its beginning instead.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;
    /// Like [`Replay::restore`], for a snapshot that may be too large for memory.
    fn restore_from(&mut self, snapshot: &mut dyn Read, bytes: u64) -> Result<(), String> {
        let mut all = Vec::new();
        snapshot.take(bytes).read_to_end(&mut all).map_err(|error| error.to_string())?;
        self.restore(&all)
    }
    /// Applies one frame. Called in order, for complete groups only.
    fn apply(&mut self, pos: Pos, kind: u8, body: &[u8]);
    /// Like [`Replay::apply`], for a core that may not know a frame. Then nothing of the frame is applied, and the
    /// journal is refused.
    fn try_apply(&mut self, pos: Pos, kind: u8, body: &[u8]) -> Result<(), NotUnderstood> {
        self.apply(pos, kind, body);
        Ok(())
    }
    /// Frames that refer to something missing, because the frame that created it was lost to damage.
    fn orphans(&self) -> Vec<Orphan> {
        Vec::new()
    }
    /// Serializes the state.
    fn save(&self, out: &mut Vec<u8>);
    /// Calls `mark` for every position that may still be read, with the approximate size there. Their segments are
    /// kept.
    fn live(&self, mark: &mut dyn FnMut(Pos, u64));
    /// Notes that a damaged part of the journal was skipped. Later records may depend on missing ones.
    fn damage_skipped(&mut self, _from: Pos, _to: Pos) {}
    /// The first difference between the replayed state and the digests in the journal.
    fn divergence(&self) -> Option<Divergence> {
        None
    }
}

/// Sizes and limits of a journal.
#[derive(Debug, Clone)]
pub struct Options {
    /// The length of a segment file, at most [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// The length of the first segment of a new directory: small, so that the first start is fast.
    pub first_segment_bytes: u64,
    /// The number of spare segments.
    pub spares: usize,
    /// Spare segments that are reserved for settling when the disk is full.
    pub spares_reserved: usize,
    /// No spare is made if less than this would stay free on the disk.
    pub free_bytes_min: u64,
    /// For a new directory: a random number that outsiders cannot guess (see `frame`).
    pub salt: u32,
    /// A snapshot is due after at least this many journal bytes …
    pub snapshot_after_bytes: u64,
    /// … and after this multiple of the last snapshot's size.
    pub snapshot_after_ratio: u64,
    /// Live records are copied out of nearly empty segments when all files are larger than twice the live bytes plus
    /// this.
    pub compact_floor_bytes: u64,
    /// Sealed segments are verified at this rate; 0 for never.
    pub scrub_bytes_per_s: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // One segment in use, three spares and the snapshots of an empty broker stay below 256 MiB.
            segment_bytes: 60 << 20,
            first_segment_bytes: 1 << 20,
            spares: 3,
            spares_reserved: 2,
            free_bytes_min: 64 << 20,
            salt: 0,
            // A small state is saved often, so that segments are recycled early. A large one is saved so rarely that
            // snapshots are at most a tenth of what is written.
            snapshot_after_bytes: 16 << 20,
            snapshot_after_ratio: 10,
            compact_floor_bytes: 256 << 20,
            scrub_bytes_per_s: 4 << 20,
        }
    }
}

impl Options {
    /// Limits the sizes to the range of the format.
    fn checked(&self) -> Options {
        let segment_bytes = self.segment_bytes.clamp(2 * HEADER_BYTES as u64, SEGMENT_BYTES_MAX);
        let first_segment_bytes =
            self.first_segment_bytes.clamp(2 * HEADER_BYTES as u64, segment_bytes);
        // Reserved spares are not for normal use: there must be one more.
        let spares = self.spares.max(self.spares_reserved + 1);
        Options { segment_bytes, first_segment_bytes, spares, ..self.clone() }
    }
}
