//! The credit of a receiving link.
//!
//! The engine gets as much of the client's credit as messages fit into memory: the window. `given` is the credit that
//! was passed to the engine and not used yet. To lower credit or to drain, the unused credit is withdrawn from the
//! engine; the difference to `given` is being delivered. Only one credit change is in progress at a time.

use crate::limits;

#[derive(Debug)]
pub(crate) struct LinkCredit {
    /// Credit passed to the engine and not used yet.
    given: u32,
    /// Most credit that the engine may have at once.
    window: u32,
    /// A credit change is in progress.
    pending: bool,
    /// The client drains its credit.
    pub drain: bool,
    /// While draining: the engine has no credit left, so `given` messages are being delivered.
    withdrawn: bool,
    /// While draining: the engine had credit left, so the queue has no more messages.
    exhausted: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CreditStep {
    Nothing,
    /// Give the engine more credit.
    Give(u32),
    /// Withdraw the unused credit from the engine.
    Withdraw,
    /// Report to the client that its credit is used up.
    Drained,
}

impl LinkCredit {
    pub fn new() -> LinkCredit {
        let window = limits::WINDOW_INITIAL;
        LinkCredit {
            given: 0,
            window,
            pending: false,
            drain: false,
            withdrawn: false,
            exhausted: false,
        }
    }

    /// Decides the next step. `wanted`: the client's credit. `waiting`: messages that wait to be sent to it.
    pub fn step(&mut self, wanted: u32, waiting: u32) -> CreditStep {
        if self.pending {
            return CreditStep::Nothing;
        }
        let wanted = wanted.saturating_sub(waiting);
        let most = wanted.min(self.window.saturating_sub(waiting));
        if !self.drain {
            if self.given > wanted {
                self.pending = true;
                return CreditStep::Withdraw;
            }
            // In steps of at least half a window, so that not every message causes a credit change.
            if most > self.given && (most - self.given >= self.window / 2 || most == wanted) {
                return self.give(most - self.given);
            }
            return CreditStep::Nothing;
        }
        if self.given > 0 {
            if self.withdrawn {
                return CreditStep::Nothing;
            }
            self.pending = true;
            return CreditStep::Withdraw;
        }
        if waiting > 0 {
            return CreditStep::Nothing;
        }
        if self.exhausted || wanted == 0 {
            self.drain(false);
            return CreditStep::Drained;
        }
        self.withdrawn = false;
        self.give(most)
    }

    fn give(&mut self, more: u32) -> CreditStep {
        self.pending = true;
        self.given += more;
        CreditStep::Give(more)
    }

    /// A credit change completed. `left`: the unused credit, if it was withdrawn.
    pub fn answered(&mut self, left: Option<u32>) {
        self.pending = false;
        if let Some(left) = left {
            self.given = self.given.saturating_sub(left);
            self.withdrawn = self.drain;
            self.exhausted = self.drain && left > 0;
        }
    }

    /// Deliveries arrived from the engine. Their size determines the window.
    pub fn arrived(&mut self, count: u32, bytes: usize) {
        self.given = self.given.saturating_sub(count);
        let each = (bytes / count.max(1) as usize).max(1);
        let fit = limits::OUTGOING_BYTES_MAX / each;
        self.window = fit.clamp(1, limits::WINDOW_MAX as usize) as u32;
    }

    /// Deliveries were lost on the way and used up credit.
    pub fn lost(&mut self, count: u32) {
        self.given = self.given.saturating_sub(count);
    }

    pub fn drain(&mut self, drain: bool) {
        (self.drain, self.withdrawn, self.exhausted) = (drain, false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates an engine with `messages` messages and a client that grants credit once and drains.
    fn drained_after(messages: u32, credit: u32) -> (u32, u32) {
        let mut it = LinkCredit::new();
        let (mut left, mut at_engine, mut sent) = (messages, 0, 0);
        it.drain(true);
        for _ in 0..10_000 {
            match it.step(credit - sent, 0) {
                CreditStep::Drained => return (sent, it.given),
                CreditStep::Nothing => panic!("stuck: {it:?}"),
                CreditStep::Give(more) => {
                    at_engine += more;
                    it.answered(None);
                }
                CreditStep::Withdraw => it.answered(Some(std::mem::take(&mut at_engine))),
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
    fn a_drain_sends_available_messages_and_ends() {
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
    fn lowered_credit_is_withdrawn_and_granted_again() {
        let mut it = LinkCredit::new();
        assert_eq!(it.step(10, 0), CreditStep::Give(10));
        assert_eq!(it.step(3, 0), CreditStep::Nothing, "a credit change is in progress");
        it.answered(None);
        assert_eq!(it.step(3, 0), CreditStep::Withdraw);
        it.answered(Some(8));
        // Two are being delivered, and the client accepts three.
        assert_eq!(it.step(3, 0), CreditStep::Give(1));
        it.answered(None);
        assert_eq!(it.step(3, 0), CreditStep::Nothing);
    }

    #[test]
    fn a_cancelled_drain_resumes_normal_credit() {
        let mut it = LinkCredit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), CreditStep::Give(5));
        it.drain(false);
        it.answered(None);
        assert_eq!(it.step(5, 0), CreditStep::Nothing);
        assert_eq!(it.step(9, 0), CreditStep::Give(4));
    }

    #[test]
    fn a_drain_ends_even_if_a_message_cannot_be_read() {
        let mut it = LinkCredit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), CreditStep::Give(5));
        it.answered(None);
        assert_eq!(it.step(5, 0), CreditStep::Withdraw);
        // One was granted, so four were left; the granted one seems to be on its way.
        it.answered(Some(4));
        assert_eq!(it.step(5, 0), CreditStep::Nothing);
        it.lost(1);
        assert_eq!(it.step(5, 0), CreditStep::Drained);
    }

    #[test]
    fn large_messages_make_the_window_small() {
        let mut it = LinkCredit::new();
        assert_eq!(it.step(1_000, 0), CreditStep::Give(16));
        it.answered(None);
        it.arrived(16, 16 << 20);
        assert_eq!(it.step(984, 2), CreditStep::Nothing);
        assert_eq!(it.step(984, 0), CreditStep::Give(2));
    }
}
