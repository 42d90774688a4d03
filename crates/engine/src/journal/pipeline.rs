//! Group commit without a timer, with [`Writer`] and [`Syncer`] as two roles.
//!
//! Each role is a step ([`Pipeline::write_step`], [`Pipeline::sync_step`]). In production two threads run them; the
//! simulation runs them one by one. At most one thread writes and at most one syncs, possibly at the same time. Writing
//! never waits for syncing, and each fdatasync covers everything written before it began. A thread that has written
//! continues with a sync if no other thread does, so that a single commit needs only one wake-up.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Chunks, Marks, Syncer, Writer};
use crate::failure::{EngineFailure, supervised};

/// Limit of submitted and unwritten bytes, at which [`Pipeline::submit`] waits.
const UNWRITTEN_BYTES_MAX: usize = 64 << 20;

/// Lazy data is synced after this time at the latest.
const LAZY_SYNC_AFTER: Duration = Duration::from_secs(1);

/// Chunks to write, and outputs to release afterwards.
pub struct Commit<R> {
    /// What to write. May be empty, for outputs that only wait for earlier commits.
    pub chunks: Chunks,
    /// Whether an output waits for these chunks to be durable. `false` for lazy data, which is synced with later
    /// commits.
    pub sync: bool,
    /// Released once written.
    pub on_written: Vec<R>,
    /// Released once all commits with `sync` up to this one are durable. Without `sync`, they do not wait for this
    /// commit's lazy data.
    pub on_durable: Vec<R>,
}

/// The journal stopped, on request or after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal has stopped")]
pub struct Stopped;

/// Receives released outputs.
type Release<R> = Box<dyn FnMut(Vec<R>) + Send>;

/// Called once with the reason of a failure.
type Poison = Box<dyn FnOnce(EngineFailure) + Send>;

/// Where released outputs and failures go. Called on the pipeline's threads, in order, with batches.
pub struct Callbacks<R> {
    /// Outputs whose commits are written.
    pub written: Release<R>,
    /// Outputs whose commits are durable.
    pub durable: Release<R>,
    /// Called once, after a failed write or sync, or a panic. Outputs that were not released are dropped.
    pub poison: Poison,
}

/// Writes and syncs commits.
pub struct Pipeline<R: Send + 'static> {
    shared: Arc<PipelineShared<R>>,
    threads: Vec<JoinHandle<()>>,
}

struct PipelineShared<R> {
    marks: Arc<Marks>,
    state: Mutex<PipelineState<R>>,
    work: Condvar,
    room: Condvar,
    /// Locked by the thread that has the role; the flags in [`PipelineState`] are set first.
    write_role: Mutex<(Writer, Release<R>)>,
    sync_role: Mutex<(Syncer, Release<R>)>,
}

/// All waiting outputs, also during a write or a sync: if the engine fails, they are dropped at once, even if the disk
/// hangs.
struct PipelineState<R> {
    commits: Vec<Commit<R>>,
    unwritten_bytes: usize,
    writing: bool,
    /// Released after the current write.
    on_written: Vec<R>,
    /// They wait for a sync after the current write.
    written_next: Vec<R>,

    on_durable: Vec<R>,
    /// Whether an output waits for a sync.
    eager: bool,
    /// Since when there is unsynced data.
    dirty_since: Option<Instant>,
    syncing: bool,
    /// Released after the current sync.
    on_synced: Vec<R>,

    closing: bool,
    poisoned: bool,
    poison: Option<Poison>,
}

impl<R: Send + 'static> Pipeline<R> {
    pub fn start(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> io::Result<Self> {
        let mut pipeline = Self::stepwise(writer, syncer, callbacks);
        for name in ["journal-1", "journal-2"] {
            let shared = pipeline.shared.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                // This includes panics of callbacks, whose role would never be released.
                if let Err(failure) = supervised(|| shared.work()) {
                    shared.fail(failure);
                }
            })?;
            pipeline.threads.push(thread);
        }
        Ok(pipeline)
    }

    /// A pipeline without threads: the caller runs its steps.
    pub fn stepwise(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> Self {
        let state = PipelineState {
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
        let shared = Arc::new(PipelineShared {
            marks: writer.marks().clone(),
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            write_role: Mutex::new((writer, callbacks.written)),
            sync_role: Mutex::new((syncer, callbacks.durable)),
        });
        Pipeline { shared, threads: Vec::new() }
    }

    /// Submits a commit. Waits only while too much is unwritten.
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
        let wake = !state.writing; // a writing thread checks again before it sleeps
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    /// Writes everything submitted and releases outputs. Returns false if there was nothing to write.
    pub fn write_step(&self) -> bool {
        let state = self.shared.state.lock();
        let can_write = !state.poisoned && !state.writing && !state.commits.is_empty();
        can_write && {
            self.shared.write(state, &mut Vec::new());
            true
        }
    }

    /// Syncs what was written, if an output waits for it or `lazy` is set, and releases outputs. Returns false if there
    /// was nothing to sync.
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

    /// Returns a function that stops this pipeline without waiting for the disk. It does not keep the pipeline alive,
    /// because callbacks may own it.
    pub(crate) fn stopper(&self) -> impl Fn() + Send + Sync + use<R> {
        let shared = Arc::downgrade(&self.shared);
        move || drop(shared.upgrade().and_then(|shared| shared.stop()))
    }

    /// Writes, syncs and releases everything submitted, then ends the threads. Dropping does the same.
    pub fn close(self) {}
}

impl<R: Send + 'static> Drop for Pipeline<R> {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic was already reported
        }
    }
}

fn bytes_of<R>(commit: &Commit<R>) -> usize {
    commit.chunks.iter().map(|chunk| chunk.bytes().len()).sum()
}

/// Only for bounding how long lazy data stays unsynced; no replayed state depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

impl<R> PipelineState<R> {
    fn sync_wanted(&self) -> bool {
        let late = |since: Instant| self.closing || now().duration_since(since) >= LAZY_SYNC_AFTER;
        self.eager || !self.on_durable.is_empty() || self.dirty_since.is_some_and(late)
    }
}

impl<R: Send> PipelineShared<R> {
    fn work(&self) {
        let mut batch = Vec::new();
        let mut state = self.state.lock();
        while !state.poisoned {
            let can_sync = !state.syncing && state.sync_wanted();
            let can_write = !state.writing && !state.commits.is_empty();
            if can_sync && can_write {
                self.work.notify_one(); // one thread for each role
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
        self.work.notify_all(); // the other thread may be waiting for this one
        self.room.notify_all();
    }

    /// Writes all commits. `batch` is empty before and after; it is passed in to reuse its memory.
    fn write(&self, mut state: MutexGuard<'_, PipelineState<R>>, batch: &mut Vec<Commit<R>>) {
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
                // The mutation: an eager commit before a lazy one is forgotten.
                true => eager = commit.sync,
                false => eager |= commit.sync,
            }
        }
        let mut state = self.state.lock();
        let mut on_written = std::mem::take(&mut state.on_written);
        if cfg!(feature = "mutate-release-written") && !eager {
            // The mutation: outputs of a lazy commit do not wait for earlier commits.
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
        let PipelineState { on_durable, written_next, .. } = &mut *state;
        append(on_durable, written_next);
        if bytes > 0 {
            state.dirty_since = state.dirty_since.or_else(|| Some(now()));
            state.unwritten_bytes -= bytes;
            self.room.notify_all();
        }
    }

    fn sync(&self, mut state: MutexGuard<'_, PipelineState<R>>) {
        state.syncing = true;
        state.on_synced = std::mem::take(&mut state.on_durable);
        // Without an eager commit, the waiting outputs depend only on data that is already durable.
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

    /// Handles a failed write or sync. If the pipeline is already stopped, the cause was reported elsewhere.
    fn failed(&self, error: io::Error) {
        let is_late = error.get_ref().is_some_and(|inner| inner.is::<Stopped>());
        if !is_late {
            self.fail(error.into());
        }
    }

    /// Stops everything and reports the failure.
    fn fail(&self, failure: EngineFailure) {
        if let Some(poison) = self.stop() {
            poison(failure);
        }
    }

    /// Stops everything and drops all waiting outputs. The first caller gets the callback and must call it.
    fn stop(&self) -> Option<Poison> {
        // Must come first: dropped callers check it.
        self.marks.stop();
        let mut state = self.state.lock();
        state.poisoned = true;
        let PipelineState { commits, on_written, written_next, on_durable, on_synced, .. } =
            &mut *state;
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

/// Appends, or swaps the vectors if one is empty.
fn append<R>(to: &mut Vec<R>, from: &mut Vec<R>) {
    if to.is_empty() {
        std::mem::swap(to, from);
    } else {
        to.append(from);
    }
}
