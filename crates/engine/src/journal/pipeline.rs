//! Threads around [`Writer`] and [`Syncer`]: group commit without a timer.
//!
//! Two threads, two roles. At most one thread writes and at most one syncs, at
//! the same time if there is work for both: writing never waits for syncing,
//! and each fdatasync takes everything written before it began. Whoever has written goes
//! on to sync if nobody does: a lone commit costs one wake-up and not two.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Chunks, Syncer, Writer};

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
type Poison = Box<dyn FnOnce(io::Error) + Send>;

/// Where releases and errors go. Called on the pipeline's threads, in order, with batches.
pub struct Callbacks<R> {
    /// Their commits are written.
    pub written: Release<R>,
    /// Their commits are durable.
    pub durable: Release<R>,
    /// Called once, after a failed write or sync. Whoever was not released is dropped.
    pub poison: Poison,
}

/// The way to disk.
pub struct Pipeline<R: Send + 'static> {
    shared: Arc<Shared<R>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<R> {
    state: Mutex<State<R>>,
    work: Condvar,
    room: Condvar,
    /// Held by whoever has the role; the flags in [`State`] say so first.
    write_role: Mutex<(Writer, Release<R>)>,
    sync_role: Mutex<(Syncer, Release<R>)>,
}

struct State<R> {
    commits: Vec<Commit<R>>,
    unwritten_bytes: usize,
    writing: bool,

    on_durable: Vec<R>,
    /// Somebody waits for a sync.
    eager: bool,
    /// When something was written that no sync has taken.
    dirty_since: Option<Instant>,
    syncing: bool,

    closing: bool,
    poisoned: bool,
    poison: Option<Poison>,
}

impl<R: Send + 'static> Pipeline<R> {
    /// Starts the two threads.
    pub fn start(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                commits: Vec::new(),
                unwritten_bytes: 0,
                writing: false,
                on_durable: Vec::new(),
                eager: false,
                dirty_since: None,
                syncing: false,
                closing: false,
                poisoned: false,
                poison: Some(callbacks.poison),
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            write_role: Mutex::new((writer, callbacks.written)),
            sync_role: Mutex::new((syncer, callbacks.durable)),
        });
        let mut pipeline = Pipeline { shared, threads: Vec::with_capacity(2) };
        for name in ["journal-1", "journal-2"] {
            let shared = pipeline.shared.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                let _guard = StopOnPanic(&shared);
                shared.work();
            })?;
            pipeline.threads.push(thread);
        }
        Ok(pipeline)
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

/// A callback that panics must stop the pipeline: its role would never be given back.
struct StopOnPanic<'a, R: Send>(&'a Shared<R>);

impl<R: Send> Drop for StopOnPanic<'_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(io::Error::other("a journal thread panicked"));
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
                drop(state);
                self.sync();
            } else if can_write {
                state.writing = true;
                std::mem::swap(&mut batch, &mut state.commits);
                drop(state);
                self.write(&mut batch);
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

    fn write(&self, batch: &mut Vec<Commit<R>>) {
        let mut role = self.write_role.lock();
        let (writer, released) = &mut *role;
        let (mut on_written, mut on_durable) = (Vec::new(), Vec::new());
        let (mut bytes, mut eager) = (0, false);
        for commit in batch.drain(..) {
            for chunk in &commit.chunks {
                if let Err(error) = writer.write(chunk) {
                    return self.fail(error);
                }
            }
            bytes += bytes_of(&commit);
            eager |= commit.sync;
            on_written.extend(commit.on_written);
            on_durable.extend(commit.on_durable);
        }
        if !on_written.is_empty() {
            released(on_written);
        }
        drop(role);
        let mut state = self.state.lock();
        state.writing = false;
        state.eager |= eager;
        state.on_durable.append(&mut on_durable);
        if bytes > 0 {
            state.dirty_since = state.dirty_since.or_else(|| Some(now()));
            state.unwritten_bytes -= bytes;
            self.room.notify_all();
        }
    }

    fn sync(&self) {
        let mut state = self.state.lock();
        if state.syncing {
            return; // the other thread was quicker
        }
        state.syncing = true;
        let on_durable = std::mem::take(&mut state.on_durable);
        // Without anything eager, those waiting rest only on what is durable already.
        let only_release = !state.eager && !on_durable.is_empty();
        if !only_release {
            (state.eager, state.dirty_since) = (false, None);
        }
        drop(state);
        let mut role = self.sync_role.lock();
        let (syncer, released) = &mut *role;
        if !only_release && let Err(error) = syncer.sync() {
            return self.fail(error);
        }
        if !on_durable.is_empty() {
            released(on_durable);
        }
        drop(role);
        self.state.lock().syncing = false;
    }

    /// Stops everything; whoever waits is dropped.
    fn fail(&self, error: io::Error) {
        let mut state = self.state.lock();
        state.poisoned = true;
        let dropped = (std::mem::take(&mut state.commits), std::mem::take(&mut state.on_durable));
        let poison = state.poison.take();
        drop(state);
        drop(dropped);
        self.work.notify_all();
        self.room.notify_all();
        if let Some(poison) = poison {
            poison(error);
        }
    }
}
