//! Threads around [`Writer`] and [`Syncer`]: group commit without a timer.
//!
//! ```text
//! submit → [queue] → writer thread → [pending] → syncer thread → on_durable
//!                         └→ on_written
//! ```
//! While one fdatasync runs, the writer goes on writing; the next one takes
//! everything written meanwhile. Both hand-overs swap whole lists, so that a wake-up is paid
//! per batch and not per commit.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

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
    /// Whether a sync is needed now. Without it, `on_durable` is released once
    /// everything before it that needed a sync is durable.
    pub sync: bool,
    /// Released once written.
    pub on_written: Vec<R>,
    /// Released once durable.
    pub on_durable: Vec<R>,
}

/// The journal stopped, on request or after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal has stopped")]
pub struct Stopped;

/// Told once why everything stopped.
type Poison = Box<dyn FnOnce(io::Error) + Send>;

/// Where releases and errors go. Called on the pipeline's threads, in order, with batches.
pub struct Callbacks<R> {
    /// Their commits are written.
    pub written: Box<dyn FnMut(Vec<R>) + Send>,
    /// Their commits are durable.
    pub durable: Box<dyn FnMut(Vec<R>) + Send>,
    /// Called once, after a failed write or sync. Whoever was not released is dropped.
    pub poison: Poison,
}

/// The way to disk.
pub struct Pipeline<R: Send + 'static> {
    shared: Arc<Shared<R>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<R> {
    queue: Mutex<Queue<R>>,
    submitted: Condvar,
    room: Condvar,
    pending: Mutex<Pending<R>>,
    written: Condvar,
    poison: Mutex<Option<Poison>>,
}

struct Queue<R> {
    commits: Vec<Commit<R>>,
    bytes: usize,
    stopped: bool,
}

struct Pending<R> {
    on_durable: Vec<R>,
    /// Somebody waits for a sync.
    eager: bool,
    /// Something was written that no sync has covered.
    dirty: bool,
    /// The writer has ended.
    last: bool,
    poisoned: bool,
}

impl<R: Send + 'static> Pipeline<R> {
    /// Starts the two threads.
    pub fn start(writer: Writer, syncer: Syncer, callbacks: Callbacks<R>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { commits: Vec::new(), bytes: 0, stopped: false }),
            submitted: Condvar::new(),
            room: Condvar::new(),
            pending: Mutex::new(Pending {
                on_durable: Vec::new(),
                eager: false,
                dirty: false,
                last: false,
                poisoned: false,
            }),
            written: Condvar::new(),
            poison: Mutex::new(Some(callbacks.poison)),
        });
        let mut pipeline = Pipeline { shared: shared.clone(), threads: Vec::with_capacity(2) };
        let (for_writer, written) = (shared.clone(), callbacks.written);
        let write = move || for_writer.write_loop(writer, written);
        pipeline
            .threads
            .push(std::thread::Builder::new().name("journal-write".into()).spawn(write)?);
        let durable = callbacks.durable;
        let sync = move || shared.sync_loop(syncer, durable);
        pipeline.threads.push(std::thread::Builder::new().name("journal-sync".into()).spawn(sync)?);
        Ok(pipeline)
    }

    /// Hands a commit over; waits only while too much is unwritten.
    pub fn submit(&self, commit: Commit<R>) -> Result<(), Stopped> {
        let mut queue = self.shared.queue.lock();
        while queue.bytes > UNWRITTEN_BYTES_MAX && !queue.stopped {
            self.shared.room.wait(&mut queue);
        }
        if queue.stopped {
            return Err(Stopped);
        }
        queue.bytes += commit.chunks.iter().map(|chunk| chunk.bytes().len()).sum::<usize>();
        queue.commits.push(commit);
        drop(queue);
        self.shared.submitted.notify_one();
        Ok(())
    }

    /// Writes, syncs and releases everything submitted, then ends the threads.
    pub fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.queue.lock().stopped = true;
        self.shared.submitted.notify_one();
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic was reported where it happened
        }
    }
}

impl<R: Send + 'static> Drop for Pipeline<R> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<R: Send> Shared<R> {
    fn write_loop(&self, mut writer: Writer, mut released: Box<dyn FnMut(Vec<R>) + Send>) {
        let mut batch = Vec::new();
        loop {
            let mut queue = self.queue.lock();
            while queue.commits.is_empty() && !queue.stopped {
                self.submitted.wait(&mut queue);
            }
            if queue.commits.is_empty() {
                break;
            }
            std::mem::swap(&mut batch, &mut queue.commits);
            drop(queue);
            if let Err(error) = self.write_batch(&mut writer, &mut batch, &mut released) {
                self.fail(error);
                break;
            }
        }
        self.pending.lock().last = true;
        self.written.notify_one();
    }

    fn write_batch(
        &self,
        writer: &mut Writer,
        batch: &mut Vec<Commit<R>>,
        released: &mut dyn FnMut(Vec<R>),
    ) -> io::Result<()> {
        for commit in batch.drain(..) {
            let mut bytes = 0;
            for chunk in &commit.chunks {
                writer.write(chunk)?;
                bytes += chunk.bytes().len();
            }
            let mut pending = self.pending.lock();
            if pending.poisoned {
                return Err(io::Error::other("the journal stopped after a failed sync"));
            }
            // Lazy data wakes the syncer once, to start its clock; more of it must not restart that.
            let first_lazy = bytes > 0 && !pending.dirty;
            let wake = commit.sync || !commit.on_durable.is_empty() || first_lazy;
            pending.dirty |= bytes > 0;
            pending.eager |= commit.sync;
            pending.on_durable.extend(commit.on_durable);
            drop(pending);
            if wake {
                self.written.notify_one();
            }
            if !commit.on_written.is_empty() {
                released(commit.on_written);
            }
            if bytes > 0 {
                self.queue.lock().bytes -= bytes;
                self.room.notify_all();
            }
        }
        Ok(())
    }

    fn sync_loop(&self, mut syncer: Syncer, mut released: Box<dyn FnMut(Vec<R>) + Send>) {
        loop {
            let mut pending = self.pending.lock();
            let mut late = false;
            while !pending.eager && pending.on_durable.is_empty() && !pending.last && !late {
                if pending.dirty {
                    late = self.written.wait_for(&mut pending, LAZY_SYNC_AFTER).timed_out();
                } else {
                    self.written.wait(&mut pending);
                }
            }
            if pending.poisoned {
                pending.on_durable.clear();
                return;
            }
            let last = pending.last;
            let sync = pending.eager || late || last;
            let on_durable = std::mem::take(&mut pending.on_durable);
            if sync {
                (pending.eager, pending.dirty) = (false, false);
            }
            drop(pending);
            if sync && let Err(error) = syncer.sync() {
                self.fail(error);
                return;
            }
            if !on_durable.is_empty() {
                released(on_durable);
            }
            if last {
                return;
            }
        }
    }

    /// Stops everything; whoever waits is dropped.
    fn fail(&self, error: io::Error) {
        let mut pending = self.pending.lock();
        pending.poisoned = true;
        let dropped = std::mem::take(&mut pending.on_durable);
        drop(pending);
        let mut queue = self.queue.lock();
        queue.stopped = true;
        let commits = std::mem::take(&mut queue.commits);
        drop(queue);
        drop((dropped, commits));
        self.submitted.notify_one();
        self.written.notify_one();
        self.room.notify_all();
        let poison = self.poison.lock().take();
        if let Some(poison) = poison {
            poison(error);
        }
    }
}
