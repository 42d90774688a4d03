//! What happens behind: snapshots, recycling, compaction. One thread, one thing at a time; serving never waits for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::command::{Command, Reply};
use crate::compact::{Compaction, RESIDENTS_MAX};
use crate::core::Core;
use crate::handle::{EngineError, Shared};
use crate::journal::{Marks, Pool, Segments, Snapshotter};
use crate::mailbox::Mailbox;

/// How often it is asked whether something is due.
const CHECK: Duration = Duration::from_millis(500);

/// Checks between two looks at whether the files take too much; doubled while looking does not help.
const LOOK_CHECKS: u32 = 20;
const LOOK_CHECKS_MAX: u32 = 1200;

/// Between two batches of copies, so that they never take all of a disk: at most 25 MiB/s.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Housekeeping {
    snapshotter: Snapshotter,
    hash_seed: u64,
    segment_bytes: u64,
    mailbox: Arc<Mailbox>,
    segments: Segments,
    pool: Pool,
    marks: Arc<Marks>,
    stopping: Arc<(Mutex<bool>, Condvar)>,
    /// Checks until the next look.
    look_in: u32,
    look_checks: u32,
    written_bytes: u64,
    /// A look said that a snapshot frees something.
    wanted: bool,
}

impl Housekeeping {
    pub(crate) fn new(
        snapshotter: Snapshotter,
        hash_seed: u64,
        segment_bytes: u64,
        shared: &Shared,
        stopping: Arc<(Mutex<bool>, Condvar)>,
    ) -> Self {
        Self {
            snapshotter,
            hash_seed,
            segment_bytes,
            mailbox: shared.mailbox.clone(),
            segments: shared.segments.clone(),
            pool: shared.pool.clone(),
            marks: shared.marks.clone(),
            stopping,
            look_in: LOOK_CHECKS,
            look_checks: LOOK_CHECKS,
            written_bytes: 0,
            wanted: false,
        }
    }

    /// Keeps house until the engine stops.
    pub(crate) fn run(mut self) {
        while !self.pause(CHECK) {
            self.look();
            let wanted = self.wanted && self.snapshotter.behind();
            if !wanted && !self.snapshotter.due() {
                continue;
            }
            self.wanted = false;
            let freed = self.snapshot();
            self.look_checks =
                if freed { LOOK_CHECKS } else { (2 * self.look_checks).min(LOOK_CHECKS_MAX) };
        }
    }

    /// Waits; true when it is time to stop.
    fn pause(&self, time: Duration) -> bool {
        let (stop, changed) = &*self.stopping;
        let mut stopped = stop.lock();
        if !*stopped {
            changed.wait_for(&mut stopped, time);
        }
        *stopped
    }

    /// Now and then: do the files take more than what lives in them justifies? After a drain nothing else would ask,
    /// because little is written.
    fn look(&mut self) {
        self.look_in = self.look_in.saturating_sub(1);
        if self.look_in > 0 {
            return;
        }
        self.look_in = self.look_checks;
        let written_bytes = self.marks.written_bytes();
        let busy = written_bytes - self.written_bytes > self.segment_bytes;
        self.written_bytes = written_bytes;
        if let Err(error) = self.snapshotter.trim(busy) {
            tracing::warn!(%error, "a surplus journal segment could not be removed");
        }
        if !self.snapshotter.wasteful(0) {
            return;
        }
        let Ok(Reply::Count(live_bytes)) = self.mailbox.ask_blocking(Command::LiveBytes) else {
            return;
        };
        self.wanted = self.snapshotter.wasteful(live_bytes);
        if self.wanted && !self.snapshotter.behind() {
            // What a single snapshot covers is not free yet; for a second one the journal must have moved on.
            let _ = self.mailbox.ask_blocking(Command::Mark); // stopping: then nothing matters
        }
    }

    /// Makes a snapshot and copies what stands in the way of recycling. Tells whether any of it won something.
    fn snapshot(&mut self) -> bool {
        let mut core = Core::new(self.hash_seed);
        let recycled = match self.snapshotter.run(&mut core) {
            Ok(Some(done)) => {
                tracing::debug!(?done, "snapshot");
                done.recycled
            }
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(%error, "no snapshot could be made; the journal grows until one can");
                return false;
            }
        };
        let victims = self.snapshotter.victims();
        if victims.is_empty() {
            return recycled > 0;
        }
        let residents = core.residents(&victims, RESIDENTS_MAX);
        drop(core);
        let copied = self.compact(Compaction::new(residents, self.segment_bytes));
        tracing::debug!(segments = victims.len(), copied, "compaction");
        if copied > 0 {
            self.snapshotter.relocated(&victims);
        }
        recycled > 0 || copied > 0
    }

    /// Has the core journal copies, one batch at a time. Tells how many.
    fn compact(&self, mut compaction: Compaction) -> u64 {
        let pressed = !self.pool.publish_allowed();
        let mut copied = 0;
        while let Some(items) = compaction.next_batch(&self.segments) {
            // The last spares are for settling, unless copying is what frees some.
            if !pressed && !self.pool.publish_allowed() {
                break;
            }
            match self.mailbox.ask_blocking(Command::Relocate { items }) {
                Ok(Reply::Count(n)) => copied += n,
                Ok(other) => unreachable!("the core answered {other:?}"),
                Err(EngineError::Refused(refusal)) => {
                    tracing::debug!(%refusal, "compaction stopped");
                    break;
                }
                Err(_) => break,
            }
            if !pressed && self.pause(PAUSE) {
                break;
            }
        }
        copied
    }
}
