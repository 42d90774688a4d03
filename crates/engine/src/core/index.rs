//! The journal position of each message of a queue: two or three bytes per message.
//!
//! Consecutive sequence numbers share a block: a base position, 32-bit distances from it, sizes as 16-bit floats, and a
//! bitmap of live messages. Distances and sizes are packed when the block is full. A block is closed early if positions
//! exceed 32 bits (a queue with one message an hour beside one with a million), and dropped when none of its messages
//! is live.
//!
//! Columns that only some queues need are absent from other blocks: the time of enqueueing, the message's own expiry,
//! the priority, and the session.
//!
//! Messages that compaction copied are far ahead of their neighbours: a block may have a second base, and a bitmap of
//! the messages that use it. When all live messages use it, it becomes the only one.

use std::collections::VecDeque;

use super::column::{Column, put};
use crate::codec::{EncodeExt, Malformed, Reader, StreamReader};
use crate::journal::Pos;

/// Messages of one block. One less than a power of two: with the allocator's overhead, a full power of two would use
/// the next size class.
pub(super) const BLOCK_MAX: usize = 4095;

/// Blocks of older snapshots may be longer.
const BLOCK_MAX_EVER: usize = 4096;

#[derive(Debug, Default, Clone)]
struct Block {
    first: u64,
    base: u64,
    delta: Column,
    size: Column,
    live: Vec<u64>,
    live_count: u32,
    /// No more messages are added.
    closed: bool,
    /// When the first and the last message were enqueued. Without a column, ages have the precision of a block.
    first_at: u64,
    last_at: u64,
    /// Columns, each empty or as long as `delta`: when the message was enqueued, relative to `first_at`;
    at: Vec<u32>,
    /// the message's own expiry, 0 for none;
    expires: Vec<u64>,
    /// its priority, for queues with priorities;
    priority: Vec<u8>,
    /// the slot of its session or, in a queue without sessions, its tenant.
    session: Vec<u32>,
    /// Messages that compaction copied elsewhere; most blocks have none.
    moved: Option<Box<SecondBase>>,
}

/// Messages of a block whose positions are relative to another base.
#[derive(Debug, Clone)]
struct SecondBase {
    base: u64,
    which: Vec<u64>,
}

/// A message to add to the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexEntry {
    pub seq: u64,
    pub pos: Pos,
    pub size: u32,
    pub at: u64,
    /// Its own expiry; 0 for none.
    pub expires: u64,
    pub priority: u8,
    /// The slot of its session, if it must be found by sequence number; or its tenant.
    pub session: Option<u32>,
    /// Whether its time is needed, because the queue has a time to live.
    pub timed: bool,
}

/// A column that most blocks do not need begins with the first value that is not zero.
fn put_rare<T: Copy + Default + PartialEq>(column: &mut Vec<T>, i: usize, value: T) {
    if !column.is_empty() || value != T::default() {
        column.resize(i, T::default());
        column.push(value);
    }
}

impl Block {
    fn close(&mut self) {
        self.closed = true;
        self.delta.pack();
        self.size.pack();
        self.live.shrink_to_fit();
        self.at.shrink_to_fit();
        self.expires.shrink_to_fit();
        self.priority.shrink_to_fit();
        self.session.shrink_to_fit();
    }

    fn end(&self) -> u64 {
        self.first + self.delta.len() as u64
    }

    fn lives(&self, i: usize) -> bool {
        self.live[i / 64] & (1 << (i % 64)) != 0
    }

    /// The size of a message, to the precision of its encoding.
    fn bytes(&self, i: usize) -> u64 {
        unpack_size(self.size.get(i) as u16)
    }

    fn when(&self, i: usize) -> u64 {
        self.at.get(i).map_or(self.last_at, |&after| self.first_at + u64::from(after))
    }

    fn pos(&self, i: usize) -> Pos {
        let elsewhere = self.moved.as_ref().filter(|m| m.which[i / 64] & (1 << (i % 64)) != 0);
        let base = elsewhere.map_or(self.base, |moved| moved.base);
        Pos::from_u64(base + u64::from(self.delta.get(i)))
    }

    /// Sets a later position. Returns false if it is too far from both bases.
    fn relocate(&mut self, i: usize, pos: Pos) -> bool {
        let words = self.live.len();
        let near = |base: u64| pos.get().checked_sub(base).and_then(|d| u32::try_from(d).ok());
        let moved = self
            .moved
            .get_or_insert_with(|| Box::new(SecondBase { base: pos.get(), which: vec![0; words] }));
        let Some(delta) = near(moved.base) else { return false };
        self.delta.set(i, delta);
        moved.which[i / 64] |= 1 << (i % 64);
        if self.live.iter().zip(&moved.which).all(|(live, which)| live & !which == 0) {
            self.base = moved.base;
            self.moved = None;
            if self.closed {
                self.delta.pack();
            }
        }
        true
    }

    /// The first live message at or after `i`.
    fn next_live(&self, i: usize) -> Option<usize> {
        let mut word = i / 64;
        let mut bits = *self.live.get(word)? & (u64::MAX << (i % 64));
        while bits == 0 {
            word += 1;
            bits = *self.live.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    fn restore(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (first, base, first_at) = (r.var()?, r.var()?, r.var()?);
        let (last_at, n) = (r.var()?, r.count()?);
        let far = |from: u64| from.checked_add(u64::from(u32::MAX)).is_none();
        if n == 0 || n > BLOCK_MAX_EVER || first.checked_add(n as u64).is_none() {
            return Err(Malformed);
        }
        let delta = Column::Plain(le(r.take(n * 4)?, u32::from_le_bytes));
        let size = le(r.take(n * 2)?, |bytes| u32::from(u16::from_le_bytes(bytes)));
        let size = Column::Plain(size);
        let live: Vec<u64> = le(r.take(n.div_ceil(64) * 8)?, u64::from_le_bytes);
        let columns = r.u8()?;
        let mut column = |flag: u8, width: usize| match columns & flag {
            0 => Ok(&[][..]),
            _ => r.take(n * width),
        };
        let at = le(column(1, 4)?, u32::from_le_bytes);
        let expires = le(column(2, 8)?, u64::from_le_bytes);
        let priority = column(4, 1)?.to_vec();
        let session = le(column(8, 4)?, u32::from_le_bytes);
        let moved = match r.var()? {
            0 => None,
            base if far(base) => return Err(Malformed),
            base => {
                let which = le(r.take(live.len() * 8)?, u64::from_le_bytes);
                Some(Box::new(SecondBase { base, which }))
            }
        };
        let live_count = live.iter().map(|word| word.count_ones()).sum();
        // No bits are set after the last message.
        let behind = live.last().map_or(0, |word| word.checked_shr((n % 64) as u32).unwrap_or(0));
        let beyond = n % 64 != 0 && behind != 0;
        if columns > 15 || far(first_at) || far(base) || live_count == 0 || beyond {
            return Err(Malformed);
        }
        Ok(Self {
            first,
            base,
            delta,
            size,
            live,
            live_count,
            closed: false,
            first_at,
            last_at,
            at,
            expires,
            priority,
            session,
            moved,
        })
    }
}

/// Positions and sizes of the live messages of a queue, by sequence number.
#[derive(Debug, Default, Clone)]
pub(super) struct Index {
    blocks: VecDeque<Block>,
    len: u64,
    bytes: u64,
}

impl Index {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of all live messages, to the precision of their 16-bit sizes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the message with the next sequence number.
    pub(super) fn push(&mut self, entry: IndexEntry) {
        let IndexEntry { seq, pos, size, at, expires, priority, session, timed } = entry;
        let near = |distance: u64| distance <= u64::from(u32::MAX);
        let fits = |b: &Block| {
            b.end() == seq
                && !b.closed
                && b.delta.len() < BLOCK_MAX
                && b.moved.is_none() // its bitmap does not grow
                && near(pos.get().wrapping_sub(b.base))
                && b.at.is_empty() != timed
                && b.session.is_empty() == session.is_none()
                && (!timed || near(at.wrapping_sub(b.first_at)))
        };
        if !self.blocks.back().is_some_and(fits) {
            if let Some(closed) = self.blocks.back_mut() {
                closed.close();
            }
            self.blocks.push_back(Block {
                first: seq,
                base: pos.get(),
                first_at: at,
                ..Block::default()
            });
        }
        let Some(block) = self.blocks.back_mut() else { return };
        let i = block.delta.len();
        block.delta.push((pos.get() - block.base) as u32);
        block.last_at = block.last_at.max(at);
        if timed {
            put(&mut block.at, (at - block.first_at) as u32);
        }
        if let Some(slot) = session {
            put(&mut block.session, slot);
        }
        put_rare(&mut block.expires, i, expires);
        put_rare(&mut block.priority, i, priority);
        let coded = pack_size(size);
        block.size.push(u32::from(coded));
        if i.is_multiple_of(64) {
            block.live.push(0);
        }
        block.live[i / 64] |= 1 << (i % 64);
        block.live_count += 1;
        self.len += 1;
        self.bytes += unpack_size(coded);
    }

    fn find(&self, seq: u64) -> Option<(usize, usize)> {
        let at = self.blocks.partition_point(|b| b.first <= seq).checked_sub(1)?;
        let block = &self.blocks[at];
        (seq < block.end()).then(|| (at, (seq - block.first) as usize))
    }

    pub(super) fn contains(&self, seq: u64) -> bool {
        self.find(seq).is_some_and(|(b, i)| self.blocks[b].lives(i))
    }

    /// The position of the first record of a message, and its size.
    pub(super) fn get(&self, seq: u64) -> Option<(Pos, u32)> {
        let (b, i) = self.find(seq)?;
        let block = &self.blocks[b];
        block.lives(i).then(|| (block.pos(i), block.bytes(i) as u32))
    }

    /// Sets the new position of a copied message. Returns false if it is too far for its block, or the message does not
    /// exist.
    pub(super) fn relocate(&mut self, seq: u64, pos: Pos) -> bool {
        let Some((b, i)) = self.find(seq) else { return false };
        self.blocks[b].lives(i) && self.blocks[b].relocate(i, pos)
    }

    /// The size of a message; 0 if it does not exist.
    pub(super) fn size(&self, seq: u64) -> u64 {
        self.get(seq).map_or(0, |(_, size)| u64::from(size))
    }

    /// Removes a message. Returns false if it does not exist.
    pub(super) fn remove(&mut self, seq: u64) -> bool {
        let Some((b, i)) = self.find(seq) else { return false };
        let block = &mut self.blocks[b];
        if !block.lives(i) {
            return false;
        }
        block.live[i / 64] &= !(1 << (i % 64));
        block.live_count -= 1;
        self.len -= 1;
        self.bytes -= block.bytes(i);
        if block.live_count == 0 {
            // Also the last block: the next message opens a new one.
            self.blocks.remove(b);
        }
        true
    }

    /// The first live sequence number at or after `seq`.
    pub(super) fn next(&self, seq: u64) -> Option<u64> {
        let at = self.blocks.partition_point(|b| b.end() <= seq);
        let block = self.blocks.get(at)?;
        let from = seq.saturating_sub(block.first) as usize;
        if let Some(i) = block.next_live(from) {
            return Some(block.first + i as u64);
        }
        // Every block has at least one live message.
        let block = self.blocks.get(at + 1)?;
        block.next_live(0).map(|i| block.first + i as u64)
    }

    /// When a message expires, by its own expiry or by its queue's `ttl_ms`. In a block without times, the last
    /// message's time is used: too late, never too early.
    pub(super) fn expires_at(&self, seq: u64, ttl_ms: Option<u64>) -> Option<u64> {
        let (b, i) = self.find(seq)?;
        let own = self.blocks[b].expires.get(i).copied().filter(|&at| at > 0);
        let queues = ttl_ms.map(|ttl_ms| self.blocks[b].when(i).saturating_add(ttl_ms));
        own.into_iter().chain(queues).min()
    }

    /// When a message was enqueued, or the last one of its block.
    pub(super) fn when(&self, seq: u64) -> Option<u64> {
        self.find(seq).map(|(b, i)| self.blocks[b].when(i))
    }

    pub(super) fn priority(&self, seq: u64) -> u8 {
        let found = self.find(seq).and_then(|(b, i)| self.blocks[b].priority.get(i));
        found.copied().unwrap_or(0)
    }

    /// The session slot or the tenant of a message, where the index has it.
    pub(super) fn session(&self, seq: u64) -> Option<u32> {
        let (b, i) = self.find(seq)?;
        self.blocks[b].session.get(i).copied()
    }

    /// Stores the session slot of a message.
    pub(super) fn set_session(&mut self, seq: u64, slot: u32) {
        let Some((b, i)) = self.find(seq) else { return };
        let block = &mut self.blocks[b];
        if block.session.is_empty() {
            block.session = vec![u32::MAX; block.delta.len()];
        }
        block.session[i] = slot;
    }

    /// Whether the session slot of any message is missing.
    pub(super) fn lacks_session_slots(&self) -> bool {
        self.blocks.iter().any(|b| b.session.is_empty() || b.session.contains(&u32::MAX))
    }

    /// Drops the first block. Returns false if there is none.
    pub(super) fn pop_block(&mut self) -> bool {
        self.blocks.pop_front().is_some()
    }

    /// The first sequence number of the blocks with session slots.
    pub(super) fn first_with_session(&self) -> Option<u64> {
        self.blocks.iter().find(|b| !b.session.is_empty()).map(|b| b.first)
    }

    /// Live messages with their own expiry: the time and the sequence number.
    pub(super) fn own_expiries(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.iter().flat_map(|b| {
            let each = b.expires.iter().enumerate();
            let own = each.filter(|&(i, &at)| at > 0 && b.lives(i));
            own.map(|(i, &at)| (at, b.first + i as u64))
        })
    }

    /// When the block of `seq` was begun.
    pub(super) fn about_when(&self, seq: u64) -> Option<u64> {
        self.find(seq).map(|(b, _)| self.blocks[b].first_at)
    }

    /// Live sequence numbers in order, with their positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Pos)> {
        self.entries().map(|(seq, pos, _)| (seq, pos))
    }

    /// Live messages at or after `seq`, in order, with all their columns.
    pub(super) fn entries_from(&self, seq: u64) -> impl Iterator<Item = IndexEntry> {
        let at = self.blocks.partition_point(|b| b.end() <= seq);
        self.blocks.range(at..).flat_map(move |b| {
            let from = seq.saturating_sub(b.first) as usize;
            let live = std::iter::successors(b.next_live(from), |&i| b.next_live(i + 1));
            live.map(|i| IndexEntry {
                seq: b.first + i as u64,
                pos: b.pos(i),
                size: b.bytes(i) as u32,
                at: 0,
                expires: b.expires.get(i).copied().unwrap_or(0),
                priority: b.priority.get(i).copied().unwrap_or(0),
                session: None,
                timed: false,
            })
        })
    }

    /// Live sequence numbers in order, with their positions and sizes.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, Pos, u64)> {
        self.blocks.iter().flat_map(|b| {
            let each = (0..b.delta.len()).filter(|&i| b.lives(i));
            each.map(|i| (b.first + i as u64, b.pos(i), b.bytes(i)))
        })
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Serializes the index. `rename` maps session slots to their numbers in the snapshot.
    pub(super) fn save(&self, out: &mut Vec<u8>, rename: impl Fn(u32) -> u32) {
        out.put_var(self.blocks.len() as u64);
        for b in &self.blocks {
            out.put_var(b.first);
            out.put_var(b.base);
            out.put_var(b.first_at);
            out.put_var(b.last_at);
            out.put_var(b.delta.len() as u64);
            b.delta.iter().for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
            b.size.iter().for_each(|s| out.extend_from_slice(&(s as u16).to_le_bytes()));
            b.live.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
            out.put_u8(
                u8::from(!b.at.is_empty())
                    | u8::from(!b.expires.is_empty()) << 1
                    | u8::from(!b.priority.is_empty()) << 2
                    | u8::from(!b.session.is_empty()) << 3,
            );
            b.at.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
            b.expires.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
            out.extend_from_slice(&b.priority);
            b.session.iter().for_each(|&v| out.extend_from_slice(&rename(v).to_le_bytes()));
            // No record is at position 0.
            out.put_var(b.moved.as_ref().map_or(0, |moved| moved.base));
            let which = b.moved.iter().flat_map(|moved| &moved.which);
            which.for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
        }
    }

    pub(super) fn restore(w: &mut StreamReader<'_>) -> Result<Self, Malformed> {
        let mut index = Self::default();
        let mut floor = 0;
        for _ in 0..w.count()? {
            let block = w.item(Block::restore)?;
            if block.first < floor {
                return Err(Malformed);
            }
            floor = block.end();
            index.len += u64::from(block.live_count);
            let living = (0..block.size.len()).filter(|&i| block.lives(i));
            index.bytes += living.map(|i| block.bytes(i)).sum::<u64>();
            // The last block may grow further.
            if let Some(before) = index.blocks.back_mut() {
                before.close();
            }
            index.blocks.push_back(block);
        }
        Ok(index)
    }
}

fn le<const N: usize, T>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect()
}

/// Eleven bits of mantissa, five of exponent: exact below 2 KiB, within 0.1 % above.
fn pack_size(size: u32) -> u16 {
    let exponent = (32 - size.leading_zeros()).saturating_sub(11);
    (exponent << 11) as u16 | (size >> exponent) as u16
}

fn unpack_size(coded: u16) -> u64 {
    u64::from(coded & 0x7ff) << (coded >> 11)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(mut saved: &[u8]) -> Result<Index, Malformed> {
        let bytes = saved.len() as u64;
        Index::restore(&mut StreamReader::new(&mut saved, bytes))
    }

    #[test]
    fn sizes_are_exact_when_small_and_close_when_large() {
        for size in [0, 1, 100, 1024, 2047] {
            assert_eq!(unpack_size(pack_size(size)), u64::from(size));
        }
        for size in [2048, 5000, 1 << 20, (1 << 25) - 3, u32::MAX] {
            let back = unpack_size(pack_size(size));
            assert!(
                back <= u64::from(size) && back > u64::from(size) * 999 / 1000,
                "{size} {back}"
            );
        }
    }

    #[test]
    fn agrees_with_a_map_and_survives_saving() {
        let mut index = Index::default();
        let mut map = std::collections::BTreeMap::new();
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let mut pos = 1 << 26;
        let (mut moved, mut far) = (0, 0);
        for seq in 0..20_000_u64 {
            pos += if random() % 1000 == 0 { 1 << 33 } else { random() % 500 };
            let (expires, priority) = (if seq % 50 == 7 { seq + 9 } else { 0 }, (seq / 9000) as u8);
            let (timed, session) = (seq / 5000 == 2, (seq / 7000 == 1).then_some(seq as u32));
            let pos_of = Pos::from_u64(pos);
            let at = 1000 + seq;
            let entry =
                IndexEntry { seq, pos: pos_of, size: 100, at, expires, priority, session, timed };
            index.push(entry);
            assert_eq!((index.priority(seq), index.session(seq)), (priority, session));
            let (own, by_queue) = (Some(expires).filter(|&at| at > 0), timed.then_some(at + 5));
            let ttl_ms = timed.then_some(5);
            let expected = own.into_iter().chain(by_queue).min();
            assert_eq!(index.expires_at(seq, ttl_ms), expected);
            map.insert(seq, pos);
            if random() % 3 != 0 {
                let victim = random() % (seq + 1);
                assert_eq!(index.remove(victim), map.remove(&victim).is_some());
            }
            if random() % 4 == 0 {
                let moves = random() % (seq + 1);
                pos += random() % 100;
                let there = map.contains_key(&moves);
                let done = index.relocate(moves, Pos::from_u64(pos));
                assert!(there || !done);
                if done {
                    map.insert(moves, pos);
                }
                (moved, far) = (moved + u64::from(done), far + u64::from(there && !done));
            }
            let probe = random() % (seq + 2);
            assert_eq!(index.next(probe), map.range(probe..).next().map(|(s, _)| *s));
            assert_eq!(index.get(probe).map(|(p, _)| p.get()), map.get(&probe).copied());
        }
        assert!(moved > 500 && far > 500, "{moved} moved, {far} were too far");
        assert_eq!((index.len(), index.bytes()), (map.len() as u64, 100 * map.len() as u64));
        let mut saved = Vec::new();
        index.save(&mut saved, |slot| slot);
        let back = restored(&saved).unwrap();
        assert!(back.iter().eq(map.iter().map(|(s, p)| (*s, Pos::from_u64(*p)))));
        let mut again = Vec::new();
        back.save(&mut again, |slot| slot);
        assert_eq!(saved, again);
        assert!(back.own_expiries().eq(index.own_expiries()));
        for cut in (0..saved.len()).step_by(97) {
            assert!(restored(&saved[..cut]).is_err());
        }
    }

    #[test]
    fn an_index_block_of_moved_messages_is_packed_again() {
        let mut index = Index::default();
        for seq in 0..100 {
            let (pos, size, at, expires, priority) = (Pos::from_u64(1000 + seq), 10, 0, 0, 0);
            let (session, timed) = (None, false);
            index.push(IndexEntry { seq, pos, size, at, expires, priority, session, timed });
        }
        // A second base, then all of them far beyond the first.
        let far = 1 << 40;
        (0..100).for_each(|seq| assert!(index.relocate(seq, Pos::from_u64(far + seq))));
        assert!(index.blocks[0].moved.is_none());
        // Then another second base is possible.
        let farther = 1 << 50;
        assert!(index.relocate(7, Pos::from_u64(farther)));
        assert!(!index.relocate(8, Pos::from_u64(1 << 60)), "a third is too many");
        assert_eq!(index.get(7).unwrap().0.get(), farther);
        assert_eq!(index.get(8).unwrap().0.get(), far + 8);
    }
}
