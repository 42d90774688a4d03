//! The core's thread: take a batch of requests, decide, journal, apply, and submit the commit. The next batch is
//! decided while the disk works.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_model::Timestamp;

use crate::clock::Clock;
use crate::core::{Core, Output, Turn};
use crate::failure::supervised;
use crate::journal::{Appender, Commit, Marks, Pipeline, Pool, Segments, Stopped};
use crate::mailbox::{Mailbox, Request};
use crate::outputs::{PendingOutputs, pin_taken};
use crate::replies::{PendingReplies, RoutedOutput};

/// The maximum number of commands in one turn, after which the commit is submitted.
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
    pub waiting: PendingRequests,
    /// Outputs of the current turn. Empty between turns; kept to reuse its memory.
    pub out: Vec<Output>,
    /// Must be dropped last, because its drop waits for the disk.
    pub pipeline: Pipeline<RoutedOutput>,
}

/// The state of the loop after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardStep {
    Serving,
    /// The mailbox is closed, and all its requests have been decided.
    Ended,
    /// The engine is poisoned: nothing more is decided.
    Poisoned,
}

/// Requests that wait for the core. If it panics, they are dropped after the engine is poisoned, not during unwinding.
pub(crate) struct PendingRequests {
    /// Taken from the mailbox and not decided yet.
    batch: VecDeque<Request>,
    pending: PendingReplies,
    handover: PendingOutputs<RoutedOutput>,
}

impl PendingRequests {
    pub(crate) fn new(log: &Appender) -> Self {
        let (batch, pending) = (VecDeque::new(), PendingReplies::default());
        Self { batch, pending, handover: PendingOutputs::new(log) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.pending.is_empty()
    }
}

impl Shard {
    /// Runs until the mailbox is closed and empty, or the engine fails.
    pub(crate) fn run(mut self) {
        let mailbox = self.mailbox.clone();
        if let Err(failure) = supervised(|| self.serve()) {
            mailbox.poison(failure);
        }
    }

    fn serve(&mut self) {
        loop {
            match self.step(Self::until_due) {
                ShardStep::Serving => {}
                ShardStep::Ended => return self.end(),
                ShardStep::Poisoned => return,
            }
        }
    }

    /// Runs one turn, with requests left over by an earlier step or newly arrived ones. If there are none, waits at
    /// most `wait`.
    pub(crate) fn step(&mut self, wait: impl FnOnce(&Self) -> Duration) -> ShardStep {
        let mut open = true;
        if self.waiting.batch.is_empty() {
            let wait = wait(self);
            open = self.mailbox.take(&mut self.waiting.batch, wait);
        }
        if self.mailbox.is_poisoned() || self.turn().is_err() {
            return ShardStep::Poisoned;
        }
        // If the mailbox is closed but was not empty, the next step finds it empty.
        if open { ShardStep::Serving } else { ShardStep::Ended }
    }

    /// Ends orderly: writes a digest and a mark, so that the next start can compare its state and can tell damage in
    /// the last commits from a torn tail.
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
        // One millisecond more, so that the time has passed when the core wakes.
        Duration::from_millis(wake.saturating_sub(self.clock.now().0)).min(IDLE)
    }

    /// Decides at most [`TURN_MAX`] requests and submits the outputs.
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
            // Requests that wait for messages are limited as consumers instead: they hold no admission budget.
            let permit = permit.filter(|_| !command.waits());
            let request = self.waiting.pending.add(reply, permit);
            turn.command(request, command);
        }
        turn.dispatch();
        for Output { mut effect, durable, written } in self.out.drain(..) {
            pin_taken(&mut effect, &self.segments);
            let Some(mut output) = self.waiting.pending.route(effect) else { continue };
            self.mailbox.number(&mut output);
            if let Some(output) = self.waiting.handover.keep(&self.marks, durable, written, output)
            {
                self.mailbox.send_output(output);
            }
        }
        let chunks = self.appender.take().unwrap_or_default();
        match self.waiting.handover.commit(&self.appender, chunks) {
            Some(commit) => self.pipeline.submit(commit),
            None => Ok(()),
        }
    }
}
