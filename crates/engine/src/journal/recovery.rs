//! Opens a data directory: restores, replays, makes sure that what was found is
//! really on disk, and starts a new segment.
//!
//! The order of the last steps is what makes a crash in the middle of
//! them harmless: (1) what was read and not known to be durable is written again
//! and synced; what the page cache shows proves nothing, least of all after a failed
//! fsync; (2) the new segment's header, which names the cut, is synced; (3) only then are the
//! segments behind the cut given up. Appending never goes on in an old segment,
//! so garbage behind the cut can never become valid again.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::compact::Live;
use super::header::{HEADER_BYTES, Header, push_header};
use super::replay::{Replayed, replay};
use super::segment::{Segment, SegmentFile, Segments};
use super::snapshot::restore_newest;
use super::survey::{Survey, survey};
use super::{
    Appender, Backups, Keeper, Marks, Options, Orphan, Pool, Pos, Replay, Report, Scrubber,
    Snapshotter, Syncer, Writer,
};
use crate::disk::Disk;
use crate::format::NotUnderstood;

/// Why a data directory cannot be opened. Nothing was changed unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("data directory `{0}` is in use by another process")]
    Locked(String),
    /// A later version wrote it.
    #[error(
        "{file} has data format {format}, and this version of Malote ({}) knows formats up to {known}: a newer version wrote it; run that version or a later one, or restore a backup that was made before the upgrade; nothing was changed",
        env!("CARGO_PKG_VERSION")
    )]
    NewerFormat {
        /// The segment or snapshot file.
        file: String,
        /// Its format.
        format: u32,
        /// The newest format that this version knows.
        known: u32,
    },
    /// A record that is intact and cannot be taken in. To skip it would lose it.
    #[error(
        "{file} holds at position {pos} a record that {why}; it is intact, so a newer version than this one ({}) wrote it, or there is a bug: run that version or a later one, or restore a backup that was made before the upgrade; nothing was changed",
        env!("CARGO_PKG_VERSION")
    )]
    NotUnderstood {
        /// The segment file.
        file: String,
        /// Where in the journal.
        pos: Pos,
        /// What the record is.
        why: NotUnderstood,
    },
    /// Durable segments are missing.
    #[error(
        "the journal has nothing between {from} and {to}: a segment file is missing or its header is damaged, and no readable snapshot covers it"
    )]
    Gap {
        /// Where the readable part ends.
        from: Pos,
        /// Where it goes on.
        to: Pos,
    },
    /// Starting takes a little room for a new segment.
    #[error("there is no room for a journal segment on the disk: {0}")]
    NoSpace(#[source] io::Error),
    /// Anything else.
    #[error("the data directory cannot be read or written: {0}")]
    Io(#[from] io::Error),
}

/// Appended to the name of a snapshot that could not be read when the directory was opened.
const UNREADABLE: &str = ".unreadable";

/// An open journal, in parts that belong to different threads.
pub struct Recovered {
    /// For the core's thread.
    pub appender: Appender,
    /// For the writer's thread.
    pub writer: Writer,
    /// For the syncer's thread.
    pub syncer: Syncer,
    /// For whoever reads.
    pub segments: Segments,
    /// For whoever asks whether publishing is possible.
    pub pool: Pool,
    /// For a background thread that keeps spares ready.
    pub keeper: Keeper,
    /// For a background thread.
    pub snapshotter: Snapshotter,
    /// For a background thread.
    pub scrubber: Scrubber,
    /// For whoever wants a copy.
    pub backups: Backups,
    /// How far the journal has got.
    pub marks: Arc<Marks>,
    /// What was found and done.
    pub report: Report,
}

/// Opens a data directory and brings `core`, which must be empty, to its last state.
pub fn recover(
    disk: Arc<dyn Disk>,
    options: &Options,
    core: &mut dyn Replay,
) -> Result<Recovered, OpenError> {
    if !disk.try_lock()? {
        return Err(OpenError::Locked(disk.place()));
    }
    let options = options.checked();
    let mut found = survey(&*disk)?;
    let kept = restore_newest(&*disk, core)?;
    kept.check_format()?;
    let covered = kept.covered.first().copied().unwrap_or(Pos::ZERO);
    let replayed = replay(&found.chain, covered, found.durable, core)?;
    let dropped = give_up_behind_cut(&mut found, &replayed);
    let mut report = report(&found, &replayed, &kept.invalid);
    report.snapshot = kept.covered.first().copied();
    report.orphans = core.orphans();
    // Records that replay could put nowhere: only their segments hold them.
    for segment in &found.chain {
        let holds = |orphan: &Orphan| orphan.unplaced.contains(&segment.generation);
        if report.orphans.iter().any(holds) {
            segment.quarantine();
        }
    }
    report.diverged = core.divergence();

    for name in &found.temporaries {
        disk.remove(name)?;
    }
    // From here on the state without this snapshot is the one being served. If the file became readable again, a later
    // replay would begin with another state than the one that was served.
    for name in &kept.invalid {
        disk.rename(name, &format!("{name}{UNREADABLE}"))?;
    }
    for segment in found.chain.iter().filter(|segment| segment.is_quarantined()) {
        segment.mark_quarantine(&*disk)?;
    }
    write_again(&found.chain, replayed.durable, replayed.cut)?;
    disk.sync_dir()?;

    let pool = Pool::new(disk.clone(), options.clone(), found.next_number);
    found.spares.into_iter().for_each(|file| pool.give_back(file));
    pool.keep_free(2 * kept.body_bytes);
    let header = Header {
        generation: found.next_generation,
        previous_end: replayed.cut,
        durable: replayed.cut,
        // A directory keeps the salt it was created with.
        salt: found.chain.last().map_or(options.salt, |segment| segment.salt),
    };
    let segments = Segments::default();
    found.chain.into_iter().for_each(|segment| segments.insert(segment));
    let marks = Marks::new(Pos::new(header.generation, HEADER_BYTES as u32));
    let snapshotter = Snapshotter {
        disk: disk.clone(),
        options: options.clone(),
        marks: marks.clone(),
        segments: segments.clone(),
        pool: pool.clone(),
        kept,
        known_damage: replayed.damaged,
        live: Arc::new(Mutex::new(Live::of(core))),
        relocated: false,
        pace: 0,
        diverged: report.diverged.clone(),
        frozen: false,
    };
    // First of all: on a full disk, what an earlier run had recycled is the only room for the new segment.
    snapshotter.recycle();
    let scrubber = Scrubber {
        disk: disk.clone(),
        segments: segments.clone(),
        marks: marks.clone(),
        at: Pos::ZERO,
    };
    let backups = Backups {
        disk: disk.clone(),
        segments: segments.clone(),
        marks: marks.clone(),
        live: snapshotter.live.clone(),
    };
    let current = begin(&*disk, &pool, &header)?;
    segments.insert(current.clone());
    for file in dropped {
        retire(&file)?;
        pool.give_back(file);
    }
    pool.probe()?;
    report.generation = current.generation;
    report.segments = segments.count();
    report.spares = pool.spares();
    Ok(Recovered {
        writer: Writer::new(marks.clone()),
        syncer: Syncer::new(marks.clone(), disk, current.generation),
        keeper: Keeper::new(pool.clone()),
        appender: Appender::new(
            segments.clone(),
            pool.clone(),
            marks.clone(),
            current,
            options.segment_bytes,
        ),
        segments,
        pool,
        snapshotter,
        scrubber,
        backups,
        marks,
        report,
    })
}

/// Seals the last segment at the cut; what lies behind it is dropped.
fn give_up_behind_cut(found: &mut Survey, replayed: &Replayed) -> Vec<SegmentFile> {
    let mut dropped = std::mem::take(&mut found.off_chain);
    for segment in found.chain.drain(replayed.segments..) {
        // Nobody else has seen it yet. A quarantined one is left as it is.
        if let Ok(segment) = Arc::try_unwrap(segment)
            && !segment.is_quarantined()
        {
            dropped.push(segment.file);
        }
    }
    let cut = replayed.cut;
    for segment in &found.chain {
        if segment.generation == cut.generation() {
            segment.seal(cut.offset());
        } else if segment.end().is_none() {
            // Its successor was recycled long ago: old, and read only by position.
            segment.seal(segment.file.limit());
        }
    }
    dropped
}

pub(super) fn report(found: &Survey, replayed: &Replayed, invalid_snapshots: &[String]) -> Report {
    Report {
        frames: replayed.frames,
        groups: replayed.groups,
        durable: replayed.durable,
        cut: replayed.cut,
        discarded_frames: replayed.discarded_frames,
        damaged: replayed.damaged.clone(),
        unreadable_segments: found.unreadable.clone(),
        invalid_snapshots: invalid_snapshots.to_vec(),
        unknown_files: found.unknown.clone(),
        ..Report::default()
    }
}

/// Writes everything between `durable` and `cut` again, in place, and syncs it.
fn write_again(chain: &[Arc<Segment>], durable: Pos, cut: Pos) -> io::Result<()> {
    let mut bytes = Vec::new();
    for segment in chain {
        let Some(end) = segment.end().filter(|end| *end > durable && *end <= cut) else { continue };
        let from =
            if segment.generation == durable.generation() { durable.offset() as usize } else { 0 };
        segment.read_all(end.offset(), &mut bytes)?;
        let again = bytes.get(from..).unwrap_or(&[]);
        segment.file.file.write_at(again, from as u64)?;
        segment.file.file.sync_all()?;
    }
    Ok(())
}

/// Starts a segment and makes its header durable.
fn begin(disk: &dyn Disk, pool: &Pool, header: &Header) -> Result<Arc<Segment>, OpenError> {
    let file = pool.take_first().map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull => OpenError::NoSpace(error),
        _ => OpenError::Io(error),
    })?;
    write_header(&file, header)?;
    file.file.sync_all()?;
    disk.sync_dir()?;
    Ok(Arc::new(Segment::new(file, header)))
}

/// Makes a file's header say that it holds nothing.
fn retire(file: &SegmentFile) -> io::Result<()> {
    write_header(
        file,
        &Header { generation: 0, previous_end: Pos::ZERO, durable: Pos::ZERO, salt: 0 },
    )?;
    file.file.sync_data()
}

fn write_header(file: &SegmentFile, header: &Header) -> io::Result<()> {
    let mut block = Vec::with_capacity(HEADER_BYTES);
    push_header(&mut block, header);
    file.file.write_at(&block, 0)
}
