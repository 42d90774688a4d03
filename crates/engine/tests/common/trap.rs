//! A disk and a clock that panic on a chosen engine thread, and a disk whose syncs can be blocked.
#![allow(clippy::unwrap_used)] // for tests

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use malote_engine::clock::Clock;
use malote_engine::disk::{DirEntry, Disk, DiskFile};
use malote_model::Timestamp;

#[derive(Default)]
struct State {
    /// The beginning of the name of the thread that panics at its next call.
    thread: Option<&'static str>,
    hold_syncs: bool,
}

/// Sets and clears the trap. Clones share it.
#[derive(Clone, Default)]
pub struct Trap(Arc<(Mutex<State>, Condvar)>);

impl Trap {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    /// Makes the thread whose name begins like this panic at its next call of the disk or the clock.
    pub fn set(&self, thread: &'static str) {
        self.change(|state| state.thread = Some(thread));
    }

    /// Blocks syncs of the journal until the trap is cleared.
    pub fn hold_syncs(&self) {
        self.change(|state| state.hold_syncs = true);
    }

    /// Clears the trap.
    pub fn clear(&self) {
        self.change(|state| *state = State::default());
    }

    fn pass(&self) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let thread = self.0.0.lock().unwrap().thread;
        if thread.is_some_and(|thread| name.starts_with(thread)) {
            panic!("the trap of `{name}`");
        }
    }

    fn pass_sync(&self) {
        self.pass();
        let state = self.0.0.lock().unwrap();
        let journal = std::thread::current().name().is_some_and(|name| name.starts_with("journal"));
        drop(self.0.1.wait_while(state, |state| journal && state.hold_syncs).unwrap());
    }
}

/// A clock with the trap.
pub struct TrapClock(pub Arc<dyn Clock>, pub Trap);

impl Clock for TrapClock {
    fn now(&self) -> Timestamp {
        self.1.pass();
        self.0.now()
    }
}

/// A disk with the trap.
pub struct TrapDisk<D>(pub D, pub Trap);

struct TrapFile(Arc<dyn DiskFile>, Trap);

impl<D: Disk> TrapDisk<D> {
    fn file(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(TrapFile(file?, self.1.clone())))
    }
}

impl<D: Disk> Disk for TrapDisk<D> {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.1.pass();
        self.0.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.1.pass();
        self.file(self.0.open(name))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.1.pass();
        self.file(self.0.create(name))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.1.pass();
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.1.pass();
        self.0.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.1.pass_sync();
        self.0.sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.1.pass();
        self.0.free_bytes()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.0.try_lock()
    }
    fn unlock(&self) {
        self.0.unlock();
    }
    fn place(&self) -> String {
        self.0.place()
    }
}

impl DiskFile for TrapFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.pass();
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.1.pass();
        self.0.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.1.pass_sync();
        self.0.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.1.pass_sync();
        self.0.sync_all()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.1.pass();
        self.0.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}
