//! Background work: snapshots, recycling, compaction and scrubbing, one after the other on one thread. Serving never
//! waits for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::command::{Command, Reply};
use crate::compact::{Compaction, LIVE_RECORDS_MAX};
use crate::core::Core;
use crate::disk::Disk;
use crate::handle::{Engine, EngineError, EngineShared};
use crate::journal::{
    Backup, Marks, Options, Pool, Scrubber, Segments, SnapshotError, Snapshotted, Snapshotter,
};
use crate::mailbox::Mailbox;

/// How often to check whether a snapshot is due.
const TICK: Duration = Duration::from_millis(100);

/// Ticks between two snapshots: one second. A snapshot comes earlier if so much was written that its replay would take
/// long.
const SNAPSHOT_TICKS: u32 = 10;
const SNAPSHOT_EARLY: u64 = 4;

/// Ticks between two runs of the other checks: half a second.
const CHECK_TICKS: u32 = 5;

/// Ticks between two checks that the files still exist: one second.
const FILES_TICKS: u32 = 10;

/// Checks between two measurements of wasted space. Doubled while they lead to nothing.
const LOOK_CHECKS: u32 = 20;
const LOOK_CHECKS_MAX: u32 = 1200;

/// The pause between two batches of copies. It limits compaction to 25 MiB/s.
const PAUSE: Duration = Duration::from_millis(10);

/// Checks between two rounds of scrubbing: one hour.
const SCRUB_REST_CHECKS: u64 = 7200;

/// The log message after a replay reached another state than the served one.
pub(crate) const DIVERGED: &str = "a replay of the journal does not reproduce the served state; this is a bug in the engine. \
    The broker keeps serving, but the journal is not recycled or compacted and grows: copy the data directory, restart, \
    and report it";

/// Lowers the priority of this thread: a snapshot of a large backlog takes seconds of CPU time.
fn lower_priority() {
    // On other systems, priorities apply to whole processes.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        tracing::debug!(%error, "housekeeping keeps its priority");
    }
}

/// Only for the log; no replayed state depends on it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

/// Counters since the start, and sizes from the last snapshot.
#[derive(Default)]
pub(crate) struct HousekeepingStats {
    pub live_bytes: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    pub copied: AtomicU64,
    pub recycled: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    pub damaged: AtomicU64,
    pub diverged: AtomicU64,
}

impl HousekeepingStats {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The engine's disk usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// Bytes of journal segments in use.
    pub journal_bytes: u64,
    /// Journal segments in use.
    pub segments: u64,
    /// Approximate number of live journal bytes at the last snapshot.
    pub live_bytes: u64,
    /// Bytes of spare segment files.
    pub spare_bytes: u64,
    pub snapshot_bytes: u64,
    /// Free bytes on the disk; 0 if unknown.
    pub free_bytes: u64,
    /// Whether sending is possible. It is not if only the reserved spare segments are left.
    pub publish_allowed: bool,
    /// Records that compaction copied since the start.
    pub copied: u64,
    /// Segments that were recycled since the start.
    pub recycled: u64,
    /// Bytes verified by scrubbing since the start.
    pub scrubbed_bytes: u64,
    /// Damaged parts of the journal found so far.
    pub damaged: u64,
    /// Replays that reached another state than the served one. If there are any, no segment is recycled.
    pub diverged: u64,
}

impl Engine {
    pub fn disk(&self) -> DiskFacts {
        let EngineShared { segments, pool, stats, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskFacts {
            journal_bytes: segments.bytes(),
            segments: segments.count() as u64,
            live_bytes: read(&stats.live_bytes),
            spare_bytes: pool.spare_bytes(),
            snapshot_bytes: read(&stats.snapshot_bytes),
            free_bytes: pool.free_bytes(),
            publish_allowed: pool.publish_allowed(),
            copied: read(&stats.copied),
            recycled: read(&stats.recycled),
            scrubbed_bytes: read(&stats.scrubbed_bytes),
            damaged: read(&stats.damaged),
            diverged: read(&stats.diverged),
        }
    }

    /// Begins a backup of everything that is durable now. Reading it blocks on the disk.
    pub fn backup(&self) -> io::Result<Backup> {
        self.shared.backups.begin()
    }
}

pub(crate) struct Housekeeping {
    snapshotter: Snapshotter,
    scrubber: Scrubber,
    stats: Arc<HousekeepingStats>,
    hash_seed: u64,
    segment_bytes: u64,
    scrub_bytes_per_s: u64,
    /// Bytes that may be scrubbed now; negative after a large frame.
    scrub_budget: i64,
    /// Checks until the next round of scrubbing.
    scrub_in: u64,
    disk: Arc<dyn Disk>,
    mailbox: Arc<Mailbox>,
    segments: Segments,
    pool: Pool,
    marks: Arc<Marks>,
    stopping: Arc<(Mutex<bool>, Condvar)>,
    /// Checks until the next measurement of wasted space.
    look_in: u32,
    look_checks: u32,
    written_bytes: u64,
    /// The last measurement showed that a snapshot would free space.
    wanted: bool,
    /// What the core counted as live at the last snapshot. Shared records are counted once for each queue.
    counted_bytes: u64,
    /// The last damage that a snapshot met, so that it is counted only once.
    met_damage: Option<String>,
    /// There is no thread: a pause ends with the next step.
    pub(crate) stepwise: bool,
}

/// What housekeeping needs from the engine that it belongs to.
pub(crate) struct HousekeepingInputs<'a> {
    pub snapshotter: Snapshotter,
    pub scrubber: Scrubber,
    pub hash_seed: u64,
    pub options: &'a Options,
    pub shared: &'a EngineShared,
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
        shared.stats.live_bytes.store(snapshotter.live_bytes(), Ordering::Relaxed);
        shared.stats.snapshot_bytes.store(snapshotter.snapshot_bytes(), Ordering::Relaxed);
        Self {
            snapshotter,
            scrubber,
            stats: shared.stats.clone(),
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

    /// Runs housekeeping until the engine stops, on its own thread.
    pub(crate) fn run(mut self) {
        lower_priority();
        let executor = tokio::runtime::Builder::new_current_thread().build();
        executor.expect("a runtime without drivers needs nothing").block_on(self.keep());
    }

    /// Runs housekeeping until the engine stops.
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
                // The snapshot freed nothing: measure less often.
                false if wanted => {
                    self.look_checks = (2 * self.look_checks).min(LOOK_CHECKS_MAX);
                }
                false => {}
            }
        }
    }

    /// Waits. Returns true when the engine is stopping.
    async fn pause(&self, time: Duration) -> bool {
        if self.stepwise {
            // The caller of the steps decides when the pause ends.
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

    /// Checks that all files in use still exist. If not, poisons the engine: what it answered from now on would be lost
    /// with the process. Each sync checks its own segment; this finds the others, also on an idle server.
    fn files_are_there(&self) -> bool {
        match self.disk.check().and_then(|()| self.segments.check_linked()) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.mailbox.poison(error.into());
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the data directory could not be checked");
                true
            }
        }
    }

    /// Measures from time to time whether the files are much larger than their live content. After a queue was drained,
    /// little is written, and no other check would notice.
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
            // What a single snapshot covers is not free yet. A second one needs a journal that has grown.
            let _ = self.mailbox.ask_inside(Command::Mark).await; // an error means that the engine is stopping
        }
    }

    /// Live bytes with shared records counted once, estimated from the ratio at the last snapshot.
    fn counted_once(&self, counted: u64) -> u64 {
        let (then, once) = (u128::from(self.counted_bytes), self.snapshotter.live_bytes());
        let share = (u128::from(counted) * u128::from(once)).checked_div(then);
        share.map_or(counted, |bytes| counted.min(bytes as u64))
    }

    /// Removes spare files that will not be needed soon.
    fn trim(&self, busy: bool) {
        if let Err(error) = self.snapshotter.trim(busy) {
            tracing::warn!(%error, "a surplus journal segment could not be removed");
        }
    }

    /// Verifies as much of the journal as fits into half a second.
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
                    HousekeepingStats::add(&self.stats.damaged, 1);
                    return;
                }
            };
            self.scrub_budget = self.scrub_budget.saturating_sub_unsigned(done.bytes);
            HousekeepingStats::add(&self.stats.scrubbed_bytes, done.bytes);
            if let Some(damage) = done.damage {
                HousekeepingStats::add(&self.stats.damaged, 1);
                tracing::error!(
                    file = damage.file, from = %damage.from, to = %damage.to,
                    "a part of the journal is damaged: the file is kept as it is; run `malote verify` for details"
                );
            }
            if done.round {
                (self.scrub_in, self.scrub_budget) = (SCRUB_REST_CHECKS, 0);
                return;
            }
        }
    }

    /// Makes a snapshot, and copies live records out of segments that could be recycled. Returns whether this freed
    /// anything.
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
                self.stats.live_bytes.store(live_bytes, Ordering::Relaxed);
                let snapshot_bytes = self.snapshotter.snapshot_bytes();
                self.stats.snapshot_bytes.store(snapshot_bytes, Ordering::Relaxed);
                HousekeepingStats::add(&self.stats.recycled, done.recycled as u64);
                done.recycled
            }
            Ok(None) => return false,
            Err(SnapshotError::Diverged(divergence)) => {
                HousekeepingStats::add(&self.stats.diverged, 1);
                tracing::error!(%divergence, "{DIVERGED}");
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, "no snapshot could be made; the journal grows until one succeeds");
                return false;
            }
        };
        self.trim(true);
        let victims = self.snapshotter.victims();
        if victims.is_empty() {
            return recycled > 0;
        }
        let residents = core.live_records_in(&victims, LIVE_RECORDS_MAX);
        drop(core);
        let copied = self.compact(Compaction::new(residents, self.segment_bytes)).await;
        tracing::debug!(segments = victims.len(), copied, "compaction");
        HousekeepingStats::add(&self.stats.copied, copied);
        if copied > 0 {
            self.snapshotter.relocated(&victims);
        }
        recycled > 0 || copied > 0
    }

    /// Saves the state of the serving core, because the journal since the last snapshot cannot be replayed. This blocks
    /// the core while its state is serialized in memory.
    async fn save_live(
        &mut self,
        core: &mut Core,
        why: &SnapshotError,
    ) -> Result<Option<Snapshotted>, SnapshotError> {
        let damage = why.to_string();
        if self.met_damage.as_ref() != Some(&damage) {
            tracing::error!(
                "{why}: the file is kept as it is, and the served state is saved instead"
            );
            HousekeepingStats::add(&self.stats.damaged, 1);
            self.met_damage = Some(damage);
        }
        let began = now();
        let Ok(Reply::Saved { covered, body }) = self.mailbox.ask_inside(Command::Save).await
        else {
            return Ok(None); // stopping or poisoned
        };
        tracing::warn!(
            bytes = body.len(),
            ms = began.elapsed().as_millis() as u64,
            "the core saved its state itself; it served no requests for at most `ms` milliseconds"
        );
        while self.marks.durable() < covered {
            if self.marks.poisoned() || self.pause(TICK).await {
                return Ok(None);
            }
        }
        *core = Core::new(self.hash_seed);
        self.snapshotter.save_live(core, covered, &body).map(Some)
    }

    /// Lets the core journal copies, one batch at a time. Returns how many.
    async fn compact(&self, mut compaction: Compaction) -> u64 {
        let pressed = !self.pool.publish_allowed();
        let mut copied = 0;
        while let Some(items) = compaction.next_batch(&self.segments) {
            // The last spares are reserved for settling, unless copying will free some.
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
