//! Pauses between attempts: each is twice as long as the one before, up to a maximum.

use std::time::Duration;

pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Starts over after a success.
    #[cfg_attr(not(any(feature = "postgres", feature = "rabbitmq")), allow(dead_code))]
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
        let pauses = [(); 5].map(|()| backoff.pause().as_millis());
        assert_eq!(pauses, [10, 20, 40, 50, 50]);
        backoff.reset();
        assert_eq!(backoff.pause(), Duration::from_millis(10));
    }
}
