//! A hierarchical timing wheel: five levels of 64 slots, one tick a millisecond, insertion and removal O(1).
//!
//! A deadline beyond the top level waits in its last slot and is placed again when that comes round.

/// Names a timer that was set, for cancelling it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerId(u32);

const LEVELS: usize = 5;
const SLOTS: usize = 64;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<K> {
    deadline: u64,
    key: K,
    prev: u32,
    next: u32,
    /// Which list it is in; `NONE` when free.
    slot: u32,
}

/// Timers with keys of type `K`.
#[derive(Debug)]
pub(super) struct Wheel<K> {
    now: u64,
    nodes: Vec<Node<K>>,
    free: u32,
    heads: [u32; LEVELS * SLOTS],
    /// A bit for every slot that is not empty, by level.
    used: [u64; LEVELS],
}

impl<K: Copy> Wheel<K> {
    pub(super) fn new(now: u64) -> Self {
        Self {
            now,
            nodes: Vec::new(),
            free: NONE,
            heads: [NONE; LEVELS * SLOTS],
            used: [0; LEVELS],
        }
    }

    /// Sets a timer. One in the past fires at the next advance.
    pub(super) fn set(&mut self, deadline: u64, key: K) -> TimerId {
        let id = if self.free == NONE {
            self.nodes.push(Node { deadline, key, prev: NONE, next: NONE, slot: NONE });
            self.nodes.len() as u32 - 1
        } else {
            let id = self.free;
            let node = &mut self.nodes[id as usize];
            self.free = node.next;
            (node.deadline, node.key) = (deadline, key);
            id
        };
        self.link(id);
        TimerId(id)
    }

    /// Takes a timer back. It must be set and not have fired.
    pub(super) fn cancel(&mut self, TimerId(id): TimerId) {
        self.unlink(id);
        self.release(id);
    }

    fn release(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        (node.slot, node.next) = (NONE, self.free);
        self.free = id;
    }

    fn link(&mut self, id: u32) {
        // Nothing is due before the next tick, and nothing lies beyond the top level's last slot.
        let deadline = self.nodes[id as usize].deadline.max(self.now + 1);
        let horizon = self.now + (1 << (6 * LEVELS)) - 1;
        let at = deadline.min(horizon);
        let differing = 63 - ((at ^ self.now) | 1).leading_zeros() as usize;
        let level = (differing / 6).min(LEVELS - 1);
        let slot = level * SLOTS + ((at >> (6 * level)) as usize & (SLOTS - 1));
        let head = self.heads[slot];
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next, node.slot) = (NONE, head, slot as u32);
        if head != NONE {
            self.nodes[head as usize].prev = id;
        }
        self.heads[slot] = id;
        self.used[level] |= 1 << (slot % SLOTS);
    }

    fn unlink(&mut self, id: u32) {
        let Node { prev, next, slot, .. } = self.nodes[id as usize];
        assert!(slot != NONE, "a timer is cancelled once");
        if prev == NONE {
            self.heads[slot as usize] = next;
            if next == NONE {
                self.used[slot as usize / SLOTS] &= !(1 << (slot as usize % SLOTS));
            }
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
    }

    /// Moves on to `now` and gives every key that came due, earliest first.
    pub(super) fn advance(&mut self, now: u64, due: &mut Vec<K>) {
        while self.now < now {
            // Nothing set: nothing to walk past.
            if self.used == [0; LEVELS] {
                self.now = now;
                return;
            }
            // To the next tick with something in it, or to where a higher level must be unpacked.
            let tick = self.now + 1;
            let in_round = (tick % SLOTS as u64) as u32;
            if in_round != 0 {
                let ahead = self.used[0] >> in_round;
                let skip =
                    if ahead == 0 { SLOTS as u32 - in_round } else { ahead.trailing_zeros() };
                let to = tick + u64::from(skip);
                if skip > 0 {
                    self.now = (to - 1).min(now);
                    continue;
                }
            }
            self.now = tick;
            for level in 1..LEVELS {
                if !tick.is_multiple_of(1 << (6 * level)) {
                    break;
                }
                self.unpack(level * SLOTS + ((tick >> (6 * level)) as usize & (SLOTS - 1)), due);
            }
            self.fire((tick % SLOTS as u64) as usize, due);
        }
    }

    /// Places every timer of a higher slot again, nearer now.
    fn unpack(&mut self, slot: usize, due: &mut Vec<K>) {
        let mut id = std::mem::replace(&mut self.heads[slot], NONE);
        self.used[slot / SLOTS] &= !(1 << (slot % SLOTS));
        while id != NONE {
            let next = self.nodes[id as usize].next;
            if self.nodes[id as usize].deadline <= self.now {
                due.push(self.nodes[id as usize].key);
                self.release(id);
            } else {
                self.link(id);
            }
            id = next;
        }
    }

    fn fire(&mut self, slot: usize, due: &mut Vec<K>) {
        let mut id = std::mem::replace(&mut self.heads[slot], NONE);
        self.used[0] &= !(1 << slot);
        let first = due.len();
        while id != NONE {
            due.push(self.nodes[id as usize].key);
            let next = self.nodes[id as usize].next;
            self.release(id);
            id = next;
        }
        // Lists are newest first; timers of one tick fire in the order in which they were set.
        due[first..].reverse();
    }

    /// The next moment at which `advance` may have something to do: never later than the next deadline.
    pub(super) fn next_wake(&self) -> Option<u64> {
        let mut best: Option<u64> = None;
        for level in 0..LEVELS {
            if self.used[level] == 0 {
                continue;
            }
            let shift = 6 * level;
            let here = (self.now >> shift) as u32 & (SLOTS as u32 - 1);
            // Slots after this one, and then, round the corner, those before and at it.
            let rotated = self.used[level].rotate_right((here + 1) % SLOTS as u32);
            let ahead = u64::from(rotated.trailing_zeros()) + 1;
            let at = ((self.now >> shift) + ahead) << shift;
            best = Some(best.map_or(at, |b| b.min(at)));
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_every_timer_once_at_its_time() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let start = 1_700_000_000_123;
        let mut wheel = Wheel::new(start);
        let mut set = std::collections::BTreeMap::new();
        let mut now = start;
        let mut fired = 0;
        for key in 0..30_000_u64 {
            let far = [10, 100, 5000, 1 << 20, 1 << 32][random() as usize % 5];
            let deadline = now + random() % far;
            let id = wheel.set(deadline, key);
            set.insert(key, (deadline, id));
            if random() % 4 == 0 {
                let victim = random() % (key + 1);
                if let Some((_, id)) = set.remove(&victim) {
                    wheel.cancel(id);
                }
            }
            if let Some(wake) = wheel.next_wake() {
                let next = set.values().map(|(d, _)| (*d).max(now + 1)).min().unwrap();
                assert!(wake > now && (set.len() > 200 || wake <= next), "{wake} {next}");
            }
            now += random() % 50;
            let mut due = Vec::new();
            wheel.advance(now, &mut due);
            let mut last = 0;
            for key in due {
                let (deadline, _) = set.remove(&key).expect("fires once");
                assert!(deadline <= now && deadline + 64 >= last, "early or out of order");
                last = deadline.max(last);
                fired += 1;
            }
            if key % 997 == 0 {
                assert!(set.values().all(|(deadline, _)| *deadline > now), "late");
            }
        }
        let mut due = Vec::new();
        wheel.advance(now + (1 << 33), &mut due);
        assert_eq!(due.len(), set.len());
        assert!(fired > 1000);
    }
}
