//! The sessions of a queue: who holds them, what waits in them, which are ready.
//!
//! Only sessions with messages, a hold or a state are here; any other costs nothing. The ready ring is an intrusive
//! list: accept-next and becoming ready are O(1) with millions of sessions. What is looked at for every message
//! stands together and needs no memory elsewhere while the line is short; the rest is boxed.

use hashbrown::HashTable;
use malote_model::SessionId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::line::Line;
use crate::command::ConsumerId;
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
    /// A decision about this session rests on the journal up to here.
    pub rests_on: Pos,
    /// Messages out.
    pub out: u32,
    prev: u32,
    next: u32,
    in_ring: bool,
    rare: Option<Box<Rare>>,
}

/// What few sessions have.
#[derive(Debug)]
pub(super) struct Rare {
    /// Slot of the explicit hold.
    pub hold: u32,
    /// Consumers that the holder attached, first come, first served.
    pub consumers: Vec<ConsumerId>,
    pub state: Option<State>,
    /// Messages set aside or parked: they keep the session known.
    pub aside: u32,
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

static NOTHING_RARE: Rare = Rare { hold: NONE, consumers: Vec::new(), state: None, aside: 0 };

impl Rare {
    fn is_nothing(&self) -> bool {
        let Self { hold, consumers, state, aside } = self;
        *hold == NONE && consumers.is_empty() && state.is_none() && *aside == 0
    }
}

impl Session {
    pub(super) fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NOTHING_RARE)
    }

    /// To be changed. A session that has nothing rare in the end gives the box back when it is refreshed.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        let (consumers, state) = (Vec::new(), None);
        self.rare.get_or_insert_with(|| Box::new(Rare { hold: NONE, consumers, state, aside: 0 }))
    }

    /// One message less that is set aside or parked.
    pub(super) fn less_aside(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.aside = rare.aside.saturating_sub(1);
        }
    }

    /// Nobody but the line keeps it busy: no hold, and nothing out.
    pub(super) fn is_free(&self) -> bool {
        self.out == 0 && self.rare().hold == NONE
    }

    pub(super) fn tidy(&mut self) {
        self.rare.take_if(|rare| rare.is_nothing());
    }
}

/// Sessions that stand together in memory: as many as make the allocation a good one.
const CHUNK: usize = (32 << 10) / size_of::<Option<Session>>();

/// Slots of sessions. A chunk in which nobody is left takes no memory.
#[derive(Debug, Default)]
struct Chunk {
    sessions: Vec<Option<Session>>,
    count: u32,
}

/// The sessions of one queue.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Slots with 32 bits of their ids' hashes, so that neither growing nor a near miss touches a session.
    table: HashTable<(u32, u32)>,
    chunks: Vec<Chunk>,
    /// How many slots there are, with a session or without.
    slots: u32,
    free: Vec<u32>,
    hash_seed: u64,
    head: u32,
    tail: u32,
    ready: usize,
}

impl Sessions {
    pub(super) fn new(hash_seed: u64) -> Self {
        let (table, chunks, free) = (HashTable::new(), Vec::new(), Vec::new());
        Self { table, chunks, slots: 0, free, hash_seed, head: NONE, tail: NONE, ready: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many slots there are, with a session or without.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Sessions with work that nobody holds.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    fn hash(&self, id: &str) -> u32 {
        xxh3_64_with_seed(id.as_bytes(), self.hash_seed) as u32
    }

    pub(super) fn find(&self, id: &SessionId) -> Option<u32> {
        self.find_hashed(id, self.hash(id.as_str()))
    }

    fn find_hashed(&self, id: &SessionId, hash: u32) -> Option<u32> {
        let is_it =
            |&(have, slot): &(u32, u32)| have == hash && self.at(slot).is_some_and(|s| s.id == *id);
        self.table.find(spread(hash), is_it).map(|&(_, slot)| slot)
    }

    pub(super) fn find_or_add(&mut self, id: &SessionId) -> u32 {
        let hash = self.hash(id.as_str());
        if let Some(slot) = self.find_hashed(id, hash) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or(self.slots);
        self.put(slot, id, hash);
        slot
    }

    /// Room for sessions of a snapshot.
    pub(super) fn expect(&mut self, sessions: usize) {
        self.table.reserve(sessions, |&(hash, _)| spread(hash));
    }

    /// Puts a session of a snapshot into the slot after the last; none if it is there already.
    pub(super) fn add_last(&mut self, id: &SessionId) -> Option<&mut Session> {
        let hash = self.hash(id.as_str());
        if self.find_hashed(id, hash).is_some() {
            return None;
        }
        let slot = self.slots;
        self.put(slot, id, hash);
        self.at_mut(slot)
    }

    fn put(&mut self, slot: u32, id: &SessionId, hash: u32) {
        let session = Session {
            id: id.clone(),
            line: Line::default(),
            cursor: 0,
            rests_on: Pos::ZERO,
            out: 0,
            prev: NONE,
            next: NONE,
            in_ring: false,
            rare: None,
        };
        self.slots = self.slots.max(slot + 1);
        let at = slot as usize;
        if self.chunks.len() <= at / CHUNK {
            self.chunks.resize_with(at / CHUNK + 1, Chunk::default);
        }
        let chunk = &mut self.chunks[at / CHUNK];
        if chunk.sessions.is_empty() {
            chunk.sessions.resize_with(CHUNK, || None);
        }
        chunk.sessions[at % CHUNK] = Some(session);
        chunk.count += 1;
        self.table.insert_unique(spread(hash), (hash, slot), |&(hash, _)| spread(hash));
    }

    fn take(&mut self, slot: u32) -> Option<Session> {
        let at = slot as usize;
        let chunk = self.chunks.get_mut(at / CHUNK)?;
        let taken = chunk.sessions.get_mut(at % CHUNK)?.take()?;
        chunk.count -= 1;
        if chunk.count == 0 {
            *chunk = Chunk::default();
        }
        Some(taken)
    }

    pub(super) fn at(&self, slot: u32) -> Option<&Session> {
        let at = slot as usize;
        self.chunks.get(at / CHUNK)?.sessions.get(at % CHUNK)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Session> {
        let at = slot as usize;
        self.chunks.get_mut(at / CHUNK)?.sessions.get_mut(at % CHUNK)?.as_mut()
    }

    /// Takes the last of the sessions, as many as stand together. Nobody may look for them any more.
    pub(super) fn pop_chunk(&mut self) -> Option<Vec<Option<Session>>> {
        self.chunks.pop().map(|chunk| chunk.sessions)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.chunks.iter().enumerate().flat_map(|(nth, chunk)| {
            let each = chunk.sessions.iter().enumerate();
            each.filter_map(move |(at, s)| Some(((nth * CHUNK + at) as u32, s.as_ref()?)))
        })
    }

    /// Forgets a session that has no messages, no hold and no state.
    pub(super) fn forget_if_idle(&mut self, slot: u32) {
        let Some(session) = self.at(slot) else { return };
        if session.line.len() > 0
            || session.out > 0
            || session.rare.as_ref().is_some_and(|rare| !rare.is_nothing())
        {
            return;
        }
        self.set_ready(slot, false);
        let Some(session) = self.take(slot) else { return };
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
    fn a_session_is_small_and_an_empty_chunk_takes_nothing() {
        assert!(size_of::<Option<Session>>() <= 120, "{}", size_of::<Option<Session>>());
        let mut sessions = Sessions::new(1);
        let slots: Vec<u32> = (0..3 * CHUNK as u32).map(|n| sessions.find_or_add(&id(n))).collect();
        for &slot in &slots[CHUNK..] {
            sessions.forget_if_idle(slot);
        }
        assert_eq!(sessions.chunks[1].sessions.capacity(), 0);
        assert_eq!((sessions.len(), sessions.iter().count()), (CHUNK, CHUNK));
        // The last slot that became free is the first to be used again.
        assert_eq!(sessions.find_or_add(&id(7_000_000)), slots[3 * CHUNK - 1]);
    }
}
