//! The engine's journal and pipeline, whose steps the world runs one by one.

use std::sync::{Arc, Mutex, PoisonError};

use malote_engine::core::Core;
use malote_engine::journal::{
    Appender, Backups, Callbacks, Chunks, Marks, Options, Pipeline, Pool, Pos, RecoverError,
    Recovered, RecoveryReport, Scrubber, Segments, Snapshotter, SpareMaker, Syncer, Writer,
    recover,
};
use malote_engine::outputs::PendingOutputs;
use malote_model::Timestamp;

use crate::disk::SimDisk;

/// Numbers of the outputs that the pipeline released.
type Released = Arc<Mutex<Vec<u64>>>;

pub(super) struct Journal {
    pub appender: Appender,
    pub segments: Segments,
    pub pool: Pool,
    pub spare_maker: SpareMaker,
    pub snapshotter: Snapshotter,
    pub scrubber: Scrubber,
    pub backups: Backups,
    pub marks: Arc<Marks>,
    pub report: RecoveryReport,
    /// Until the boot, which writes without the pipeline.
    roles: Option<(Writer, Syncer)>,
    serving: Option<Serving>,
}

/// What exists after the boot.
struct Serving {
    pipeline: Pipeline<u64>,
    handover: PendingOutputs<u64>,
    released: Released,
}

impl Journal {
    pub(super) fn open(
        disk: &SimDisk,
        options: &Options,
        core: &mut Core,
    ) -> Result<Self, RecoverError> {
        let Recovered {
            appender,
            writer,
            syncer,
            segments,
            pool,
            spare_maker,
            snapshotter,
            scrubber,
            backups,
            marks,
            report,
        } = recover(Arc::new(disk.clone()), options, core)?;
        Ok(Self {
            appender,
            segments,
            pool,
            spare_maker,
            snapshotter,
            scrubber,
            backups,
            marks,
            report,
            roles: Some((writer, syncer)),
            serving: None,
        })
    }

    /// Boots a core, as `Engine::open_at` does.
    pub(super) fn boot(&mut self, core: &mut Core, now: u64, random: u64) -> std::io::Result<()> {
        let (mut writer, mut syncer) = self.roles.take().expect("a journal is booted once");
        let live = core.go_live(&mut self.appender, Timestamp(now), random);
        live.map_err(|refusal| std::io::Error::other(refusal.to_string()))?;
        for chunk in self.appender.take().unwrap_or_default() {
            writer.write(&chunk)?;
        }
        syncer.sync()?;
        let released = Released::default();
        let release = |released: Released| -> Box<dyn FnMut(Vec<u64>) + Send> {
            Box::new(move |numbers| lock(&released).extend(numbers))
        };
        let callbacks = Callbacks {
            written: release(released.clone()),
            durable: release(released.clone()),
            poison: Box::new(|_| {}),
        };
        let pipeline = Pipeline::stepwise(writer, syncer, callbacks);
        let handover = PendingOutputs::new(&self.appender);
        self.serving = Some(Serving { pipeline, handover, released });
        Ok(())
    }

    fn serving(&mut self) -> &mut Serving {
        self.serving.as_mut().expect("the journal is booted")
    }

    /// Ends a turn, as the engine's `shard` does. Each output has the positions that must be durable and written
    /// before it is sent. Some can be sent at once.
    pub(super) fn hand_over(
        &mut self,
        outputs: impl IntoIterator<Item = (u64, Pos, Pos)>,
        chunks: Chunks,
    ) {
        let Self { serving, marks, appender, .. } = self;
        let Serving { pipeline, handover, released } =
            serving.as_mut().expect("the journal is booted");
        for (number, durable, written) in outputs {
            let at_once = handover.keep(marks, durable, written, number);
            lock(released).extend(at_once);
        }
        if let Some(commit) = handover.commit(appender, chunks) {
            let _ = pipeline.submit(commit); // refused if the disk failed; then a crash follows
        }
    }

    /// One step of the writer. False if there was nothing to write.
    pub(super) fn write(&mut self) -> bool {
        self.serving().pipeline.write_step()
    }

    /// One step of the syncer. False if there was nothing to sync.
    pub(super) fn sync(&mut self, lazy: bool) -> bool {
        self.serving().pipeline.sync_step(lazy)
    }

    /// Outputs that may be sent, in the order of their release.
    pub(super) fn released(&mut self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.serving().released))
    }
}

fn lock(released: &Released) -> std::sync::MutexGuard<'_, Vec<u64>> {
    released.lock().unwrap_or_else(PoisonError::into_inner)
}
