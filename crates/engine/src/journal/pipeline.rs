//! Group commit without a timer: [`Writer`] and [`Syncer`] as two roles.
//!
//! Each role is a step ([`Pipeline::write_step`], [`Pipeline::sync_step`]). In production two threads take them; the
//! simulation takes them one by one. At most one thread writes and at most one syncs, at
//! the same time if there is work for both: writing never waits for syncing,
//! and each fdatasync takes everything written before it began. Whoever has written goes
//! on to sync if nobody does: a lone commit costs one wake-up and not two.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Chunks, Marks, Syncer, Writer};
use crate::failure::{Failure, supervised};

/// Submitted bytes that are not yet written; beyond this, [`Pipeline::submit`] waits.
const UNWRITTEN_BYTES_MAX: usize = 64 << 20;

/// Lazy data is synced at the latest after this, if nothing else needs a sync.
const LAZY_SYNC_AFTER: Duration = Duration::from_secs(1);

/// Something to make durable, and whom to release when it is.
pub struct Commit<R> {
    /// What to write; may be empty, for answers that only wait for what was submitted before.
    pub chunks: Chunks,
    /// Whether somebody waits for these chunks to be durable. `false` for lazy data, which is
    /// synced with whatever comes next.
    pub sync: bool,
    /// Released once written.
    pub on_written: Vec<R>,
    /// Released once every commit up to this one that has `sync` is durable: with `sync`, this
    /// one included; without, an answer does not wait for lazy data that it does not rest on.
    pub on_durable: Vec<R>,
}

/// The journal stopped, on request or after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal has stopped")]
pub struct Stopped;

/// Takes those that are released.
type Release<R> = Box<dyn FnMut(Vec<R>) + Send>;

/// Told once why everything stopped.
type Poison = Box<dyn FnOnce(Failure) + Send>;

/// Where releases and errors go. Called on the pipeline's threads, in order, with batches.
pub struct Callbacks<R> {
    /// Their commits are written.
    pub written: Release<R>,
    /// Their commits are durable.
    pub durable: Release<R>,
    /// Called once, after a failed write or sync, or a panic. Whoever was not released is dropped.
    pub poison: Poison,
}

/// The way to disk.
pub struct Pipeline<R: Send + 'static> {
    shared: Arc<Shared<R>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<R> {
    marks: Arc<Marks>,
    state: Mutex<State<R>>,
    work: Condvar,
    room: Condvar,
    /// Held by whoever has the role; the flags in [`State`] say so first.
    write_role: Mutex<(Writer, Release<R>)>,
    sync_role: Mutex<(Syncer, Release<R>)>,
}

/// Everybody who waits for the journal is in here, also during a write or a sync: when the engine fails, they are
/// dropped at once, even if the disk hangs.
struct State<R> {
    commits: Vec<Commit<R>>,
    unwritten_bytes: usize,
    writing: bool,
    /// Released after the write under way.
    on_written: Vec<R>,
    /// They wait for a sync after the write under way.
    written_next: Vec<R>,

    on_durable: Vec<R>,
    /// Somebody waits for a sync.
    eager: bool,
    /// When something was written that no sync has taken.
    dirty_since: Option<Instant>,
    syncing: bool,
    /// Released after the sync under way.
    on_synced: Vec<R>,

    closing: bool,
    poisoned: bool,
    poison: Option<Poison>,
}

impl<R: Send + 'static> Pipeline<R> {
    /// Starts the two threads.
    pub fn start(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> io::Result<Self> {
        let mut pipeline = Self::stepwise(writer, syncer, callbacks);
        for name in ["journal-1", "journal-2"] {
            let shared = pipeline.shared.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                // Also a callback that panics: its role would never be given back.
                if let Err(failure) = supervised(|| shared.work()) {
                    shared.fail(failure);
                }
            })?;
            pipeline.threads.push(thread);
        }
        Ok(pipeline)
    }

    /// A pipeline without threads: whoever has it takes its steps.
    pub fn stepwise(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> Self {
        let state = State {
            commits: Vec::new(),
            unwritten_bytes: 0,
            writing: false,
            on_written: Vec::new(),
            written_next: Vec::new(),
            on_durable: Vec::new(),
            eager: false,
            dirty_since: None,
            syncing: false,
            on_synced: Vec::new(),
            closing: false,
            poisoned: false,
            poison: Some(callbacks.poison),
        };
        let shared = Arc::new(Shared {
            marks: writer.marks().clone(),
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            write_role: Mutex::new((writer, callbacks.written)),
            sync_role: Mutex::new((syncer, callbacks.durable)),
        });
        Pipeline { shared, threads: Vec::new() }
    }

    /// Hands a commit over; waits only while too much is unwritten.
    pub fn submit(&self, commit: Commit<R>) -> Result<(), Stopped> {
        let mut state = self.shared.state.lock();
        while state.unwritten_bytes > UNWRITTEN_BYTES_MAX && !state.poisoned {
            self.shared.room.wait(&mut state);
        }
        if state.poisoned {
            return Err(Stopped);
        }
        state.unwritten_bytes += bytes_of(&commit);
        state.commits.push(commit);
        let wake = !state.writing; // whoever writes looks again before it rests
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    /// Writes everything submitted and releases those who wait for that. False if there was nothing to write.
    pub fn write_step(&self) -> bool {
        let state = self.shared.state.lock();
        let can_write = !state.poisoned && !state.writing && !state.commits.is_empty();
        can_write && {
            self.shared.write(state, &mut Vec::new());
            true
        }
    }

    /// Syncs what was written, if anybody waits for it or `lazy` data is to be synced as well, and releases those who
    /// wait for that. False if there was nothing to sync.
    pub fn sync_step(&self, lazy: bool) -> bool {
        let state = self.shared.state.lock();
        let wanted = state.eager || !state.on_durable.is_empty();
        let dirty = lazy && state.dirty_since.is_some();
        let can_sync = !state.poisoned && !state.syncing && (wanted || dirty);
        can_sync && {
            self.shared.sync(state);
            true
        }
    }

    /// Stops this pipeline from anywhere, without waiting for the disk. It does not keep the pipeline alive: callbacks
    /// may own what owns the stopper.
    pub(crate) fn stopper(&self) -> impl Fn() + Send + Sync + use<R> {
        let shared = Arc::downgrade(&self.shared);
        move || drop(shared.upgrade().and_then(|shared| shared.stop()))
    }

    /// Writes, syncs and releases everything submitted, then ends the threads. So does dropping.
    pub fn close(self) {}
}

impl<R: Send + 'static> Drop for Pipeline<R> {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic was reported where it happened
        }
    }
}

fn bytes_of<R>(commit: &Commit<R>) -> usize {
    commit.chunks.iter().map(|chunk| chunk.bytes().len()).sum()
}

/// Only bounds how long lazy data stays unsynced; nothing that is replayed depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

impl<R> State<R> {
    fn sync_wanted(&self) -> bool {
        let late = |since: Instant| self.closing || now().duration_since(since) >= LAZY_SYNC_AFTER;
        self.eager || !self.on_durable.is_empty() || self.dirty_since.is_some_and(late)
    }
}

impl<R: Send> Shared<R> {
    fn work(&self) {
        let mut batch = Vec::new();
        let mut state = self.state.lock();
        while !state.poisoned {
            let can_sync = !state.syncing && state.sync_wanted();
            let can_write = !state.writing && !state.commits.is_empty();
            if can_sync && can_write {
                self.work.notify_one(); // one for each of us
            }
            if can_sync {
                self.sync(state);
            } else if can_write {
                self.write(state, &mut batch);
            } else if state.closing && !state.writing && !state.syncing {
                break;
            } else if let (Some(since), false) = (state.dirty_since, state.syncing) {
                self.work.wait_until(&mut state, since + LAZY_SYNC_AFTER);
                continue;
            } else {
                self.work.wait(&mut state);
                continue;
            }
            state = self.state.lock();
        }
        drop(state);
        self.work.notify_all(); // the other one may wait for this one's end
        self.room.notify_all();
    }

    /// Writes all commits. `batch` is empty before and after, and kept for its memory.
    fn write(&self, mut state: MutexGuard<'_, State<R>>, batch: &mut Vec<Commit<R>>) {
        state.writing = true;
        std::mem::swap(batch, &mut state.commits);
        for commit in batch.iter_mut() {
            append(&mut state.on_written, &mut commit.on_written);
            append(&mut state.written_next, &mut commit.on_durable);
        }
        drop(state);
        let mut role = self.write_role.lock();
        let (writer, released) = &mut *role;
        let (mut bytes, mut eager) = (0, false);
        for commit in batch.drain(..) {
            for chunk in &commit.chunks {
                if let Err(error) = writer.write(chunk) {
                    return self.failed(error);
                }
            }
            bytes += bytes_of(&commit);
            match cfg!(feature = "mutate-skip-sync") {
                // What comes last decides: an eager commit before a lazy one is forgotten.
                true => eager = commit.sync,
                false => eager |= commit.sync,
            }
        }
        let mut state = self.state.lock();
        let mut on_written = std::mem::take(&mut state.on_written);
        if cfg!(feature = "mutate-release-written") && !eager {
            // As if a lazy commit had nobody who waits for an earlier one to be durable.
            on_written.append(&mut state.written_next);
        }
        drop(state);
        if !on_written.is_empty() {
            released(on_written);
        }
        drop(role);
        let mut state = self.state.lock();
        state.writing = false;
        state.eager |= eager;
        let State { on_durable, written_next, .. } = &mut *state;
        append(on_durable, written_next);
        if bytes > 0 {
            state.dirty_since = state.dirty_since.or_else(|| Some(now()));
            state.unwritten_bytes -= bytes;
            self.room.notify_all();
        }
    }

    fn sync(&self, mut state: MutexGuard<'_, State<R>>) {
        state.syncing = true;
        state.on_synced = std::mem::take(&mut state.on_durable);
        // Without anything eager, those waiting rest only on what is durable already.
        let only_release = !state.eager && !state.on_synced.is_empty();
        if !only_release {
            (state.eager, state.dirty_since) = (false, None);
        }
        drop(state);
        let mut role = self.sync_role.lock();
        let (syncer, released) = &mut *role;
        if !only_release && let Err(error) = syncer.sync() {
            return self.failed(error);
        }
        let on_synced = std::mem::take(&mut self.state.lock().on_synced);
        if !on_synced.is_empty() {
            released(on_synced);
        }
        drop(role);
        self.state.lock().syncing = false;
    }

    /// A write or a sync failed. If that is because everything stops already, whoever met the cause tells it.
    fn failed(&self, error: io::Error) {
        let is_late = error.get_ref().is_some_and(|inner| inner.is::<Stopped>());
        if !is_late {
            self.fail(error.into());
        }
    }

    /// Stops everything and tells why.
    fn fail(&self, failure: Failure) {
        if let Some(poison) = self.stop() {
            poison(failure);
        }
    }

    /// Stops everything; whoever waits is dropped. Whoever is first has to tell.
    fn stop(&self) -> Option<Poison> {
        // First of all: those who are dropped look here for the reason.
        self.marks.stop();
        let mut state = self.state.lock();
        state.poisoned = true;
        let State { commits, on_written, written_next, on_durable, on_synced, .. } = &mut *state;
        let commits = std::mem::take(commits);
        let dropped = [on_written, written_next, on_durable, on_synced].map(std::mem::take);
        let poison = state.poison.take();
        drop(state);
        drop((commits, dropped));
        self.work.notify_all();
        self.room.notify_all();
        poison
    }
}

/// Appends; what has nothing takes over the other's memory.
fn append<R>(to: &mut Vec<R>, from: &mut Vec<R>) {
    if to.is_empty() {
        std::mem::swap(to, from);
    } else {
        to.append(from);
    }
}
