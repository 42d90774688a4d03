//! A backup: the journal at one position, as one stream of bytes. `restore` reads it.
//!
//! ```text
//! | magic 8 | version 4 | reserved 4 | position 8 |
//! | name length 2 | name | content length 8 | content … | crc 4 |    once per file
//! | 0 2           | number of files 8                   | crc 4 |    and nothing behind it
//! ```
//! Little endian. Each `crc` is the CRC32C of all bytes before it, from the first one on, so truncation, changed bytes,
//! omissions and reordering are detected.
//!
//! A backup contains the newest snapshot and, of each segment that the snapshot or the journal after it needs, what was
//! durable when the backup began. Segments are pinned until they are read, and each of their frames is verified: a
//! finished backup can be restored.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::compact::LiveBytes;
use super::scrub::first_damage;
use super::segment::{Segment, Segments};
use super::snapshot;
use super::{Marks, Pos};
use crate::disk::{Disk, DiskFile};

pub(super) const MAGIC: &[u8; 8] = b"maloteB1";
pub(super) const VERSION: u32 = 1;
/// The stream is read and written in pieces of this size.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Snapshots may be replaced while a backup begins; this is how often it is retried.
const TRIES: usize = 5;

/// Makes backups. Cheap to clone.
#[derive(Clone)]
pub struct Backups {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) segments: Segments,
    pub(super) marks: Arc<Marks>,
    pub(super) live: Arc<Mutex<LiveBytes>>,
}

impl Backups {
    /// Begins a backup of everything that is durable now.
    pub fn begin(&self) -> io::Result<Backup> {
        self.begin_between(&mut || {})
    }

    /// Runs `between` after the segments are pinned and before the position is taken. The journal may grow there.
    fn begin_between(&self, between: &mut dyn FnMut()) -> io::Result<Backup> {
        for _ in 0..TRIES {
            // This order matters: segments that are recycled before this point are needed by no state at `position` or
            // later.
            let (covered, snapshot) = self.newest_snapshot()?;
            let mut segments = self.segments.all();
            between();
            let position = self.marks.durable();
            // Segments that were begun since may contain durable data.
            let pinned_to = segments.last().map_or(0, |segment| segment.generation);
            let newer = self.segments.all().into_iter();
            segments.extend(newer.filter(|segment| segment.generation > pinned_to));
            let live = self.live.lock();
            segments.retain(|segment| {
                segment.generation <= position.generation()
                    && (segment.generation >= covered.generation() || live.has(segment.generation))
            });
            drop(live);
            // Otherwise two newer snapshots were made meanwhile, and the journal after this one was recycled.
            if hold_all(&segments, covered, position) {
                return Self::of(covered, snapshot, segments, position);
            }
        }
        Err(io::Error::other("snapshots are replaced too quickly to be copied"))
    }

    fn of(
        covered: Pos,
        snapshot: Option<Arc<dyn DiskFile>>,
        segments: Vec<Arc<Segment>>,
        position: Pos,
    ) -> io::Result<Backup> {
        if let Some(damaged) = segments.iter().find(|segment| segment.is_quarantined()) {
            return Err(damaged_error(damaged));
        }
        let mut head = Vec::new();
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&0_u32.to_le_bytes());
        head.extend_from_slice(&position.get().to_le_bytes());
        let snapshot = snapshot.map(|file| (snapshot::file_name(covered), file));
        let (step, segments) = (BackupStep::Between, VecDeque::from(segments));
        Ok(Backup { position, covered, snapshot, segments, step, head, crc: 0, files: 0 })
    }

    fn newest_snapshot(&self) -> io::Result<(Pos, Option<Arc<dyn DiskFile>>)> {
        for _ in 0..TRIES {
            let newest = snapshot::list(&*self.disk)?.into_iter().next();
            let Some((covered, name)) = newest else { return Ok((Pos::ZERO, None)) };
            match self.disk.open(&name) {
                // An open file stays readable if a newer snapshot replaces it.
                Ok(file) => return Ok((covered, Some(file))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("snapshots are replaced too quickly to be opened"))
    }
}

/// Whether these segments, in order, contain everything between a snapshot and a position.
fn hold_all(segments: &[Arc<Segment>], covered: Pos, position: Pos) -> bool {
    let mut last = None;
    for segment in segments.iter().filter(|s| s.generation >= covered.generation()) {
        let follows = match last {
            Some(last) => segment.previous_end.generation() == last,
            None => segment.generation == covered.generation() || segment.previous_end == covered,
        };
        if !follows {
            return false;
        }
        last = Some(segment.generation);
    }
    last == Some(position.generation())
}

fn damaged_error(segment: &Segment) -> io::Error {
    let text = format!(
        "{} is damaged, so a backup would be incomplete: run `malote verify` for details",
        segment.file.name()
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A backup in progress: an iterator of pieces of at most 256 KiB. Reading blocks on the disk.
pub struct Backup {
    position: Pos,
    covered: Pos,
    snapshot: Option<(String, Arc<dyn DiskFile>)>,
    segments: VecDeque<Arc<Segment>>,
    step: BackupStep,
    /// The next bytes that are not content of a file.
    head: Vec<u8>,
    crc: u32,
    files: u64,
}

enum BackupStep {
    /// A file that is streamed.
    Streaming {
        file: Arc<dyn DiskFile>,
        at: u64,
        len: u64,
    },
    /// A segment that was read and verified completely.
    Verified {
        bytes: Vec<u8>,
        at: usize,
    },
    Between,
    Done,
}

impl Backup {
    /// The backup contains everything before this position, and nothing else.
    pub fn position(&self) -> Pos {
        self.position
    }

    fn entry(&mut self, name: &str, len: u64) {
        self.head.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.head.extend_from_slice(name.as_bytes());
        self.head.extend_from_slice(&len.to_le_bytes());
        self.files += 1;
    }

    /// Appends the checksum of everything so far, including the current head.
    fn seal(&mut self) {
        let crc = crc32c::crc32c_append(self.crc, &self.head);
        self.head.extend_from_slice(&crc.to_le_bytes());
    }

    fn give(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        bytes
    }

    /// Begins the next file, or ends the stream.
    fn advance(&mut self) -> io::Result<()> {
        if let Some((name, file)) = self.snapshot.take() {
            let len = file.len()?;
            self.entry(&name, len);
            self.step = BackupStep::Streaming { file, at: 0, len };
            return Ok(());
        }
        let Some(segment) = self.segments.pop_front() else {
            self.head.extend_from_slice(&0_u16.to_le_bytes());
            self.head.extend_from_slice(&self.files.to_le_bytes());
            self.seal();
            self.step = BackupStep::Done;
            return Ok(());
        };
        let bytes = self.verified(&segment)?;
        self.entry(&segment.file.name(), bytes.len() as u64);
        self.step = BackupStep::Verified { bytes, at: 0 };
        Ok(())
    }

    /// The verified bytes of a segment, up to the backup's position.
    fn verified(&self, segment: &Segment) -> io::Result<Vec<u8>> {
        let last = segment.generation == self.position.generation();
        let end = if last { Some(self.position) } else { segment.end() };
        let end = end.unwrap_or(self.position).offset();
        let mut bytes = Vec::new();
        segment.read_all(end, &mut bytes)?;
        let found = first_damage(segment, &bytes, end).map_err(|_| damaged_error(segment))?;
        // The end of old segments may be unknown.
        if found != end && segment.generation >= self.covered.generation() {
            return Err(damaged_error(segment));
        }
        bytes.truncate(found as usize);
        Ok(bytes)
    }

    fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if !self.head.is_empty() {
                let head = std::mem::take(&mut self.head);
                return Ok(Some(self.give(head)));
            }
            match &mut self.step {
                BackupStep::Between => self.advance()?,
                BackupStep::Done => return Ok(None),
                BackupStep::Streaming { file, at, len } if *at < *len => {
                    let mut bytes = vec![0; PIECE_BYTES.min((*len - *at) as usize)];
                    if file.read_at(&mut bytes, *at)? < bytes.len() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    *at += bytes.len() as u64;
                    return Ok(Some(self.give(bytes)));
                }
                BackupStep::Verified { bytes, at } if *at < bytes.len() => {
                    let piece = bytes[*at..bytes.len().min(*at + PIECE_BYTES)].to_vec();
                    *at += piece.len();
                    return Ok(Some(self.give(piece)));
                }
                BackupStep::Streaming { .. } | BackupStep::Verified { .. } => {
                    self.step = BackupStep::Between;
                    self.seal();
                }
            }
        }
    }
}

impl Iterator for Backup {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.piece().transpose();
        if matches!(piece, Some(Err(_))) {
            (self.step, self.head) = (BackupStep::Done, Vec::new());
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemoryDisk;
    use crate::journal::{Options, Recovered, Replay, recover, restore};

    struct Nothing;

    impl Replay for Nothing {
        fn restore(&mut self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }
        fn apply(&mut self, _: Pos, _: u8, _: &[u8]) {}
        fn save(&self, _: &mut Vec<u8>) {}
        fn live(&self, _: &mut dyn FnMut(Pos, u64)) {}
    }

    fn commit(journal: &mut Recovered, bytes: usize) {
        journal.appender.begin();
        journal.appender.frame(1, |out| out.resize(out.len() + bytes, 7));
        journal.appender.end(false).unwrap();
        for chunk in journal.appender.take().unwrap() {
            journal.writer.write(&chunk).unwrap();
        }
        journal.syncer.sync().unwrap();
    }

    #[test]
    fn segments_created_while_a_backup_starts_are_included() {
        let options = Options {
            segment_bytes: 16 << 10,
            first_segment_bytes: 16 << 10,
            free_bytes_min: 0,
            ..Options::default()
        };
        for commits in 0..6 {
            let disk = Arc::new(MemoryDisk::new());
            let mut journal = recover(disk, &options, &mut Nothing).unwrap();
            commit(&mut journal, 100);
            let backups = journal.backups.clone();
            // Each commit except the first begins a segment.
            let backup = backups.begin_between(&mut || {
                (0..commits).for_each(|_| commit(&mut journal, 9000));
            });
            let bytes: Vec<u8> = backup.unwrap().flat_map(|piece| piece.unwrap()).collect();
            let restored = restore(&mut &bytes[..], &MemoryDisk::new()).unwrap();
            assert_eq!(restored.position, journal.marks.durable());
            assert_eq!(restored.files, commits.max(1));
        }
    }
}
