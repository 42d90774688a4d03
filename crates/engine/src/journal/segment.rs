//! Segments in use, shared by all readers of the journal.
//!
//! A [`SegmentFile`] is a file with a fixed name. A [`Segment`] is a file that contains one generation. Holding an
//! `Arc<Segment>` prevents the file from being recycled; this is all that pinning does.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::reading::{FrameReader, ReadMode};
use super::{Header, Pos, SEGMENT_BYTES_MAX};
use crate::disk::{Disk, DiskFile};

/// The size of a read when searching for any content.
const BLANK_BYTES: u32 = 1 << 20;

/// The block size of disks and of the page cache. With another block size, writes are only slower.
pub(super) const BLOCK_BYTES: usize = 4096;

/// A segment file, whatever it contains.
pub(super) struct SegmentFile {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) number: u32,
    pub(super) len: u64,
    /// Its length or its directory entry may not be durable yet.
    pub(super) fresh: bool,
}

impl SegmentFile {
    pub(super) fn name(&self) -> String {
        file_name(self.number)
    }

    /// The end of the space for frames. Also the end of the last frame must fit into a [`Pos`].
    pub(super) fn limit(&self) -> u32 {
        self.len.min(SEGMENT_BYTES_MAX - 1) as u32
    }
}

pub(super) fn file_name(number: u32) -> String {
    format!("segment-{number:06}.log")
}

pub(super) fn file_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// The file that marks a segment file as quarantined, also for later runs.
pub(super) fn quarantine_name(number: u32) -> String {
    format!("segment-{number:06}.damaged")
}

pub(super) fn quarantine_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("segment-")?.strip_suffix(".damaged")?.parse().ok()?;
    (quarantine_name(number) == name).then_some(number)
}

/// A file that contains a generation.
pub(super) struct Segment {
    pub(super) file: SegmentFile,
    pub(super) generation: u64,
    pub(super) previous_end: Pos,
    pub(super) salt: u32,
    /// The end of its frames; 0 while it is being appended to.
    end: AtomicU32,
    quarantined: AtomicBool,
}

impl Segment {
    pub(super) fn new(file: SegmentFile, header: &Header) -> Self {
        let Header { generation, previous_end, salt, .. } = *header;
        let (end, quarantined) = (AtomicU32::new(0), AtomicBool::new(false));
        Segment { file, generation, previous_end, salt, end, quarantined }
    }

    pub(super) fn seal(&self, end: u32) {
        self.end.store(end, Ordering::Release);
    }

    /// The end of a sealed segment.
    pub(super) fn end(&self) -> Option<Pos> {
        match self.end.load(Ordering::Acquire) {
            0 => None,
            end => Some(Pos::new(self.generation, end)),
        }
    }

    /// Quarantines the file: it is evidence, and is never recycled or deleted.
    pub(super) fn quarantine(&self) {
        self.quarantined.store(true, Ordering::Relaxed);
    }

    /// Makes the quarantine durable: once a snapshot covers the damage, no later run would find it.
    pub(super) fn mark_quarantine(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.create(&quarantine_name(self.file.number)) {
            Ok(_) => disk.sync_dir(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_quarantined(&self) -> bool {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Returns an error if the file was removed: data written to it would be lost with the process.
    pub(super) fn check_linked(&self) -> io::Result<()> {
        if self.file.file.is_linked()? {
            return Ok(());
        }
        let text = format!("{} was removed while the server was running", self.file.name());
        Err(io::Error::new(io::ErrorKind::NotFound, text))
    }

    /// Reads up to `bytes` bytes from `at` on.
    pub(super) fn read_some(&self, at: u32, bytes: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(bytes as usize, 0);
        let got = self.file.file.read_at(buf, at.into())?;
        buf.truncate(got);
        Ok(())
    }

    /// Whether nothing was written in `at..end`.
    pub(super) fn is_blank(&self, mut at: u32, end: u32, buf: &mut Vec<u8>) -> io::Result<bool> {
        while at < end {
            self.read_some(at, BLANK_BYTES.min(end - at), buf)?;
            if buf.is_empty() || buf.iter().any(|&byte| byte != 0) {
                return Ok(buf.is_empty());
            }
            at += buf.len() as u32;
        }
        Ok(true)
    }

    /// Reads from the start of the file up to `end`.
    pub(super) fn read_all(&self, end: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(end as usize, 0);
        let got = self.file.file.read_at(buf, 0)?;
        buf.truncate(got);
        Ok(())
    }
}

pub(super) fn unreadable(pos: Pos, name: &str, error: &dyn std::error::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("journal position {pos} in {name}: {error}"))
}

/// All segments in use. Cheap to clone; clones share the same segments.
#[derive(Clone, Default)]
pub struct Segments {
    by_generation: Arc<Mutex<BTreeMap<u64, Arc<Segment>>>>,
}

impl Segments {
    /// Reads and verifies the frame at `pos`. Returns its kind and body.
    pub fn read(&self, pos: Pos) -> io::Result<(u8, Bytes)> {
        self.reading(false).frame(pos, ReadMode::Blocking)
    }

    /// Prevents the segment of `pos` from being recycled until the pin is dropped.
    pub fn pin(&self, pos: Pos) -> io::Result<Pin> {
        self.pin_all(pos, &[])
    }

    /// Like [`Segments::pin`], for a record and the older records under it.
    pub fn pin_all(&self, pos: Pos, under: &[Pos]) -> io::Result<Pin> {
        let segment = self.find(pos)?;
        let under = under.iter().map(|&pos| self.find(pos)).collect::<io::Result<_>>()?;
        Ok(Pin { segment, _under: under })
    }

    /// A reader for one message, or for `many` that are close together.
    pub fn reading(&self, many: bool) -> FrameReader {
        FrameReader::new(self.clone(), many)
    }

    /// A reader for these positions.
    pub(crate) fn reading_of(&self, positions: Arc<[Pos]>) -> FrameReader {
        FrameReader::of(self.clone(), positions)
    }

    pub(super) fn find(&self, pos: Pos) -> io::Result<Arc<Segment>> {
        self.by_generation.lock().get(&pos.generation()).cloned().ok_or_else(|| {
            let text = format!("journal position {pos}: its segment was recycled");
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }

    /// Returns an error if any of the files was removed.
    pub(crate) fn check_linked(&self) -> io::Result<()> {
        self.all().iter().try_for_each(|segment| segment.check_linked())
    }

    /// The number of segments, including the current one.
    pub fn count(&self) -> usize {
        self.by_generation.lock().len()
    }

    pub fn bytes(&self) -> u64 {
        self.by_generation.lock().values().map(|segment| segment.file.len).sum()
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        self.by_generation.lock().insert(segment.generation, segment);
    }

    pub(super) fn all(&self) -> Vec<Arc<Segment>> {
        self.by_generation.lock().values().cloned().collect()
    }

    /// Removes all segments that `free` accepts and that are not pinned.
    pub(super) fn release(&self, free: impl Fn(&Segment) -> bool) -> Vec<SegmentFile> {
        let mut map = self.by_generation.lock();
        let candidates: Vec<u64> = map
            .values()
            .filter(|segment| free(segment))
            .map(|segment| segment.generation)
            .collect();
        let mut released = Vec::new();
        for generation in candidates {
            let Some(segment) = map.remove(&generation) else { continue };
            // New references are made only under this lock, or from an existing one.
            match Arc::try_unwrap(segment) {
                // A released segment was durable, including its length and name.
                Ok(segment) => released.push(SegmentFile { fresh: false, ..segment.file }),
                Err(pinned) => drop(map.insert(generation, pinned)),
            }
        }
        released
    }
}

/// Prevents segments from being recycled, so that their records stay readable.
#[derive(Clone)]
pub struct Pin {
    segment: Arc<Segment>,
    /// For older records; usually empty, without an allocation.
    _under: Box<[Arc<Segment>]>,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.segment.generation)
    }
}
