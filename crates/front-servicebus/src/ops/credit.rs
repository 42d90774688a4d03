//! The credit of a receiving link, as the engine knows it.
//!
//! The engine is told of as much of the client's credit as its messages may be in memory at once: the window. What it
//! has been told and has not used yet is `given`. Lowering credit, and draining, ask the engine what it has left: the
//! difference is on its way here. One such question is under way at a time.

use crate::limits;

/// What the engine knows of a link's credit.
#[derive(Debug)]
pub(crate) struct Credit {
    /// Told, and not yet used by what has come.
    given: u32,
    /// How much the engine may know of at once.
    window: u32,
    /// A question is under way.
    asking: bool,
    /// The client wants its credit used up.
    pub drain: bool,
    /// While draining: the engine has none left, so what was given is on its way.
    withdrawn: bool,
    /// While draining: the engine had some left, so there was nothing more to send.
    dry: bool,
}

/// What is to be done next about a link's credit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Tell the engine of so much more.
    Give(u32),
    /// Take back what it has left.
    Withdraw,
    /// Tell the client that its credit is used up.
    Drained,
}

impl Credit {
    pub fn new() -> Credit {
        let window = limits::WINDOW_FIRST;
        Credit { given: 0, window, asking: false, drain: false, withdrawn: false, dry: false }
    }

    /// `wanted` is what the client still takes, `waiting` what waits to be sent to it.
    pub fn step(&mut self, wanted: u32, waiting: u32) -> Step {
        if self.asking {
            return Step::Nothing;
        }
        let wanted = wanted.saturating_sub(waiting);
        let most = wanted.min(self.window.saturating_sub(waiting));
        if !self.drain {
            if self.given > wanted {
                self.asking = true;
                return Step::Withdraw;
            }
            // In steps of at least half a window, lest every message asks anew.
            if most > self.given && (most - self.given >= self.window / 2 || most == wanted) {
                return self.give(most - self.given);
            }
            return Step::Nothing;
        }
        if self.given > 0 {
            if self.withdrawn {
                return Step::Nothing;
            }
            self.asking = true;
            return Step::Withdraw;
        }
        if waiting > 0 {
            return Step::Nothing;
        }
        if self.dry || wanted == 0 {
            self.drain(false);
            return Step::Drained;
        }
        self.withdrawn = false;
        self.give(most)
    }

    fn give(&mut self, more: u32) -> Step {
        self.asking = true;
        self.given += more;
        Step::Give(more)
    }

    /// The answer to a question: what the engine had left, if it was taken back.
    pub fn answered(&mut self, left: Option<u32>) {
        self.asking = false;
        if let Some(left) = left {
            self.given = self.given.saturating_sub(left);
            self.withdrawn = self.drain;
            self.dry = self.drain && left > 0;
        }
    }

    /// So many have come, of so many bytes.
    pub fn arrived(&mut self, count: u32, bytes: usize) {
        self.given = self.given.saturating_sub(count);
        let each = (bytes / count.max(1) as usize).max(1);
        let fit = limits::OUTGOING_BYTES_MAX / each;
        self.window = fit.clamp(1, limits::WINDOW_MAX as usize) as u32;
    }

    /// So many will not come, and used what the engine knew of: it is not there any more to be taken back.
    pub fn lost(&mut self, count: u32) {
        self.given = self.given.saturating_sub(count);
    }

    pub fn drain(&mut self, drain: bool) {
        (self.drain, self.withdrawn, self.dry) = (drain, false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine with so many messages, and a client that gives credit once and drains.
    fn drained_after(messages: u32, credit: u32) -> (u32, u32) {
        let mut it = Credit::new();
        let (mut left, mut at_engine, mut sent) = (messages, 0, 0);
        it.drain(true);
        for _ in 0..10_000 {
            match it.step(credit - sent, 0) {
                Step::Drained => return (sent, it.given),
                Step::Nothing => panic!("stuck: {it:?}"),
                Step::Give(more) => {
                    at_engine += more;
                    it.answered(None);
                }
                Step::Withdraw => it.answered(Some(std::mem::take(&mut at_engine))),
            }
            let now = at_engine.min(left);
            if now > 0 {
                (left, at_engine, sent) = (left - now, at_engine - now, sent + now);
                it.arrived(now, now as usize * 1000);
            }
        }
        panic!("no end");
    }

    #[test]
    fn a_drain_sends_what_there_is_and_ends() {
        for (messages, credit) in
            [(0, 0), (0, 1), (1, 1), (5, 1), (5, 100), (5_000, 4_000), (3, 5_000)]
        {
            assert_eq!(
                drained_after(messages, credit),
                (messages.min(credit), 0),
                "{messages} {credit}"
            );
        }
    }

    #[test]
    fn lowered_credit_is_taken_back_and_given_anew() {
        let mut it = Credit::new();
        assert_eq!(it.step(10, 0), Step::Give(10));
        assert_eq!(it.step(3, 0), Step::Nothing, "a question is under way");
        it.answered(None);
        assert_eq!(it.step(3, 0), Step::Withdraw);
        it.answered(Some(8));
        // Two are on their way, and the client takes three.
        assert_eq!(it.step(3, 0), Step::Give(1));
        it.answered(None);
        assert_eq!(it.step(3, 0), Step::Nothing);
    }

    #[test]
    fn a_drain_called_off_goes_on_as_before() {
        let mut it = Credit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), Step::Give(5));
        it.drain(false);
        it.answered(None);
        assert_eq!(it.step(5, 0), Step::Nothing);
        assert_eq!(it.step(9, 0), Step::Give(4));
    }

    #[test]
    fn a_drain_ends_though_a_message_cannot_be_read() {
        let mut it = Credit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), Step::Give(5));
        it.answered(None);
        assert_eq!(it.step(5, 0), Step::Withdraw);
        // One was granted, so four were left; it is on its way, as far as anybody knows.
        it.answered(Some(4));
        assert_eq!(it.step(5, 0), Step::Nothing);
        it.lost(1);
        assert_eq!(it.step(5, 0), Step::Drained);
    }

    #[test]
    fn large_messages_make_the_window_small() {
        let mut it = Credit::new();
        assert_eq!(it.step(1_000, 0), Step::Give(16));
        it.answered(None);
        it.arrived(16, 16 << 20);
        assert_eq!(it.step(984, 2), Step::Nothing);
        assert_eq!(it.step(984, 0), Step::Give(2));
    }
}
