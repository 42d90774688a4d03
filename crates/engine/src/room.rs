//! Room for messages that are being sent and not answered yet: senders beyond it wait in line, settlers never do.
//!
//! First come, first served, to the core itself: a request is handed over, or stands in line, within the call that
//! brings it, and whoever makes room hands over what stands first. No task has to be woken in between, so two sends
//! of one caller cannot pass each other.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::mailbox::Request;

/// Kilobytes of them.
pub(crate) const KIB_MAX: u32 = 64 << 10;

/// What is free, and who waits for it.
pub(crate) struct Room {
    line: Mutex<Line>,
}

struct Line {
    kib_max: u32,
    free_kib: u32,
    next: u64,
    waiting: BTreeMap<u64, (u32, Request)>,
    open: bool,
}

/// A request's share of the room, had or waited for.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    kib: u32,
}

impl Room {
    pub(crate) fn new(kib_max: u32) -> Self {
        let waiting = BTreeMap::new();
        let line = Line { kib_max, free_kib: kib_max, next: 0, waiting, open: true };
        Self { line: Mutex::new(line) }
    }

    /// Hands a request over with `put`: now, or after those before it. What is larger than the room needs all of it.
    pub(crate) fn enter(
        &self,
        bytes: usize,
        request: Request,
        put: impl Fn(Request) -> bool,
    ) -> Place {
        let mut line = self.line.lock();
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let kib = kib.min(line.kib_max);
        let number = line.next;
        line.next += 1;
        // Closed: the request is dropped, and with it the way to answer.
        if line.open {
            line.waiting.insert(number, (kib, request));
            line.advance(put);
        }
        Place { number, kib }
    }

    /// Gives up waiting. False if the request was handed over: then it happens.
    pub(crate) fn withdraw(&self, place: &mut Place, put: impl Fn(Request) -> bool) -> bool {
        let mut line = self.line.lock();
        let waited = line.waiting.remove(&place.number).is_some();
        if waited {
            place.kib = 0;
            // It may have stood in the way of smaller ones.
            line.advance(put);
        }
        waited
    }

    /// The request was answered, or whoever waited for it is gone.
    pub(crate) fn leave(&self, place: &Place, put: impl Fn(Request) -> bool) {
        let mut line = self.line.lock();
        if line.waiting.remove(&place.number).is_none() {
            line.free_kib = line.free_kib.saturating_add(place.kib).min(line.kib_max);
        }
        line.advance(put);
    }

    /// Nobody waits any more.
    pub(crate) fn close(&self) {
        let mut line = self.line.lock();
        line.open = false;
        line.waiting.clear();
    }
}

impl Line {
    fn advance(&mut self, put: impl Fn(Request) -> bool) {
        while let Some(first) = self.waiting.first_entry()
            && first.get().0 <= self.free_kib
        {
            let (kib, request) = first.remove();
            self.free_kib -= kib;
            // Refused only when the engine is going: then the request is dropped, and its place is left.
            put(request);
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
        fn put(&self, request: Request) -> bool {
            let Command::Describe { queue } = request.command else { panic!("not of this test") };
            self.0.borrow_mut().push(queue.to_string());
            true
        }

        fn enter(&self, room: &Room, name: &str, kib: usize) -> Place {
            let command = Command::Describe { queue: QueueName::new(name).unwrap() };
            // A kilobyte is counted for what a message is beside its bytes.
            let request = Request { command, reply: None };
            room.enter((kib - 1) << 10, request, |request| self.put(request))
        }

        #[track_caller]
        fn has(&self, names: &str) {
            assert_eq!(self.0.borrow().join(" "), names);
        }
    }

    #[test]
    fn what_fits_does_not_pass_what_does_not() {
        let (room, core) = (Room::new(10), Core::default());
        let a = core.enter(&room, "a", 6);
        let _large = core.enter(&room, "large", 8);
        let _small = core.enter(&room, "small", 1);
        core.has("a");
        // Handed over by the one that leaves: nobody is woken first, and nobody who comes now is earlier.
        room.leave(&a, |request| core.put(request));
        core.has("a large small");
        let _late = core.enter(&room, "late", 1);
        core.has("a large small late");
    }

    #[test]
    fn whoever_gives_up_makes_way() {
        let (room, core) = (Room::new(10), Core::default());
        let put = |request| core.put(request);
        let mut a = core.enter(&room, "a", 6);
        let mut large = core.enter(&room, "large", 8);
        let small = core.enter(&room, "small", 4);
        assert!(!room.withdraw(&mut a, put), "it is with the core");
        assert!(room.withdraw(&mut large, put));
        core.has("a small");
        // Nothing is given back twice: the room is full.
        room.leave(&large, put);
        let gone = core.enter(&room, "gone", 10);
        room.leave(&gone, put);
        let last = core.enter(&room, "last", 10);
        room.leave(&a, put);
        core.has("a small");
        room.leave(&small, put);
        core.has("a small last");
        room.leave(&last, put);
    }

    #[test]
    fn more_than_there_is_takes_all() {
        let (room, core) = (Room::new(10), Core::default());
        let put = |request| core.put(request);
        let huge = core.enter(&room, "huge", 1 << 40);
        let _next = core.enter(&room, "next", 1);
        core.has("huge");
        room.leave(&huge, put);
        core.has("huge next");
        room.close();
        let _late = core.enter(&room, "late", 1);
        core.has("huge next");
    }
}
