//! Opening a data directory and starting the engine's threads; stopping them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use malote_model::{Refusal, Timestamp};
use parking_lot::{Condvar, Mutex};

use crate::chance::Chance;
use crate::clock::{Clock, SystemClock};
use crate::core::Core;
use crate::disk::{DirError, Disk, OsDisk};
use crate::failure::{Failure, supervised};
use crate::handle::{Engine, Shared};
use crate::housekeeping::{Housekeeping, HousekeepingInputs, Ledger};
use crate::journal::{
    self, Callbacks, Keeper, Options, Pipeline, Pool, Recovered, Report, Segments, Syncer, Writer,
};
use crate::mailbox::{Mailbox, ToRead, Word};
use crate::reads;
use crate::room::RoomSizes;
use crate::shard::{Shard, Waiting};

/// How often, and how long apart, a locked directory is tried again.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The data directory; made if it is not there.
    pub data: PathBuf,
    /// Sizes of the journal.
    pub journal: Options,
}

impl Settings {
    /// The defaults, in this directory.
    pub fn at(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), journal: Options::default() }
    }
}

/// Why an engine does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// What is in it.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    /// No room for the first record.
    #[error("the disk is full: the broker needs room for one journal segment to start")]
    NoRoom,
    /// A thread could not be started, or the first sync failed.
    #[error("the engine cannot start: {0}")]
    Start(#[source] std::io::Error),
}

/// A running engine's threads. Dropping it stops them, as [`Running::stop`] does.
pub struct Running {
    pub(crate) mailbox: Arc<Mailbox>,
    pool: Pool,
    stopping: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
    report: Report,
    pub(crate) segments: Segments,
    disk: Arc<dyn Disk>,
}

impl Engine {
    /// Opens a data directory, recovers what is in it, and serves.
    pub fn open(settings: Settings) -> Result<(Engine, Running), OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(&settings.data)?);
        // A process that was just killed may still be waiting for its last sync, and with it keep the lock.
        for _ in 0..LOCK_TRIES {
            match Self::open_on(disk.clone(), &settings.journal, Chance::of_system()) {
                Err(OpenError::Journal(journal::OpenError::Locked(_))) => {
                    std::thread::sleep(LOCK_PAUSE)
                }
                opened => return opened,
            }
        }
        Self::open_on(disk, &settings.journal, Chance::of_system())
    }

    /// Opens on any disk, with any chance.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
    ) -> Result<(Engine, Running), OpenError> {
        Self::open_at(disk, options, chance, |floor| Arc::new(SystemClock::starting_at(floor)))
    }

    /// Opens on any disk, with any chance and any clock, which must not tell an earlier time than it is given.
    pub fn open_at(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
    ) -> Result<(Engine, Running), OpenError> {
        let parts =
            Parts::open(disk, options, chance, clock, RoomSizes::default(), Pipeline::start)?;
        let Parts { engine, mut running, shard, to_read, keeper, housekeeping } = parts;
        let (mailbox, segments) = (running.mailbox.clone(), running.segments.clone());
        let bring = move || to_read.iter().for_each(|what| reads::bring(what, &segments, &mailbox));
        running.spawn("core", move || shard.run())?;
        running.spawn("reads", bring)?;
        running.spawn("spares", move || keeper.run())?;
        running.spawn("housekeeping", move || housekeeping.run())?;
        Ok((engine, running))
    }
}

/// An engine whose threads have not been started.
pub(crate) struct Parts {
    pub engine: Engine,
    pub running: Running,
    pub shard: Shard,
    pub to_read: mpsc::Receiver<ToRead>,
    pub keeper: Keeper,
    pub housekeeping: Housekeeping,
}

impl Parts {
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
        rooms: RoomSizes,
        pipeline: impl FnOnce(Writer, Syncer, Callbacks<Word>) -> std::io::Result<Pipeline<Word>>,
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
            keeper,
            snapshotter,
            scrubber,
            backups,
            marks,
            report,
        } = recovered;
        let clock = clock(core.last_at());
        // The new epoch is on disk before anything is served: no token is ever issued twice.
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
            written: Box::new(move |words: Vec<_>| {
                words.into_iter().for_each(|word| on_written.say(word))
            }),
            durable: Box::new(move |words: Vec<_>| {
                words.into_iter().for_each(|word| on_durable.say(word))
            }),
            poison: Box::new(move |failure| on_poison.poison(failure)),
        };
        let pipeline = pipeline(writer, syncer, callbacks).map_err(OpenError::Start)?;
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        mailbox.on_failure({
            let (pipeline, pool, stopping) = (pipeline.stopper(), pool.clone(), stopping.clone());
            move || {
                pipeline();
                stop_behind(&pool, &stopping);
            }
        });
        let shared = Shared {
            marks: marks.clone(),
            pool: pool.clone(),
            mailbox: mailbox.clone(),
            segments: segments.clone(),
            clock: clock.clone(),
            chance,
            backups,
            ledger: Arc::new(Ledger::default()),
            damaged: Default::default(),
        };
        let found = report.damaged.len() + report.unreadable_segments.len();
        shared.ledger.damaged.store(found as u64, Ordering::Relaxed);
        if let Some(divergence) = &report.diverged {
            shared.ledger.diverged.store(1, Ordering::Relaxed);
            tracing::error!(%divergence, "{}", crate::housekeeping::DIVERGED);
        }
        let shard = Shard {
            waiting: Waiting::new(&appender),
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
        Ok(Self { engine, running, shard, to_read, keeper, housekeeping })
    }
}

/// Ends the threads that make spare segments and keep house.
fn stop_behind(pool: &Pool, stopping: &(Mutex<bool>, Condvar)) {
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
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether the engine stopped by itself. The process should end: a restart goes through recovery.
    pub fn is_poisoned(&self) -> bool {
        self.mailbox.is_poisoned()
    }

    /// Why the engine stopped by itself, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        self.mailbox.failure()
    }

    /// Bytes of journal in use.
    pub fn journal_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Spare journal segments that are ready.
    pub fn spares(&self) -> usize {
        self.pool.spares()
    }

    /// Takes nothing new, answers what is under way, syncs and ends the threads.
    pub async fn stop(mut self) {
        let ended = tokio::task::spawn_blocking(move || self.end());
        let _ = ended.await;
    }

    fn end(&mut self) {
        self.mailbox.close();
        stop_behind(&self.pool, &self.stopping);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic has poisoned the engine
        }
        self.disk.unlock();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
