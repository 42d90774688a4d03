//! The journal: one append-only log in segments, made durable by group commit,
//! read back at the start, kept short by snapshots.
//!
//! Read in this order: `pos` and `frame` (what is on disk), `appender` →
//! `writer` (the way in: append, write, sync), `pipeline` (threads around
//! those), `recovery` (the way back), `snapshot`, `compact`, `pool`,
//! `scrub`, `backup` and `restore`.
//!
//! Every part is a synchronous step, so that the simulator can drive
//! them in one thread and crash between any two. What frames mean is not known
//! here: the core's [`Replay`] is.

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

pub use appender::{AppendError, Appender, Chunk, Chunks, FrameRef, GroupPlace};
pub use backup::{Backup, Backups};
pub use frame::{
    FLAG_CONT, FLAG_MORE, FRAME_HEADER_BYTES, Frame, FrameError, KIND_MARK, decode_frame,
};
pub use header::{HEADER_BYTES, Header, HeaderBlock, decode_header};
pub use pipeline::{Callbacks, Commit, Pipeline, Stopped};
pub(crate) use pool::blocked_by;
pub use pool::{Keeper, Kept, Pool};
pub use pos::{Pos, SEGMENT_BYTES_MAX};
pub use reading::{Patience, Reading};
pub use recovery::{OpenError, Recovered, recover};
pub use report::{
    Damage, Divergence, ORPHANS_MAX, Orphan, Report, SegmentReport, SegmentState, Verified,
};
pub use restore::{RestoreError, Restored, check_backup, restore};
pub use scrub::{Scrubbed, Scrubber};
pub use segment::{Pin, Segments};
pub use snapshot::{Snapshot, SnapshotError, Snapshotted, Snapshotter, decode_snapshot};
pub use verify::{verify, verify_with};
pub use writer::{Marks, SYNC_BUCKETS_S, SyncTimes, Syncer, Writer};

pub use crate::format::NotUnderstood;

/// The state that the journal keeps: the core implements it.
pub trait Replay {
    /// Replaces all state by what [`Replay::save`] once wrote. After an error the state must be
    /// that of an empty core: the journal may be replayed from its beginning instead.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;
    /// The same of a snapshot with this many bytes, which may be too many to be held at once.
    fn restore_from(&mut self, snapshot: &mut dyn Read, bytes: u64) -> Result<(), String> {
        let mut all = Vec::new();
        snapshot.take(bytes).read_to_end(&mut all).map_err(|error| error.to_string())?;
        self.restore(&all)
    }
    /// Takes in one frame. Called in order, for whole groups only.
    fn apply(&mut self, pos: Pos, kind: u8, body: &[u8]);
    /// The same, for a core that may not understand a frame: then nothing of it is applied, and the journal is refused.
    fn try_apply(&mut self, pos: Pos, kind: u8, body: &[u8]) -> Result<(), NotUnderstood> {
        self.apply(pos, kind, body);
        Ok(())
    }
    /// Frames that were applied since the core was made and name something that is not there: the frame that made it
    /// was lost to damage.
    fn orphans(&self) -> Vec<Orphan> {
        Vec::new()
    }
    /// Writes all state.
    fn save(&self, out: &mut Vec<u8>);
    /// Names every position that may still be read, and about how many bytes stand there. Their segments are kept.
    fn live(&self, mark: &mut dyn FnMut(Pos, u64));
    /// A damaged part of the journal was skipped here: what follows may rest on records that are missing.
    fn damage_skipped(&mut self, _from: Pos, _to: Pos) {}
    /// The first place where the replayed state was not what the journal says it was.
    fn divergence(&self) -> Option<Divergence> {
        None
    }
}

/// Sizes and limits of a journal.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of a segment file, at most [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// Length of the first one in a new directory: small, so that starting is instant.
    pub first_segment_bytes: u64,
    /// Spare segments to keep ready.
    pub spares: usize,
    /// The last spares, kept for settlements when the disk is full.
    pub spares_reserved: usize,
    /// No new spare is made when less than this would stay free on the disk.
    pub free_bytes_min: u64,
    /// For a new directory: a random number that outsiders cannot guess (see `frame`).
    pub salt: u32,
    /// A snapshot is due no sooner than after this much journal …
    pub snapshot_after_bytes: u64,
    /// … and after this many times the last snapshot's size.
    pub snapshot_after_ratio: u64,
    /// Live records are copied out of nearly empty segments when all files together take more than twice the live
    /// bytes and this.
    pub compact_floor_bytes: u64,
    /// Sealed segments are read again and verified at this rate; 0 for never.
    pub scrub_bytes_per_s: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // One in use, three spare and the snapshots of an empty broker together stay below 256 MiB.
            segment_bytes: 60 << 20,
            first_segment_bytes: 1 << 20,
            spares: 3,
            spares_reserved: 2,
            free_bytes_min: 64 << 20,
            salt: 0,
            // A replay of the journal costs the same however often it is interrupted: a small state is saved often,
            // so that segments are used again early, and a large one seldom enough to take a tenth of what is written.
            snapshot_after_bytes: 16 << 20,
            snapshot_after_ratio: 10,
            compact_floor_bytes: 256 << 20,
            scrub_bytes_per_s: 4 << 20,
        }
    }
}

impl Options {
    /// Brings sizes into the range that the format allows.
    fn checked(&self) -> Options {
        let segment_bytes = self.segment_bytes.clamp(2 * HEADER_BYTES as u64, SEGMENT_BYTES_MAX);
        let first_segment_bytes =
            self.first_segment_bytes.clamp(2 * HEADER_BYTES as u64, segment_bytes);
        // Reserved spares are not for everyday use: there must be one more.
        let spares = self.spares.max(self.spares_reserved + 1);
        Options { segment_bytes, first_segment_bytes, spares, ..self.clone() }
    }
}
