//! Leases and session holds, by slot. A token contains its slot; one comparison shows whether it is valid.

use malote_model::{LeaseToken, limits};

use super::timers::TimerId;
use crate::command::ConnectionId;
use crate::event::QueueId;

/// A lease of a message, or a session hold.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    /// The whole token, for comparison.
    pub token: LeaseToken,
    pub queue: QueueId,
    /// When it ends, unless it is renewed. A message under an explicit hold ends with the hold.
    ///
    /// Forward steps of the clock are not in it: see [`Leases::until`].
    deadline: u64,
    /// Ends with its connection. After a restart such leases have ended.
    pub bound: bool,
    pub connection: Option<ConnectionId>,
    pub what: LeaseTarget,
    /// Fires at or before `until`: renewing does not change it.
    pub timer: Option<TimerId>,
    /// The time that the timer was set for.
    pub armed_for: u64,
    /// For a hold: the first of its messages' leases.
    pub first: u32,
    /// Neighbours in the list of their hold or connection.
    pub prev: u32,
    pub next: u32,
}

impl Lease {
    pub(super) fn new(
        token: LeaseToken,
        queue: QueueId,
        until: u64,
        bound: bool,
        what: LeaseTarget,
    ) -> Self {
        Self {
            token,
            queue,
            deadline: until,
            bound,
            connection: None,
            what,
            timer: None,
            armed_for: 0,
            first: NONE,
            prev: NONE,
            next: NONE,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseTarget {
    /// A message, with or without a session, under an explicit hold or not.
    Message {
        seq: u64,
        session: Option<u32>,
        hold: Option<u32>,
        deferred: bool,
    },
    Session {
        session: u32,
    },
}

pub(super) const NONE: u32 = u32::MAX;

/// The largest gap between slots after damage. A record with a larger gap is implausible.
const GAP_MAX: usize = 1 << 16;

/// All leases and holds, by slot.
#[derive(Debug, Default)]
pub(super) struct Leases {
    slots: Vec<Option<Box<Lease>>>,
    /// The number of grants of each slot. It is part of the token.
    grants: Vec<u32>,
    free: Vec<u32>,
    len: usize,
    /// By how much the clock has stepped forward. Every lease ends that much later than its `deadline`, so a step costs
    /// the same for any number of leases.
    stepped_ms: u64,
}

impl Leases {
    /// The next free slots and their grant counters, without taking them.
    pub(super) fn upcoming(&self, nth: usize) -> (u32, u32) {
        let slot = match self.free.len().checked_sub(nth + 1) {
            Some(i) => self.free[i],
            None => (self.slots.len() + nth - self.free.len()) as u32,
        };
        (slot, self.grants.get(slot as usize).copied().unwrap_or(0).wrapping_add(1))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of slots, including free ones.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn grants(&self, slot: u32) -> u32 {
        self.grants.get(slot as usize).copied().unwrap_or(0)
    }

    /// How many more leases are possible.
    pub(super) fn room(&self) -> usize {
        limits::LEASES_MAX.saturating_sub(self.len)
    }

    /// Whether a slot number is plausible: slots are taken in order, and only damage leaves gaps.
    pub(super) fn plausible(&self, slot: u32) -> bool {
        (slot as usize) < (self.slots.len() + GAP_MAX).min(limits::LEASES_MAX)
    }

    /// Stores a lease in the slot of its token. In a replay, slots may come in any order.
    pub(super) fn insert(&mut self, mut lease: Lease) -> u32 {
        lease.deadline = lease.deadline.saturating_sub(self.stepped_ms);
        let slot = lease.token.slot;
        let at = slot as usize;
        if self.free.last() == Some(&slot) {
            self.free.pop();
        }
        // Only in a replay it is another slot: leases of a deleted queue are freed in slices, in another order. The
        // list of free slots is corrected before the next one is taken.
        while self.slots.len() <= at {
            if self.slots.len() < at {
                self.free.push(self.slots.len() as u32);
            }
            self.slots.push(None);
            self.grants.push(0);
        }
        self.grants[at] = lease.token.grant;
        self.len += usize::from(self.slots[at].is_none());
        self.slots[at] = Some(Box::new(lease));
        slot
    }

    /// When a lease ends, by the wall clock.
    pub(super) fn until(&self, lease: &Lease) -> u64 {
        lease.deadline.saturating_add(self.stepped_ms)
    }

    pub(super) fn renew(&mut self, slot: u32, until: u64) {
        let deadline = until.saturating_sub(self.stepped_ms);
        if let Some(lease) = self.at_mut(slot) {
            lease.deadline = deadline;
        }
    }

    /// The wall clock stepped forward: no lease becomes shorter.
    pub(super) fn clock_stepped(&mut self, by_ms: u64) {
        self.stepped_ms = self.stepped_ms.saturating_add(by_ms);
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Lease> {
        let lease = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.len -= 1;
        Some(*lease)
    }

    pub(super) fn at(&self, slot: u32) -> Option<&Lease> {
        self.slots.get(slot as usize)?.as_deref()
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Lease> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// The lease of this token. Fencing: an old token does not match after its slot was granted again.
    pub(super) fn find(&self, token: LeaseToken) -> Option<&Lease> {
        let lease = self.at(token.slot)?;
        (cfg!(feature = "mutate-no-fencing") || lease.token == token).then_some(lease)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().flatten().map(|lease| &**lease)
    }

    /// Grant counters and leases by slot, and the free slots in the order of use.
    pub(super) fn parts(&self) -> (Vec<(u32, Option<&Lease>)>, Vec<u32>) {
        let slots =
            self.grants.iter().copied().zip(self.slots.iter().map(|lease| lease.as_deref()));
        (slots.collect(), self.free_once(self.free.clone()))
    }

    /// After a replay: removes slots from the free list that are in use.
    pub(super) fn tidy(&mut self) {
        let free = std::mem::take(&mut self.free);
        self.free = self.free_once(free);
    }

    /// Adds the next slot of a snapshot.
    pub(super) fn push(&mut self, grant: u32, lease: Option<Lease>) {
        self.grants.push(grant);
        self.len += usize::from(lease.is_some());
        self.slots.push(lease.map(Box::new));
    }

    /// Sets the free slots from a snapshot, in the order of use. Slots that are not free, and repetitions, are ignored.
    pub(super) fn set_free(&mut self, free: Vec<u32>) {
        self.free = self.free_once(free);
    }

    fn free_once(&self, free: Vec<u32>) -> Vec<u32> {
        let mut seen = vec![false; self.slots.len()];
        let is_free = |slot: &u32| {
            let at = *slot as usize;
            self.slots.get(at).is_some_and(Option::is_none)
                && !std::mem::replace(&mut seen[at], true)
        };
        free.into_iter().filter(is_free).collect()
    }
}
