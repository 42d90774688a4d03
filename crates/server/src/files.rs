//! All file access of the server: settings, certificates, credentials and the audit log.
//!
//! These files are small and are read at start and on reload. The engine's data goes through `engine::disk`.
#![allow(
    clippy::disallowed_methods,
    reason = "settings, certificates, credentials and the audit log are not the engine's data"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Reads a small file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    check_size(fs::metadata(path)?.len())?;
    fs::read(path)
}

/// Refuses a file that is too large to be read.
pub(crate) fn check_size(bytes: u64) -> io::Result<()> {
    match bytes > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!(
            "the file has {bytes} bytes; the limit is {FILE_BYTES_MAX}"
        ))),
        false => Ok(()),
    }
}

/// Reads a small text file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8 text"))
}

/// The line of a byte offset, counted from one.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Whether the path exists, even if it cannot be read.
pub(crate) fn exists(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Creates a directory and its parents, accessible by the owner only.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces `path` atomically: a reader, or a restart after power loss, sees either the old or the new content. Writes
/// a temporary file, syncs it, renames it and syncs the directory. Mode 0600.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = parent(path);
    let temporary = sibling(path, &format!("tmp-{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        adopt_owner(&file, dir)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The first error is reported; a leftover is overwritten next time.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    File::open(dir)?.sync_all()
}

/// Gives a file written by root to the owner of its directory: after `sudo malote user add`, the server, which is not
/// root, must still be able to read its credentials.
fn adopt_owner(file: &File, dir: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let dir = fs::metadata(dir)?;
    std::os::unix::fs::fchown(file, Some(dir.uid()), Some(dir.gid()))
}

/// An exclusive lock on `<path>.lock`.
///
/// Serializes the read-change-write cycles of two processes (`malote user …` and a running server).
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    fn open(path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(sibling(path, "lock"))?;
        adopt_owner(&file, parent(path))?;
        Ok(file)
    }

    pub(crate) fn exclusive(path: &Path) -> io::Result<FileLock> {
        let file = FileLock::open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(FileLock { _file: file })
    }

    /// Like `exclusive`, with a timeout.
    pub(crate) fn within(path: &Path, patience: Duration) -> io::Result<FileLock> {
        const STEP: Duration = Duration::from_millis(10);
        let file = FileLock::open(path)?;
        let mut left = patience;
        loop {
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(FileLock { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if !left.is_zero() => {
                    left = left.saturating_sub(STEP);
                    std::thread::sleep(STEP);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Opens a file for appending and reading. A new file is accessible by its owner only.
pub(crate) fn open_append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    adopt_owner(&file, parent(path))?;
    Ok(file)
}

/// Renames a file, replacing the target.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Identifies the state of a file without reading it. A rename changes the inode, so two replacements within one tick
/// of the clock still differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    inode: u64,
    size_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

/// The fingerprint of a file; `None` if it does not exist or cannot be accessed.
pub(crate) fn fingerprint(path: &Path) -> Option<Fingerprint> {
    let meta = fs::metadata(path).ok()?;
    Some(Fingerprint {
        inode: meta.ino(),
        size_bytes: meta.len(),
        modified_s: meta.mtime(),
        modified_ns: meta.mtime_nsec(),
    })
}

/// Whether others than the owner may read the file.
pub(crate) fn readable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0)
}

/// Removes all permissions of others. Returns whether it succeeded.
pub(crate) fn make_private(path: &Path) -> bool {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).is_ok()
}

/// Removes a file durably. A missing file is not an error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::open(parent(path))?.sync_all()
}

#[cfg(test)]
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_private_complete_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, b"one").unwrap();
        let before = fingerprint(&path).unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap(), b"two");
        assert_ne!(fingerprint(&path).unwrap(), before);
        assert!(!readable_by_others(&path));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_written_by_root_belong_to_the_owner_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        // Only root may change the owner of files.
        let owner = match rustix::process::geteuid().is_root() {
            true => 12_345,
            false => rustix::process::geteuid().as_raw(),
        };
        std::os::unix::fs::chown(dir.path(), Some(owner), None).unwrap();
        drop(FileLock::exclusive(&path).unwrap());
        write_private(&path, b"x").unwrap();
        for file in [&path, &sibling(&path, "lock")] {
            assert_eq!(fs::metadata(file).unwrap().uid(), owner);
        }
    }

    #[test]
    fn an_oversized_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap()
            .set_len(FILE_BYTES_MAX + 1)
            .unwrap();
        assert!(read(&path).is_err());
    }
}
