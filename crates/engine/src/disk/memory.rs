//! A directory in memory, for tests of programs that embed the engine. It forgets everything with the process.
//!
//! It has no faults and no page cache: what a crash leaves behind is simulated elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{DirEntry, Disk, DiskFile};

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
}

impl MemoryDisk {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }
}

#[derive(Default)]
struct MemoryFile(RwLock<Vec<u8>>);

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        let files = self.files.lock();
        let entry = |(name, file): (&String, &Arc<MemoryFile>)| DirEntry {
            name: name.clone(),
            len: file.0.read().len() as u64,
        };
        Ok(files.iter().map(entry).collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.files.lock().get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(file)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock();
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(MemoryFile::default());
        files.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) {}

    fn place(&self) -> String {
        "memory".to_owned()
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.read();
        let from = usize::try_from(offset).map_or(bytes.len(), |at| at.min(bytes.len()));
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.0.write();
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = from.checked_add(buf.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[from..end].copy_from_slice(buf);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.0.write().resize(len, 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.read().len() as u64)
    }
}
