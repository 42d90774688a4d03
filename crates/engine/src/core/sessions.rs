//! The sessions of a queue: who holds them, what waits in them, which are ready.
//!
//! Only sessions with messages, a hold or a state are here; any other costs nothing. The ready ring is an intrusive
//! list: accept-next and becoming ready are O(1) with millions of sessions.

use std::collections::VecDeque;

use hashbrown::HashTable;
use malote_model::SessionId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::journal::Pos;

pub(super) const NONE: u32 = u32::MAX;

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub id: SessionId,
    /// Messages in order; those that are gone or set aside are skipped when they come to the front.
    pub line: Line,
    /// Where the holder's delivery goes on.
    pub cursor: u64,
    /// Messages out.
    pub out: u32,
    /// Slot of the explicit hold.
    pub hold: u32,
    /// Consumers that the holder attached, first come, first served.
    pub consumers: Vec<crate::command::ConsumerId>,
    /// Most have none.
    pub state: Option<Box<State>>,
    /// Messages set aside or parked: they keep the session known.
    pub aside: u32,
    /// A decision about this session rests on the journal up to here.
    pub rests_on: Pos,
    prev: u32,
    next: u32,
    in_ring: bool,
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// Where it is stored.
    pub pos: Pos,
    pub bytes: u32,
    /// When it was set; 0 if its record did not say.
    pub at: u64,
}

/// Sequences in ascending order: four bytes each while they are near to one another.
#[derive(Debug)]
pub(super) enum Line {
    Near { base: u64, seqs: VecDeque<u32> },
    Far(VecDeque<u64>),
}

impl Default for Line {
    fn default() -> Self {
        Self::Near { base: 0, seqs: VecDeque::new() }
    }
}

impl Line {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Near { seqs, .. } => seqs.len(),
            Self::Far(seqs) => seqs.len(),
        }
    }

    pub(super) fn get(&self, i: usize) -> Option<u64> {
        match self {
            Self::Near { base, seqs } => seqs.get(i).map(|&d| base + u64::from(d)),
            Self::Far(seqs) => seqs.get(i).copied(),
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.get(0)
    }

    pub(super) fn pop(&mut self) {
        match self {
            Self::Near { seqs, .. } => drop(seqs.pop_front()),
            Self::Far(seqs) => drop(seqs.pop_front()),
        }
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    /// The place of the first at or after `seq`.
    pub(super) fn place(&self, seq: u64) -> usize {
        match self {
            Self::Near { base, seqs } => seqs.partition_point(|&d| base + u64::from(d) < seq),
            Self::Far(seqs) => seqs.partition_point(|&s| s < seq),
        }
    }

    /// Puts a sequence in its place; mostly that is the end. One that is there already stays.
    pub(super) fn insert(&mut self, seq: u64) {
        if let Self::Near { base, seqs } = self {
            if seqs.is_empty() {
                *base = seq;
            }
            let near = seq.checked_sub(*base).and_then(|d| u32::try_from(d).ok());
            match near {
                Some(d) if seqs.back().is_none_or(|&last| last < d) => seqs.push_back(d),
                Some(d) => {
                    if let Err(at) = seqs.binary_search(&d) {
                        seqs.insert(at, d);
                    }
                }
                None => {
                    let far = seqs.iter().map(|&d| *base + u64::from(d)).collect();
                    *self = Self::Far(far);
                    self.insert(seq);
                }
            }
        } else if let Self::Far(seqs) = self
            && let Err(at) = seqs.binary_search(&seq)
        {
            seqs.insert(at, seq);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

/// The sessions of one queue.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Slots with 32 bits of their ids' hashes, so that neither growing nor a near miss touches a session.
    table: HashTable<(u32, u32)>,
    slots: Vec<Option<Box<Session>>>,
    free: Vec<u32>,
    hash_seed: u64,
    head: u32,
    tail: u32,
    ready: usize,
}

impl Sessions {
    pub(super) fn new(hash_seed: u64) -> Self {
        let (table, slots, free) = (HashTable::new(), Vec::new(), Vec::new());
        Self { table, slots, free, hash_seed, head: NONE, tail: NONE, ready: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many slots there are, with a session or without.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Sessions with work that nobody holds.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    fn hash(&self, id: &str) -> u32 {
        xxh3_64_with_seed(id.as_bytes(), self.hash_seed) as u32
    }

    pub(super) fn find(&self, id: &SessionId) -> Option<u32> {
        let hash = self.hash(id.as_str());
        let is_it =
            |&(have, slot): &(u32, u32)| have == hash && self.at(slot).is_some_and(|s| s.id == *id);
        self.table.find(spread(hash), is_it).map(|&(_, slot)| slot)
    }

    pub(super) fn find_or_add(&mut self, id: &SessionId) -> u32 {
        if let Some(slot) = self.find(id) {
            return slot;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.put(slot, id);
        slot
    }

    /// Puts a session of a snapshot into the slot after the last; none if it is there already.
    pub(super) fn add_last(&mut self, id: &SessionId) -> Option<&mut Session> {
        if self.find(id).is_some() {
            return None;
        }
        let slot = self.slots.len() as u32;
        self.slots.push(None);
        self.put(slot, id);
        self.at_mut(slot)
    }

    fn put(&mut self, slot: u32, id: &SessionId) {
        let session = Session {
            id: id.clone(),
            line: Line::default(),
            cursor: 0,
            out: 0,
            hold: NONE,
            consumers: Vec::new(),
            state: None,
            aside: 0,
            rests_on: Pos::ZERO,
            prev: NONE,
            next: NONE,
            in_ring: false,
        };
        self.slots[slot as usize] = Some(Box::new(session));
        let hash = self.hash(id.as_str());
        self.table.insert_unique(spread(hash), (hash, slot), |&(hash, _)| spread(hash));
    }

    pub(super) fn at(&self, slot: u32) -> Option<&Session> {
        self.slots.get(slot as usize)?.as_deref()
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot as u32, s.as_deref()?)))
    }

    /// Forgets a session that has no messages, no hold and no state.
    pub(super) fn forget_if_idle(&mut self, slot: u32) {
        let Some(session) = self.at(slot) else { return };
        if session.line.len() > 0
            || session.out > 0
            || session.hold != NONE
            || session.state.is_some()
            || session.aside > 0
        {
            return;
        }
        self.set_ready(slot, false);
        let Some(session) = self.slots[slot as usize].take() else { return };
        let hash = self.hash(session.id.as_str());
        if let Ok(entry) = self.table.find_entry(spread(hash), |&(_, have)| have == slot) {
            entry.remove();
        }
        self.free.push(slot);
    }

    /// The head of the ready ring.
    pub(super) fn first_ready(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Who stands behind another in the ready ring.
    pub(super) fn ready_after(&self, slot: u32) -> Option<u32> {
        self.at(slot).map(|s| s.next).filter(|&next| next != NONE)
    }

    /// Joins the tail of the ready ring, or leaves it. A session already where it should be keeps its place.
    pub(super) fn set_ready(&mut self, slot: u32, ready: bool) {
        let tail = self.tail;
        let Some(session) = self.at_mut(slot) else { return };
        if session.in_ring == ready {
            return;
        }
        session.in_ring = ready;
        if ready {
            (session.prev, session.next) = (tail, NONE);
            match self.at_mut(tail) {
                Some(last) => last.next = slot,
                None => self.head = slot,
            }
            self.tail = slot;
            self.ready += 1;
        } else {
            let (prev, next) = (session.prev, session.next);
            match self.at_mut(prev) {
                Some(before) => before.next = next,
                None => self.head = next,
            }
            match self.at_mut(next) {
                Some(after) => after.prev = prev,
                None => self.tail = prev,
            }
            self.ready -= 1;
        }
    }
}

/// The table takes its bits from both ends of 64.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> SessionId {
        SessionId::new(&format!("s{n}")).unwrap()
    }

    #[test]
    fn the_ring_is_first_in_first_out() {
        let mut sessions = Sessions::new(1);
        let slots: Vec<u32> = (0..5).map(|n| sessions.find_or_add(&id(n))).collect();
        slots.iter().for_each(|&slot| sessions.set_ready(slot, true));
        sessions.set_ready(slots[2], false);
        sessions.set_ready(slots[0], false);
        sessions.set_ready(slots[0], true);
        let mut order = Vec::new();
        while let Some(slot) = sessions.first_ready() {
            sessions.set_ready(slot, false);
            order.push(sessions.at(slot).unwrap().id.to_string());
        }
        assert_eq!(order, ["s1", "s3", "s4", "s0"]);
    }

    #[test]
    fn idle_sessions_are_forgotten_and_their_slots_reused() {
        let mut sessions = Sessions::new(1);
        let slot = sessions.find_or_add(&id(1));
        sessions.forget_if_idle(slot);
        assert_eq!((sessions.len(), sessions.find(&id(1))), (0, None));
        assert_eq!(sessions.find_or_add(&id(2)), slot);
    }

    #[test]
    fn a_line_holds_far_sequences_too() {
        let mut line = Line::default();
        for seq in [10, 5, 12, 10, 1 << 40, 11] {
            line.insert(seq);
        }
        assert_eq!(line.iter().collect::<Vec<_>>(), [5, 10, 11, 12, 1 << 40]);
        assert_eq!(line.place(11), 2);
    }
}
