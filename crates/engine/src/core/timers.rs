//! A hierarchical timing wheel: levels of 64 slots, one tick per millisecond, insertion and removal in O(1).
//!
//! Timers for the same time fire in the order in which they were set. A slot is a list in that order, and no two lists
//! ever contain timers for the same time: a timer is in the level of the highest digit (of six bits) in which its time
//! differs from now, so all timers for a time go to one slot, until that slot is unpacked as a whole into lower levels.
//! There are levels for all 64-bit times, so that no timer has to be inserted again behind later ones.
//!
//! However many timers are due, one call to [`TimerWheel::advance`] processes a bounded number of them. The next call
//! continues. Meanwhile, timers set for a time in a partly unpacked slot are appended to it.

/// Identifies a timer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerId(u32);

const LEVELS: usize = 11;
const SLOTS: usize = 64;
const NONE: u32 = u32::MAX;

/// Timers that one call may move to a lower level, for each timer that it may return.
const PLACED_PER_GIVEN: usize = 8;

#[derive(Debug)]
struct TimerNode<K> {
    deadline: u64,
    key: K,
    prev: u32,
    next: u32,
    /// The list that it is in; `NONE` if free.
    slot: u32,
}

/// The first and the last element of a list.
#[derive(Debug, Clone, Copy)]
struct ListEnds {
    head: u32,
    tail: u32,
}

/// Timers with keys of type `K`.
#[derive(Debug)]
pub(super) struct TimerWheel<K> {
    now: u64,
    nodes: Vec<TimerNode<K>>,
    free: u32,
    slots: [ListEnds; LEVELS * SLOTS],
    /// A bit for every slot that is not empty, by level.
    used: [u64; LEVELS],
    /// The level whose current slot was not emptied by the last advance.
    unpacking: Option<usize>,
}

/// The six bits of a time for a level.
fn digit(at: u64, level: usize) -> usize {
    (at >> (6 * level)) as usize & (SLOTS - 1)
}

impl<K: Copy> TimerWheel<K> {
    pub(super) fn new(now: u64) -> Self {
        Self {
            now,
            nodes: Vec::new(),
            free: NONE,
            slots: [ListEnds { head: NONE, tail: NONE }; LEVELS * SLOTS],
            used: [0; LEVELS],
            unpacking: None,
        }
    }

    /// Sets a timer. One in the past fires at the next advance.
    pub(super) fn set(&mut self, deadline: u64, key: K) -> TimerId {
        // Nothing fires before the next tick.
        let deadline = deadline.max(self.now.saturating_add(1));
        let id = if self.free == NONE {
            self.nodes.push(TimerNode { deadline, key, prev: NONE, next: NONE, slot: NONE });
            self.nodes.len() as u32 - 1
        } else {
            let id = self.free;
            let node = &mut self.nodes[id as usize];
            self.free = node.next;
            (node.deadline, node.key) = (deadline, key);
            id
        };
        let level = match self.unpacking {
            // Earlier timers for the same time may still be in this slot.
            Some(level) if (deadline ^ self.now) >> (6 * level) == 0 => level,
            _ => self.level(deadline),
        };
        self.link(id, level * SLOTS + digit(deadline, level));
        TimerId(id)
    }

    /// Cancels a timer, which must not have fired.
    pub(super) fn cancel(&mut self, TimerId(id): TimerId) {
        self.unlink(id);
        self.release(id);
    }

    /// Cancels a timer that may have fired, identified also by its key, which must not have been set again.
    pub(super) fn cancel_if_set(&mut self, TimerId(id): TimerId, key: K)
    where
        K: PartialEq,
    {
        let node = &self.nodes[id as usize];
        if node.slot != NONE && node.key == key {
            self.cancel(TimerId(id));
        }
    }

    fn release(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        (node.slot, node.next) = (NONE, self.free);
        self.free = id;
    }

    /// The level of the highest digit in which a time differs from now.
    fn level(&self, at: u64) -> usize {
        (63 - ((at ^ self.now) | 1).leading_zeros() as usize) / 6
    }

    /// Appends a timer to a list.
    fn link(&mut self, id: u32, slot: usize) {
        if cfg!(feature = "mutate-reversed-timers") {
            return self.link_first(id, slot);
        }
        let tail = std::mem::replace(&mut self.slots[slot].tail, id);
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next, node.slot) = (tail, NONE, slot as u32);
        match tail {
            NONE => self.slots[slot].head = id,
            tail => self.nodes[tail as usize].next = id,
        }
        self.used[slot / SLOTS] |= 1 << (slot % SLOTS);
    }

    /// The mutation: the timer set last fires first.
    fn link_first(&mut self, id: u32, slot: usize) {
        let head = std::mem::replace(&mut self.slots[slot].head, id);
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next, node.slot) = (NONE, head, slot as u32);
        match head {
            NONE => self.slots[slot].tail = id,
            head => self.nodes[head as usize].prev = id,
        }
        self.used[slot / SLOTS] |= 1 << (slot % SLOTS);
    }

    fn unlink(&mut self, id: u32) {
        let TimerNode { prev, next, slot, .. } = self.nodes[id as usize];
        assert!(slot != NONE, "a timer is cancelled once");
        let slot = slot as usize;
        match prev {
            NONE => self.slots[slot].head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.slots[slot].tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        if self.slots[slot].head == NONE {
            self.used[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    /// Advances to `now` and returns due keys: earliest first, and for the same time in the order in which they were
    /// set. Returns at most `most` keys; the result is false if there may be more.
    pub(super) fn advance(&mut self, now: u64, due: &mut Vec<K>, most: usize) -> bool {
        let (mut given, mut placed) = (0, 0);
        loop {
            if let Some(level) = self.unpacking {
                let slot = level * SLOTS + digit(self.now, level);
                while let Some(&TimerNode { deadline, key, .. }) =
                    self.nodes.get(self.slots[slot].head as usize)
                {
                    if given >= most || placed >= most.saturating_mul(PLACED_PER_GIVEN) {
                        return false;
                    }
                    let id = self.slots[slot].head;
                    self.unlink(id);
                    if deadline <= self.now {
                        due.push(key);
                        self.release(id);
                        given += 1;
                    } else {
                        let level = self.level(deadline);
                        self.link(id, level * SLOTS + digit(deadline, level));
                        placed += 1;
                    }
                }
                self.unpacking = None;
            }
            match self.next_slot().filter(|&(at, _)| at <= now) {
                Some((at, level)) => (self.now, self.unpacking) = (at, Some(level)),
                None => {
                    self.now = self.now.max(now);
                    return true;
                }
            }
        }
    }

    /// When `advance` may have something to do: never later than the next deadline.
    pub(super) fn next_wake(&self) -> Option<u64> {
        let left = |&level: &usize| self.used[level] & (1 << digit(self.now, level)) != 0;
        let next = || self.next_slot().map(|(at, _)| at);
        self.unpacking.filter(left).map(|_| self.now).or_else(next)
    }

    /// The start of the next non-empty slot, and its level.
    fn next_slot(&self) -> Option<(u64, usize)> {
        let begins = |level: usize| {
            // Timers of this level are ahead of now, and within the same round.
            let ahead = self.used[level] >> digit(self.now, level) >> 1;
            let slots = u64::from(ahead.trailing_zeros()) + 1;
            (ahead != 0).then(|| (((self.now >> (6 * level)) + slots) << (6 * level), level))
        };
        // A slot of a lower level begins and ends before the next one of a higher level.
        (0..LEVELS).find_map(begins)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 33
    }

    const STARTS: [u64; 6] = [0, 1, 4095, 1_700_000_000_123, (1 << 30) - 1, (1 << 42) - 77];

    /// Sets, cancels and fires random timers, and compares with a map by time and order.
    fn agrees_with_a_map(start: u64, most: usize, seed: u64) {
        let (mut now, mut seed, mut order) = (start, seed, 0_u64);
        let mut wheel = TimerWheel::new(start);
        let mut set: BTreeMap<(u64, u64), TimerId> = BTreeMap::new();
        let mut moments = vec![start];
        for _ in 0..2000 {
            for _ in 0..random(&mut seed) % 4 {
                let far =
                    [10, 100, 5000, 1 << 20, 1 << 32, 1 << 39][random(&mut seed) as usize % 6];
                // Often a time that was used before, now from a shorter distance.
                let again = moments[random(&mut seed) as usize % moments.len()];
                let deadline = match random(&mut seed) % 3 {
                    0 => now + random(&mut seed) % far,
                    1 => (now / 64 + random(&mut seed) % 70) * 64,
                    _ => again,
                };
                moments.push(deadline);
                // A time in the past is the next tick.
                let at = deadline.max(wheel.now + 1);
                set.insert((at, order), wheel.set(deadline, (at, order)));
                order += 1;
            }
            if random(&mut seed).is_multiple_of(4) && !set.is_empty() {
                let victim = *set.keys().nth(random(&mut seed) as usize % set.len()).unwrap();
                wheel.cancel(set.remove(&victim).unwrap());
            }
            let first = set.first_key_value().map(|((at, _), _)| *at);
            let wake = wheel.next_wake();
            assert!(wake.is_some() == first.is_some() && wake <= first, "{wake:?} {first:?}");
            now += match random(&mut seed) % 8 {
                0 => 0,
                1 => first.map_or(0, |at| at.saturating_sub(now)),
                2 => wake.map_or(0, |at| at.saturating_sub(now)),
                _ => random(&mut seed) % 200,
            };
            let mut due = Vec::new();
            let all = wheel.advance(now, &mut due, most);
            assert!(due.len() <= most);
            for key in due {
                let (expected, _) = set.pop_first().expect("nothing fires that was not set");
                assert_eq!(key, expected, "start {start}, {most} at a time");
                assert!(key.0 <= now, "early");
            }
            let left = set.first_key_value().is_some_and(|((at, _), _)| *at <= now);
            assert!(!all || !left, "late: start {start}, {most} at a time");
        }
        while !set.is_empty() {
            let mut due = Vec::new();
            wheel.advance(u64::MAX, &mut due, most);
            due.iter().for_each(|key| assert_eq!(*key, set.pop_first().unwrap().0));
        }
        assert_eq!(wheel.next_wake(), None);
    }

    #[test]
    fn timers_fire_by_time_and_then_in_the_order_they_were_set() {
        for (n, start) in STARTS.into_iter().enumerate() {
            for most in [1, 3, 1000] {
                agrees_with_a_map(start, most, 1 + n as u64);
            }
        }
    }

    #[test]
    fn timers_for_one_time_keep_their_order_for_any_start() {
        for start in STARTS {
            for delay in [1, 63, 64, 100, 1000, 5000, 300_000, 1 << 24, 1 << 30, (1 << 33) + 5] {
                let (mut wheel, mut due) = (TimerWheel::new(start), Vec::new());
                let at = start + delay;
                // Three from far away, three from half the distance, three from the tick before.
                for (n, now) in [start, start + delay / 2, at - 1].into_iter().enumerate() {
                    wheel.advance(now, &mut due, 99);
                    for i in 0..3 {
                        wheel.set(at, 3 * n + i);
                    }
                }
                assert_eq!(due, [], "start {start}, delay {delay}");
                assert!(wheel.advance(at, &mut due, 99));
                assert_eq!(due, (0..9).collect::<Vec<_>>(), "start {start}, delay {delay}");
            }
        }
    }

    #[test]
    fn one_advance_fires_a_bounded_number_of_timers() {
        let (mut wheel, mut due) = (TimerWheel::new(0), Vec::new());
        let many = 10_000;
        for n in 0..many {
            wheel.set(1_000_000 + n % 50, n);
        }
        let mut calls = 0;
        while due.len() < many as usize {
            let before = due.len();
            let all = wheel.advance(2_000_000, &mut due, 100);
            assert!(due.len() - before <= 100);
            assert_eq!(all, due.len() == many as usize);
            assert!(all || wheel.next_wake() <= Some(2_000_000), "asks to be called at once");
            calls += 1;
        }
        assert!(calls > 100);
        assert!(due.is_sorted_by_key(|n| (n % 50, *n)));
    }
}
