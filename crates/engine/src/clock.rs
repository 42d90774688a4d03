//! The door to time. A seed must replay a whole run, so nothing else in the engine asks what time it is.

use std::sync::atomic::{AtomicU64, Ordering};

use malote_model::Timestamp;

/// Tells wall-clock milliseconds that never step back.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Moves over a forward step of the wall clock, if there was one, and tells by how many milliseconds. Schedules
    /// follow the wall clock, so they move; whoever asks prolongs the leases, which must not.
    fn take_step(&self) -> u64 {
        0
    }
}

/// Starts at the wall clock, or at the journal's last time if that is later, and follows the monotonic clock.
///
/// A wall clock that is set back, or drifts, changes no lease: what it is off by is made up for slowly, by at most a
/// tenth of the time that passes. One that is set forward is followed at once, by [`Clock::take_step`].
pub struct SystemClock {
    started: std::time::Instant,
    start_ms: u64,
    /// The last time told.
    last: AtomicU64,
    /// When the wall clock was last compared, in milliseconds since the start, and what had been added by then.
    compared: parking_lot::Mutex<(u64, i64)>,
}

/// A clock that stands still until it is moved: for tests of what takes hours.
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Stands at this time.
    pub fn starting_at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves on. Whoever has an engine on this clock wakes it then: [`crate::Engine::wake`].
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A wall clock that is ahead by more than this was set; less is drift.
const STEP_MS: i64 = 5_000;

impl SystemClock {
    /// A clock that starts no earlier than `floor`.
    pub fn starting_at(floor: Timestamp) -> Self {
        let start_ms = wall_ms().max(floor.0);
        Self {
            started: monotonic(),
            start_ms,
            last: AtomicU64::new(start_ms),
            compared: parking_lot::Mutex::new((0, 0)),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        monotonic().duration_since(self.started).as_millis() as u64
    }

    /// Milliseconds to add to the monotonic clock, brought nearer to the wall clock once a second.
    fn correction(&self, elapsed: u64) -> i64 {
        let Some(mut compared) = self.compared.try_lock() else { return 0 };
        let (at, added) = *compared;
        let since = elapsed.saturating_sub(at);
        if since >= 1000 {
            let off = wall_ms() as i64 - ((self.start_ms + elapsed) as i64 + added);
            let most = (since / 10) as i64;
            let correction = if off > STEP_MS { 0 } else { off.clamp(-most, most) };
            *compared = (elapsed, added + correction);
        }
        compared.1
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.elapsed_ms();
        let told = (self.start_ms + elapsed).saturating_add_signed(self.correction(elapsed));
        Timestamp(self.last.fetch_max(told, Ordering::Relaxed).max(told))
    }

    fn take_step(&self) -> u64 {
        let mut compared = self.compared.lock();
        let ahead = wall_ms() as i64 - ((self.start_ms + self.elapsed_ms()) as i64 + compared.1);
        if ahead <= STEP_MS {
            return 0;
        }
        compared.1 += ahead;
        ahead as u64
    }
}

#[allow(clippy::disallowed_methods)] // this is the door
fn monotonic() -> std::time::Instant {
    std::time::Instant::now()
}

#[allow(clippy::disallowed_methods)] // this is the door
fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_starts_before_the_journal_ends_and_never_steps_back() {
        let future = Timestamp(wall_ms() + 3_600_000);
        let clock = SystemClock::starting_at(future);
        let mut last = future;
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
