//! Spare segment files. They are created in advance, zero-filled and synced, so that beginning a segment is cheap and
//! an fdatasync in it changes no metadata. Recycled files are used first.
//!
//! The pool also knows whether new segments can be created. If not, the last spares are reserved for settling, and
//! publishing stops before they are used.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Options;
use super::segment::{BLOCK_BYTES, SegmentFile, file_name};
use crate::disk::{Disk, DiskFile};

/// Zeros are written in pieces of this size, so that stopping is prompt.
const FILL_BYTES: u64 = 1 << 20;

/// Spare segment files. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    disk: Arc<dyn Disk>,
    options: Options,
    files: Mutex<SpareFiles>,
    wanted: Condvar,
    /// Whether no new segment can be created. `why` has the reason.
    blocked: AtomicBool,
    why: Mutex<Option<String>>,
    /// Bytes on the disk that spares must leave free.
    free_bytes_min: AtomicU64,
}

#[derive(Default)]
struct SpareFiles {
    ready: Vec<SegmentFile>,
    /// Files shorter than a segment. The spare maker grows them.
    short: Vec<SegmentFile>,
    next_number: u32,
    stopped: bool,
}

impl Pool {
    pub(super) fn new(disk: Arc<dyn Disk>, options: Options, next_number: u32) -> Self {
        let files = Mutex::new(SpareFiles { next_number, ..SpareFiles::default() });
        let (wanted, blocked, why) = (Condvar::new(), AtomicBool::new(false), Mutex::default());
        let free_bytes_min = AtomicU64::new(options.free_bytes_min);
        let inner = PoolInner { disk, options, files, wanted, blocked, why, free_bytes_min };
        Pool { inner: Arc::new(inner) }
    }

    /// Keeps at least this much free: a full disk without space for a snapshot could never be cleaned up.
    pub(super) fn keep_free(&self, bytes: u64) {
        let bytes = bytes.max(self.inner.options.free_bytes_min);
        self.inner.free_bytes_min.store(bytes, Ordering::Relaxed);
    }

    /// The number of ready spares.
    pub fn spares(&self) -> usize {
        self.inner.files.lock().ready.len()
    }

    /// Bytes of all spare files, including short ones.
    pub fn spare_bytes(&self) -> u64 {
        let files = self.inner.files.lock();
        files.ready.iter().chain(&files.short).map(|file| file.len).sum()
    }

    /// Free bytes on the disk; 0 if unknown.
    pub fn free_bytes(&self) -> u64 {
        self.inner.disk.free_bytes().unwrap_or(0)
    }

    /// False while the last spares are reserved for settling and no new ones can be created.
    pub fn publish_allowed(&self) -> bool {
        !self.inner.blocked.load(Ordering::Relaxed)
            || self.spares() > self.inner.options.spares_reserved
    }

    /// Why no new segment can be created, if not because the disk is full.
    pub fn blocked_by(&self) -> Option<String> {
        self.inner.why.lock().clone()
    }

    /// Checks whether the disk is full, so that no publish is accepted by mistake.
    pub(super) fn probe(&self) -> io::Result<()> {
        let room = self.inner.has_room(self.inner.options.segment_bytes)?;
        self.inner.block(!room, None);
        Ok(())
    }

    pub(super) fn give_back(&self, file: SegmentFile) {
        let mut files = self.inner.files.lock();
        if file.len < self.inner.options.segment_bytes {
            files.short.push(file);
        } else {
            files.ready.push(file);
        }
        self.inner.wanted.notify_all();
    }

    /// Removes spares until `keep` are left. Returns how many were removed.
    pub(super) fn trim(&self, keep: usize) -> io::Result<usize> {
        let mut removed = 0;
        loop {
            let mut files = self.inner.files.lock();
            if files.ready.len() <= keep {
                break;
            }
            let Some(file) = files.ready.pop() else { break };
            drop(files);
            // It contains nothing. If its name reappears after a crash, it is a spare again.
            self.inner.disk.remove(&file.name())?;
            removed += 1;
        }
        if removed > 0 {
            self.inner.disk.sync_dir()?;
        }
        Ok(removed)
    }

    /// Returns a file for the next segment with space for `bytes_min`: a spare, a new file, or one of the reserved
    /// spares.
    pub(super) fn take(&self, bytes_min: u64) -> io::Result<SegmentFile> {
        let inner = &*self.inner;
        let mut files = inner.files.lock();
        inner.wanted.notify_all();
        if files.ready.len() > inner.options.spares_reserved {
            return files.take_ready(bytes_min).ok_or_else(no_space);
        }
        match inner.fresh(&mut files, bytes_min.max(inner.options.segment_bytes)) {
            Ok(file) => Ok(file),
            Err(error) => {
                inner.block(true, blocked_by(&error));
                files.take_ready(bytes_min).ok_or(error)
            }
        }
    }

    /// Returns a file for the first segment after a start: any spare, or else a small new file, so that starting is
    /// fast and works on a full disk.
    pub(super) fn take_first(&self) -> io::Result<SegmentFile> {
        let inner = &*self.inner;
        let mut files = inner.files.lock();
        let usable = |file: &SegmentFile| file.len >= inner.options.first_segment_bytes;
        if let Some(at) = files.short.iter().position(usable) {
            return Ok(files.short.swap_remove(at));
        }
        if let Some(file) = files.take_ready(0) {
            return Ok(file);
        }
        let number = files.number();
        make(&*inner.disk, number, inner.options.first_segment_bytes)
    }
}

/// Why a file cannot be created, as a text for the user; `None` if the disk is full.
pub(crate) fn blocked_by(error: &io::Error) -> Option<String> {
    use rustix::io::Errno;
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    match error.kind() {
        io::ErrorKind::StorageFull => None,
        _ if is(Errno::MFILE) => Some(format!(
            "the server has no file descriptor left, raise its limit of open files ({error})"
        )),
        _ if is(Errno::NFILE) => Some(format!("the system has no file descriptor left ({error})")),
        _ => Some(error.to_string()),
    }
}

fn no_space() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "no spare segment and no room for a new one")
}

fn make(disk: &dyn Disk, number: u32, len: u64) -> io::Result<SegmentFile> {
    let file = disk.create(&file_name(number))?;
    if let Err(error) = file.set_len(len) {
        let _ = disk.remove(&file_name(number)); // empty, and ours
        return Err(error);
    }
    Ok(SegmentFile { file, number, len, fresh: true })
}

impl SpareFiles {
    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn take_ready(&mut self, bytes_min: u64) -> Option<SegmentFile> {
        let at = self.ready.iter().position(|file| file.len >= bytes_min)?;
        Some(self.ready.remove(at))
    }
}

impl PoolInner {
    fn block(&self, blocked: bool, why: Option<String>) {
        // The reason must be set before the flag.
        *self.why.lock() = why;
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let keep = self.free_bytes_min.load(Ordering::Relaxed);
        Ok(self.disk.free_bytes()? >= bytes.saturating_add(keep))
    }

    /// Creates a file that is not zero-filled. Syncing it is slower, but there is no time to fill it.
    fn fresh(&self, files: &mut SpareFiles, len: u64) -> io::Result<SegmentFile> {
        if !self.has_room(len)? {
            return Err(no_space());
        }
        if let Some(mut file) = files.short.pop() {
            file.file.set_len(len)?;
            (file.len, file.fresh) = (len, true);
            return Ok(file);
        }
        let number = files.number();
        make(&*self.disk, number, len)
    }
}

/// Zeros for one piece, aligned to a block for direct I/O.
fn zeros(room: &mut Vec<u8>) -> &[u8] {
    room.resize(FILL_BYTES as usize + BLOCK_BYTES, 0);
    let block_at = room.as_ptr().align_offset(BLOCK_BYTES);
    &room[block_at..block_at + FILL_BYTES as usize]
}

/// Keeps enough spares ready. Each [`SpareMaker::step`] writes a bounded amount.
pub struct SpareMaker {
    pool: Pool,
    filling: Option<UnfinishedSpare>,
    zeros: Vec<u8>,
}

struct UnfinishedSpare {
    file: Arc<dyn DiskFile>,
    number: u32,
    done: u64,
    created: bool,
}

/// The result of [`SpareMaker::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpareStep {
    /// There are enough spares.
    Enough,
    /// A piece was written; call it again.
    Worked,
    /// There is no space for another spare.
    Full,
}

impl SpareMaker {
    pub(super) fn new(pool: Pool) -> Self {
        SpareMaker { pool, filling: None, zeros: Vec::new() }
    }

    /// Writes at most one piece of one spare.
    pub fn step(&mut self) -> io::Result<SpareStep> {
        let result = self.try_step();
        match &result {
            Ok(kept) => self.pool.inner.block(*kept == SpareStep::Full, None),
            Err(error) => self.pool.inner.block(true, blocked_by(error)),
        }
        if result.is_err() {
            self.drop_unfinished();
        }
        match result {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(SpareStep::Full),
            other => other,
        }
    }

    fn try_step(&mut self) -> io::Result<SpareStep> {
        let inner = self.pool.inner.clone();
        let len = inner.options.segment_bytes;
        let filling = match &mut self.filling {
            Some(filling) => filling,
            none => {
                let mut files = inner.files.lock();
                if files.ready.len() >= inner.options.spares {
                    return Ok(SpareStep::Enough);
                }
                if !inner.has_room(len)? {
                    return Ok(SpareStep::Full);
                }
                let filling = if let Some(short) = files.short.pop() {
                    UnfinishedSpare {
                        file: short.file,
                        number: short.number,
                        done: short.len,
                        created: false,
                    }
                } else {
                    let number = files.number();
                    let file = inner.disk.create(&file_name(number))?;
                    UnfinishedSpare { file, number, done: 0, created: true }
                };
                none.insert(filling)
            }
        };
        if filling.done < len {
            let piece = FILL_BYTES.min(len - filling.done);
            filling.file.fill_at(&zeros(&mut self.zeros)[..piece as usize], filling.done)?;
            filling.done += piece;
            // Synced piece by piece, so that no later fdatasync has to write all of it.
            filling.file.sync_data()?;
        }
        if filling.done >= len {
            filling.file.sync_all()?;
            inner.disk.sync_dir()?;
            if let Some(UnfinishedSpare { file, number, done, .. }) = self.filling.take() {
                self.pool.give_back(SegmentFile { file, number, len: done, fresh: false });
            }
        }
        Ok(SpareStep::Worked)
    }

    fn drop_unfinished(&mut self) {
        let Some(UnfinishedSpare { file, number, done, created }) = self.filling.take() else {
            return;
        };
        if created {
            let _ = self.pool.inner.disk.remove(&file_name(number)); // only zeros, and ours
        } else {
            let short = SegmentFile { file, number, len: done, fresh: true };
            self.pool.inner.files.lock().short.push(short);
        }
    }

    /// Makes spares until [`Pool::stop`]. Pauses between pieces, so that commits can use the disk.
    pub fn run(mut self) {
        let mut logged = None;
        loop {
            let stepped = self.step();
            let pause = match &stepped {
                Ok(SpareStep::Worked) => Duration::from_millis(2),
                Ok(SpareStep::Enough | SpareStep::Full) | Err(_) => Duration::from_secs(1),
            };
            // Retried every second; logged when the reason changes.
            let why = stepped.err().map(|error| blocked_by(&error).unwrap_or(error.to_string()));
            if let Some(why) = why.as_ref().filter(|_| why != logged) {
                tracing::error!(
                    "no new journal segment can be made: {why}; trying again every second"
                );
            }
            logged = why;
            let mut files = self.pool.inner.files.lock();
            if !files.stopped {
                self.pool.inner.wanted.wait_for(&mut files, pause);
            }
            if files.stopped {
                return;
            }
        }
    }
}

impl Pool {
    /// Makes [`SpareMaker::run`] return.
    pub fn stop(&self) {
        self.inner.files.lock().stopped = true;
        self.inner.wanted.notify_all();
    }
}
