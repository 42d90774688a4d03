//! Admission control: bounds the memory of requests that are not answered yet. There is one budget for sends and one
//! for all other requests ([`RequestClass`]), so that settling never waits for publishing. Requests that exceed the
//! budget wait in a queue.
//!
//! The order is first come, first served: a request is admitted or queued within the call that submits it, and a
//! request that frees budget admits the next ones itself. No task has to be woken in between, so two requests of one
//! caller cannot overtake each other.
//!
//! An admitted request holds a `Permit` until its answer has been sent, even if its caller has given up: its bytes are
//! still in memory.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::mailbox::Request;

/// Budget for messages that are being sent, in KiB.
pub(crate) const SENDS_KIB_MAX: u32 = 64 << 10;

/// Budget for all other requests and their replies, in KiB. Each request counts at least 1.
pub(crate) const ASKS_KIB_MAX: u32 = 64 << 10;

/// The two admission budgets, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// For messages that are being sent.
    pub sends_kib_max: u32,
    /// For all other requests and their replies.
    pub asks_kib_max: u32,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self { sends_kib_max: SENDS_KIB_MAX, asks_kib_max: ASKS_KIB_MAX }
    }
}

/// The budget that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Send,
    Ask,
}

/// One budget and its waiting requests.
pub(crate) struct Admission {
    line: Mutex<AdmissionState>,
}

struct AdmissionState {
    kib_max: u32,
    /// Negative while replies exceed the budget.
    free_kib: i64,
    next: u64,
    waiting: BTreeMap<u64, (u32, Request)>,
    open: bool,
}

impl Admission {
    pub(crate) fn new(kib_max: u32) -> Self {
        let (free_kib, waiting) = (i64::from(kib_max), BTreeMap::new());
        let line = AdmissionState { kib_max, free_kib, next: 0, waiting, open: true };
        Self { line: Mutex::new(line) }
    }

    /// Admits a request with `admit`, now or after earlier ones. A request larger than the budget needs all of it.
    /// Returns the request's number if it has to wait.
    pub(crate) fn submit(
        &self,
        bytes: usize,
        request: Request,
        admit: impl Fn(Request, u32),
    ) -> Option<u64> {
        let mut line = self.line.lock();
        // Closed: dropping the request drops its reply channel.
        if !line.open {
            return None;
        }
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let kib = kib.min(line.kib_max);
        if line.waiting.is_empty() && i64::from(kib) <= line.free_kib {
            line.free_kib -= i64::from(kib);
            admit(request, kib);
            return None;
        }
        let number = line.next;
        line.next += 1;
        line.waiting.insert(number, (kib, request));
        Some(number)
    }

    /// Withdraws a waiting request. Returns false if it was already admitted.
    pub(crate) fn withdraw(&self, number: u64, admit: impl Fn(Request, u32)) -> bool {
        let mut line = self.line.lock();
        let waited = line.waiting.remove(&number).is_some();
        if waited {
            // It may have blocked smaller requests.
            line.advance(admit);
        }
        waited
    }

    /// Whether nothing is in use and no request waits.
    pub(crate) fn is_unused(&self) -> bool {
        let line = self.line.lock();
        line.free_kib == i64::from(line.kib_max) && line.waiting.is_empty()
    }

    /// Takes more budget for an admitted request, even if none is left.
    pub(crate) fn take_more(&self, kib: u32) {
        self.line.lock().free_kib -= i64::from(kib);
    }

    /// Returns the budget of a request.
    pub(crate) fn leave(&self, kib: u32, admit: impl Fn(Request, u32)) {
        let mut line = self.line.lock();
        line.free_kib += i64::from(kib);
        line.advance(admit);
    }

    /// Drops all waiting requests.
    pub(crate) fn close(&self) {
        let mut line = self.line.lock();
        line.open = false;
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        drop(waiting);
    }
}

impl AdmissionState {
    fn advance(&mut self, admit: impl Fn(Request, u32)) {
        while let Some(first) = self.waiting.first_entry()
            && i64::from(first.get().0) <= self.free_kib
        {
            let (kib, request) = first.remove();
            self.free_kib -= i64::from(kib);
            admit(request, kib);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use malote_model::QueueName;

    use super::*;
    use crate::command::Command;

    /// The admitted requests, in order.
    #[derive(Default)]
    struct Admitted(RefCell<Vec<String>>);

    impl Admitted {
        fn admit(&self, request: Request, _: u32) {
            let Command::Describe { queue } = request.command else { panic!("not of this test") };
            self.0.borrow_mut().push(queue.to_string());
        }

        fn submit(&self, room: &Admission, name: &str, kib: usize) -> Option<u64> {
            let command = Command::Describe { queue: QueueName::new(name).unwrap() };
            // Every request counts one KiB besides its bytes.
            let request = Request { command, reply: None, permit: None };
            room.submit((kib - 1) << 10, request, |request, kib| self.admit(request, kib))
        }

        #[track_caller]
        fn has(&self, names: &str) {
            assert_eq!(self.0.borrow().join(" "), names);
        }
    }

    #[test]
    fn a_smaller_request_does_not_overtake_a_waiting_larger_one() {
        let (room, core) = (Admission::new(10), Admitted::default());
        core.submit(&room, "a", 6);
        core.submit(&room, "large", 8);
        core.submit(&room, "small", 1);
        core.has("a");
        // The waiting requests are admitted by this call, before any later one.
        room.leave(6, |request, kib| core.admit(request, kib));
        core.has("a large small");
        core.submit(&room, "late", 1);
        core.has("a large small late");
    }

    #[test]
    fn a_cancelled_request_makes_way_for_the_next() {
        let (room, core) = (Admission::new(10), Admitted::default());
        let admit = |request, kib| core.admit(request, kib);
        assert_eq!(core.submit(&room, "a", 6), None, "it is with the core");
        let large = core.submit(&room, "large", 8).unwrap();
        core.submit(&room, "small", 4).unwrap();
        assert!(room.withdraw(large, admit));
        core.has("a small");
        // Nothing is returned twice: the budget is used up.
        assert!(!room.withdraw(large, admit));
        let gone = core.submit(&room, "gone", 10).unwrap();
        assert!(room.withdraw(gone, admit));
        core.submit(&room, "last", 10).unwrap();
        room.leave(6, admit);
        core.has("a small");
        room.leave(4, admit);
        core.has("a small last");
    }

    #[test]
    fn asking_for_more_than_exists_returns_all() {
        let (room, core) = (Admission::new(10), Admitted::default());
        let admit = |request, kib| core.admit(request, kib);
        core.submit(&room, "huge", 1 << 40);
        core.submit(&room, "next", 1);
        core.has("huge");
        room.leave(10, admit);
        core.has("huge next");
        room.close();
        core.submit(&room, "late", 1);
        core.has("huge next");
    }

    #[test]
    fn a_large_reply_uses_the_budget_of_later_requests() {
        let (room, core) = (Admission::new(10), Admitted::default());
        let admit = |request, kib| core.admit(request, kib);
        core.submit(&room, "a", 1);
        room.take_more(20);
        core.submit(&room, "b", 1);
        core.has("a");
        room.leave(21, admit);
        core.has("a b");
    }
}
