//! Segments in use, shared by everybody who reads the journal.
//!
//! A [`SegmentFile`] is a file with a fixed name; a [`Segment`] is a file that
//! currently holds one generation. Holding an `Arc<Segment>` keeps the file
//! from being recycled, which is all that pinning is.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::reading::{Patience, Reading};
use super::{Header, Pos, SEGMENT_BYTES_MAX};
use crate::disk::{Disk, DiskFile};

/// Read at once when a segment is looked through for anything at all.
const BLANK_BYTES: u32 = 1 << 20;

/// What a disk, and the memory over it, has whole or not at all; a file system with other blocks is slower at most.
pub(super) const BLOCK_BYTES: usize = 4096;

/// A segment file, whatever it holds.
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

    /// One past the last byte that frames may use. A place must fit a [`Pos`],
    /// also when it is the end of the last frame.
    pub(super) fn limit(&self) -> u32 {
        self.len.min(SEGMENT_BYTES_MAX - 1) as u32
    }
}

pub(super) fn file_name(number: u32) -> String {
    format!("segment-{number:06}.log")
}

/// The number in a segment file's name.
pub(super) fn file_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// The file that marks a segment file as quarantined, also for later runs.
pub(super) fn quarantine_name(number: u32) -> String {
    format!("segment-{number:06}.damaged")
}

/// The number in a quarantine mark's name.
pub(super) fn quarantine_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("segment-")?.strip_suffix(".damaged")?.parse().ok()?;
    (quarantine_name(number) == name).then_some(number)
}

/// A file that holds a generation.
pub(super) struct Segment {
    pub(super) file: SegmentFile,
    pub(super) generation: u64,
    pub(super) previous_end: Pos,
    pub(super) salt: u32,
    /// Where its frames end; 0 while it is appended to.
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

    /// Where a sealed segment ends.
    pub(super) fn end(&self) -> Option<Pos> {
        match self.end.load(Ordering::Acquire) {
            0 => None,
            end => Some(Pos::new(self.generation, end)),
        }
    }

    /// From now on the file is evidence: never recycled, never deleted.
    pub(super) fn quarantine(&self) {
        self.quarantined.store(true, Ordering::Relaxed);
    }

    /// Makes the quarantine last: once a snapshot covers the damage, no later run would find it.
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

    /// An error if somebody removed the file: what is written there now goes when the process does.
    pub(super) fn check_linked(&self) -> io::Result<()> {
        if self.file.file.is_linked()? {
            return Ok(());
        }
        let text = format!("{} was removed underneath the server", self.file.name());
        Err(io::Error::new(io::ErrorKind::NotFound, text))
    }

    /// So many bytes from `at` on, fewer if the file is shorter.
    pub(super) fn read_some(&self, at: u32, bytes: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(bytes as usize, 0);
        let got = self.file.file.read_at(buf, at.into())?;
        buf.truncate(got);
        Ok(())
    }

    /// Whether nothing was ever written in `at..end`.
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

    /// The bytes from the start of the file to `end`, fewer if the file is shorter.
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

/// Every segment in use. Cheap to clone; all clones see the same segments.
#[derive(Clone, Default)]
pub struct Segments {
    by_generation: Arc<Mutex<BTreeMap<u64, Arc<Segment>>>>,
}

impl Segments {
    /// Reads and verifies the frame at `pos`: its kind and body.
    pub fn read(&self, pos: Pos) -> io::Result<(u8, Bytes)> {
        self.reading(false).frame(pos, Patience::Blocking)
    }

    /// Keeps the segment of `pos` from being recycled until the pin is dropped.
    pub fn pin(&self, pos: Pos) -> io::Result<Pin> {
        self.pin_all(pos, &[])
    }

    /// Keeps the segments of a record and of those under it from being recycled until the pin is dropped.
    pub fn pin_all(&self, pos: Pos, under: &[Pos]) -> io::Result<Pin> {
        let segment = self.find(pos)?;
        let under = under.iter().map(|&pos| self.find(pos)).collect::<io::Result<_>>()?;
        Ok(Pin { segment, _under: under })
    }

    /// A reader of one message, or of `many` that stand near one another.
    pub fn reading(&self, many: bool) -> Reading {
        Reading::new(self.clone(), many)
    }

    /// A reader of these, which says before each which one it is.
    pub(crate) fn reading_of(&self, positions: Arc<[Pos]>) -> Reading {
        Reading::of(self.clone(), positions)
    }

    pub(super) fn find(&self, pos: Pos) -> io::Result<Arc<Segment>> {
        self.by_generation.lock().get(&pos.generation()).cloned().ok_or_else(|| {
            let text = format!("journal position {pos}: its segment is no longer there");
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }

    /// An error if somebody removed the file of any of them.
    pub(crate) fn check_linked(&self) -> io::Result<()> {
        self.all().iter().try_for_each(|segment| segment.check_linked())
    }

    /// How many segments are in use, the one appended to included.
    pub fn count(&self) -> usize {
        self.by_generation.lock().len()
    }

    /// Bytes of the files in use.
    pub fn bytes(&self) -> u64 {
        self.by_generation.lock().values().map(|segment| segment.file.len).sum()
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        self.by_generation.lock().insert(segment.generation, segment);
    }

    pub(super) fn all(&self) -> Vec<Arc<Segment>> {
        self.by_generation.lock().values().cloned().collect()
    }

    /// Takes out every segment that `free` allows and nobody else holds.
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
                // Whatever is released was durable, its length and name included.
                Ok(segment) => released.push(SegmentFile { fresh: false, ..segment.file }),
                Err(pinned) => drop(map.insert(generation, pinned)),
            }
        }
        released
    }
}

/// Keeps segments from being recycled: what stands in them can be read as long as this is held.
#[derive(Clone)]
pub struct Pin {
    segment: Arc<Segment>,
    /// Of older records; without any it takes no memory.
    _under: Box<[Arc<Segment>]>,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.segment.generation)
    }
}
