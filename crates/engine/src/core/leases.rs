//! Leases and holds, by slot. A token names its slot; whether it is still good is one comparison.

use malote_model::{LeaseToken, limits};

use super::timers::TimerId;
use crate::command::ConnectionId;
use crate::event::QueueId;

/// Something in somebody's hands.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    /// The whole token: what is compared.
    pub token: LeaseToken,
    /// Of which queue.
    pub queue: QueueId,
    /// Ends unless renewed. A message under an explicit hold ends with the hold.
    pub until: u64,
    /// Ends with its connection. Not known again after a restart, when such leases are over.
    pub bound: bool,
    /// The connection it is bound to.
    pub connection: Option<ConnectionId>,
    /// What it is.
    pub what: Leased,
    /// Fires at, or before, `until`: renewing does not touch it.
    pub timer: Option<TimerId>,
    /// What the timer was set for.
    pub armed_for: u64,
    /// Of a hold: the first of the messages out under it.
    pub first: u32,
    /// Neighbours in the list of their hold or of their connection.
    pub prev: u32,
    pub next: u32,
}

impl Lease {
    pub(super) fn new(
        token: LeaseToken,
        queue: QueueId,
        until: u64,
        bound: bool,
        what: Leased,
    ) -> Self {
        Self {
            token,
            queue,
            until,
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

/// What is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leased {
    /// A message, of a session or not, under an explicit hold or not.
    Message { seq: u64, session: Option<u32>, hold: Option<u32>, deferred: bool },
    /// A session.
    Session { session: u32 },
}

pub(super) const NONE: u32 = u32::MAX;

/// Slots that a replay may find missing at once, after damage. A record that leaves more of them out is no record.
const GAP_MAX: usize = 1 << 16;

/// Every lease and hold, by slot.
#[derive(Debug, Default)]
pub(super) struct Leases {
    slots: Vec<Option<Box<Lease>>>,
    /// Grants of each slot so far: part of the token.
    grants: Vec<u32>,
    free: Vec<u32>,
    len: usize,
}

impl Leases {
    /// The next free slots and the grant counters they would get, without taking them.
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

    /// How many slots there are, with a lease or without.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Grants of a slot so far.
    pub(super) fn grants(&self, slot: u32) -> u32 {
        self.grants.get(slot as usize).copied().unwrap_or(0)
    }

    /// How many more there may be.
    pub(super) fn room(&self) -> usize {
        limits::LEASES_MAX.saturating_sub(self.len)
    }

    /// Whether a slot can be: they are taken one after the other, and only what damage hid may lie between.
    pub(super) fn plausible(&self, slot: u32) -> bool {
        (slot as usize) < (self.slots.len() + GAP_MAX).min(limits::LEASES_MAX)
    }

    /// Puts a lease where its token says. In a replay the slots may come in any order.
    pub(super) fn insert(&mut self, lease: Lease) -> u32 {
        let slot = lease.token.slot;
        let at = slot as usize;
        if self.free.last() == Some(&slot) {
            self.free.pop();
        }
        // Only in a replay is it another: those of a deleted queue are given back a few at a time, and not in the same
        // order. What is then wrong about the free slots is put right before the next one is taken.
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

    /// The lease that this very token stands for. Fencing: an old token of a slot granted anew finds nothing.
    pub(super) fn find(&self, token: LeaseToken) -> Option<&Lease> {
        let lease = self.at(token.slot)?;
        (cfg!(feature = "mutate-no-fencing") || lease.token == token).then_some(lease)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().flatten().map(|lease| &**lease)
    }

    /// Grant counters and leases by slot, and the free slots in the order in which they are taken.
    pub(super) fn parts(&self) -> (Vec<(u32, Option<&Lease>)>, Vec<u32>) {
        let slots =
            self.grants.iter().copied().zip(self.slots.iter().map(|lease| lease.as_deref()));
        (slots.collect(), self.free_once(self.free.clone()))
    }

    /// After a replay: forgets free slots that were taken out of turn.
    pub(super) fn tidy(&mut self) {
        let free = std::mem::take(&mut self.free);
        self.free = self.free_once(free);
    }

    /// The next slot of a snapshot: how often it was granted, and what is in it.
    pub(super) fn push(&mut self, grant: u32, lease: Option<Lease>) {
        self.grants.push(grant);
        self.len += usize::from(lease.is_some());
        self.slots.push(lease.map(Box::new));
    }

    /// The free slots of a snapshot, in the order in which they are taken. Only slots that are there and free, and
    /// each once: a snapshot is not trusted further than that.
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
