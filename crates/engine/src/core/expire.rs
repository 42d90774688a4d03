//! Timers: expired leases, delays, schedules and waits, handled by the core's loop and its clock.

use std::collections::VecDeque;

use super::background::SLICE_MAX;
use super::leases::{Lease, LeaseTarget};
use super::tracked::MessageStatus;
use super::{FRAME_ROOM, SMALL_ROOM, Stalled, Timer, Turn};
use crate::event::{Event, LeaseEnd, MessageRef};

/// Timers handled in one turn. The rest follows in the next turn, which then begins at once.
const DUE_MAX: usize = SLICE_MAX / 4;

/// The delay before a retry, if the journal had no room.
const AGAIN_MS: u64 = 1000;

impl Timer {
    /// Whether handling the timer needs space in the journal.
    fn needs_room(self) -> bool {
        match self {
            Self::Lease(_) | Self::Due(..) | Self::Expiry(_) | Self::Idle(_) => true,
            Self::Wait(_) | Self::Retry(_) | Self::Stalled => false,
        }
    }
}

impl Turn<'_> {
    /// Extends all leases after the wall clock stepped forward by `by_ms`, so that none becomes shorter. A restart must
    /// begin at this time at least: the deadlines of leases are meant for it.
    pub fn clock_stepped(&mut self, by_ms: u64) {
        if cfg!(feature = "mutate-skip-clock-step") {
            return;
        }
        if self.begin(SMALL_ROOM).is_err() {
            return;
        }
        self.commit(Event::ClockStepped { by_ms, at: self.now }, true);
        self.end();
    }

    /// Handles due timers, a bounded number of them.
    pub fn expire(&mut self) {
        self.left = SLICE_MAX;
        self.run_background_work();
        let mut due = Vec::new();
        let now = self.now.0;
        self.core.live().timers.advance(now, &mut due, DUE_MAX);
        // Fired timers are no longer in the wheel, so their owners must not cancel them.
        due.iter().for_each(|&timer| self.has_fired(timer));
        self.core.live().due.extend(due);
        // If the journal has no room, all of them wait, so that none overtakes another.
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
            self.core.count_processed(1);
            let done = match timer {
                Timer::Lease(slot) => self.lease_due(slot),
                Timer::Due(message) => self.message_due(message),
                Timer::Wait(consumer) => {
                    self.end_wait(consumer);
                    true
                }
                Timer::Expiry(queue) => self.expiry_due(queue),
                Timer::Idle(queue) => self.idle_due(queue),
                Timer::Retry(queue) => {
                    self.core.mark_dirty(queue);
                    true
                }
                Timer::Stalled => {
                    self.retry_stalled();
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
        self.enforce_limits();
    }

    fn lease_due(&mut self, slot: u32) -> bool {
        let now = self.now.0;
        // The slot may have been granted again, with its own timer or under a hold.
        let held = |what: LeaseTarget| matches!(what, LeaseTarget::Message { hold: Some(_), .. });
        let fired = |lease: &&Lease| lease.timer.is_none() && !held(lease.what);
        let Some(lease) = self.core.leases.at(slot).filter(fired) else { return true };
        if !self.core.queues.contains_key(&lease.queue) {
            self.core.revoke(slot);
            return true;
        }
        if self.core.leases.until(lease) > now {
            // It was renewed since the timer was set.
            self.core.arm(slot);
            return true;
        }
        match lease.what {
            LeaseTarget::Session { .. } => self.end_hold(slot, LeaseEnd::Lost).is_ok(),
            LeaseTarget::Message { .. } => self.end_lease(slot, LeaseEnd::Lost).is_ok(),
        }
    }

    fn message_due(&mut self, message: MessageRef) -> bool {
        let MessageRef { queue: id, seq } = message;
        let Some(q) = self.core.queues.get(&id) else { return true };
        let Some(tracked) = q.tracked.get(&seq).filter(|tracked| tracked.timer.is_none()) else {
            return true;
        };
        match tracked.status {
            MessageStatus::Scheduled => {
                if self.begin(FRAME_ROOM).is_err() {
                    return false;
                }
                self.activate(id, seq);
            }
            // The end of a delay follows from the clock and is not journaled: a replay sees it as well.
            MessageStatus::Delayed | MessageStatus::Parked => self.core.delay_over(id, seq),
            MessageStatus::Ready | MessageStatus::Locked(_) | MessageStatus::Deferred => {}
        }
        true
    }

    /// Schedules a retry, because the journal had no room.
    pub(super) fn stall(&mut self, what: Stalled) {
        let at = self.now.0 + AGAIN_MS;
        let live = self.core.live();
        if live.stalled.is_empty() {
            live.timers.set(at, Timer::Stalled);
        }
        live.stalled.insert(what);
    }

    /// Retries everything that was blocked.
    fn retry_stalled(&mut self) {
        for what in std::mem::take(&mut self.core.live().stalled) {
            match what {
                Stalled::Queue(queue) => self.core.mark_dirty(queue),
                Stalled::Session(queue, slot) => {
                    self.core.live().dirty_sessions.push((queue, slot));
                }
                Stalled::Connection(connection, clean) => self.end_connection(connection, clean),
                Stalled::Work => {
                    let blocked = std::mem::take(&mut self.core.live().blocked);
                    self.core.live().work.extend(blocked);
                }
                Stalled::Due => self.core.live().due_held = None,
            }
        }
    }

    /// Clears the timer field of the timer's owner.
    fn has_fired(&mut self, timer: Timer) {
        match timer {
            Timer::Lease(slot) => {
                if let Some(lease) = self.core.leases.at_mut(slot) {
                    lease.timer = None;
                }
            }
            Timer::Due(MessageRef { queue, seq }) => {
                if let Some(t) =
                    self.core.queues.get_mut(&queue).and_then(|q| q.tracked.get_mut(&seq))
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
            Timer::Retry(queue) => {
                if let Some(q) = self.core.queues.get_mut(&queue) {
                    q.retry = None;
                }
            }
            Timer::Stalled => {}
        }
    }
}
