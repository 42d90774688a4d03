//! The core's part of compaction: finding live records in segments that are to be emptied, and switching to their
//! copies. Counters, leases, positions in queues and sessions do not change.

use std::collections::BTreeSet;

use bytes::Bytes;
use malote_model::{LeaseToken, SessionId, Timestamp, TopicName, limits};

use super::leases::LeaseTarget;
use super::queue::Queue;
use super::{Core, Decided, Effect, Output, Turn, WaitFor};
use crate::codec::DeadLetter;
use crate::command::Reply;
use crate::event::{Event, MessageRef, QueueId, RelocatedMessage};
use crate::journal::Pos;

/// The approximate overhead of a record.
const RECORD_BYTES: u64 = 48;

/// An upper bound for a frame header and a few numbers.
const FIELDS_BYTES: usize = 96;

/// A message with more overlays than this is stored again, because a reader has to follow all of them.
const DEPTH_MAX: usize = 64;

/// A live record that is in a segment to be emptied, or is an overlay on one that is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveRecord {
    /// The newest record.
    pub at: Pos,
    pub of: RecordOwner,
}

/// What a record belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordOwner {
    Message(MessageRef),
    State(QueueId, SessionId),
}

/// A copy to be journaled, unless its source has changed meanwhile.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// The newest record that it was copied from.
    pub from: Pos,
    pub copy: RecordCopy,
}

#[derive(Debug, Clone)]
pub enum RecordCopy {
    /// A message, with all its positions.
    Message(Box<RelocatedMessage>),
    /// The state of a session.
    State(QueueId, SessionId, Bytes),
}

impl Relocation {
    /// An upper bound of its journal bytes.
    pub fn room(&self) -> usize {
        match &self.copy {
            RecordCopy::Message(kept) => {
                let topic =
                    |topic: &Option<TopicName>| topic.as_ref().map_or(0, |t| t.as_str().len());
                let texts = |d: &DeadLetter| {
                    let keys: usize = d.keys.iter().map(|key| key.len() + 4).sum();
                    d.reason.len() + d.text.len() + d.from.as_str().len() + topic(&d.topic) + keys
                };
                let deaths: usize = kept.deaths.iter().map(|d| texts(d) + FIELDS_BYTES).sum();
                let places = 16 * kept.places.len();
                let routed_by = topic(&kept.routed_by);
                kept.head.len() + kept.body.len() + deaths + places + routed_by + FIELDS_BYTES
            }
            RecordCopy::State(_, session, state) => {
                session.as_str().len() + state.len() + FIELDS_BYTES
            }
        }
    }
}

impl Core {
    /// The records of a message, from the newest to the oldest.
    fn records(&self, newest: Pos) -> impl Iterator<Item = Pos> {
        let under = |pos: &Pos| self.base_records.get(pos).map(|under| under.from);
        std::iter::successors(Some(newest), under).take(limits::CHANGES_CHAIN_MAX as usize + 1)
    }

    /// The older records under a message's newest one; usually none.
    pub(super) fn records_under(&self, newest: Pos) -> Option<Box<[Pos]>> {
        let over = self.base_records.contains_key(&newest);
        over.then(|| self.records(newest).skip(1).collect())
    }

    /// Calls `mark` for every record that may still be read, with its approximate size. A record that several queues
    /// share is reported once.
    pub(super) fn live_records(&self, mark: &mut dyn FnMut(Pos, u64)) {
        let mut shared = Vec::new();
        let bound = |q: &Queue| !q.bound_to.is_empty();
        for q in self.queues.values() {
            // A dead letter may share records with other queues.
            let owner = q.owner.and_then(|owner| self.queues.get(&owner));
            if !bound(q) && !owner.is_some_and(|owner| bound(owner)) {
                self.records_of(q, mark);
            } else {
                self.records_of(q, &mut |pos, bytes| shared.push((pos, bytes)));
            }
            let sessions = q.sessions.iter().flat_map(|s| s.iter());
            let states = sessions.filter_map(|(_, s)| s.extras().state);
            states.for_each(|state| mark(state.pos, RECORD_BYTES + u64::from(state.bytes)));
        }
        shared.sort_unstable();
        shared.dedup_by_key(|(pos, _)| *pos);
        shared.into_iter().for_each(|(pos, bytes)| mark(pos, bytes));
    }

    fn records_of(&self, q: &Queue, mark: &mut dyn FnMut(Pos, u64)) {
        for (seq, first, size) in q.index.entries() {
            let newest = if q.newest.is_empty() { None } else { q.newest.get(&seq).copied() };
            let mut records = self.records(newest.unwrap_or(first)).peekable();
            while let Some(pos) = records.next() {
                let whole = records.peek().is_none();
                mark(pos, RECORD_BYTES + if whole { size } else { 0 });
            }
        }
    }

    /// The approximate number of live journal bytes. Shared records are counted once for each queue. Session states are
    /// omitted: there may be millions.
    pub fn counted_bytes(&self) -> u64 {
        let each = |q: &Queue| q.index.bytes() + RECORD_BYTES * q.index.len();
        self.queues.values().map(|q| each(q)).sum()
    }

    /// At most `max` live records in these segments, by position.
    pub fn live_records_in(&self, segments: &BTreeSet<u64>, max: usize) -> Vec<LiveRecord> {
        let mut found = Vec::new();
        let is_in = |pos: Pos| segments.contains(&pos.generation());
        let mut ids: Vec<_> = self.queues.keys().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(q) = self.queues.get(id) else { continue };
            for (seq, first) in q.index.iter() {
                let newest = if q.newest.is_empty() { None } else { q.newest.get(&seq).copied() };
                let at = newest.unwrap_or(first);
                if self.records(at).any(is_in) && found.len() < max {
                    found.push(LiveRecord {
                        at,
                        of: RecordOwner::Message(MessageRef { queue: *id, seq }),
                    });
                }
            }
            for (_, session) in q.sessions.iter().flat_map(|s| s.iter()) {
                if let Some(at) = session.extras().state.map(|state| state.pos)
                    && is_in(at)
                    && found.len() < max
                {
                    found.push(LiveRecord { at, of: RecordOwner::State(*id, session.id.clone()) });
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Checks whether a message has too many overlays, after another one was added.
    pub(super) fn check_depth(&mut self, id: QueueId, seq: u64, newest: Pos) {
        if self.live.is_some()
            && self.records(newest).nth(DEPTH_MAX).is_some()
            && let Some(live) = self.live.as_mut()
        {
            live.to_rewrite.push(MessageRef { queue: id, seq });
        }
    }

    /// Switches to the complete copy of a message, and drops its older records.
    pub(super) fn relocated(&mut self, pos: Pos, kept: &RelocatedMessage) {
        for &MessageRef { queue, seq } in &kept.places {
            let Some(q) = self.queues.get_mut(&queue) else { continue };
            if !q.index.contains(seq) {
                continue;
            }
            let newest = q.newest.remove(&seq);
            if !q.index.relocate(seq, pos) {
                q.newest.insert(seq, pos);
            }
            if let Some(newest) = newest {
                self.forget_records(newest);
            }
        }
    }
}

impl Turn<'_> {
    /// Requests that messages with too many overlays are stored again.
    pub(super) fn request_rewrites(&mut self) {
        let mut deep = std::mem::take(&mut self.core.live().to_rewrite);
        deep.sort_unstable();
        deep.dedup();
        let resident = |message: MessageRef| {
            let at = self.core.queues.get(&message.queue)?.pos(message.seq)?;
            Some(LiveRecord { at, of: RecordOwner::Message(message) })
        };
        let items: Vec<_> = deep.into_iter().filter_map(resident).collect();
        if !items.is_empty() {
            let written = self.log.end_pos();
            self.out.push(Output { effect: Effect::Rewrite(items), durable: Pos::ZERO, written });
        }
    }

    /// Journals those copies whose sources have not changed.
    pub(super) fn relocate(&mut self, items: Vec<Relocation>) -> Decided {
        let mut room = 0;
        let mut events = Vec::with_capacity(items.len());
        for item in items {
            room += item.room();
            let from = item.from;
            match item.copy {
                RecordCopy::Message(mut kept) => {
                    let same = |message: &MessageRef| {
                        let q = self.core.queues.get(&message.queue);
                        q.and_then(|q| q.pos(message.seq)) == Some(from)
                    };
                    kept.places.retain(same);
                    if !kept.places.is_empty() {
                        events.push(Event::Relocated(kept));
                    }
                }
                RecordCopy::State(queue, session, state) => {
                    let has = self.core.queues.get(&queue).and_then(|q| {
                        let sessions = q.sessions.as_ref()?;
                        sessions.at(sessions.find(&session)?)?.extras().state
                    });
                    if let Some(has) = has.filter(|has| has.pos == from) {
                        let (state, at) = (Some(state), Timestamp(has.at));
                        events.push(Event::State { queue, session, state, at });
                    }
                }
            }
        }
        if events.is_empty() {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        }
        let count = events.len() as u64;
        self.begin(room)?;
        // Not lazy: readers must find the copies on disk, and the next batch waits for this one.
        for event in events {
            self.commit(event, false);
        }
        Ok(Some((Reply::Count(count), WaitFor::Durable)))
    }

    pub(super) fn live_bytes(&self) -> Decided {
        Ok(Some((Reply::Count(self.core.counted_bytes()), WaitFor::Settled)))
    }

    /// Finds the current records of leased messages.
    pub(super) fn locate(&self, leases: &[LeaseToken]) -> Decided {
        let at = |&token: &LeaseToken| {
            let lease = self.core.leases.find(token)?;
            let LeaseTarget::Message { seq, .. } = lease.what else { return None };
            self.core.queues.get(&lease.queue)?.pos(seq)
        };
        Ok(Some((Reply::Located(leases.iter().map(at).collect()), WaitFor::Settled)))
    }
}
