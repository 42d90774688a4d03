//! The whole engine without threads: whoever has it takes every step, so that a seed replays a run to the byte.
//!
//! This is the engine of production up to its threads and its clock: the handle, the mailbox and its rooms, the shard's
//! loop, the pipeline, the reads, the spares and housekeeping. For the deterministic simulation.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use malote_model::Timestamp;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::handle::Engine;
use crate::housekeeping::Housekeeping;
use crate::journal::{Keeper, Kept, Marks, Options, Pipeline};
use crate::mailbox::ToRead;
use crate::open::{OpenError, Parts, Running};
use crate::reads;
use crate::room::RoomSizes;
use crate::shard::{Shard, Step, Waiting};

/// The steps of an engine that has no threads.
pub struct Stepwise {
    shard: Shard,
    to_read: mpsc::Receiver<ToRead>,
    keeper: Keeper,
    /// Housekeeping until the engine stops; none when it has ended.
    housekeeping: Option<Pin<Box<dyn Future<Output = ()>>>>,
    ended: bool,
    running: Running,
}

impl Engine {
    /// Opens an engine without threads, with rooms of any size.
    pub fn open_stepwise(
        disk: Arc<dyn Disk>,
        options: &Options,
        chance: Chance,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
        rooms: RoomSizes,
    ) -> Result<(Engine, Stepwise), OpenError> {
        let pipeline =
            |writer, syncer, callbacks| Ok(Pipeline::stepwise(writer, syncer, callbacks));
        let parts = Parts::open(disk, options, chance, clock, rooms, pipeline)?;
        let Parts { engine, running, shard, to_read, keeper, mut housekeeping } = parts;
        housekeeping.stepwise = true;
        let keep = |mut housekeeping: Housekeeping| async move { housekeeping.keep().await };
        let housekeeping: Pin<Box<dyn Future<Output = ()>>> = Box::pin(keep(housekeeping));
        let housekeeping = Some(housekeeping);
        Ok((engine, Stepwise { shard, to_read, keeper, housekeeping, ended: false, running }))
    }
}

impl Stepwise {
    /// One turn of the shard, without waiting. False once the shard has ended.
    pub fn turn(&mut self) -> bool {
        if self.ended {
            return false;
        }
        match self.shard.step(|_| Duration::ZERO) {
            Step::Serving => return true,
            Step::Ended => self.shard.end(),
            Step::Poisoned => {}
        }
        // As when the thread ends: clients that still wait hear that there is no answer.
        self.shard.waiting = Waiting::new(&self.shard.appender);
        self.ended = true;
        false
    }

    /// Writes everything submitted. False if there was nothing to write.
    pub fn write(&self) -> bool {
        self.shard.pipeline.write_step()
    }

    /// Syncs what was written, lazy data only if asked to. False if there was nothing to sync.
    pub fn sync(&self, lazy: bool) -> bool {
        self.shard.pipeline.sync_step(lazy)
    }

    /// Reads one batch that the core asked for. False if it has not asked for any.
    pub fn read(&self) -> bool {
        let Ok(what) = self.to_read.try_recv() else { return false };
        reads::bring(what, &self.running.segments, &self.running.mailbox);
        true
    }

    /// Makes a piece of a spare segment.
    pub fn make_spare(&mut self) -> io::Result<Kept> {
        self.keeper.step()
    }

    /// Goes on with housekeeping, up to the next tick or to where it waits for the core.
    pub fn keep_house(&mut self) {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let over = |keep: &mut Pin<Box<dyn Future<Output = ()>>>| keep.as_mut().poll(&mut cx);
        if self.housekeeping.as_mut().map(over) == Some(Poll::Ready(())) {
            self.housekeeping = None;
        }
    }

    /// When the core has something to do by itself.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.shard.core.next_wake()
    }

    /// Whether all requests were answered and all room for requests is free.
    pub fn is_idle(&self) -> bool {
        self.shard.waiting.is_empty() && self.running.mailbox.is_idle()
    }

    /// How far the journal is.
    pub fn marks(&self) -> &Marks {
        &self.shard.marks
    }

    /// Takes nothing new from now on.
    pub fn close(&self) {
        self.running.mailbox.close();
    }

    /// What recovery found, and whether the engine has failed.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Everything that does not add up in the core's state.
    pub fn audit(&self) -> Vec<String> {
        self.shard.core.audit()
    }
}

impl Drop for Stepwise {
    /// As when the process ends: requests that were not taken are gone.
    fn drop(&mut self) {
        self.close();
        self.running.mailbox.take(&mut VecDeque::new(), Duration::ZERO);
    }
}
