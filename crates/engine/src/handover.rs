//! From a turn to the journal and back to consumers: what the engine's shell and the simulated world do alike.
//!
//! A turn's outputs wait for different marks of the journal ([`Handover`]), those for one consumer keep their order
//! ([`InOrder`]), and what was removed as it was delivered stays readable ([`pin_taken`]).

use std::collections::BTreeMap;

use crate::command::{Notice, Reply};
use crate::core::To;
use crate::journal::{Appender, Chunks, Commit, Marks, Pos, Segments};

/// Outputs of a turn that wait for the journal.
pub struct Handover<R> {
    on_written: Vec<R>,
    on_durable: Vec<R>,
    /// The end of the last record that is not lazy, at the last commit.
    eager: Pos,
    /// What must be durable for all who wait.
    needed: Pos,
}

impl<R> Handover<R> {
    /// Begins where the journal stands.
    pub fn new(log: &Appender) -> Self {
        let eager = log.last_eager();
        Self { on_written: Vec::new(), on_durable: Vec::new(), eager, needed: Pos::ZERO }
    }

    /// Keeps an output until this much is durable and this much is written. Gives it back if that is so already.
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

    /// What a turn appended, with those who wait for it or for what was before; none if there is neither.
    pub fn commit(&mut self, log: &Appender, chunks: Chunks) -> Option<Commit<R>> {
        if chunks.is_empty() && self.on_written.is_empty() && self.on_durable.is_empty() {
            return None;
        }
        // An answer may rest on lazy records, too: then these are no longer lazy.
        let sync = self.eager != log.last_eager() || self.needed > log.last_eager();
        self.eager = log.last_eager();
        let on_written = std::mem::take(&mut self.on_written);
        let on_durable = std::mem::take(&mut self.on_durable);
        Some(Commit { chunks, sync, on_written, on_durable })
    }
}

/// Notices to one consumer. They wait for different marks of the journal, and are said by different threads; but the
/// consumer hears them in the order in which they were decided, or the order of a session would be lost on the way.
pub struct InOrder<N> {
    /// The number of the next notice that is decided.
    next: u64,
    /// The number of the next that is said.
    due: u64,
    /// Those that came too early; never more than wait for the journal.
    early: BTreeMap<u64, N>,
}

impl<N> Default for InOrder<N> {
    fn default() -> Self {
        Self { next: 0, due: 0, early: BTreeMap::new() }
    }
}

impl<N> InOrder<N> {
    /// A notice was decided: its number.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A notice may be said, once those before it are.
    pub fn arrived(&mut self, number: u64, notice: N) {
        self.early.insert(number, notice);
    }

    /// The next that may be said.
    pub fn next_due(&mut self) -> Option<N> {
        if cfg!(feature = "mutate-no-numbering") {
            return self.early.pop_first().map(|(_, notice)| notice);
        }
        let notice = self.early.remove(&self.due)?;
        self.due += 1;
        Some(notice)
    }

    /// Those that were never said.
    pub fn into_unsaid(self) -> impl Iterator<Item = N> {
        self.early.into_values()
    }
}

/// A message that is removed as it is delivered has no place in the index any more: until its receiver has read it, none
/// of the segments that hold its records may be recycled.
pub fn pin_taken(to: &mut To, segments: &Segments) {
    let grants = match to {
        To::Request(_, Ok(Reply::Delivered(grants))) | To::Consumer(_, Notice::Deliver(grants)) => {
            grants
        }
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
