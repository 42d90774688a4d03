//! Opens a data directory: restores the snapshot, replays the journal, makes sure that what was found is really on
//! disk, and starts a new segment.
//!
//! The order of the last steps makes a crash between them harmless: (1) What was read and is not known to be durable is
//! written again and synced, because the page cache proves nothing, least of all after a failed fsync. (2) The new
//! segment's header, which contains the cut, is synced. (3) Only then are the segments after the cut given up.
//! Appending never continues in an old segment, so garbage after the cut can never become valid again.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::compact::LiveBytes;
use super::header::{HEADER_BYTES, Header, push_header};
use super::replay::{Replayed, replay};
use super::segment::{Segment, SegmentFile, Segments};
use super::snapshot::restore_newest;
use super::survey::{Survey, survey};
use super::{
    Appender, Backups, Marks, Options, Orphan, Pool, Pos, RecoveryReport, Replay, Scrubber,
    Snapshotter, SpareMaker, Syncer, Writer,
};
use crate::disk::Disk;
use crate::format::NotUnderstood;

/// Why a data directory cannot be opened. Nothing was changed, unless the message says so.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Another process uses it.
    #[error("data directory `{0}` is in use by another process")]
    Locked(String),
    /// A later version wrote it.
    #[error(
        "{file} has data format {format}, and this version of Malote ({}) knows formats up to {known}: a newer version wrote it; run that version or a later one, or restore a backup that was made before the upgrade; nothing was changed",
        env!("CARGO_PKG_VERSION")
    )]
    NewerFormat { file: String, format: u32, known: u32 },
    /// An intact record cannot be decoded. Skipping it would lose data.
    #[error(
        "{file} contains at position {pos} a record that {why}; it is intact, so a newer version than this one ({}) wrote it, or there is a bug: run that version or a later one, or restore a backup that was made before the upgrade; nothing was changed",
        env!("CARGO_PKG_VERSION")
    )]
    NotUnderstood { file: String, pos: Pos, why: NotUnderstood },
    /// Durable segments are missing.
    #[error(
        "the journal has a gap between {from} and {to}: a segment file is missing or its header is damaged, and no readable snapshot covers it"
    )]
    Gap {
        /// The end of the readable part.
        from: Pos,
        /// Where the journal continues.
        to: Pos,
    },
    /// There is no space for a new segment.
    #[error("there is no space for a journal segment on the disk: {0}")]
    NoSpace(#[source] io::Error),
    #[error("the data directory cannot be read or written: {0}")]
    Io(#[from] io::Error),
}

/// Appended to the name of a snapshot that could not be read when the directory was opened.
const UNREADABLE: &str = ".unreadable";

/// An open journal, in parts for different threads.
pub struct Recovered {
    /// For the core's thread.
    pub appender: Appender,
    /// For the writing thread.
    pub writer: Writer,
    /// For the syncing thread.
    pub syncer: Syncer,
    /// The segments, as readers of stored messages use them.
    pub segments: Segments,
    /// For checking whether publishing is possible.
    pub pool: Pool,
    /// For the thread that makes spare segments.
    pub spare_maker: SpareMaker,
    /// For the housekeeping thread.
    pub snapshotter: Snapshotter,
    /// For the housekeeping thread.
    pub scrubber: Scrubber,
    /// For making backups.
    pub backups: Backups,
    pub marks: Arc<Marks>,
    pub report: RecoveryReport,
}

/// Opens a data directory and brings `core`, which must be empty, to its last state.
pub fn recover(
    disk: Arc<dyn Disk>,
    options: &Options,
    core: &mut dyn Replay,
) -> Result<Recovered, RecoverError> {
    if !disk.try_lock()? {
        return Err(RecoverError::Locked(disk.place()));
    }
    let options = options.checked();
    let mut found = survey(&*disk)?;
    let kept = restore_newest(&*disk, core)?;
    kept.check_format()?;
    let covered = kept.covered.first().copied().unwrap_or(Pos::ZERO);
    let replayed = replay(&found.chain, covered, found.durable, core)?;
    let dropped = discard_after_cut(&mut found, &replayed);
    let mut report = report(&found, &replayed, &kept.invalid);
    report.snapshot = kept.covered.first().copied();
    report.orphans = core.orphans();
    // Records that replay could not place exist only in their segments.
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
        // A directory keeps the salt that it was created with.
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
        live: Arc::new(Mutex::new(LiveBytes::of(core))),
        relocated: false,
        pace: 0,
        diverged: report.diverged.clone(),
        frozen: false,
    };
    // This comes first: on a full disk, recycled segments are the only space for the new one.
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
        spare_maker: SpareMaker::new(pool.clone()),
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

/// Seals the last segment at the cut, and returns the files after it.
fn discard_after_cut(found: &mut Survey, replayed: &Replayed) -> Vec<SegmentFile> {
    let mut dropped = std::mem::take(&mut found.off_chain);
    for segment in found.chain.drain(replayed.segments..) {
        // No one else has a reference yet. Quarantined segments are left as they are.
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
            // Its successor was recycled long ago. It is only read by position.
            segment.seal(segment.file.limit());
        }
    }
    dropped
}

pub(super) fn report(
    found: &Survey,
    replayed: &Replayed,
    invalid_snapshots: &[String],
) -> RecoveryReport {
    RecoveryReport {
        frames: replayed.frames,
        groups: replayed.groups,
        durable: replayed.durable,
        cut: replayed.cut,
        discarded_frames: replayed.discarded_frames,
        damaged: replayed.damaged.clone(),
        unreadable_segments: found.unreadable.clone(),
        invalid_snapshots: invalid_snapshots.to_vec(),
        unknown_files: found.unknown.clone(),
        ..RecoveryReport::default()
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
fn begin(disk: &dyn Disk, pool: &Pool, header: &Header) -> Result<Arc<Segment>, RecoverError> {
    let file = pool.take_first().map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull => RecoverError::NoSpace(error),
        _ => RecoverError::Io(error),
    })?;
    write_header(&file, header)?;
    file.file.sync_all()?;
    disk.sync_dir()?;
    Ok(Arc::new(Segment::new(file, header)))
}

/// Overwrites the header of a file, so that it becomes a spare.
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
