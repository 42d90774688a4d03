//! Room for requests that are not answered yet. There are two rooms ([`Class`]): one for messages that are being sent,
//! one for all other questions, so that settling never waits for publishing. What finds no room waits in line.
//!
//! First come, first served, to the core itself: a request is handed over, or stands in line, within the call that
//! brings it, and whoever makes room hands over what stands first. No task has to be woken in between, so two requests
//! of one caller cannot pass each other.
//!
//! A request that was handed over has a `Permit` until its answer has left, also when its caller gave up: its bytes are
//! in memory just the same.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::mailbox::Request;

/// Kilobytes of messages that are being sent.
pub(crate) const SENDS_KIB_MAX: u32 = 64 << 10;

/// Kilobytes of all other requests and their answers; each counts as one at least. Callers beyond it wait.
pub(crate) const ASKS_KIB_MAX: u32 = 64 << 10;

/// Kilobytes that the two rooms hold.
#[derive(Clone, Copy, Debug)]
pub struct RoomSizes {
    /// Of messages that are being sent.
    pub sends_kib_max: u32,
    /// Of all other requests and their answers.
    pub asks_kib_max: u32,
}

impl Default for RoomSizes {
    fn default() -> Self {
        Self { sends_kib_max: SENDS_KIB_MAX, asks_kib_max: ASKS_KIB_MAX }
    }
}

/// Which room a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Send,
    Ask,
}

/// What is free, and who waits for it.
pub(crate) struct Room {
    line: Mutex<Line>,
}

struct Line {
    kib_max: u32,
    /// Below zero when answers were larger than what was free.
    free_kib: i64,
    next: u64,
    waiting: BTreeMap<u64, (u32, Request)>,
    open: bool,
}

impl Room {
    pub(crate) fn new(kib_max: u32) -> Self {
        let (free_kib, waiting) = (i64::from(kib_max), BTreeMap::new());
        let line = Line { kib_max, free_kib, next: 0, waiting, open: true };
        Self { line: Mutex::new(line) }
    }

    /// Hands a request over with `admit`: now, or after those before it. What is larger than the room needs all of it.
    /// Tells its number in line, none if it need not wait.
    pub(crate) fn submit(
        &self,
        bytes: usize,
        request: Request,
        admit: impl Fn(Request, u32),
    ) -> Option<u64> {
        let mut line = self.line.lock();
        // Closed: the request is dropped, and with it the way to answer.
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

    /// Gives up waiting. False if the request was handed over: then it happens.
    pub(crate) fn withdraw(&self, number: u64, admit: impl Fn(Request, u32)) -> bool {
        let mut line = self.line.lock();
        let waited = line.waiting.remove(&number).is_some();
        if waited {
            // It may have stood in the way of smaller ones.
            line.advance(admit);
        }
        waited
    }

    /// Whether all of it is free, and no request waits.
    pub(crate) fn is_unused(&self) -> bool {
        let line = self.line.lock();
        line.free_kib == i64::from(line.kib_max) && line.waiting.is_empty()
    }

    /// A request takes this much more, whether it is free or not.
    pub(crate) fn take_more(&self, kib: u32) {
        self.line.lock().free_kib -= i64::from(kib);
    }

    /// What a request had is free.
    pub(crate) fn leave(&self, kib: u32, admit: impl Fn(Request, u32)) {
        let mut line = self.line.lock();
        line.free_kib += i64::from(kib);
        line.advance(admit);
    }

    /// Nobody waits any more.
    pub(crate) fn close(&self) {
        let mut line = self.line.lock();
        line.open = false;
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        drop(waiting);
    }
}

impl Line {
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

    /// What was handed over, in order.
    #[derive(Default)]
    struct Core(RefCell<Vec<String>>);

    impl Core {
        fn admit(&self, request: Request, _: u32) {
            let Command::Describe { queue } = request.command else { panic!("not of this test") };
            self.0.borrow_mut().push(queue.to_string());
        }

        fn submit(&self, room: &Room, name: &str, kib: usize) -> Option<u64> {
            let command = Command::Describe { queue: QueueName::new(name).unwrap() };
            // A kilobyte is counted for what a message is beside its bytes.
            let request = Request { command, reply: None, permit: None };
            room.submit((kib - 1) << 10, request, |request, kib| self.admit(request, kib))
        }

        #[track_caller]
        fn has(&self, names: &str) {
            assert_eq!(self.0.borrow().join(" "), names);
        }
    }

    #[test]
    fn what_fits_does_not_pass_what_does_not() {
        let (room, core) = (Room::new(10), Core::default());
        core.submit(&room, "a", 6);
        core.submit(&room, "large", 8);
        core.submit(&room, "small", 1);
        core.has("a");
        // Handed over by the one that leaves: nobody is woken first, and nobody who comes now is earlier.
        room.leave(6, |request, kib| core.admit(request, kib));
        core.has("a large small");
        core.submit(&room, "late", 1);
        core.has("a large small late");
    }

    #[test]
    fn whoever_gives_up_makes_way() {
        let (room, core) = (Room::new(10), Core::default());
        let admit = |request, kib| core.admit(request, kib);
        assert_eq!(core.submit(&room, "a", 6), None, "it is with the core");
        let large = core.submit(&room, "large", 8).unwrap();
        core.submit(&room, "small", 4).unwrap();
        assert!(room.withdraw(large, admit));
        core.has("a small");
        // Nothing is given back twice: the room is full.
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
    fn more_than_there_is_takes_all() {
        let (room, core) = (Room::new(10), Core::default());
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
    fn a_large_answer_keeps_others_waiting() {
        let (room, core) = (Room::new(10), Core::default());
        let admit = |request, kib| core.admit(request, kib);
        core.submit(&room, "a", 1);
        room.take_more(20);
        core.submit(&room, "b", 1);
        core.has("a");
        room.leave(21, admit);
        core.has("a b");
    }
}
