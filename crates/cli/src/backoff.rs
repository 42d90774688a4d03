//! Growing delays between attempts.

use std::time::Duration;

/// A delay that doubles with every attempt, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The delay before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay
    }

    /// Whether no attempt has failed yet.
    pub(crate) fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// Starts again with the first delay.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(5));
        assert!(backoff.is_first());
        assert_eq!(
            [backoff.next(), backoff.next(), backoff.next()].map(|d| d.as_secs()),
            [2, 4, 5]
        );
        backoff.reset();
        assert!(backoff.is_first());
    }
}
