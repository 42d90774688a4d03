//! Outputs of a turn on their way to callers and consumers. The engine and the simulation share this code.
//!
//! Outputs wait for different marks of the journal ([`PendingOutputs`]). Notices for one consumer keep their order
//! ([`NoticeSequencer`]). Messages that are removed on delivery stay readable ([`pin_taken`]).

use std::collections::BTreeMap;

use crate::command::{Notice, Reply};
use crate::core::Effect;
use crate::journal::{Appender, Chunks, Commit, Marks, Pos, Segments};

/// Outputs that wait for the journal.
pub struct PendingOutputs<R> {
    on_written: Vec<R>,
    on_durable: Vec<R>,
    /// The end of the last eager record at the last commit.
    eager: Pos,
    /// The position that must be durable for all waiting outputs.
    needed: Pos,
}

impl<R> PendingOutputs<R> {
    pub fn new(log: &Appender) -> Self {
        let eager = log.last_eager();
        Self { on_written: Vec::new(), on_durable: Vec::new(), eager, needed: Pos::ZERO }
    }

    /// Keeps an output until the given positions are durable and written. Returns it if they already are.
    pub fn keep(&mut self, marks: &Marks, durable: Pos, written: Pos, output: R) -> Option<R> {
        if durable > marks.durable() {
            self.needed = self.needed.max(durable);
            self.on_durable.push(output);
        } else if written > marks.written() {
            self.on_written.push(output);
        } else {
            return Some(output);
        }
        None
    }

    /// Builds the commit for the chunks of a turn and for the outputs that wait; `None` if there is neither.
    pub fn commit(&mut self, log: &Appender, chunks: Chunks) -> Option<Commit<R>> {
        if chunks.is_empty() && self.on_written.is_empty() && self.on_durable.is_empty() {
            return None;
        }
        // An output may depend on lazy records. Then they must be synced now.
        let sync = self.eager != log.last_eager() || self.needed > log.last_eager();
        self.eager = log.last_eager();
        let on_written = std::mem::take(&mut self.on_written);
        let on_durable = std::mem::take(&mut self.on_durable);
        Some(Commit { chunks, sync, on_written, on_durable })
    }
}

/// Puts the notices for one consumer in order. They wait for different marks of the journal and are released by
/// different threads, but the consumer must receive them in the order of the decisions. Otherwise the order of a
/// session would be lost.
pub struct NoticeSequencer<N> {
    /// The number of the next notice to be decided.
    next: u64,
    /// The number of the next notice to be sent.
    due: u64,
    /// Notices that were released too early. Bounded by the notices that wait for the journal.
    early: BTreeMap<u64, N>,
}

impl<N> Default for NoticeSequencer<N> {
    fn default() -> Self {
        Self { next: 0, due: 0, early: BTreeMap::new() }
    }
}

impl<N> NoticeSequencer<N> {
    /// Assigns the next number.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Releases a notice. It is sent after all notices with lower numbers.
    pub fn arrived(&mut self, number: u64, notice: N) {
        self.early.insert(number, notice);
    }

    /// The next notice to send.
    pub fn next_due(&mut self) -> Option<N> {
        if cfg!(feature = "mutate-no-numbering") {
            return self.early.pop_first().map(|(_, notice)| notice);
        }
        let notice = self.early.remove(&self.due)?;
        self.due += 1;
        Some(notice)
    }

    /// The notices that were never sent.
    pub fn into_unsent(self) -> impl Iterator<Item = N> {
        self.early.into_values()
    }
}

/// Pins the records of messages that are removed on delivery. They are no longer in the index, so their segments could
/// be recycled before the receiver has read them.
pub fn pin_taken(effect: &mut Effect, segments: &Segments) {
    let grants = match effect {
        Effect::Request(_, Ok(Reply::Delivered(grants)))
        | Effect::Consumer(_, Notice::Deliver(grants)) => grants,
        _ => return,
    };
    if cfg!(feature = "mutate-no-pinning") {
        return;
    }
    for grant in grants.iter_mut().filter(|grant| grant.lease.is_none()) {
        let under = grant.under.take().unwrap_or_default();
        grant.pin = segments.pin_all(grant.pos, &under).ok();
    }
}
