//! The engine's only source of time. A seed must replay a whole run, so no other code may ask for the time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use malote_model::Timestamp;

/// Returns wall-clock milliseconds that never go backwards.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;

    /// Applies a forward step of the wall clock, if there was one, and returns its size in milliseconds. Schedules
    /// follow the wall clock and move with it; the caller must extend the leases by this amount.
    fn take_step(&self) -> u64 {
        0
    }
}

/// Starts at the wall clock, or at the journal's last time if that is later, and follows the monotonic clock.
///
/// If the wall clock is set back or drifts, no lease changes: the difference is slewed, by at most a tenth of the time
/// that passes. If it is set forward, [`Clock::take_step`] follows at once.
pub struct SystemClock<S = OsTime> {
    source: S,
    start_ms: u64,
    /// The last time returned.
    last: AtomicU64,
    /// The difference to the monotonic clock in milliseconds.
    added: AtomicI64,
    /// When the wall clock was last compared, in milliseconds since the start. Must be locked to change `added`.
    compared: parking_lot::Mutex<u64>,
}

/// The two clocks of a machine, for [`SystemClock`].
pub trait TimeSource: Send + Sync {
    /// Milliseconds since 1970. It may jump forwards and backwards.
    fn wall_ms(&self) -> u64;

    /// Milliseconds since the source was created. It never goes backwards.
    fn elapsed_ms(&self) -> u64;
}

/// The clocks of the operating system.
pub struct OsTime {
    started: std::time::Instant,
}

/// A clock that only moves when advanced, for tests.
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn starting_at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Advances the clock. Call [`crate::Engine::wake`] afterwards.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A larger difference means that the wall clock was set; a smaller one is drift.
const STEP_MS: i64 = 5_000;

impl SystemClock {
    /// A clock that starts no earlier than `floor`.
    pub fn starting_at(floor: Timestamp) -> Self {
        Self::following(OsTime { started: monotonic() }, floor)
    }
}

impl<S: TimeSource> SystemClock<S> {
    /// A clock on any source that starts no earlier than `floor`.
    pub fn following(source: S, floor: Timestamp) -> Self {
        let elapsed = source.elapsed_ms();
        let start_ms = source.wall_ms().max(floor.0) - elapsed;
        Self {
            source,
            start_ms,
            last: AtomicU64::new(start_ms + elapsed),
            added: AtomicI64::new(0),
            compared: parking_lot::Mutex::new(elapsed),
        }
    }

    /// How far the wall clock is ahead of this one.
    fn ahead(&self, elapsed: u64) -> i64 {
        let own_ms = (self.start_ms + elapsed) as i64 + self.added.load(Ordering::Relaxed);
        self.source.wall_ms() as i64 - own_ms
    }

    /// Moves this clock closer to the wall clock, once a second.
    fn correct(&self, elapsed: u64) {
        let Some(mut compared) = self.compared.try_lock() else { return };
        let since = elapsed.saturating_sub(*compared);
        if since >= 1000 {
            *compared = elapsed;
            let (ahead, most) = (self.ahead(elapsed), (since / 10) as i64);
            if ahead <= STEP_MS {
                self.added.fetch_add(ahead.clamp(-most, most), Ordering::Relaxed);
            }
        }
    }
}

impl<S: TimeSource> Clock for SystemClock<S> {
    fn now(&self) -> Timestamp {
        let elapsed = self.source.elapsed_ms();
        self.correct(elapsed);
        let added = self.added.load(Ordering::Relaxed);
        let ms = (self.start_ms + elapsed).saturating_add_signed(added);
        Timestamp(self.last.fetch_max(ms, Ordering::Relaxed).max(ms))
    }

    fn take_step(&self) -> u64 {
        let _compared = self.compared.lock();
        let ahead = self.ahead(self.source.elapsed_ms());
        if ahead <= STEP_MS {
            return 0;
        }
        self.added.fetch_add(ahead, Ordering::Relaxed);
        ahead as u64
    }
}

impl TimeSource for OsTime {
    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn elapsed_ms(&self) -> u64 {
        monotonic().duration_since(self.started).as_millis() as u64
    }
}

#[allow(clippy::disallowed_methods)] // the only place that may ask for the time
fn monotonic() -> std::time::Instant {
    std::time::Instant::now()
}

#[allow(clippy::disallowed_methods)] // the only place that may ask for the time
fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_clock_starts_at_the_end_of_the_journal_and_never_steps_back() {
        let future = Timestamp(wall_ms() + 3_600_000);
        let clock = SystemClock::starting_at(future);
        let mut last = future;
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    /// Clocks that tests set.
    #[derive(Default)]
    struct Hands {
        wall_ms: AtomicU64,
        elapsed_ms: AtomicU64,
    }

    impl TimeSource for Arc<Hands> {
        fn wall_ms(&self) -> u64 {
            self.wall_ms.load(Ordering::SeqCst)
        }

        fn elapsed_ms(&self) -> u64 {
            self.elapsed_ms.load(Ordering::SeqCst)
        }
    }

    fn set(wall_ms: u64) -> (Arc<Hands>, SystemClock<Arc<Hands>>) {
        let hands = Arc::new(Hands::default());
        hands.wall_ms.store(wall_ms, Ordering::SeqCst);
        (hands.clone(), SystemClock::following(hands, Timestamp(0)))
    }

    fn pass(hands: &Hands, ms: u64) {
        hands.wall_ms.fetch_add(ms, Ordering::SeqCst);
        hands.elapsed_ms.fetch_add(ms, Ordering::SeqCst);
    }

    #[test]
    fn a_backward_step_of_the_wall_clock_is_slewed() {
        let (hands, clock) = set(1_000_000);
        hands.wall_ms.fetch_sub(60_000, Ordering::SeqCst);
        let mut last = clock.now();
        for _ in 0..700 {
            pass(&hands, 1000);
            let now = clock.now();
            assert!((900..=1000).contains(&(now.0 - last.0)), "{last:?}, then {now:?}");
            assert_eq!(clock.take_step(), 0);
            last = now;
        }
        assert_eq!(last.0, hands.wall_ms());
    }

    #[test]
    fn a_forward_step_of_the_wall_clock_is_followed_at_once() {
        let (hands, clock) = set(1_000_000);
        hands.wall_ms.fetch_add(60_000, Ordering::SeqCst);
        assert_eq!(clock.now().0, 1_000_000);
        assert_eq!(clock.take_step(), 60_000);
        assert_eq!((clock.take_step(), clock.now().0), (0, 1_060_000));
    }

    #[test]
    fn concurrent_threads_read_the_same_time() {
        let (hands, clock) = set(1_000_000);
        hands.wall_ms.fetch_sub(60_000, Ordering::SeqCst);
        for _ in 0..600 {
            pass(&hands, 1000);
            clock.now();
        }
        let alone = clock.now();
        let _another_thread_compares = clock.compared.lock();
        assert_eq!(clock.now(), alone);
    }
}
