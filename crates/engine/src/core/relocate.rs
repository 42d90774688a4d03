//! Compaction's part of the core: which live records stand in segments that are to be emptied, and pointing at their
//! copies. Counters, leases, places and sessions are untouched: nobody notices.

use std::collections::BTreeSet;

use bytes::Bytes;
use malote_model::{LeaseToken, SessionId, Timestamp, limits};

use super::leases::Leased as Kind;
use super::queue::Queue;
use super::{Core, Decided, Needs, Output, To, Turn};
use crate::codec::DeadLetter;
use crate::command::Reply;
use crate::event::{Event, Kept, MessageRef, QueueId};
use crate::journal::Pos;

/// What a record costs beside the message in it, about.
const RECORD_BYTES: u64 = 48;

/// A frame's header and a few numbers take less than this.
const FIELDS_BYTES: usize = 96;

/// A message under so many records is stored anew: whoever reads it follows them all.
const DEPTH_MAX: usize = 64;

/// A live record that stands, or lies over one that stands, in a segment that is to be emptied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its newest record.
    pub at: Pos,
    /// Of what.
    pub of: Whose,
}

/// Whose record it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The message at a place of a queue.
    Message(MessageRef),
    /// The state of a session.
    State(QueueId, SessionId),
}

/// A copy to be journaled, unless what it was made of changed meanwhile.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// The newest record that it was made of.
    pub from: Pos,
    /// What to write.
    pub copy: Copied,
}

/// A copy of a record.
#[derive(Debug, Clone)]
pub enum Copied {
    /// Of a message, with the places that had it.
    Message(Box<Kept>),
    /// Of a session's state.
    State(QueueId, SessionId, Bytes),
}

impl Relocation {
    /// Journal bytes that it takes at most.
    pub fn room(&self) -> usize {
        match &self.copy {
            Copied::Message(kept) => {
                let texts = |d: &DeadLetter| d.reason.len() + d.text.len() + d.from.as_str().len();
                let deaths: usize = kept.deaths.iter().map(|d| texts(d) + FIELDS_BYTES).sum();
                let places = 16 * kept.places.len();
                kept.head.len() + kept.body.len() + deaths + places + FIELDS_BYTES
            }
            Copied::State(_, session, state) => session.as_str().len() + state.len() + FIELDS_BYTES,
        }
    }
}

impl Core {
    /// A message's records, from the newest down.
    fn records(&self, newest: Pos) -> impl Iterator<Item = Pos> {
        let under = |pos: &Pos| self.under.get(pos).map(|under| under.from);
        std::iter::successors(Some(newest), under).take(limits::CHANGES_CHAIN_MAX as usize + 1)
    }

    /// What a message's newest record lies over; none for most.
    pub(super) fn records_under(&self, newest: Pos) -> Option<Box<[Pos]>> {
        let over = self.under.contains_key(&newest);
        over.then(|| self.records(newest).skip(1).collect())
    }

    /// Names every record that may still be read, and about how many bytes it has. What a topic gave to several
    /// queues is one record, named once.
    pub(super) fn live_records(&self, mark: &mut dyn FnMut(Pos, u64)) {
        let mut shared = Vec::new();
        let bound = |q: &Queue| !q.bound_to.is_empty();
        for q in self.queues.values() {
            // A dead letter lies over what others may still have.
            let owner = q.owner.and_then(|owner| self.queues.get(&owner));
            if !bound(q) && !owner.is_some_and(|owner| bound(owner)) {
                self.records_of(q, mark);
            } else {
                self.records_of(q, &mut |pos, bytes| shared.push((pos, bytes)));
            }
            let sessions = q.sessions.iter().flat_map(|s| s.iter());
            let states = sessions.filter_map(|(_, s)| s.rare().state);
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

    /// About how many bytes of the journal are live, what several queues share once for each. Session states are
    /// left out: there may be millions.
    pub fn counted_bytes(&self) -> u64 {
        let each = |q: &Queue| q.index.bytes() + RECORD_BYTES * q.index.len();
        self.queues.values().map(|q| each(q)).sum()
    }

    /// At most `max` live records in these segments, by position.
    pub fn residents(&self, segments: &BTreeSet<u64>, max: usize) -> Vec<Resident> {
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
                    found.push(Resident { at, of: Whose::Message(MessageRef { queue: *id, seq }) });
                }
            }
            for (_, session) in q.sessions.iter().flat_map(|s| s.iter()) {
                if let Some(at) = session.rare().state.map(|state| state.pos)
                    && is_in(at)
                    && found.len() < max
                {
                    found.push(Resident { at, of: Whose::State(*id, session.id.clone()) });
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// One more record lies over a message: perhaps one too many.
    pub(super) fn deepened(&mut self, id: QueueId, seq: u64, newest: Pos) {
        if self.live.is_some()
            && self.records(newest).nth(DEPTH_MAX).is_some()
            && let Some(live) = self.live.as_mut()
        {
            live.deep.push(MessageRef { queue: id, seq });
        }
    }

    /// A message stands here now, whole, and nothing lies under it.
    pub(super) fn kept(&mut self, pos: Pos, kept: &Kept) {
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
    /// Asks for messages under too many records to be stored anew.
    pub(super) fn offer_deep(&mut self) {
        let mut deep = std::mem::take(&mut self.core.live().deep);
        deep.sort_unstable();
        deep.dedup();
        let resident = |message: MessageRef| {
            let at = self.core.queues.get(&message.queue)?.pos(message.seq)?;
            Some(Resident { at, of: Whose::Message(message) })
        };
        let items: Vec<_> = deep.into_iter().filter_map(resident).collect();
        if !items.is_empty() {
            let written = self.log.end_pos();
            self.out.push(Output { to: To::Rewrite(items), durable: Pos::ZERO, written });
        }
    }

    /// Journals copies of what is still as it was when they were made.
    pub(super) fn relocate(&mut self, items: Vec<Relocation>) -> Decided {
        let mut room = 0;
        let mut events = Vec::with_capacity(items.len());
        for item in items {
            room += item.room();
            let from = item.from;
            match item.copy {
                Copied::Message(mut kept) => {
                    let same = |message: &MessageRef| {
                        let q = self.core.queues.get(&message.queue);
                        q.and_then(|q| q.pos(message.seq)) == Some(from)
                    };
                    kept.places.retain(same);
                    if !kept.places.is_empty() {
                        events.push(Event::Kept(kept));
                    }
                }
                Copied::State(queue, session, state) => {
                    let has = self.core.queues.get(&queue).and_then(|q| {
                        let sessions = q.sessions.as_ref()?;
                        sessions.at(sessions.find(&session)?)?.rare().state
                    });
                    if let Some(has) = has.filter(|has| has.pos == from) {
                        let (state, at) = (Some(state), Timestamp(has.at));
                        events.push(Event::State { queue, session, state, at });
                    }
                }
            }
        }
        if events.is_empty() {
            return Ok(Some((Reply::Count(0), Needs::Settled)));
        }
        let count = events.len() as u64;
        self.begin(room)?;
        // Not lazy: whoever is pointed at a copy must find it on disk, and the next batch waits for this one.
        for event in events {
            self.commit(event, false);
        }
        Ok(Some((Reply::Count(count), Needs::Durable)))
    }

    /// See [`Core::counted_bytes`].
    pub(super) fn live_bytes(&self) -> Decided {
        Ok(Some((Reply::Count(self.core.counted_bytes()), Needs::Settled)))
    }

    /// Where leased messages stand now.
    pub(super) fn locate(&self, leases: &[LeaseToken]) -> Decided {
        let at = |&token: &LeaseToken| {
            let lease = self.core.leases.find(token)?;
            let Kind::Message { seq, .. } = lease.what else { return None };
            self.core.queues.get(&lease.queue)?.pos(seq)
        };
        Ok(Some((Reply::Located(leases.iter().map(at).collect()), Needs::Settled)))
    }
}
