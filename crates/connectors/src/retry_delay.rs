//! Pauses between attempts: each is twice as long as the one before, up to a maximum.

use std::time::Duration;

/// A pause that doubles with every attempt, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct RetryDelay {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl RetryDelay {
    /// Begins with the pause `first`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Whether no attempt has failed since the start or the last success.
    pub fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = RetryDelay::new(Duration::from_millis(10), Duration::from_millis(50));
        let pauses = [(); 5].map(|()| backoff.pause().as_millis());
        assert_eq!(pauses, [10, 20, 40, 50, 50]);
        assert!(!backoff.is_first());
        backoff.reset();
        assert!(backoff.is_first());
        assert_eq!(backoff.pause(), Duration::from_millis(10));
    }
}
