//! Opening a data directory, starting the engine's threads, and stopping them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use malote_model::{Refusal, Timestamp};
use parking_lot::{Condvar, Mutex};

use crate::admission::AdmissionLimits;
use crate::chance::Chance;
use crate::clock::{Clock, SystemClock};
use crate::core::Core;
use crate::disk::{DirError, Disk, OsDisk};
use crate::failure::{EngineFailure, supervised};
use crate::handle::{Engine, EngineShared};
use crate::housekeeping::{Housekeeping, HousekeepingInputs, HousekeepingStats};
use crate::journal::{
    self, Callbacks, Options, Pipeline, Pool, Recovered, RecoveryReport, Segments, SpareMaker,
    Syncer, Writer,
};
use crate::mailbox::Mailbox;
use crate::reads;
use crate::replies::{ReadRequest, RoutedOutput};
use crate::shard::{PendingRequests, Shard};

/// How often, and how long apart, locking the directory is retried.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How to open an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The data directory. It is created if it does not exist.
    pub data: PathBuf,
    pub journal: Options,
}

impl Settings {
    /// The defaults, with this data directory.
    pub fn at(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), journal: Options::default() }
    }
}

/// Why an engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] journal::RecoverError),
    /// There is no space for the first record.
    #[error("the disk is full: the broker needs space for one journal segment to start")]
    NoRoom,
    /// A thread could not be started, or the first sync failed.
    #[error("the engine cannot start: {0}")]
    Start(#[source] std::io::Error),
}

/// The threads of a running engine. Dropping it stops them, like [`Running::stop`].
pub struct Running {
    pub(crate) mailbox: Arc<Mailbox>,
    pool: Pool,
    stopping: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
    report: RecoveryReport,
    pub(crate) segments: Segments,
    disk: Arc<dyn Disk>,
}

impl Engine {
    /// Opens a data directory, recovers its state, and starts the engine.
    pub fn open(settings: Settings) -> Result<(Engine, Running), OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(&settings.data)?);
        // A process that was just killed may still wait for its last sync and hold the lock.
        for _ in 0..LOCK_TRIES {
            match Self::open_on(disk.clone(), &settings.journal, Chance::of_system()) {
                Err(OpenError::Journal(journal::RecoverError::Locked(_))) => {
                    std::thread::sleep(LOCK_PAUSE)
                }
                opened => return opened,
            }
        }
        Self::open_on(disk, &settings.journal, Chance::of_system())
    }

    /// Opens on any disk, with any source of randomness.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
    ) -> Result<(Engine, Running), OpenError> {
        Self::open_at(disk, options, chance, |floor| Arc::new(SystemClock::starting_at(floor)))
    }

    /// Opens on any disk, with any source of randomness and any clock. The clock must not return an earlier time than
    /// it is given.
    pub fn open_at(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
    ) -> Result<(Engine, Running), OpenError> {
        let parts = EngineParts::open(
            disk,
            options,
            chance,
            clock,
            AdmissionLimits::default(),
            Pipeline::start,
        )?;
        let EngineParts { engine, mut running, shard, to_read, spare_maker, housekeeping } = parts;
        let (mailbox, segments) = (running.mailbox.clone(), running.segments.clone());
        let bring = move || to_read.iter().for_each(|what| reads::serve(what, &segments, &mailbox));
        running.spawn("core", move || shard.run())?;
        running.spawn("reads", bring)?;
        running.spawn("spares", move || spare_maker.run())?;
        running.spawn("housekeeping", move || housekeeping.run())?;
        Ok((engine, running))
    }
}

/// An engine whose threads have not been started.
pub(crate) struct EngineParts {
    pub engine: Engine,
    pub running: Running,
    pub shard: Shard,
    pub to_read: mpsc::Receiver<ReadRequest>,
    pub spare_maker: SpareMaker,
    pub housekeeping: Housekeeping,
}

impl EngineParts {
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
        rooms: AdmissionLimits,
        pipeline: impl FnOnce(
            Writer,
            Syncer,
            Callbacks<RoutedOutput>,
        ) -> std::io::Result<Pipeline<RoutedOutput>>,
    ) -> Result<Self, OpenError> {
        let hash_seed = chance.draw();
        let mut core = Core::new(hash_seed);
        let mut options = options.clone();
        options.salt = chance.draw() as u32;
        let recovered = journal::recover(disk.clone(), &options, &mut core)?;
        let Recovered {
            mut appender,
            mut writer,
            mut syncer,
            segments,
            pool,
            spare_maker,
            snapshotter,
            scrubber,
            backups,
            marks,
            report,
        } = recovered;
        let clock = clock(core.last_at());
        // The new epoch is on disk before anything is served, so that no token is issued twice.
        core.go_live(&mut appender, clock.now(), chance.draw()).map_err(
            |refusal| match refusal {
                Refusal::DiskFull => OpenError::NoRoom,
                other => OpenError::Start(std::io::Error::other(other.to_string())),
            },
        )?;
        for chunk in appender.take().unwrap_or_default() {
            writer.write(&chunk).map_err(OpenError::Start)?;
        }
        syncer.sync().map_err(OpenError::Start)?;

        let mailbox = Arc::new(Mailbox::new(marks.clone(), rooms));
        let (on_written, on_durable, on_poison) =
            (mailbox.clone(), mailbox.clone(), mailbox.clone());
        let callbacks = Callbacks {
            written: Box::new(move |outputs: Vec<_>| {
                outputs.into_iter().for_each(|output| on_written.send_output(output))
            }),
            durable: Box::new(move |outputs: Vec<_>| {
                outputs.into_iter().for_each(|output| on_durable.send_output(output))
            }),
            poison: Box::new(move |failure| on_poison.poison(failure)),
        };
        let pipeline = pipeline(writer, syncer, callbacks).map_err(OpenError::Start)?;
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        mailbox.on_failure({
            let (pipeline, pool, stopping) = (pipeline.stopper(), pool.clone(), stopping.clone());
            move || {
                pipeline();
                stop_background(&pool, &stopping);
            }
        });
        let shared = EngineShared {
            marks: marks.clone(),
            pool: pool.clone(),
            mailbox: mailbox.clone(),
            segments: segments.clone(),
            clock: clock.clone(),
            chance,
            backups,
            stats: Arc::new(HousekeepingStats::default()),
            damaged: Default::default(),
        };
        let found = report.damaged.len() + report.unreadable_segments.len();
        shared.stats.damaged.store(found as u64, Ordering::Relaxed);
        if let Some(divergence) = &report.diverged {
            shared.stats.diverged.store(1, Ordering::Relaxed);
            tracing::error!(%divergence, "{}", crate::housekeeping::DIVERGED);
        }
        let shard = Shard {
            waiting: PendingRequests::new(&appender),
            core,
            appender,
            marks: marks.clone(),
            pool: pool.clone(),
            pipeline,
            mailbox: mailbox.clone(),
            clock,
            segments: segments.clone(),
            out: Vec::new(),
        };
        let (reads, to_read) = mpsc::channel();
        mailbox.set_reads(reads);
        let housekeeping = Housekeeping::new(HousekeepingInputs {
            snapshotter,
            scrubber,
            hash_seed,
            options: &options,
            shared: &shared,
            disk: disk.clone(),
            stopping: stopping.clone(),
        });
        let running =
            Running { mailbox, pool, stopping, threads: Vec::new(), report, segments, disk };
        let engine = Engine { shared: Arc::new(shared) };
        Ok(Self { engine, running, shard, to_read, spare_maker, housekeeping })
    }
}

/// Stops the background threads: spare segments and housekeeping.
fn stop_background(pool: &Pool, stopping: &(Mutex<bool>, Condvar)) {
    pool.stop();
    *stopping.0.lock() = true;
    stopping.1.notify_all();
}

impl Running {
    /// Starts a thread whose panic poisons the engine.
    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let mailbox = self.mailbox.clone();
        let supervised = move || {
            if let Err(failure) = supervised(work) {
                mailbox.poison(failure);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(supervised);
        self.threads.push(thread.map_err(OpenError::Start)?);
        Ok(())
    }

    /// What recovery found and did.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Whether the engine stopped because of a failure. The process should exit: a restart runs recovery.
    pub fn is_poisoned(&self) -> bool {
        self.mailbox.is_poisoned()
    }

    /// Why the engine stopped, if it failed.
    pub fn failure(&self) -> Option<&EngineFailure> {
        self.mailbox.failure()
    }

    pub fn journal_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    pub fn spares(&self) -> usize {
        self.pool.spares()
    }

    /// Stops accepting requests, answers pending ones, syncs, and ends the threads.
    pub async fn stop(mut self) {
        let ended = tokio::task::spawn_blocking(move || self.end());
        let _ = ended.await;
    }

    fn end(&mut self) {
        self.mailbox.close();
        stop_background(&self.pool, &self.stopping);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic has already poisoned the engine
        }
        self.disk.unlock();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
