//! Which messages of a queue are delivered next.

use super::background::SLICE_MAX;
use super::queue::Queue;
use super::tracked::MessageStatus;

/// Expired messages that a search for a ready message skips. Beyond this it finds none, and tries again when they have
/// been removed.
const PASSED_MAX: usize = SLICE_MAX;

impl Queue {
    /// Without sessions: moves the cursor past messages that wait or are deferred. When they are ready again, they are
    /// in `returned`. So a million delayed messages are skipped once, and not by every receive.
    pub(super) fn settle_cursor(&mut self) {
        if self.sessions.is_some()
            || !self.lanes.is_empty()
            || self.delayed + self.scheduled + self.deferred == 0
        {
            return;
        }
        let end = self.cursors_end();
        let waits = |q: &Self, seq: u64| seq < end && q.status(seq) != MessageStatus::Ready;
        while let Some(seq) = self.index.next(self.cursor).filter(|&seq| waits(self, seq)) {
            self.cursor = seq + 1;
        }
    }

    /// The cursor does not cover messages from here on: they belong to tenants.
    fn cursors_end(&self) -> u64 {
        self.fair.as_ref().map_or(u64::MAX, |fair| fair.from)
    }

    /// Without sessions: the next messages to deliver, up to `max` messages and `bytes_max` bytes. `out` says whether
    /// they stay in the queue as leased.
    pub(super) fn ready_batch(&self, max: usize, bytes_max: u64, out: bool, now: u64) -> Vec<u64> {
        let mut seqs = Vec::with_capacity(max.min(64));
        let mut bytes = 0;
        let mut put = |seq: u64| {
            seqs.push(seq);
            bytes += self.index.size(seq);
            seqs.len() < max && bytes < bytes_max
        };
        if max == 0 {
            return seqs;
        }
        if let Some(fair) = &self.fair {
            let mut old = self.next_ready(None, now);
            let mut picks = fair.picks(self.locked, |seq| !self.expired(seq, now));
            loop {
                let quiet = picks.quiet();
                let seq = match (old, quiet) {
                    (Some(seq), quiet) if quiet.is_none_or(|(other, _)| seq < other) => {
                        old = self.next_ready(Some(seq), now);
                        picks.went(out);
                        seq
                    }
                    (_, quiet) => {
                        let Some(head) = quiet.or_else(|| picks.noisy()) else { break };
                        picks.pick(head, out);
                        head.0
                    }
                };
                if !put(seq) {
                    break;
                }
            }
        } else if self.lanes.is_empty() {
            let mut next = self.next_ready(None, now);
            while let Some(seq) = next.filter(|&seq| put(seq)) {
                next = self.next_ready(Some(seq), now);
            }
        } else {
            let ready = self.lanes.iter().rev().flatten().copied().take(max + PASSED_MAX);
            let _ = ready.filter(|&seq| !self.expired(seq, now)).all(put);
        }
        seqs
    }

    /// Without sessions and priorities: the oldest ready message, or the one after `after` if there are no tenants.
    pub(super) fn oldest_ready(&self, after: Option<u64>, now: u64) -> Option<u64> {
        let first = self.next_ready(after, now);
        // Messages from before there were tenants are older.
        first.or_else(|| self.fair.as_ref()?.oldest(|seq| !self.expired(seq, now)))
    }

    /// Without sessions and priorities: the first ready message of the cursor, or the next one after `after`.
    pub(super) fn next_ready(&self, after: Option<u64>, now: u64) -> Option<u64> {
        let mut floor = after.map_or(0, |seq| seq + 1);
        for _ in 0..PASSED_MAX {
            let seq = self.next_in_place(floor)?;
            // An expired message is about to be removed.
            if !self.expired(seq, now) {
                return Some(seq);
            }
            floor = seq + 1;
        }
        None
    }

    fn next_in_place(&self, floor: u64) -> Option<u64> {
        if let Some(&seq) = self.returned.range(floor..).next() {
            return Some(seq);
        }
        let end = self.cursors_end();
        let mut seq = self.index.next(self.cursor.max(floor))?;
        // Only messages that wait or are deferred are skipped.
        if self.delayed + self.scheduled + self.deferred > 0 {
            while seq < end && self.status(seq) != MessageStatus::Ready {
                seq = self.index.next(seq + 1)?;
            }
        }
        (seq < end).then_some(seq)
    }

    /// Without sessions: the next message to deliver; with tenants, the oldest.
    pub(super) fn first_ready(&self, now: u64) -> Option<u64> {
        if self.lanes.is_empty() {
            return self.oldest_ready(None, now);
        }
        let mut ready = self.lanes.iter().rev().flatten().copied().take(PASSED_MAX);
        ready.find(|&seq| !self.expired(seq, now))
    }

    /// The next message of a session for its holder, at or after its cursor.
    pub(super) fn next_of(&self, slot: u32, after: Option<u64>, now: u64) -> Option<u64> {
        let session = self.sessions.as_ref()?.at(slot)?;
        let from = after.map_or(session.cursor, |seq| seq + 1);
        let first = session.pending.lower_bound(from);
        for i in (first..session.pending.len()).take(PASSED_MAX) {
            let seq = session.pending.get(i)?;
            if !self.index.contains(seq) || self.expired(seq, now) {
                continue;
            }
            match self.status(seq) {
                MessageStatus::Ready => return Some(seq),
                MessageStatus::Delayed => return None,
                MessageStatus::Locked(_)
                | MessageStatus::Parked
                | MessageStatus::Scheduled
                | MessageStatus::Deferred => {}
            }
        }
        None
    }
}
