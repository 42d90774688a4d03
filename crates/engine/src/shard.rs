//! The one thread that decides: batch → decide → journal → apply → hand over → the next batch while the disk works.

use std::sync::Arc;
use std::time::Duration;

use malote_model::Timestamp;

use crate::clock::Clock;
use crate::command::{Notice, Reply};
use crate::core::{Core, Output, Turn};
use crate::journal::{Appender, Commit, Marks, Pipeline, Pool, Segments};
use crate::mailbox::{Mailbox, Pending, Request, Word};

/// Commands of one turn: a commit is handed over at least so often.
const TURN_MAX: usize = 1024;

/// Nothing is due: looked again after so long.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Shard {
    pub core: Core,
    pub appender: Appender,
    pub marks: Arc<Marks>,
    pub pool: Pool,
    pub pipeline: Pipeline<Word>,
    pub mailbox: Arc<Mailbox>,
    pub clock: Arc<dyn Clock>,
    pub pending: Pending,
    pub segments: Segments,
}

impl Shard {
    /// Serves until the mailbox is closed and empty, or the disk fails.
    pub(crate) fn run(mut self) {
        let mut batch: Vec<Request> = Vec::new();
        let mut out = Vec::new();
        loop {
            let wait = self.until_due();
            let more = self.mailbox.take(&mut batch, wait);
            let mut requests = batch.drain(..).peekable();
            loop {
                let turn: Vec<Request> = requests.by_ref().take(TURN_MAX).collect();
                if self.turn(turn, &mut out).is_err() {
                    self.mailbox.close(true);
                    return;
                }
                if requests.peek().is_none() {
                    break;
                }
            }
            drop(requests);
            if !more {
                break;
            }
        }
        // An orderly end: the next start can tell damage in the last commits from a torn tail.
        self.appender.mark();
        if let Some(chunks) = self.appender.take() {
            let _ = self.pipeline.submit(Commit {
                chunks,
                sync: true,
                on_written: Vec::new(),
                on_durable: Vec::new(),
            });
        }
        self.pipeline.close();
    }

    fn until_due(&self) -> Duration {
        let Some(Timestamp(wake)) = self.core.next_wake() else { return IDLE };
        // A millisecond more, so that it is past when we wake.
        Duration::from_millis(wake.saturating_sub(self.clock.now().0)).min(IDLE)
    }

    fn turn(
        &mut self,
        requests: Vec<Request>,
        out: &mut Vec<Output>,
    ) -> Result<(), crate::journal::Stopped> {
        let eager_before = self.appender.last_eager();
        let stepped = self.clock.take_step();
        let now = self.clock.now();
        let mut turn =
            Turn::new(&mut self.core, &mut self.appender, now, out, self.pool.publish_allowed());
        if stepped > 0 {
            turn.clock_stepped(stepped);
        }
        turn.expire();
        for Request { command, reply } in requests {
            let request = self.pending.add(reply);
            turn.command(request, command);
        }
        turn.dispatch();
        let (durable, written) = (self.marks.durable(), self.marks.written());
        let (mut on_written, mut on_durable) = (Vec::new(), Vec::new());
        for Output { to, durable: needs_durable, written: needs_written } in out.drain(..) {
            let Some(mut word) = self.pending.word(to) else { continue };
            self.pin_taken(&mut word);
            self.mailbox.number(&mut word);
            if needs_durable > durable {
                on_durable.push(word);
            } else if needs_written > written {
                on_written.push(word);
            } else {
                self.mailbox.say(word);
            }
        }
        let chunks = self.appender.take().unwrap_or_default();
        if chunks.is_empty() && on_written.is_empty() && on_durable.is_empty() {
            return Ok(());
        }
        let sync = self.appender.last_eager() != eager_before;
        self.pipeline.submit(Commit { chunks, sync, on_written, on_durable })
    }

    /// A message that is removed as it is delivered has no place in the index any more: until its receiver has read
    /// it, its segment must not be recycled.
    fn pin_taken(&self, word: &mut Word) {
        let grants = match word {
            Word::Answer(_, Ok(Reply::Delivered(grants)))
            | Word::Notice(_, _, Notice::Deliver(grants)) => grants,
            _ => return,
        };
        for grant in grants.iter_mut().filter(|grant| grant.lease.is_none()) {
            grant.pin = self.segments.pin(grant.pos).ok();
        }
    }
}
