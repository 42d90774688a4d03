//! What becomes due: lapsed leases, delays, schedules, waits. Decided by the same loop, from the same clock.

use malote_model::Timestamp;

use super::leases::Leased as Kind;
use super::queue::Place;
use super::timers::TimerId;
use super::{FRAME_ROOM, SMALL_ROOM, Stalled, Timer, Turn};
use crate::event::{Cause, Event, QueueId};

/// When a record finds no room, it is tried again after so long.
const AGAIN_MS: u64 = 1000;

impl Turn<'_> {
    /// The clock moved forward by `by_ms` without that much time having passed: no lease is shorter for it.
    pub fn clock_stepped(&mut self, by_ms: u64) {
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

    /// Does everything that is due by now.
    pub fn expire(&mut self) {
        let mut due = Vec::new();
        let now = self.now.0;
        self.core.live().timers.advance(now, &mut due);
        // Fired timers are gone from the wheel: nobody may cancel them any more while the others are dealt with.
        due.iter().for_each(|&timer| self.set_timer(timer, None));
        for timer in due {
            let done = match timer {
                Timer::Lease(slot) => self.lease_due(slot),
                Timer::Due(queue, seq) => self.message_due(queue, seq),
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
                self.try_again(timer);
            }
        }
        self.make_room();
    }

    fn lease_due(&mut self, slot: u32) -> bool {
        let now = self.now.0;
        let Some(lease) = self.core.leases.at(slot).filter(|lease| lease.timer.is_none()) else {
            return true;
        };
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

    fn message_due(&mut self, id: QueueId, seq: u64) -> bool {
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
            }
        }
    }

    fn try_again(&mut self, timer: Timer) {
        let at = self.now.0 + AGAIN_MS;
        let id = self.core.live().timers.set(at, timer);
        self.set_timer(timer, Some(id));
    }

    /// Notes at its owner that a timer is set, or has fired.
    fn set_timer(&mut self, timer: Timer, id: Option<TimerId>) {
        match timer {
            Timer::Lease(slot) => {
                if let Some(lease) = self.core.leases.at_mut(slot) {
                    lease.timer = id;
                }
            }
            Timer::Due(queue, seq) => {
                if let Some(t) =
                    self.core.queues.get_mut(&queue).and_then(|q| q.touched.get_mut(&seq))
                {
                    t.timer = id;
                }
            }
            Timer::Wait(consumer) => {
                if let Some(consumer) = self.core.live().consumers.get_mut(&consumer) {
                    consumer.timer = id;
                }
            }
            Timer::Expiry(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.expiry = id.map(|id| (self.now.0, id));
                }
            }
            Timer::Idle(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.idle = id;
                }
            }
            Timer::Again(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.again = id;
                }
            }
            Timer::Stalled => {}
        }
    }
}
