//! The engine's only access to files. The journal sees one flat directory through [`Disk`] and [`DiskFile`]; the
//! simulation has its own implementation.
//!
//! Nothing here retries, caches or interprets: errors are passed on unchanged, because only the journal knows what a
//! failed write or sync means.

mod memory;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate};

pub use memory::MemoryDisk;

/// A file in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The file name, without a directory.
    pub name: String,
    pub len: u64,
}

/// A flat directory of files.
pub trait Disk: Send + Sync {
    /// All regular files, sorted by name.
    fn list(&self) -> io::Result<Vec<DirEntry>>;
    /// Opens an existing file for reading and, where allowed, writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a file, which must not exist. Durable only after [`Disk::sync_dir`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file. Durable only after [`Disk::sync_dir`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file, replacing an existing one. Durable only after [`Disk::sync_dir`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes creations, removals and renames durable.
    fn sync_dir(&self) -> io::Result<()>;
    fn free_bytes(&self) -> io::Result<u64>;
    /// Locks the directory for this process. Returns false if another process has it. The lock is held until it is
    /// released or the disk is dropped.
    fn try_lock(&self) -> io::Result<bool>;
    /// Releases the lock.
    fn unlock(&self);
    /// The directory's name for error messages.
    fn place(&self) -> String;
    /// Checks that the directory is still the one that was opened, and that the lock is still held.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

/// An open file. All methods may be called from any thread.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Like `read_at`, but only reads what is in the page cache. May return fewer bytes; returns
    /// [`io::ErrorKind::WouldBlock`] if the first byte is not cached.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }
    /// Writes the whole buffer, or fails.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes zeros that will not be read, bypassing the page cache where possible.
    fn fill_at(&self, zeros: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(zeros, offset)
    }
    /// Makes the data durable, and the metadata needed to read it.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes data and all metadata durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Sets the length. Growing reserves the space if the file system can.
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Whether the file still has a name. Data in a file without one is lost when the process ends.
    fn is_linked(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Whether a file could not be opened for reasons unrelated to the file: no descriptors, memory or permission. Then
/// nothing is known about its content.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::PERM];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Why a directory cannot be used. Each message is a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It is not a directory.
    #[error("data directory `{0}` is not a directory")]
    NotADirectory(PathBuf),
    /// It exists, but is not writable.
    #[error("data directory `{0}` is not writable for this user")]
    NotWritable(PathBuf),
    #[error("data directory `{path}` cannot be opened: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// A directory of the operating system.
#[derive(Debug)]
pub struct OsDisk {
    path: PathBuf,
    dir: File,
    writable: bool,
    lock: Mutex<Option<File>>,
}

const LOCK_FILE: &str = "lock";

/// Only the owner may read messages, whatever the umask.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permissions of the group and of others.
const NOT_THE_OWNERS: u32 = 0o077;
/// A directory where every user may create files, such as `/tmp`.
const STICKY: u32 = 0o1000;

impl OsDisk {
    /// Opens a directory, creating it if it is missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirError> {
        let path = path.as_ref();
        if !path.exists() {
            let made = fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(path);
            made.map_err(|source| dir_error(path, source))?;
            // The directory's own entry must be durable as well.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = Self::look(parent.unwrap_or(Path::new(".")), false)?;
            parent.sync_dir().map_err(|source| dir_error(path, source))?;
        }
        let disk = Self::look(path, true)?;
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
            .map_err(|errno| dir_error(path, errno.into()))?;
        disk.keep_private();
        Ok(disk)
    }

    /// Removes permissions of others from a directory that is too open. Only if it is ours: empty, or with our lock
    /// file. Files are private in either case.
    fn keep_private(&self) {
        let Ok(meta) = self.dir.metadata() else { return };
        if meta.mode() & NOT_THE_OWNERS == 0 {
            return;
        }
        let path = self.path.display();
        let is_ours = meta.mode() & STICKY == 0
            && (self.path.join(LOCK_FILE).exists() || self.list().is_ok_and(|all| all.is_empty()));
        match is_ours && tighten(&self.dir) {
            true => {
                tracing::info!(%path, "other users could list the data directory; its mode was changed to 0700")
            }
            false => {
                tracing::warn!(%path, "other users can list the data directory; use a directory with mode 0700")
            }
        }
    }

    /// Opens a directory for reading only.
    pub fn read_only(path: impl AsRef<Path>) -> Result<Self, DirError> {
        Self::look(path.as_ref(), false)
    }

    #[allow(clippy::disallowed_methods)] // the only place that may access files
    fn look(path: &Path, writable: bool) -> Result<Self, DirError> {
        let dir = File::open(path).map_err(|source| dir_error(path, source))?;
        let is_dir = dir.metadata().map_err(|source| dir_error(path, source))?.is_dir();
        if !is_dir {
            return Err(DirError::NotADirectory(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), dir, writable, lock: Mutex::new(None) })
    }
}

/// Removes permissions of the group and of others from a file or directory. Returns whether they are gone.
fn tighten(file: &File) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let is_own = meta.uid() == rustix::process::geteuid().as_raw();
    let mode = rustix::fs::Mode::from_raw_mode(meta.mode() & 0o7777 & !NOT_THE_OWNERS);
    meta.mode() & NOT_THE_OWNERS == 0 || (is_own && rustix::fs::fchmod(file, mode).is_ok())
}

fn dir_error(path: &Path, source: io::Error) -> DirError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            DirError::NotADirectory(path)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            DirError::NotWritable(path)
        }
        _ => DirError::Io { path, source },
    }
}

impl Disk for OsDisk {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                entries.push(DirEntry { name, len: meta.len() });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(self.writable).open(self.path.join(name))?;
        if self.writable && !tighten(&file) {
            tracing::warn!(
                name,
                "other users can read a journal file, which is owned by another user"
            );
        }
        Ok(Arc::new(OsFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(self.path.join(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    #[allow(clippy::disallowed_methods)] // the only place that may access files
    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    #[allow(clippy::disallowed_methods)] // the only place that may access files
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn unlock(&self) {
        self.lock.lock().take();
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut held = self.lock.lock();
        if held.is_some() {
            return Ok(false);
        }
        let path = self.path.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path)?;
        tighten(&file);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                *held = Some(file);
                Ok(true)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn check(&self) -> io::Result<()> {
        let same = |a: &rustix::fs::Stat, b: &rustix::fs::Stat| {
            (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
        };
        let lost = |what: &str| {
            let text = format!("{what} `{}` was removed or replaced", self.place());
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        };
        let there = |path: &Path| match rustix::fs::stat(path) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(io::Error::from(errno)),
        };
        let dir = rustix::fs::fstat(&self.dir)?;
        if !there(&self.path)?.is_some_and(|named| same(&named, &dir)) {
            return lost("data directory");
        }
        if let Some(lock) = &*self.lock.lock() {
            let lock = rustix::fs::fstat(lock)?;
            if !there(&self.path.join(LOCK_FILE))?.is_some_and(|named| same(&named, &lock)) {
                return lost("the lock file in data directory");
            }
        }
        Ok(())
    }
}

struct OsFile(File);

/// Opens the same file again, for direct I/O of aligned blocks.
#[cfg(target_os = "linux")]
fn past_the_cache(file: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd as _;
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().write(true).custom_flags(direct).open(path)
}

#[cfg(not(target_os = "linux"))]
fn past_the_cache(_: &File) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

impl DiskFile for OsFile {
    fn read_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while !buf.is_empty() {
            match self.0.read_at(buf, offset) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    offset += n as u64;
                    buf = &mut buf[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut parts = [io::IoSliceMut::new(buf)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        match rustix::io::preadv2(&self.0, &mut parts, offset, flags) {
            Ok(n) => Ok(n),
            // Some file systems do not support this: then every read may block.
            Err(rustix::io::Errno::OPNOTSUPP) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn fill_at(&self, zeros: &[u8], offset: u64) -> io::Result<()> {
        // Bypasses the page cache: copying zeros there would take more CPU time than everything else that is done for a
        // message. Falls back if it is not supported.
        match past_the_cache(&self.0).and_then(|file| file.write_all_at(zeros, offset)) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(error),
            Err(_) => self.0.write_all_at(zeros, offset),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.0.metadata()?.len();
        if len > now {
            // Reserve the space: running out of it must fail here, not in a later write. It takes long and is
            // interrupted by signals, so it is retried.
            let reserve = || fallocate(&self.0, FallocateFlags::empty(), now, len - now);
            match rustix::io::retry_on_intr(reserve) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn is_linked(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.0)?.st_nlink > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn widen(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_directory_and_its_files_are_private_to_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("above").join("data");
        // A test must not change the umask of the process: 0600 and 0700 hold under any.
        let disk = OsDisk::open(&path).unwrap();
        disk.create("a").unwrap();
        assert!(disk.try_lock().unwrap());
        assert_eq!((mode(&path), mode(&dir.path().join("above"))), (0o700, 0o700));
        assert_eq!((mode(&path.join("a")), mode(&path.join(LOCK_FILE))), (0o600, 0o600));
    }

    #[test]
    fn wider_file_modes_of_older_versions_are_tightened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let disk = OsDisk::open(&path).unwrap();
        disk.create("a").unwrap();
        assert!(disk.try_lock().unwrap());
        drop(disk);
        widen(&path, 0o755);
        widen(&path.join("a"), 0o644);
        widen(&path.join(LOCK_FILE), 0o644);
        let disk = OsDisk::open(&path).unwrap();
        disk.open("a").unwrap();
        assert!(disk.try_lock().unwrap());
        assert_eq!(mode(&path), 0o700);
        assert_eq!((mode(&path.join("a")), mode(&path.join(LOCK_FILE))), (0o600, 0o600));
        // Opening for reading changes nothing.
        widen(&path, 0o755);
        OsDisk::read_only(&path).unwrap().open("a").unwrap();
        assert_eq!(mode(&path), 0o755);
    }

    #[test]
    fn a_directory_with_foreign_files_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(dir.path().join("x"))
            .unwrap();
        widen(dir.path(), 0o755);
        OsDisk::open(dir.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o755);
        let public = tempfile::tempdir().unwrap();
        widen(public.path(), 0o1777);
        OsDisk::open(public.path()).unwrap();
        assert_eq!(mode(public.path()), 0o1777);
    }
}
