//! `audit.log`: one JSON object per line, oldest first.
//!
//! The server and the commands that change credentials append to it, each with one write under a lock on
//! `audit.log.lock`. The process that makes the file too large rotates it, under the same lock: `audit.log` becomes
//! `audit.log.1`, and so on. The server reads what other processes append, also across a rotation.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use malote_model::audit::AuditRecord;
use malote_wire_native::audit::AuditLine;

use crate::files::{self, FileLock};

pub const AUDIT_FILE: &str = "audit.log";

/// A file of this size is rotated.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Files that are kept, including the current one.
const FILES_MAX: usize = 4;
/// Bytes read from the end of a file; more than memory keeps.
const TAIL_BYTES_MAX: u64 = 4 << 20;
/// Enough for the last lines of a file.
const LAST_BYTES_MAX: u64 = 64 << 10;
/// Timeout of the lock; the process that holds it may be stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct AuditFile {
    path: PathBuf,
    file_bytes_max: u64,
    /// Inode of the file that was read last, and the offset.
    seen: Option<(u64, u64)>,
}

impl AuditFile {
    pub fn at(path: &Path) -> AuditFile {
        AuditFile { path: path.to_owned(), file_bytes_max: FILE_BYTES_MAX, seen: None }
    }

    #[cfg(test)]
    pub fn of_bytes_max(path: &Path, file_bytes_max: u64) -> AuditFile {
        AuditFile { file_bytes_max, ..AuditFile::at(path) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The newest records of the two newest files.
    pub fn open(&mut self) -> io::Result<Vec<AuditRecord>> {
        let _lock = FileLock::within(&self.path, LOCK_PATIENCE)?;
        if files::readable_by_others(&self.path) {
            files::make_private(&self.path);
        }
        let mut records = Vec::new();
        for path in [self.older(1), self.path.clone()] {
            let Some(file) = open_if_exists(&path)? else { continue };
            let (size, inode) = size_of(&file)?;
            records.extend(read(&file, 0, size, TAIL_BYTES_MAX)?);
            if path == self.path {
                self.seen = Some((inode, size));
            }
        }
        Ok(records)
    }

    /// Whether another process has written or rotated the file.
    pub fn has_changed(&self) -> bool {
        let found =
            open_if_exists(&self.path).and_then(|file| file.as_ref().map(size_of).transpose());
        match found {
            Ok(Some((size, inode))) => self.seen != Some((inode, size)),
            Ok(None) | Err(_) => false,
        }
    }

    /// Locks the file, and returns what other processes appended.
    pub fn lock(&mut self) -> io::Result<(FileLock, Vec<AuditRecord>)> {
        let lock = FileLock::within(&self.path, LOCK_PATIENCE)?;
        let mut records = Vec::new();
        let current = open_if_exists(&self.path)?;
        let current = current.map(|file| size_of(&file).map(|is| (file, is))).transpose()?;
        let is_current = |inode: u64| current.as_ref().is_some_and(|(_, (_, is))| *is == inode);
        let mut from = 0;
        match self.seen {
            Some((inode, offset)) if is_current(inode) => from = offset,
            Some((inode, offset)) => {
                // The file was rotated: read the rest of the old one first.
                if let Some(older) = open_if_exists(&self.older(1))?
                    && let (size, is) = size_of(&older)?
                    && is == inode
                {
                    records.extend(read(&older, offset, size, TAIL_BYTES_MAX)?);
                }
            }
            None => {}
        }
        self.seen = None;
        if let Some((file, (size, inode))) = current {
            // A truncated file is read from the start.
            let from = if from > size { 0 } else { from };
            records.extend(read(&file, from, size, TAIL_BYTES_MAX)?);
            self.seen = Some((inode, size));
        }
        Ok((lock, records))
    }

    /// Appends records with one write. The file must be locked.
    pub fn write(&mut self, records: &[AuditRecord]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut file = files::open_append(&self.path)?;
        let (size, inode) = size_of(&file)?;
        let mut text = Vec::new();
        // An incomplete write must not damage the next line.
        let mut last = [b'\n'];
        if size > 0 {
            file.read_exact_at(&mut last, size - 1)?;
        }
        if last != [b'\n'] {
            text.push(b'\n');
        }
        for record in records {
            serde_json::to_writer(&mut text, &AuditLine::from(record))?;
            text.push(b'\n');
        }
        let written = file.write_all(&text);
        let (size, _) = size_of(&file)?;
        self.seen = Some((inode, size));
        written?;
        if size >= self.file_bytes_max {
            self.rotate()?;
            self.seen = None;
        }
        Ok(())
    }

    /// The number of the last record. The file must be locked.
    pub fn last(&self) -> io::Result<u64> {
        for path in [self.path.clone(), self.older(1)] {
            let Some(file) = open_if_exists(&path)? else { continue };
            let (size, _) = size_of(&file)?;
            let records = read(&file, 0, size, LAST_BYTES_MAX)?;
            if let Some(last) = records.last() {
                return Ok(last.seq);
            }
        }
        Ok(0)
    }

    fn rotate(&self) -> io::Result<()> {
        for n in (1..FILES_MAX - 1).rev() {
            if files::exists(&self.older(n)) {
                files::rename(&self.older(n), &self.older(n + 1))?;
            }
        }
        files::rename(&self.path, &self.older(1))
    }

    /// The file after `n` rotations.
    fn older(&self, n: usize) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{n}"));
        self.path.with_file_name(name)
    }
}

fn open_if_exists(path: &Path) -> io::Result<Option<File>> {
    match files::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Size and inode.
fn size_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|meta| (meta.len(), meta.ino()))
}

/// The records between two offsets, limited to the last `bytes_max` bytes. Lines that are not records are skipped:
/// their write was incomplete, or a newer version wrote them.
fn read(file: &File, from: u64, to: u64, bytes_max: u64) -> io::Result<Vec<AuditRecord>> {
    let start = from.max(to.saturating_sub(bytes_max));
    let mut bytes = vec![0; usize::try_from(to.saturating_sub(start)).unwrap_or(0)];
    file.read_exact_at(&mut bytes, start)?;
    let mut lines = bytes.split(|byte| *byte == b'\n');
    if start > from {
        // A partial line.
        lines.next();
    }
    let record = |line: &[u8]| -> Option<AuditRecord> {
        serde_json::from_slice::<AuditLine>(line).ok()?.try_into().ok()
    };
    Ok(lines.filter_map(record).collect())
}
