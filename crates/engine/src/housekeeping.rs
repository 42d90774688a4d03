//! What happens behind: snapshots, recycling, compaction, scrubbing. One thread, one thing at a time; serving never waits for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::command::{Command, Reply};
use crate::compact::{Compaction, RESIDENTS_MAX};
use crate::core::Core;
use crate::disk::Disk;
use crate::handle::{Engine, EngineError, Shared};
use crate::journal::{
    Backup, Marks, Options, Pool, Scrubber, Segments, SnapshotError, Snapshotted, Snapshotter,
};
use crate::mailbox::Mailbox;

/// How often it is asked whether a snapshot is due.
const TICK: Duration = Duration::from_millis(100);

/// Ticks from one snapshot to the next: a second. Whoever writes so much meanwhile that its replay would take long
/// waits for less.
const SNAPSHOT_TICKS: u32 = 10;
const SNAPSHOT_EARLY: u64 = 4;

/// Ticks from one check of all the rest to the next: half a second.
const CHECK_TICKS: u32 = 5;

/// Ticks from one look at whether the files are still there to the next: a second.
const FILES_TICKS: u32 = 10;

/// Checks between two looks at whether the files take too much; doubled while looking does not help.
const LOOK_CHECKS: u32 = 20;
const LOOK_CHECKS_MAX: u32 = 1200;

/// Between two batches of copies, so that they never take all of a disk: at most 25 MiB/s.
const PAUSE: Duration = Duration::from_millis(10);

/// Checks from the end of one round of scrubbing to the next: an hour.
const SCRUB_REST_CHECKS: u64 = 7200;

/// What an operator must know when a replay came to another state than the one served.
pub(crate) const DIVERGED: &str = "a replay of the journal comes to another state than the one being served; this is a \
    defect of the engine. Serving goes on, but nothing is recycled or compacted and the journal grows: copy the data \
    directory, restart, and report it";

/// A snapshot of a large backlog is seconds of work: on busy processors serving comes first.
fn yield_to_others() {
    // Elsewhere this is said of a whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        tracing::debug!(%error, "housekeeping keeps its priority");
    }
}

/// Only for the log; nothing that is replayed depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

/// What was done since the start, and found at the last snapshot.
#[derive(Default)]
pub(crate) struct Ledger {
    pub live_bytes: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    pub copied: AtomicU64,
    pub recycled: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    pub damaged: AtomicU64,
    pub diverged: AtomicU64,
}

impl Ledger {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// What the engine has on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// Bytes of journal segments in use.
    pub journal_bytes: u64,
    /// Journal segments in use.
    pub segments: u64,
    /// Bytes of the journal that were live at the last snapshot, about.
    pub live_bytes: u64,
    /// Bytes of segment files that wait to be used.
    pub spare_bytes: u64,
    /// Bytes of snapshots.
    pub snapshot_bytes: u64,
    /// Bytes free on the disk; 0 when it does not tell.
    pub free_bytes: u64,
    /// Whether sending is possible: it is not when only the last spares are left.
    pub publish_allowed: bool,
    /// Records that compaction copied since the start.
    pub copied: u64,
    /// Segments that were used again since the start.
    pub recycled: u64,
    /// Bytes read again and verified since the start.
    pub scrubbed_bytes: u64,
    /// Damaged parts of the journal found at the start and since.
    pub damaged: u64,
    /// Replays that came to another state than the one served, at the start and since. If any, no segment is recycled.
    pub diverged: u64,
}

impl Engine {
    /// What is on the disk.
    pub fn disk(&self) -> DiskFacts {
        let Shared { segments, pool, ledger, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskFacts {
            journal_bytes: segments.bytes(),
            segments: segments.count() as u64,
            live_bytes: read(&ledger.live_bytes),
            spare_bytes: pool.spare_bytes(),
            snapshot_bytes: read(&ledger.snapshot_bytes),
            free_bytes: pool.free_bytes(),
            publish_allowed: pool.publish_allowed(),
            copied: read(&ledger.copied),
            recycled: read(&ledger.recycled),
            scrubbed_bytes: read(&ledger.scrubbed_bytes),
            damaged: read(&ledger.damaged),
            diverged: read(&ledger.diverged),
        }
    }

    /// Begins a copy of everything that is durable now. Making it waits for the disk: on a thread that may.
    pub fn backup(&self) -> io::Result<Backup> {
        self.shared.backups.begin()
    }
}

pub(crate) struct Housekeeping {
    snapshotter: Snapshotter,
    scrubber: Scrubber,
    ledger: Arc<Ledger>,
    hash_seed: u64,
    segment_bytes: u64,
    scrub_bytes_per_s: u64,
    /// Bytes that may be scrubbed now; below zero after a large frame.
    scrub_budget: i64,
    /// Checks until the next round of scrubbing.
    scrub_in: u64,
    disk: Arc<dyn Disk>,
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
    /// What the core counted as live at the last snapshot: what several queues share, once for each.
    counted_bytes: u64,
    /// The last damage that snapshots met: counted once.
    met_damage: Option<String>,
    /// There is no thread: a pause ends when the next step is taken.
    pub(crate) stepwise: bool,
}

/// What housekeeping needs from the engine that it belongs to.
pub(crate) struct HousekeepingInputs<'a> {
    pub snapshotter: Snapshotter,
    pub scrubber: Scrubber,
    pub hash_seed: u64,
    pub options: &'a Options,
    pub shared: &'a Shared,
    pub disk: Arc<dyn Disk>,
    pub stopping: Arc<(Mutex<bool>, Condvar)>,
}

impl Housekeeping {
    pub(crate) fn new(inputs: HousekeepingInputs<'_>) -> Self {
        let HousekeepingInputs {
            snapshotter,
            scrubber,
            hash_seed,
            options,
            shared,
            disk,
            stopping,
        } = inputs;
        shared.ledger.live_bytes.store(snapshotter.live_bytes(), Ordering::Relaxed);
        shared.ledger.snapshot_bytes.store(snapshotter.snapshot_bytes(), Ordering::Relaxed);
        Self {
            snapshotter,
            scrubber,
            ledger: shared.ledger.clone(),
            hash_seed,
            segment_bytes: options.segment_bytes,
            scrub_bytes_per_s: options.scrub_bytes_per_s,
            scrub_budget: 0,
            scrub_in: 0,
            disk,
            mailbox: shared.mailbox.clone(),
            segments: shared.segments.clone(),
            pool: shared.pool.clone(),
            marks: shared.marks.clone(),
            stopping,
            look_in: LOOK_CHECKS,
            look_checks: LOOK_CHECKS,
            written_bytes: 0,
            wanted: false,
            counted_bytes: 0,
            met_damage: None,
            stepwise: false,
        }
    }

    /// Keeps house until the engine stops, on a thread of its own.
    pub(crate) fn run(mut self) {
        yield_to_others();
        let executor = tokio::runtime::Builder::new_current_thread().build();
        executor.expect("a runtime without drivers needs nothing").block_on(self.keep());
    }

    /// Keeps house until the engine stops.
    pub(crate) async fn keep(&mut self) {
        let (mut ticks, mut saved_ago) = (0_u32, 0_u32);
        while !self.pause(TICK).await {
            ticks = ticks.wrapping_add(1);
            saved_ago = saved_ago.saturating_add(1);
            if ticks.is_multiple_of(FILES_TICKS) && !self.files_are_there() {
                return;
            }
            if ticks.is_multiple_of(CHECK_TICKS) {
                self.scrub();
                self.look().await;
            }
            let wanted = self.wanted && self.snapshotter.behind();
            let times = if saved_ago < SNAPSHOT_TICKS { SNAPSHOT_EARLY } else { 1 };
            if !wanted && !self.snapshotter.due_at(times) {
                continue;
            }
            (self.wanted, saved_ago) = (false, 0);
            match self.snapshot().await {
                true => self.look_checks = LOOK_CHECKS,
                // Looking did not help: the next look is later.
                false if wanted => {
                    self.look_checks = (2 * self.look_checks).min(LOOK_CHECKS_MAX);
                }
                false => {}
            }
        }
    }

    /// Waits; true when it is time to stop.
    async fn pause(&self, time: Duration) -> bool {
        if self.stepwise {
            // Whoever takes the steps decides when this one ends.
            tokio::task::yield_now().await;
            return *self.stopping.0.lock();
        }
        let (stop, changed) = &*self.stopping;
        let mut stopped = stop.lock();
        if !*stopped {
            changed.wait_for(&mut stopped, time);
        }
        *stopped
    }

    /// Whether everything that is being served still has a name on the disk. If not, the engine is poisoned: what is
    /// answered from now on would be gone with the process. Each sync looks at the segment that it syncs; this finds the
    /// rest, and a server that nobody uses.
    fn files_are_there(&self) -> bool {
        match self.disk.check().and_then(|()| self.segments.check_linked()) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.mailbox.poison(error.into());
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the data directory could not be looked at");
                true
            }
        }
    }

    /// Now and then: do the files take more than what lives in them justifies? After a drain nothing else would ask,
    /// because little is written.
    async fn look(&mut self) {
        self.look_in = self.look_in.saturating_sub(1);
        if self.look_in > 0 {
            return;
        }
        self.look_in = self.look_checks;
        let written_bytes = self.marks.written_bytes();
        let busy = written_bytes - self.written_bytes > self.segment_bytes;
        self.written_bytes = written_bytes;
        self.trim(busy);
        if !self.snapshotter.wasteful(0) {
            return;
        }
        let Ok(Reply::Count(counted)) = self.mailbox.ask_inside(Command::LiveBytes).await else {
            return;
        };
        let live_bytes = self.counted_once(counted);
        self.wanted = self.snapshotter.wasteful(live_bytes);
        if self.wanted && !self.snapshotter.behind() {
            // What a single snapshot covers is not free yet; for a second one the journal must have moved on.
            let _ = self.mailbox.ask_inside(Command::Mark).await; // stopping: then nothing matters
        }
    }

    /// Live bytes, what several queues share counted once: as much less as it was at the last snapshot.
    fn counted_once(&self, counted: u64) -> u64 {
        let (then, once) = (u128::from(self.counted_bytes), self.snapshotter.live_bytes());
        let share = (u128::from(counted) * u128::from(once)).checked_div(then);
        share.map_or(counted, |bytes| counted.min(bytes as u64))
    }

    /// Gives up spare files that nobody will need soon.
    fn trim(&self, busy: bool) {
        if let Err(error) = self.snapshotter.trim(busy) {
            tracing::warn!(%error, "a surplus journal segment could not be removed");
        }
    }

    /// Reads as much of the journal again as half a second allows.
    fn scrub(&mut self) {
        self.scrub_in = self.scrub_in.saturating_sub(1);
        if self.scrub_in > 0 || self.scrub_bytes_per_s == 0 {
            return;
        }
        self.scrub_budget += i64::try_from(self.scrub_bytes_per_s / 2).unwrap_or(i64::MAX);
        while self.scrub_budget > 0 {
            let done = match self.scrubber.step() {
                Ok(done) => done,
                Err(error) => {
                    tracing::error!(%error, "a part of the journal cannot be read");
                    Ledger::add(&self.ledger.damaged, 1);
                    return;
                }
            };
            self.scrub_budget = self.scrub_budget.saturating_sub_unsigned(done.bytes);
            Ledger::add(&self.ledger.scrubbed_bytes, done.bytes);
            if let Some(damage) = done.damage {
                Ledger::add(&self.ledger.damaged, 1);
                tracing::error!(
                    file = damage.file, from = %damage.from, to = %damage.to,
                    "a part of the journal is damaged: the file is kept as it is; `malote verify` tells more"
                );
            }
            if done.round {
                (self.scrub_in, self.scrub_budget) = (SCRUB_REST_CHECKS, 0);
                return;
            }
        }
    }

    /// Makes a snapshot and copies what stands in the way of recycling. Tells whether any of it won something.
    async fn snapshot(&mut self) -> bool {
        let mut core = Core::new(self.hash_seed);
        let made = match self.snapshotter.run(&mut core) {
            Err(error) if error.needs_live_state() => self.save_live(&mut core, &error).await,
            made => made,
        };
        let recycled = match made {
            Ok(Some(done)) => {
                tracing::debug!(?done, "snapshot");
                self.counted_bytes = core.counted_bytes();
                let live_bytes = self.snapshotter.live_bytes();
                self.ledger.live_bytes.store(live_bytes, Ordering::Relaxed);
                let snapshot_bytes = self.snapshotter.snapshot_bytes();
                self.ledger.snapshot_bytes.store(snapshot_bytes, Ordering::Relaxed);
                Ledger::add(&self.ledger.recycled, done.recycled as u64);
                done.recycled
            }
            Ok(None) => return false,
            Err(SnapshotError::Diverged(divergence)) => {
                Ledger::add(&self.ledger.diverged, 1);
                tracing::error!(%divergence, "{DIVERGED}");
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, "no snapshot could be made; the journal grows until one can");
                return false;
            }
        };
        self.trim(true);
        let victims = self.snapshotter.victims();
        if victims.is_empty() {
            return recycled > 0;
        }
        let residents = core.residents(&victims, RESIDENTS_MAX);
        drop(core);
        let copied = self.compact(Compaction::new(residents, self.segment_bytes)).await;
        tracing::debug!(segments = victims.len(), copied, "compaction");
        Ledger::add(&self.ledger.copied, copied);
        if copied > 0 {
            self.snapshotter.relocated(&victims);
        }
        recycled > 0 || copied > 0
    }

    /// The journal since the last snapshot cannot be replayed: the core that serves saves itself. It stands still while
    /// it does, for as long as its state takes to be written to memory.
    async fn save_live(
        &mut self,
        core: &mut Core,
        why: &SnapshotError,
    ) -> Result<Option<Snapshotted>, SnapshotError> {
        let damage = why.to_string();
        if self.met_damage.as_ref() != Some(&damage) {
            tracing::error!(
                "{why}: the file is kept as it is, and the state that is being served is saved instead"
            );
            Ledger::add(&self.ledger.damaged, 1);
            self.met_damage = Some(damage);
        }
        let began = now();
        let Ok(Reply::Saved { covered, body }) = self.mailbox.ask_inside(Command::Save).await
        else {
            return Ok(None); // stopping, or poisoned
        };
        tracing::warn!(
            bytes = body.len(),
            ms = began.elapsed().as_millis() as u64,
            "the state was saved by the core itself; nothing was served for at most so many milliseconds"
        );
        while self.marks.durable() < covered {
            if self.marks.poisoned() || self.pause(TICK).await {
                return Ok(None);
            }
        }
        *core = Core::new(self.hash_seed);
        self.snapshotter.save_live(core, covered, &body).map(Some)
    }

    /// Has the core journal copies, one batch at a time. Tells how many.
    async fn compact(&self, mut compaction: Compaction) -> u64 {
        let pressed = !self.pool.publish_allowed();
        let mut copied = 0;
        while let Some(items) = compaction.next_batch(&self.segments) {
            // The last spares are for settling, unless copying is what frees some.
            if !pressed && !self.pool.publish_allowed() {
                break;
            }
            match self.mailbox.ask_inside(Command::Relocate { items }).await {
                Ok(Reply::Count(n)) => copied += n,
                Ok(other) => unreachable!("the core answered {other:?}"),
                Err(EngineError::Refused(refusal)) => {
                    tracing::debug!(%refusal, "compaction stopped");
                    break;
                }
                Err(_) => break,
            }
            if !pressed && self.pause(PAUSE).await {
                break;
            }
        }
        copied
    }
}
