//! A disk in memory that loses unsynced writes in a crash.
//!
//! Each file has two contents: what a running system reads (the page cache) and what is on disk. A write changes the
//! first and is recorded. A sync applies the recorded writes to the second. A crash keeps any subset of the recorded
//! sectors, so writes can be torn and reordered. A failed sync drops the recorded writes, as real file systems do.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use malote_engine::disk::{DirEntry, Disk, DiskFile};
use xxhash_rust::xxh3::Xxh3;

use crate::rng::Rng;

/// A sector survives a crash completely or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Faults to inject. Counters count down to the call that fails; `None` never fails.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Syncs of files and of the directory until one fails.
    pub sync_fails_in: Option<u64>,
    /// Writes until one fails with an I/O error.
    pub write_fails_in: Option<u64>,
    /// Reads until one fails with an I/O error.
    pub read_fails_in: Option<u64>,
    /// Bytes that all files together may take.
    pub capacity_bytes: Option<u64>,
    /// Calls that change or sync something until the power fails: that call and all later ones fail without effect.
    pub power_fails_in: Option<u64>,
}

#[derive(Clone, Default)]
struct Content {
    /// The page cache: what a running system reads.
    cached: Vec<u8>,
    /// What is on disk.
    stored: Vec<u8>,
    /// Changes since the last sync.
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Clone)]
enum DirChange {
    Create(String, usize),
    Remove(String),
    Rename(String, String),
}

#[derive(Clone, Default)]
struct State {
    contents: Vec<Content>,
    names: BTreeMap<String, usize>,
    stored_names: BTreeMap<String, usize>,
    unsynced: Vec<DirChange>,
    faults: Faults,
    calls: u64,
}

/// A simulated directory. Clones share the directory.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

fn countdown_ended(counter: &mut Option<u64>) -> bool {
    match counter {
        Some(0) => {
            *counter = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

fn io_error(what: &str) -> io::Error {
    io::Error::other(format!("simulated {what} error"))
}

impl SimDisk {
    /// An empty disk without faults.
    pub fn new() -> Self {
        SimDisk::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults to inject from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Number of calls that changed or synced something.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// A copy of the disk as the next process finds it after a kill: the page cache survives. The old disk no longer
    /// affects the copy.
    pub fn killed(&self) -> SimDisk {
        let mut state = self.state().clone();
        state.faults = Faults::default();
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// A copy of the disk after a power loss.
    pub fn crashed(&self, rng: &mut Rng) -> SimDisk {
        let old = self.state();
        let mut state = State { stored_names: old.stored_names.clone(), ..State::default() };
        let survivors = rng.below(old.unsynced.len() as u64 + 1) as usize;
        for change in &old.unsynced[..survivors] {
            change_names(&mut state.stored_names, change);
        }
        let mut renumbered = BTreeMap::new();
        for (name, old_index) in &state.stored_names {
            let stored = old.contents[*old_index].crashed(rng);
            renumbered.insert(name.clone(), state.contents.len());
            state.contents.push(Content { cached: stored.clone(), stored, unsynced: Vec::new() });
        }
        state.names = renumbered.clone();
        state.stored_names = renumbered;
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Flips one bit of a file, in the page cache and on disk.
    pub fn flip_bit(&self, name: &str, byte: u64, bit: u8) {
        let mut state = self.state();
        let Some(&index) = state.names.get(name) else { return };
        let content = &mut state.contents[index];
        for bytes in [&mut content.cached, &mut content.stored] {
            if let Some(byte) = bytes.get_mut(byte as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// Cuts a file to this length, in the page cache and on disk.
    pub fn cut(&self, name: &str, len: usize) {
        let mut state = self.state();
        let Some(&index) = state.names.get(name) else { return };
        let content = &mut state.contents[index];
        content.cached.truncate(len);
        content.stored.truncate(len);
    }

    /// A hash of everything that a running system could read.
    pub fn state_hash(&self) -> u64 {
        let state = self.state();
        let mut hasher = Xxh3::new();
        for (name, index) in &state.names {
            (name, &state.contents[*index].cached).hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn change_names(names: &mut BTreeMap<String, usize>, change: &DirChange) {
    match change {
        DirChange::Create(name, index) => drop(names.insert(name.clone(), *index)),
        DirChange::Remove(name) => drop(names.remove(name)),
        DirChange::Rename(from, to) => {
            if let Some(index) = names.remove(from) {
                names.insert(to.clone(), index);
            }
        }
    }
}

impl Content {
    fn crashed(&self, rng: &mut Rng) -> Vec<u8> {
        let percent = [0, 100, 10, 50, 90][rng.below(5) as usize];
        let mut stored = self.stored.clone();
        for change in &self.unsynced {
            match change {
                Change::Length(len) if rng.chance(percent) => stored.resize(*len, 0),
                Change::Length(_) => {}
                Change::Write { offset, bytes } => {
                    let mut at = *offset;
                    let end = offset + bytes.len();
                    while at < end {
                        let stop = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
                        if rng.chance(percent) {
                            put(&mut stored, at, &bytes[at - offset..stop - offset]);
                        }
                        at = stop;
                    }
                }
            }
        }
        stored
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Length(len) => self.stored.resize(len, 0),
                Change::Write { offset, bytes } => put(&mut self.stored, offset, &bytes),
            }
        }
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if file.len() < offset + bytes.len() {
        file.resize(offset + bytes.len(), 0);
    }
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl State {
    /// Counts a call that changes or syncs something, and fails it after a power loss.
    fn count_call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match &mut self.faults.power_fails_in {
            Some(0) => Err(io_error("power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|&index| self.contents[index].cached.len() as u64).sum()
    }

    fn grow(&self, index: usize, len: usize) -> io::Result<()> {
        let more = len.saturating_sub(self.contents[index].cached.len()) as u64;
        match self.faults.capacity_bytes {
            Some(capacity) if more > 0 && self.used() + more > capacity => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "simulated full disk"))
            }
            _ => Ok(()),
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        let state = self.state();
        let len = |index: &usize| state.contents[*index].cached.len() as u64;
        Ok(state
            .names
            .iter()
            .map(|(name, index)| DirEntry { name: name.clone(), len: len(index) })
            .collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let index = self.state().names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { disk: self.clone(), index }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        crate::alloc::check_memory();
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.count_call()?;
        let index = state.contents.len();
        state.contents.push(Content::default());
        state.names.insert(name.to_owned(), index);
        state.unsynced.push(DirChange::Create(name.to_owned(), index));
        Ok(Arc::new(SimFile { disk: self.clone(), index }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count_call()?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.unsynced.push(DirChange::Remove(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count_call()?;
        let index = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), index);
        state.unsynced.push(DirChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        state.count_call()?;
        if countdown_ended(&mut state.faults.sync_fails_in) {
            return Err(io_error("directory sync"));
        }
        state.stored_names = state.names.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.faults.capacity_bytes.unwrap_or(u64::MAX).saturating_sub(state.used()))
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) {}

    fn place(&self) -> String {
        "simulated disk".to_owned()
    }
}

struct SimFile {
    disk: SimDisk,
    index: usize,
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        if countdown_ended(&mut state.faults.read_fails_in) {
            return Err(io_error("read"));
        }
        let cached = &state.contents[self.index].cached;
        let from = (offset as usize).min(cached.len());
        let len = buf.len().min(cached.len() - from);
        buf[..len].copy_from_slice(&cached[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.count_call()?;
        if countdown_ended(&mut state.faults.write_fails_in) {
            return Err(io_error("write"));
        }
        state.grow(self.index, offset as usize + buf.len())?;
        let content = &mut state.contents[self.index];
        put(&mut content.cached, offset as usize, buf);
        content.unsynced.push(Change::Write { offset: offset as usize, bytes: buf.to_vec() });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.count_call()?;
        if countdown_ended(&mut state.faults.sync_fails_in) {
            // The pages are clean now, although nothing was written to disk.
            state.contents[self.index].unsynced.clear();
            return Err(io_error("sync"));
        }
        state.contents[self.index].sync();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.count_call()?;
        state.grow(self.index, len as usize)?;
        let content = &mut state.contents[self.index];
        content.cached.resize(len as usize, 0);
        content.unsynced.push(Change::Length(len as usize));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().contents[self.index].cached.len() as u64)
    }
}
