//! The whole engine without threads, for the deterministic simulation. The caller runs every step, so that a seed
//! replays a run exactly.
//!
//! This is the production engine except for its threads and its clock: the handle, the mailbox with admission, the
//! shard's loop, the pipeline, the reads, the spare segments and housekeeping.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use malote_model::Timestamp;

use crate::admission::AdmissionLimits;
use crate::chance::Chance;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::handle::Engine;
use crate::housekeeping::Housekeeping;
use crate::journal::{Marks, Options, Pipeline, SpareMaker, SpareStep};
use crate::open::{EngineParts, OpenError, Running};
use crate::reads;
use crate::replies::ReadRequest;
use crate::shard::{PendingRequests, Shard, ShardStep};

/// An engine without threads.
pub struct Stepwise {
    shard: Shard,
    to_read: mpsc::Receiver<ReadRequest>,
    spare_maker: SpareMaker,
    /// Housekeeping until the engine stops; `None` after it has ended.
    housekeeping: Option<Pin<Box<dyn Future<Output = ()>>>>,
    ended: bool,
    running: Running,
}

impl Engine {
    /// Opens an engine without threads, with any admission limits.
    pub fn open_stepwise(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
        rooms: AdmissionLimits,
    ) -> Result<(Engine, Stepwise), OpenError> {
        let pipeline =
            |writer, syncer, callbacks| Ok(Pipeline::stepwise(writer, syncer, callbacks));
        let parts = EngineParts::open(disk, options, chance, clock, rooms, pipeline)?;
        let EngineParts { engine, running, shard, to_read, spare_maker, mut housekeeping } = parts;
        housekeeping.stepwise = true;
        let keep = |mut housekeeping: Housekeeping| async move { housekeeping.keep().await };
        let housekeeping: Pin<Box<dyn Future<Output = ()>>> = Box::pin(keep(housekeeping));
        let housekeeping = Some(housekeeping);
        Ok((engine, Stepwise { shard, to_read, spare_maker, housekeeping, ended: false, running }))
    }
}

impl Stepwise {
    /// Runs one turn of the shard, without waiting. Returns false once the shard has ended.
    pub fn turn(&mut self) -> bool {
        if self.ended {
            return false;
        }
        match self.shard.step(|_| Duration::ZERO) {
            ShardStep::Serving => return true,
            ShardStep::Ended => self.shard.end(),
            ShardStep::Poisoned => {}
        }
        // As when the thread ends: clients that still wait get an error.
        self.shard.waiting = PendingRequests::new(&self.shard.appender);
        self.ended = true;
        false
    }

    /// Writes everything submitted. Returns false if there was nothing to write.
    pub fn write(&self) -> bool {
        self.shard.pipeline.write_step()
    }

    /// Syncs what was written; lazy data only if asked to. Returns false if there was nothing to sync.
    pub fn sync(&self, lazy: bool) -> bool {
        self.shard.pipeline.sync_step(lazy)
    }

    /// Serves one read request. Returns false if there is none.
    pub fn read(&self) -> bool {
        let Ok(what) = self.to_read.try_recv() else { return false };
        reads::serve(what, &self.running.segments, &self.running.mailbox);
        true
    }

    /// Makes a part of a spare segment.
    pub fn make_spare(&mut self) -> io::Result<SpareStep> {
        self.spare_maker.step()
    }

    /// Continues housekeeping up to its next tick, or until it waits for the core.
    pub fn keep_house(&mut self) {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let over = |keep: &mut Pin<Box<dyn Future<Output = ()>>>| keep.as_mut().poll(&mut cx);
        if self.housekeeping.as_mut().map(over) == Some(Poll::Ready(())) {
            self.housekeeping = None;
        }
    }

    /// When the core has work to do without a request.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.shard.core.next_wake()
    }

    /// Whether all requests were answered and their admission budgets are free.
    pub fn is_idle(&self) -> bool {
        self.shard.waiting.is_empty() && self.running.mailbox.is_idle()
    }

    pub fn marks(&self) -> &Marks {
        &self.shard.marks
    }

    /// Stops accepting requests.
    pub fn close(&self) {
        self.running.mailbox.close();
    }

    /// The recovery report, and whether the engine has failed.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// All inconsistencies in the core's state.
    pub fn audit(&self) -> Vec<String> {
        self.shard.core.audit()
    }
}

impl Drop for Stepwise {
    /// As when the process ends: queued requests are dropped.
    fn drop(&mut self) {
        self.close();
        self.running.mailbox.take(&mut VecDeque::new(), Duration::ZERO);
    }
}
