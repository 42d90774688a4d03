//! A real directory whose syncs can be delayed or made to fail.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use malote_engine::disk::{DirEntry, Disk, DiskFile, OsDisk};

/// What happens to a sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Work,
    Wait,
    Fail,
}

struct Syncs {
    mode: Mutex<Mode>,
    changed: Condvar,
}

/// The switch of a [`GatedDisk`]. Dropping it lets all syncs continue.
pub struct Switch(Arc<Syncs>);

impl Switch {
    fn set(&self, mode: Mode) {
        *self.0.mode.lock().unwrap() = mode;
        self.0.changed.notify_all();
    }

    /// Every sync waits until the switch changes.
    pub fn hold_up(&self) {
        self.set(Mode::Wait);
    }

    pub fn go_on(&self) {
        self.set(Mode::Work);
    }

    pub fn fail(&self) {
        self.set(Mode::Fail);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if *self.0.mode.lock().unwrap() == Mode::Wait {
            self.go_on();
        }
    }
}

impl Syncs {
    fn pass(&self) -> io::Result<()> {
        let mode = self.mode.lock().unwrap();
        let mode = self.changed.wait_while(mode, |mode| *mode == Mode::Wait).unwrap();
        if *mode == Mode::Fail { Err(io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

pub struct GatedDisk {
    disk: OsDisk,
    syncs: Arc<Syncs>,
}

impl GatedDisk {
    pub fn open(path: &Path) -> (Arc<dyn Disk>, Switch) {
        let syncs = Arc::new(Syncs { mode: Mutex::new(Mode::Work), changed: Condvar::new() });
        let disk = OsDisk::open(path).unwrap();
        (Arc::new(Self { disk, syncs: syncs.clone() }), Switch(syncs))
    }

    fn gated(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GatedFile { file: file?, syncs: self.syncs.clone() }))
    }
}

impl Disk for GatedDisk {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.gated(self.disk.open(name))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.gated(self.disk.create(name))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.syncs.pass()?;
        self.disk.sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
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

struct GatedFile {
    file: Arc<dyn DiskFile>,
    syncs: Arc<Syncs>,
}

impl DiskFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.syncs.pass()?;
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.syncs.pass()?;
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
