//! Publisher confirms of one channel, in the order of the publications.

use std::collections::VecDeque;

/// Numbers publications and remembers which of them are settled.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// The tag of the last publication.
    last: u64,
    /// The outcomes of the publications after `confirmed`; `None` while one is on its way.
    outcomes: VecDeque<Option<bool>>,
}

/// A confirm to send: `basic.ack` or `basic.nack`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub tag: u64,
    pub multiple: bool,
    pub stored: bool,
}

impl Confirms {
    /// The tag of the next publication.
    pub fn publish(&mut self) -> u64 {
        self.last += 1;
        self.outcomes.push_back(None);
        self.last
    }

    fn confirmed(&self) -> u64 {
        self.last - self.outcomes.len() as u64
    }

    /// Publications that are not confirmed yet.
    pub fn pending(&self) -> usize {
        self.outcomes.len()
    }

    /// Records the outcome of a publication.
    pub fn settle(&mut self, tag: u64, stored: bool) {
        let at = tag.checked_sub(self.confirmed() + 1).and_then(|at| usize::try_from(at).ok());
        if let Some(outcome) = at.and_then(|at| self.outcomes.get_mut(at)) {
            *outcome = Some(stored);
        }
    }

    /// The next confirm, for as many publications as possible.
    pub fn next(&mut self) -> Option<Confirm> {
        let stored = (*self.outcomes.front()?)?;
        let mut count = 0_u64;
        while self.outcomes.front() == Some(&Some(stored)) {
            self.outcomes.pop_front();
            count += 1;
        }
        Some(Confirm { tag: self.confirmed(), multiple: count > 1, stored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_confirm_covers_all_that_are_settled_alike() {
        let mut confirms = Confirms::default();
        let tags: Vec<_> = (0..6).map(|_| confirms.publish()).collect();
        assert_eq!(tags, [1, 2, 3, 4, 5, 6]);
        confirms.settle(2, true);
        assert_eq!(confirms.next(), None);
        for (tag, ok) in [(1, true), (3, true), (4, false), (6, true)] {
            confirms.settle(tag, ok);
        }
        assert_eq!(confirms.next(), Some(Confirm { tag: 3, multiple: true, stored: true }));
        assert_eq!(confirms.next(), Some(Confirm { tag: 4, multiple: false, stored: false }));
        assert_eq!(confirms.next(), None);
        confirms.settle(5, true);
        assert_eq!(confirms.next(), Some(Confirm { tag: 6, multiple: true, stored: true }));
        confirms.settle(1, false);
        assert_eq!(confirms.next(), None);
    }
}
