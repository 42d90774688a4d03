//! A disk that can be full for a while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::{DirEntry, Disk, DiskFile, OsDisk};

/// A disk that is full when a script says so.
pub(super) struct Fillable {
    pub disk: OsDisk,
    pub full: Arc<AtomicBool>,
}

impl Disk for Fillable {
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(if self.full.load(Ordering::Relaxed) { 0 } else { 1 << 40 })
    }
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name)
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.disk.try_lock()
    }
    fn unlock(&self) {
        self.disk.unlock();
    }
    fn place(&self) -> String {
        self.disk.place()
    }
}
