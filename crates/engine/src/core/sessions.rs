//! The sessions of a queue: their holders, their pending messages, and the ready ring.
//!
//! Only sessions with messages, a hold or a state are stored. The ready ring is an intrusive list, so accept-next and
//! becoming ready are O(1) with millions of sessions. The fields used for every message are stored together, without
//! further allocations while the list of messages is short; the rest is boxed.

use hashbrown::HashTable;
use malote_model::SessionId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::seq_list::SeqList;
use crate::command::ConsumerId;
use crate::journal::Pos;

pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Session {
    pub id: SessionId,
    /// Pending messages in order. Removed and deferred ones are skipped when they reach the front.
    pub pending: SeqList,
    /// Where delivery to the holder continues.
    pub cursor: u64,
    /// Decisions about this session depend on the journal up to here.
    pub rests_on: Pos,
    /// The number of leased messages.
    pub locked: u32,
    prev: u32,
    next: u32,
    in_ring: bool,
    extras: Option<Box<SessionExtras>>,
}

/// Fields that few sessions need.
#[derive(Debug)]
pub(super) struct SessionExtras {
    /// The slot of the explicit hold.
    pub hold: u32,
    /// Consumers that the holder attached, in order.
    pub consumers: Vec<ConsumerId>,
    pub state: Option<StoredState>,
    /// Deferred or parked messages. They keep the session alive.
    pub aside: u32,
}

/// The stored state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredState {
    /// The position of its record.
    pub pos: Pos,
    pub bytes: u32,
    /// When it was set; 0 if unknown.
    pub at: u64,
}

static NO_EXTRAS: SessionExtras =
    SessionExtras { hold: NONE, consumers: Vec::new(), state: None, aside: 0 };

impl SessionExtras {
    fn is_nothing(&self) -> bool {
        let Self { hold, consumers, state, aside } = self;
        *hold == NONE && consumers.is_empty() && state.is_none() && *aside == 0
    }
}

impl Session {
    pub(super) fn extras(&self) -> &SessionExtras {
        self.extras.as_deref().unwrap_or(&NO_EXTRAS)
    }

    /// Mutable access. If everything is back to its default, the box is freed when the session is refreshed.
    pub(super) fn extras_mut(&mut self) -> &mut SessionExtras {
        let (consumers, state) = (Vec::new(), None);
        self.extras.get_or_insert_with(|| {
            Box::new(SessionExtras { hold: NONE, consumers, state, aside: 0 })
        })
    }

    /// Counts one deferred or parked message less.
    pub(super) fn decrement_aside(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.aside = extras.aside.saturating_sub(1);
        }
    }

    /// Whether the session has no hold and no leased messages.
    pub(super) fn is_free(&self) -> bool {
        self.locked == 0 && self.extras().hold == NONE
    }

    pub(super) fn tidy(&mut self) {
        self.extras.take_if(|extras| extras.is_nothing());
    }
}

/// Sessions in one allocation.
const CHUNK: usize = (32 << 10) / size_of::<Option<Session>>();

/// Slots of sessions. An empty chunk has no allocation.
#[derive(Debug, Default)]
struct SessionChunk {
    sessions: Vec<Option<Session>>,
    count: u32,
}

/// The sessions of one queue.
#[derive(Debug)]
pub(super) struct SessionTable {
    /// Slots with 32 bits of their ids' hashes, so that growing and near misses do not access sessions.
    table: HashTable<(u32, u32)>,
    chunks: Vec<SessionChunk>,
    /// The number of slots, including free ones.
    slots: u32,
    free: Vec<u32>,
    hash_seed: u64,
    head: u32,
    tail: u32,
    ready: usize,
}

impl SessionTable {
    pub(super) fn new(hash_seed: u64) -> Self {
        let (table, chunks, free) = (HashTable::new(), Vec::new(), Vec::new());
        Self { table, chunks, slots: 0, free, hash_seed, head: NONE, tail: NONE, ready: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of slots, including free ones.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// The number of sessions in the ready ring.
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

    /// Reserves space for sessions of a snapshot.
    pub(super) fn expect(&mut self, sessions: usize) {
        self.table.reserve(sessions, |&(hash, _)| spread(hash));
    }

    /// Adds a session of a snapshot after the last slot; `None` if it already exists.
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
            pending: SeqList::default(),
            cursor: 0,
            rests_on: Pos::ZERO,
            locked: 0,
            prev: NONE,
            next: NONE,
            in_ring: false,
            extras: None,
        };
        self.slots = self.slots.max(slot + 1);
        let at = slot as usize;
        if self.chunks.len() <= at / CHUNK {
            self.chunks.resize_with(at / CHUNK + 1, SessionChunk::default);
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
            *chunk = SessionChunk::default();
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

    /// Removes the last chunk of sessions, for a queue that is being deleted.
    pub(super) fn pop_chunk(&mut self) -> Option<Vec<Option<Session>>> {
        self.chunks.pop().map(|chunk| chunk.sessions)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.chunks.iter().enumerate().flat_map(|(nth, chunk)| {
            let each = chunk.sessions.iter().enumerate();
            each.filter_map(move |(at, s)| Some(((nth * CHUNK + at) as u32, s.as_ref()?)))
        })
    }

    /// Forgets a session without messages, hold and state.
    pub(super) fn forget_if_idle(&mut self, slot: u32) {
        let Some(session) = self.at(slot) else { return };
        if session.pending.len() > 0
            || session.locked > 0
            || session.extras.as_ref().is_some_and(|extras| !extras.is_nothing())
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

    pub(super) fn first_ready(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The session after another one in the ready ring.
    pub(super) fn ready_after(&self, slot: u32) -> Option<u32> {
        self.at(slot).map(|s| s.next).filter(|&next| next != NONE)
    }

    /// Adds a session to the tail of the ready ring, or removes it. Otherwise it keeps its position.
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

/// The table uses bits from both ends of the hash.
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
        let mut sessions = SessionTable::new(1);
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
        let mut sessions = SessionTable::new(1);
        let slot = sessions.find_or_add(&id(1));
        sessions.forget_if_idle(slot);
        assert_eq!((sessions.len(), sessions.find(&id(1))), (0, None));
        assert_eq!(sessions.find_or_add(&id(2)), slot);
    }

    #[test]
    fn a_session_is_small_and_an_empty_chunk_uses_no_memory() {
        assert!(size_of::<Option<Session>>() <= 120, "{}", size_of::<Option<Session>>());
        let mut sessions = SessionTable::new(1);
        let slots: Vec<u32> = (0..3 * CHUNK as u32).map(|n| sessions.find_or_add(&id(n))).collect();
        for &slot in &slots[CHUNK..] {
            sessions.forget_if_idle(slot);
        }
        assert_eq!(sessions.chunks[1].sessions.capacity(), 0);
        assert_eq!((sessions.len(), sessions.iter().count()), (CHUNK, CHUNK));
        // The slot that was freed last is reused first.
        assert_eq!(sessions.find_or_add(&id(7_000_000)), slots[3 * CHUNK - 1]);
    }
}
