//! The one thread that decides: batch → decide → journal → apply → hand over → the next batch while the disk works.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_model::Timestamp;

use crate::clock::Clock;
use crate::core::{Core, Output, Turn};
use crate::failure::supervised;
use crate::handover::{Handover, pin_taken};
use crate::journal::{Appender, Commit, Marks, Pipeline, Pool, Segments, Stopped};
use crate::mailbox::{Mailbox, Pending, Request, Word};

/// Commands of one turn, at most: then its commit is handed over.
const TURN_MAX: usize = 1024;

/// How long the core sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Shard {
    pub core: Core,
    pub appender: Appender,
    pub marks: Arc<Marks>,
    pub pool: Pool,
    pub mailbox: Arc<Mailbox>,
    pub clock: Arc<dyn Clock>,
    pub segments: Segments,
    pub waiting: Waiting,
    /// Outputs of the turn under way; empty between turns, and kept for its memory.
    pub out: Vec<Output>,
    /// Dropped last: that waits for the disk.
    pub pipeline: Pipeline<Word>,
}

/// What a step of the shard's loop says about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Go on.
    Serving,
    /// The mailbox is closed, and everything that was in it has been decided.
    Ended,
    /// The engine is poisoned: nothing more is decided.
    Poisoned,
}

/// Everybody who waits for the core. When it panics they are dropped after the engine is poisoned, not by the unwinding.
pub(crate) struct Waiting {
    /// Taken from the mailbox and not decided yet.
    batch: VecDeque<Request>,
    pending: Pending,
    handover: Handover<Word>,
}

impl Waiting {
    pub(crate) fn new(log: &Appender) -> Self {
        let (batch, pending) = (VecDeque::new(), Pending::default());
        Self { batch, pending, handover: Handover::new(log) }
    }

    /// Whether every request that was taken has been answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.pending.is_empty()
    }
}

impl Shard {
    /// Serves until the mailbox is closed and empty, or the engine fails.
    pub(crate) fn run(mut self) {
        let mailbox = self.mailbox.clone();
        if let Err(failure) = supervised(|| self.serve()) {
            mailbox.poison(failure);
        }
    }

    fn serve(&mut self) {
        loop {
            match self.step(Self::until_due) {
                Step::Serving => {}
                Step::Ended => return self.end(),
                Step::Poisoned => return,
            }
        }
    }

    /// One turn: of requests that an earlier step left over, else of what has arrived. If nothing has arrived, waits for
    /// it for at most `wait`.
    pub(crate) fn step(&mut self, wait: impl FnOnce(&Self) -> Duration) -> Step {
        let mut open = true;
        if self.waiting.batch.is_empty() {
            let wait = wait(self);
            open = self.mailbox.take(&mut self.waiting.batch, wait);
        }
        if self.mailbox.is_poisoned() || self.turn().is_err() {
            return Step::Poisoned;
        }
        // A mailbox that is closed and not empty is found empty by the next step.
        if open { Step::Serving } else { Step::Ended }
    }

    /// An orderly end: the next start can compare its state, and tell damage in the last commits from a torn tail.
    pub(crate) fn end(&mut self) {
        let (now, allowed) = (self.clock.now(), self.pool.publish_allowed());
        Turn::new(&mut self.core, &mut self.appender, now, &mut self.out, allowed).digest();
        self.appender.mark();
        if let Some(chunks) = self.appender.take() {
            let _ = self.pipeline.submit(Commit {
                chunks,
                sync: true,
                on_written: Vec::new(),
                on_durable: Vec::new(),
            });
        }
    }

    fn until_due(&self) -> Duration {
        let Some(Timestamp(wake)) = self.core.next_wake() else { return IDLE };
        // A millisecond more, so that it is past when we wake.
        Duration::from_millis(wake.saturating_sub(self.clock.now().0)).min(IDLE)
    }

    /// Decides at most [`TURN_MAX`] requests and hands over the outputs.
    fn turn(&mut self) -> Result<(), Stopped> {
        let stepped = self.clock.take_step();
        let now = self.clock.now();
        let mut turn = Turn::new(
            &mut self.core,
            &mut self.appender,
            now,
            &mut self.out,
            self.pool.publish_allowed(),
        );
        if stepped > 0 {
            turn.clock_stepped(stepped);
        }
        turn.expire();
        for _ in 0..TURN_MAX {
            let Some(Request { command, reply, permit }) = self.waiting.batch.pop_front() else {
                break;
            };
            // Those who wait for messages are bounded as consumers: they take no room from others.
            let permit = permit.filter(|_| !command.waits());
            let request = self.waiting.pending.add(reply, permit);
            turn.command(request, command);
        }
        turn.dispatch();
        for Output { mut to, durable, written } in self.out.drain(..) {
            pin_taken(&mut to, &self.segments);
            let Some(mut word) = self.waiting.pending.word(to) else { continue };
            self.mailbox.number(&mut word);
            if let Some(word) = self.waiting.handover.keep(&self.marks, durable, written, word) {
                self.mailbox.say(word);
            }
        }
        let chunks = self.appender.take().unwrap_or_default();
        match self.waiting.handover.commit(&self.appender, chunks) {
            Some(commit) => self.pipeline.submit(commit),
            None => Ok(()),
        }
    }
}
