//! The wall clock, durations in milliseconds, and pauses that double.

use std::time::Duration;

use malote_model::limits::DELAY_MS_MAX;

/// Wall-clock milliseconds since 1970, for the history of a message. Waits use tokio's clock.
#[allow(clippy::disallowed_methods)] // the only place that reads the wall clock
pub(crate) fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds of a delay, at most the longest delay that a broker accepts.
pub(crate) fn delay_millis(delay: Duration) -> u64 {
    millis(delay).min(DELAY_MS_MAX)
}

/// A number for a signed column of a database.
#[cfg(feature = "once")]
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Pauses between retries: each is twice as long as the one before, up to a maximum.
pub(crate) struct DoublingPause {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl DoublingPause {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, next: first, max }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Starts again with the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut pause = DoublingPause::new(Duration::from_millis(20), Duration::from_millis(100));
        let pauses = [(); 5].map(|()| millis(pause.next()));
        assert_eq!(pauses, [20, 40, 80, 100, 100]);
        pause.reset();
        assert_eq!(millis(pause.next()), 20);
    }
}
