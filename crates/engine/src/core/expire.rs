//! What becomes due: lapsed leases, delays, schedules, waits. Decided by the same loop, from the same clock.

use std::collections::VecDeque;

use malote_model::Timestamp;

use super::leases::{Lease, Leased as Kind};
use super::queue::Place;
use super::work::SLICE_MAX;
use super::{FRAME_ROOM, SMALL_ROOM, Stalled, Timer, Turn};
use crate::event::{Cause, Event, MessageRef};

/// Timers that fire in one turn; the rest in the next, which is at once if nothing else is to be done.
const DUE_MAX: usize = SLICE_MAX / 4;

/// When a record finds no room, it is tried again after so long.
const AGAIN_MS: u64 = 1000;

impl Timer {
    /// What it does is journaled.
    fn needs_room(self) -> bool {
        match self {
            Self::Lease(_) | Self::Due(..) | Self::Expiry(_) | Self::Idle(_) => true,
            Self::Wait(_) | Self::Again(_) | Self::Stalled => false,
        }
    }
}

impl Turn<'_> {
    /// The clock moved forward by `by_ms` without that much time having passed: no lease is shorter for it.
    pub fn clock_stepped(&mut self, by_ms: u64) {
        if cfg!(feature = "mutate-skip-clock-step") {
            return;
        }
        let held: Vec<_> =
            self.core.leases.iter().map(|lease| (lease.token, lease.until)).collect();
        for some in held.chunks(1024) {
            if self.begin(some.len() * SMALL_ROOM).is_err() {
                return;
            }
            for &(token, until) in some {
                let until = Timestamp(until).plus_ms(by_ms);
                self.commit(Event::Renewed { leases: vec![token], until }, true);
            }
            self.end();
        }
    }

    /// Does what is due by now, a bounded number of things.
    pub fn expire(&mut self) {
        self.left = SLICE_MAX;
        self.work();
        let mut due = Vec::new();
        let now = self.now.0;
        self.core.live().timers.advance(now, &mut due, DUE_MAX);
        // Fired timers are gone from the wheel: nobody may cancel them any more while the others are dealt with.
        due.iter().for_each(|&timer| self.has_fired(timer));
        self.core.live().due.extend(due);
        // For want of room they wait, all of them: none passes another.
        let held = self.core.live().due_held.is_some_and(|until| now < until);
        let mut waiting = VecDeque::new();
        while self.left > 0
            && let Some(timer) = self.core.live().due.pop_front()
        {
            if (held || !waiting.is_empty()) && timer.needs_room() {
                waiting.push_back(timer);
                continue;
            }
            self.left -= 1;
            self.core.touched(1);
            let done = match timer {
                Timer::Lease(slot) => self.lease_due(slot),
                Timer::Due(message) => self.message_due(message),
                Timer::Wait(consumer) => {
                    self.waited_enough(consumer);
                    true
                }
                Timer::Expiry(queue) => self.expiry_due(queue),
                Timer::Idle(queue) => self.idle_due(queue),
                Timer::Again(queue) => {
                    self.core.touch(queue);
                    true
                }
                Timer::Stalled => {
                    self.go_on();
                    true
                }
            };
            self.end();
            if !done {
                waiting.push_back(timer);
            }
        }
        if !waiting.is_empty() {
            waiting.append(&mut self.core.live().due);
            self.core.live().due = waiting;
            if !held {
                self.core.live().due_held = Some(now + AGAIN_MS);
                self.stall(Stalled::Due);
            }
        }
        self.make_room();
    }

    fn lease_due(&mut self, slot: u32) -> bool {
        let now = self.now.0;
        // The slot may have been granted anew, with a timer of its own or under a hold.
        let held = |what: Kind| matches!(what, Kind::Message { hold: Some(_), .. });
        let fired = |lease: &&Lease| lease.timer.is_none() && !held(lease.what);
        let Some(lease) = self.core.leases.at(slot).filter(fired) else { return true };
        if !self.core.queues.contains_key(&lease.queue) {
            self.core.revoke(slot);
            return true;
        }
        if lease.until > now {
            // It was renewed since the timer was set.
            self.core.arm(slot);
            return true;
        }
        match lease.what {
            Kind::Session { .. } => self.end_hold(slot, Cause::Lost).is_ok(),
            Kind::Message { .. } => self.end_lease(slot, Cause::Lost).is_ok(),
        }
    }

    fn message_due(&mut self, message: MessageRef) -> bool {
        let MessageRef { queue: id, seq } = message;
        let Some(q) = self.core.queues.get(&id) else { return true };
        let Some(touched) = q.touched.get(&seq).filter(|touched| touched.timer.is_none()) else {
            return true;
        };
        match touched.place {
            Place::Scheduled => {
                if self.begin(FRAME_ROOM).is_err() {
                    return false;
                }
                self.activate(id, seq);
            }
            // Being ready again follows from the clock and is not journaled: a replay finds the delay over as well.
            Place::Delayed | Place::Parked => self.core.delay_over(id, seq),
            Place::Ready | Place::Locked(_) | Place::Deferred => {}
        }
        true
    }

    /// There was no room in the journal for this: it is tried again.
    pub(super) fn stall(&mut self, what: Stalled) {
        let at = self.now.0 + AGAIN_MS;
        let live = self.core.live();
        if live.stalled.is_empty() {
            live.timers.set(at, Timer::Stalled);
        }
        live.stalled.insert(what);
    }

    /// Tries what had found no room; what finds none again stalls again.
    fn go_on(&mut self) {
        for what in std::mem::take(&mut self.core.live().stalled) {
            match what {
                Stalled::Queue(queue) => self.core.touch(queue),
                Stalled::Session(queue, slot) => {
                    self.core.live().dirty_sessions.push((queue, slot));
                }
                Stalled::Connection(connection, clean) => self.end_bound(connection, clean),
                Stalled::Work => {
                    let blocked = std::mem::take(&mut self.core.live().blocked);
                    self.core.live().work.extend(blocked);
                }
                Stalled::Due => self.core.live().due_held = None,
            }
        }
    }

    /// Notes at its owner that a timer has fired.
    fn has_fired(&mut self, timer: Timer) {
        match timer {
            Timer::Lease(slot) => {
                if let Some(lease) = self.core.leases.at_mut(slot) {
                    lease.timer = None;
                }
            }
            Timer::Due(MessageRef { queue, seq }) => {
                if let Some(t) =
                    self.core.queues.get_mut(&queue).and_then(|q| q.touched.get_mut(&seq))
                {
                    t.timer = None;
                }
            }
            Timer::Wait(consumer) => {
                if let Some(consumer) = self.core.live().consumers.get_mut(&consumer) {
                    consumer.timer = None;
                }
            }
            Timer::Expiry(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.expiry = None;
                }
            }
            Timer::Idle(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.idle = None;
                }
            }
            Timer::Again(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.again = None;
                }
            }
            Timer::Stalled => {}
        }
    }
}
