//! Snapshots: the whole state at one position, so that recovery need not replay the journal from its beginning, and old
//! segments can be recycled.
//!
//! ```text
//! 0       8         12         16        24         32
//! | magic | format  | reserved | covered | body len | body … | crc |
//! ```
//! Little endian; the CRC32C covers everything before it. The name contains the covered position, but the content
//! decides. The layout is the same in every format (`format.rs`); only the body differs.
//!
//! The state is not taken from the serving core, but rebuilt from the last snapshot and the journal, on another thread.
//! So serving never waits, and every snapshot proves that the journal can be replayed.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::compact::LiveBytes;
use super::report::{Damage, Divergence};
use super::scan::{ScanStep, Scanner, walk};
use super::segment::{Segment, Segments};
use super::{HEADER_BYTES, Marks, Options, Pool, Pos, RecoverError, Replay};
use crate::disk::{Disk, DiskFile, is_shortage};
use crate::format::{FORMAT, NotUnderstood};

const MAGIC: &[u8; 8] = b"maloteS1";
const PREFIX_BYTES: usize = 32;
/// Snapshots are written and checksummed in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Snapshots to keep. If the newer one is unreadable, the older one and the journal after it are used.
const KEPT: usize = 2;

/// A decoded snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot<'a> {
    /// Everything before this position is in the body.
    pub covered: Pos,
    /// The output of [`Replay::save`].
    pub body: &'a [u8],
}

/// Decodes a snapshot file. The error says what is wrong.
pub fn decode_snapshot(bytes: &[u8]) -> Result<Snapshot<'_>, &'static str> {
    let prefix = bytes.get(..PREFIX_BYTES).ok_or("it is too short")?;
    let SnapshotPrefix { format, covered, body_bytes } = decode_prefix(prefix, bytes.len() as u64)?;
    let (content, crc) = bytes.split_at(PREFIX_BYTES + body_bytes as usize);
    if crc != crc32c::crc32c(content).to_le_bytes() {
        return Err("the checksum is wrong");
    }
    if format > FORMAT {
        return Err("it has a later format");
    }
    Ok(Snapshot { covered, body: &content[PREFIX_BYTES..] })
}

/// The beginning of a snapshot file. It is only trusted after the checksum was verified.
struct SnapshotPrefix {
    format: u32,
    covered: Pos,
    body_bytes: u64,
}

fn decode_prefix(prefix: &[u8], file_bytes: u64) -> Result<SnapshotPrefix, &'static str> {
    let u64_at = |at: usize| prefix[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
    if &prefix[..8] != MAGIC {
        return Err("it is not a snapshot");
    }
    if u64_at(24).checked_add(PREFIX_BYTES as u64 + 4) != Some(file_bytes) {
        return Err("its length is wrong");
    }
    let (format, covered) = (u64_at(8) as u32, Pos::from_u64(u64_at(16)));
    Ok(SnapshotPrefix { format, covered, body_bytes: u64_at(24) })
}

/// The bytes before the body.
fn prefix(covered: Pos, body_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&covered.get().to_le_bytes());
    out.extend_from_slice(&(body_bytes as u64).to_le_bytes());
    out
}

pub(super) fn file_name(covered: Pos) -> String {
    format!("snapshot-{:016x}.snap", covered.get())
}

fn temporary_name(covered: Pos) -> String {
    format!("snapshot-{:016x}.tmp", covered.get())
}

/// The position in a snapshot's file name.
pub(super) fn named(name: &str, suffix: &str) -> Option<Pos> {
    let hex = name.strip_prefix("snapshot-")?.strip_suffix(suffix)?;
    (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok().map(Pos::from_u64))?
}

pub(super) const SUFFIX: &str = ".snap";
pub(super) const TEMPORARY_SUFFIX: &str = ".tmp";

/// All snapshots in the directory, newest first.
pub(super) fn list(disk: &dyn Disk) -> io::Result<Vec<(Pos, String)>> {
    let entries = disk.list()?.into_iter();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((named(&entry.name, SUFFIX)?, entry.name))).collect();
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// A reader for the body of a snapshot file.
struct SnapshotBody {
    format: u32,
    file: Arc<dyn DiskFile>,
    at: u64,
    end: u64,
}

impl io::Read for SnapshotBody {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = (self.end - self.at).min(buf.len() as u64) as usize;
        let got = self.file.read_at(&mut buf[..bytes], self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl SnapshotBody {
    /// Opens a snapshot file after verifying its checksum. The file is read twice, piece by piece, because it may be
    /// larger than the available memory.
    fn open(disk: &dyn Disk, name: &str, covered: Pos) -> io::Result<Self> {
        let broken = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
        let file = disk.open(name)?;
        let mut prefix = [0; PREFIX_BYTES];
        let got = file.read_at(&mut prefix, 0)?;
        if got < PREFIX_BYTES {
            return Err(broken("it is too short"));
        }
        let SnapshotPrefix { format, covered: named, body_bytes: bytes } =
            decode_prefix(&prefix, file.len()?).map_err(broken)?;
        if named != covered {
            return Err(broken("its name does not match its content"));
        }
        let mut crc = crc32c::crc32c(&prefix);
        let mut piece = vec![0; bytes.min(PIECE_BYTES as u64) as usize];
        let (mut at, end) = (PREFIX_BYTES as u64, PREFIX_BYTES as u64 + bytes);
        while at < end {
            let want = (end - at).min(PIECE_BYTES as u64) as usize;
            let got = file.read_at(&mut piece[..want], at)?;
            if got == 0 {
                return Err(broken("it is too short"));
            }
            crc = crc32c::crc32c_append(crc, &piece[..got]);
            at += got as u64;
        }
        let mut sum = [0; 4];
        if file.read_at(&mut sum, end)? < 4 || sum != crc.to_le_bytes() {
            return Err(broken("the checksum is wrong"));
        }
        Ok(Self { format, file, at: PREFIX_BYTES as u64, end })
    }

    fn bytes(&self) -> u64 {
        self.end - self.at
    }
}

/// The readable snapshots.
#[derive(Default)]
pub(super) struct ValidSnapshots {
    /// Covered positions, newest first.
    pub(super) covered: Vec<Pos>,
    pub(super) body_bytes: u64,
    pub(super) invalid: Vec<String>,
    /// A snapshot in a later format.
    pub(super) newer: Option<(String, u32)>,
}

impl ValidSnapshots {
    /// Returns an error if a later version wrote a snapshot: it may contain unknown state.
    pub(super) fn check_format(&self) -> Result<(), RecoverError> {
        let newer = |(file, format): &(String, u32)| {
            Err(RecoverError::NewerFormat { file: file.clone(), format: *format, known: FORMAT })
        };
        self.newer.as_ref().map_or(Ok(()), newer)
    }
}

/// Restores the newest readable snapshot into `core`.
pub(super) fn restore_newest(disk: &dyn Disk, core: &mut dyn Replay) -> io::Result<ValidSnapshots> {
    let mut kept = ValidSnapshots::default();
    for (covered, name) in list(disk)? {
        // An unreadable snapshot is invalid; an older one may be readable.
        let restored = match SnapshotBody::open(disk, &name, covered) {
            // Nothing is known about the snapshot: using an older one would be a guess.
            Err(error) if is_shortage(&error) => return Err(error),
            Ok(body) if body.format > FORMAT => {
                kept.newer = Some((name, body.format));
                continue;
            }
            Ok(mut body) if kept.covered.is_empty() => {
                kept.body_bytes = body.bytes();
                core.restore_from(&mut body, kept.body_bytes).is_ok()
            }
            other => other.is_ok(),
        };
        if restored {
            kept.covered.push(covered);
        } else {
            kept.invalid.push(name);
        }
    }
    Ok(kept)
}

/// Why no snapshot was made. The journal is not affected.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading or writing failed.
    #[error("the snapshot could not be made: {0}")]
    Io(#[from] io::Error),
    /// The journal was damaged while serving. The segment is quarantined. A snapshot without it would differ from the
    /// served state: see [`Snapshotter::save_live`].
    #[error("the snapshot could not be made: {} is damaged at {}", .0.file, .0.from)]
    Damaged(Damage),
    /// The disk could not read a segment.
    #[error("the snapshot could not be made: {file} cannot be read: {error}")]
    Unreadable { file: String, error: io::Error },
    /// The journal contains a record that cannot be decoded, which is a bug. Nothing is recycled.
    #[error("the snapshot could not be made: the record at {0} {1}")]
    NotUnderstood(Pos, NotUnderstood),
    /// The replay did not reproduce the served state. Nothing is recycled or compacted any more: the journal and the
    /// snapshots are kept for analysis.
    #[error("the replayed state differs from the served state: {0}")]
    Diverged(Divergence),
    /// No snapshot is readable, and the journal is not complete from its beginning.
    #[error("the snapshot could not be made: the state it builds on cannot be read")]
    NoBase,
}

impl SnapshotError {
    /// Whether the journal can no longer be replayed, so that only the served state is correct.
    pub fn needs_live_state(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Unreadable { .. } | Self::NoBase)
    }
}

/// The result of [`Snapshotter::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshotted {
    /// The snapshot contains everything before this position.
    pub covered: Pos,
    /// The size of the state.
    pub bytes: u64,
    /// Segments that were recycled.
    pub recycled: usize,
}

/// Makes snapshots and recycles segments. Runs beside the engine.
pub struct Snapshotter {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) options: Options,
    pub(super) marks: Arc<Marks>,
    pub(super) segments: Segments,
    pub(super) pool: Pool,
    pub(super) kept: ValidSnapshots,
    pub(super) known_damage: Vec<Damage>,
    pub(super) live: Arc<Mutex<LiveBytes>>,
    /// Whether records were copied since the last snapshot.
    pub(super) relocated: bool,
    /// Recent number of segments begun between two snapshots. As many spares will be needed again.
    pub(super) pace: usize,
    /// The replay at the start did not reproduce the earlier state: nothing is recycled. Snapshots are still made,
    /// because the served state is that of the replay.
    pub(super) diverged: Option<Divergence>,
    /// A replay did not reproduce the served state: nothing is made, recycled or compacted.
    pub(super) frozen: bool,
}

impl Snapshotter {
    /// Whether enough was written since the last snapshot, or the disk is full and a snapshot may free space.
    pub fn due(&self) -> bool {
        self.due_at(1)
    }

    /// Like [`Snapshotter::due`], but after `times` as much.
    pub(crate) fn due_at(&self, times: u64) -> bool {
        if self.frozen {
            return false;
        }
        let pending = self.pending(self.covered());
        if !pending.is_empty() && (self.relocated || !self.pool.publish_allowed()) {
            return true;
        }
        let since: u64 = pending.iter().map(|(segment, end)| self.taken(segment, *end)).sum();
        let ratio = self.kept.body_bytes.saturating_mul(self.options.snapshot_after_ratio);
        since >= self.options.snapshot_after_bytes.max(ratio).saturating_mul(times)
    }

    /// Disk space that a segment uses after the last snapshot. A sealed segment counts with its whole file.
    fn taken(&self, segment: &Segment, end: Pos) -> u64 {
        let covered = self.covered();
        match segment.generation == covered.generation() {
            true => u64::from(end.offset() - covered.offset()),
            false if segment.end().is_some() => segment.file.len,
            false => u64::from(end.offset()),
        }
    }

    /// Whether something durable is not in the last snapshot.
    pub fn behind(&self) -> bool {
        !self.frozen && !self.pending(self.covered()).is_empty()
    }

    pub(super) fn covered(&self) -> Pos {
        self.kept.covered.first().copied().unwrap_or(Pos::ZERO)
    }

    /// Segments with durable data after a position, in order, and the end of that data. The last one may still be
    /// appended to, but its durable data does not change.
    fn pending(&self, covered: Pos) -> Vec<(Arc<Segment>, Pos)> {
        let durable = self.marks.durable();
        let durable_end = |segment: &Segment| match segment.end() {
            Some(end) => Some(end.min(durable)),
            None => (segment.generation == durable.generation()).then_some(durable),
        };
        let segments = self.segments.all().into_iter();
        segments
            .filter_map(|segment| Some((durable_end(&segment)?, segment)))
            .filter(|(end, segment)| {
                let first = Pos::new(segment.generation, HEADER_BYTES as u32);
                *end > covered && (*end > first || segment.end() == Some(first))
            })
            .map(|(end, segment)| (segment, end))
            .collect()
    }

    /// Makes a snapshot of everything durable, if there is anything new. `fresh` is an empty core; afterwards it can
    /// list the live records of [`Snapshotter::victims`].
    pub fn run(&mut self, fresh: &mut dyn Replay) -> Result<Option<Snapshotted>, SnapshotError> {
        let pending = self.pending(self.covered()).len();
        if pending == 0 || self.frozen {
            return Ok(None);
        }
        let base = restore_newest(&*self.disk, fresh)?;
        self.kept.covered = base.covered;
        let covered = self.replay(fresh)?;
        // A divergence that the replay at the start also found is part of the served state.
        if let Some(divergence) =
            fresh.divergence().filter(|found| self.diverged.as_ref() != Some(found))
        {
            self.frozen = true;
            return Err(SnapshotError::Diverged(divergence));
        }
        // Slightly more than last time, to avoid doubling a large buffer.
        let like_last = self.kept.body_bytes + self.kept.body_bytes / 8;
        let mut body = Vec::with_capacity(like_last as usize);
        fresh.save(&mut body);
        self.finish(fresh, covered, &body, pending).map(Some)
    }

    /// Makes a snapshot of the state that the serving core saved itself, because the journal cannot be replayed.
    /// `covered` is the end of the journal when it was saved, and must be durable. `fresh` is as for
    /// [`Snapshotter::run`].
    pub fn save_live(
        &mut self,
        fresh: &mut dyn Replay,
        covered: Pos,
        body: &[u8],
    ) -> Result<Snapshotted, SnapshotError> {
        assert!(covered <= self.marks.durable(), "a snapshot covers only what is durable");
        let pending = self.pending(self.covered()).len().max(1);
        // A snapshot that cannot be restored must not replace another.
        fresh.restore(body).map_err(io::Error::other)?;
        self.finish(fresh, covered, body, pending)
    }

    /// Writes a snapshot and recycles segments. `state` is the state in `body`.
    fn finish(
        &mut self,
        state: &dyn Replay,
        covered: Pos,
        body: &[u8],
        pending: usize,
    ) -> Result<Snapshotted, SnapshotError> {
        // Must be set before the file has its name: a backup that finds the file, even if its directory could not be
        // synced, must know which segments it needs. The previous snapshot needs no more.
        *self.live.lock() = LiveBytes::of(state);
        self.write(covered, body)?;
        // After a failed directory sync, the same snapshot is made again, but counted once.
        if self.covered() != covered {
            self.kept.covered.insert(0, covered);
        }
        self.kept.body_bytes = body.len() as u64;
        self.pool.keep_free(2 * self.kept.body_bytes);
        self.remove_old()?;
        self.relocated = false;
        // Decreases slowly: a pause between two bursts is not the end of them.
        self.pace = (pending - 1).max(self.pace / 2);
        let recycled = self.recycle();
        Ok(Snapshotted { covered, bytes: body.len() as u64, recycled })
    }

    fn replay(&self, fresh: &mut dyn Replay) -> Result<Pos, SnapshotError> {
        let mut covered = self.covered();
        let (mut piece, mut bytes) = (Vec::new(), Vec::new());
        let mut not_understood = None;
        let mut apply = |fresh: &mut dyn Replay, scan: &Scanner<'_>| {
            for (pos, kind, body) in scan.group() {
                if not_understood.is_none() {
                    let applied = fresh.try_apply(pos, kind, body);
                    not_understood = applied.err().map(|why| (pos, why));
                }
            }
        };
        for (segment, end) in self.pending(covered) {
            let same = segment.generation == covered.generation();
            if !same && segment.previous_end != covered {
                return Err(SnapshotError::NoBase);
            }
            let from = if same { covered.offset() } else { HEADER_BYTES as u32 };
            let from =
                walk(&segment, from, end.offset(), &mut piece, &mut |scan| apply(fresh, scan))
                    .map_err(|error| self.unreadable(&segment, error))?;
            covered = end;
            if from == end.offset() {
                continue;
            }
            // A group is broken: read the whole segment to decide.
            segment
                .read_all(end.offset(), &mut bytes)
                .map_err(|error| self.unreadable(&segment, error))?;
            let mut scan = Scanner::new(&bytes, &segment, from, end.offset());
            loop {
                match scan.next() {
                    ScanStep::End => break,
                    ScanStep::Group => apply(fresh, &scan),
                    ScanStep::Broken => {
                        let from = scan.pos();
                        scan.skip_damage();
                        let damage = Damage { file: segment.file.name(), from, to: scan.pos() };
                        // Damage that recovery skipped is missing in the served state, too.
                        if !self.known_damage.contains(&damage) {
                            self.quarantine(&segment)?;
                            return Err(SnapshotError::Damaged(damage));
                        }
                        fresh.damage_skipped(damage.from, damage.to);
                    }
                }
            }
        }
        match not_understood {
            Some((pos, why)) => Err(SnapshotError::NotUnderstood(pos, why)),
            None => Ok(covered),
        }
    }

    fn unreadable(&self, segment: &Segment, error: io::Error) -> SnapshotError {
        match self.quarantine(segment) {
            Ok(()) => SnapshotError::Unreadable { file: segment.file.name(), error },
            Err(error) => error.into(),
        }
    }

    /// Quarantines a damaged segment. Once a snapshot covers the damage, only the durable mark shows it, so this must
    /// succeed first.
    fn quarantine(&self, segment: &Segment) -> io::Result<()> {
        segment.quarantine();
        segment.mark_quarantine(&*self.disk)
    }

    fn write(&self, covered: Pos, body: &[u8]) -> io::Result<()> {
        let temporary = temporary_name(covered);
        let written = self.write_file(&temporary, covered, body);
        if let Err(error) = written {
            let _ = self.disk.remove(&temporary); // unfinished, and ours
            return Err(error);
        }
        self.disk.rename(&temporary, &file_name(covered))?;
        self.disk.sync_dir()
    }

    fn write_file(&self, name: &str, covered: Pos, body: &[u8]) -> io::Result<()> {
        let file = self.disk.create(name)?;
        let prefix = prefix(covered, body.len());
        file.write_at(&prefix, 0)?;
        let mut crc = crc32c::crc32c(&prefix);
        let mut at = prefix.len() as u64;
        for piece in body.chunks(PIECE_BYTES) {
            file.write_at(piece, at)?;
            crc = crc32c::crc32c_append(crc, piece);
            at += piece.len() as u64;
        }
        file.write_at(&crc.to_le_bytes(), at)?;
        file.sync_all()
    }

    /// Whether nothing may be recycled, because a replay did not reproduce the state.
    pub(super) fn holds_all(&self) -> bool {
        self.frozen || self.diverged.is_some()
    }

    fn remove_old(&mut self) -> io::Result<()> {
        self.kept.covered.truncate(KEPT);
        let (Some(&oldest), true) = (self.kept.covered.last(), self.kept.covered.len() == KEPT)
        else {
            return Ok(());
        };
        for (covered, name) in list(&*self.disk)? {
            if covered < oldest {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Recycles all segments that are needed neither for replaying a kept snapshot, nor by a live record, nor by a
    /// reader.
    pub(super) fn recycle(&self) -> usize {
        if self.holds_all() {
            return 0;
        }
        // With a single snapshot, the whole journal is its fallback.
        let (Some(&oldest), true) = (self.kept.covered.last(), self.kept.covered.len() >= KEPT)
        else {
            return 0;
        };
        let live = self.live.lock();
        let free = |segment: &Segment| {
            segment.end().is_some_and(|end| end <= oldest)
                && !segment.is_quarantined()
                && !live.has(segment.generation)
        };
        let released = self.segments.release(free);
        let count = released.len();
        released.into_iter().for_each(|file| self.pool.give_back(file));
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_truncation_and_every_flipped_bit_is_detected() {
        let mut bytes = prefix(Pos::new(3, 5000), 4);
        bytes.extend_from_slice(b"body");
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        let snapshot = Snapshot { covered: Pos::new(3, 5000), body: b"body" };
        assert_eq!(decode_snapshot(&bytes), Ok(snapshot));
        for cut in 0..bytes.len() {
            assert!(decode_snapshot(&bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_snapshot(&bytes).is_err());
        }
    }
}
