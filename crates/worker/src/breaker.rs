//! A circuit breaker: while a dependency is down, the worker takes no messages that would only fail.
//!
//! The breaker looks at the last hundred calls within twenty seconds. It opens when there are at least ten and half of
//! them failed because of the dependency. It stays open for half a minute, and twice as long each further time, up to
//! five minutes. Then it admits one message, two, four, and closes. Of several workers that share a broker, one at a
//! time sends these probes (`probe_lock.rs`). The breaker is plain data; the caller passes the current time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::outcome::Outcome;
use crate::retry::hash_fraction;

const WINDOW: Duration = Duration::from_secs(20);
const CALLS_MAX: usize = 100;
const CALLS_MIN: usize = 10;
const OPEN_FIRST: Duration = Duration::from_secs(30);
const OPEN_MAX: Duration = Duration::from_secs(300);
/// The breaker closes after a round of this many successful probes.
const PROBES_MAX: u32 = 4;

/// A circuit breaker for one dependency. Handlers report its failures with [`crate::Failure::of_dependency`].
#[derive(Clone, Debug)]
pub struct Breaker {
    dependency: &'static str,
    state: CircuitState,
    /// How long the breaker stays open the first time.
    first_pause: Duration,
    /// How often it opened since it was last closed.
    times_opened: u32,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// The dependency works.
    Closed,
    /// A few messages probe the dependency.
    HalfOpen,
    /// The dependency is down, and no message starts.
    Open,
}

impl BreakerState {
    /// All states, from the best to the worst.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// The name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

#[derive(Clone, Debug)]
enum CircuitState {
    /// When each call record_outcome, and whether it failed.
    Closed(VecDeque<(Duration, bool)>),
    Open {
        until: Duration,
    },
    HalfOpen {
        /// Probes that may run at a time.
        allowed: u32,
        /// Probes that are running.
        probes: u32,
        /// Probes of this round that succeeded.
        succeeded: u32,
    },
}

impl Breaker {
    /// A closed breaker for a dependency.
    pub fn of(dependency: &'static str) -> Self {
        Self {
            dependency,
            state: CircuitState::Closed(VecDeque::new()),
            first_pause: OPEN_FIRST,
            times_opened: 0,
        }
    }

    /// How long the breaker stays open the first time (default 30 s, at most 5 min).
    #[must_use]
    pub fn open_for(mut self, first: Duration) -> Self {
        self.first_pause = first.min(OPEN_MAX);
        self
    }

    pub(crate) fn dependency(&self) -> &'static str {
        self.dependency
    }

    /// Whether it may admit probes now.
    pub(crate) fn is_half_open(&mut self, now: Duration) -> bool {
        self.blocked_for(now).is_none() && matches!(self.state, CircuitState::HalfOpen { .. })
    }

    /// Whether probes are running.
    pub(crate) fn has_probes(&self) -> bool {
        matches!(self.state, CircuitState::HalfOpen { probes, .. } if probes > 0)
    }

    /// Stays open for `pause`, because another worker probes.
    pub(crate) fn stay_open(&mut self, now: Duration, pause: Duration) {
        self.state = CircuitState::Open { until: now + pause };
    }

    pub(crate) fn state(&mut self, now: Duration) -> BreakerState {
        let _ = self.blocked_for(now); // changes from open to half-open when the pause is over
        match self.state {
            CircuitState::Closed(_) => BreakerState::Closed,
            CircuitState::Open { .. } => BreakerState::Open,
            CircuitState::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// How long no message may start. None if messages may start.
    pub(crate) fn blocked_for(&mut self, now: Duration) -> Option<Duration> {
        if let CircuitState::Open { until } = self.state {
            if now < until {
                return Some(until - now);
            }
            self.state = CircuitState::HalfOpen { allowed: 1, probes: 0, succeeded: 0 };
        }
        None
    }

    /// How many of `wanted` messages may start now. They count as running.
    pub(crate) fn admit(&mut self, now: Duration, wanted: u32) -> u32 {
        if self.blocked_for(now).is_some() {
            return 0;
        }
        match &mut self.state {
            CircuitState::HalfOpen { allowed, probes, .. } => {
                let count = wanted.min(*allowed - (*probes).min(*allowed));
                *probes += count;
                count
            }
            CircuitState::Closed(_) | CircuitState::Open { .. } => wanted,
        }
    }

    /// Takes back admissions that were not used.
    pub(crate) fn return_unused(&mut self, count: u32) {
        if let CircuitState::HalfOpen { probes, .. } = &mut self.state {
            *probes = probes.saturating_sub(count);
        }
    }

    /// Records the outcome of a handler.
    pub(crate) fn record_outcome(&mut self, now: Duration, outcome: &Outcome) {
        let failed = match outcome {
            Outcome::Retry(failed) => failed.dependency == Some(self.dependency),
            _ => false,
        };
        let succeeded = matches!(outcome, Outcome::Done);
        match &mut self.state {
            CircuitState::Closed(calls) if failed || succeeded => {
                calls.push_back((now, failed));
                while calls.len() > CALLS_MAX
                    || calls.front().is_some_and(|(at, _)| *at + WINDOW < now)
                {
                    calls.pop_front();
                }
                let failures = calls.iter().filter(|(_, failed)| *failed).count();
                if failed && calls.len() >= CALLS_MIN && failures * 2 >= calls.len() {
                    self.open(now);
                }
            }
            CircuitState::HalfOpen { .. } if failed => self.open(now),
            CircuitState::HalfOpen { allowed, probes, succeeded: good } => {
                *probes = probes.saturating_sub(1);
                *good += u32::from(succeeded);
                if *good >= *allowed {
                    (*allowed, *good) = (*allowed * 2, 0);
                }
                if *allowed > PROBES_MAX {
                    tracing::info!(dependency = self.dependency, "breaker closed");
                    (self.state, self.times_opened) = (CircuitState::Closed(VecDeque::new()), 0);
                }
            }
            CircuitState::Closed(_) | CircuitState::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Duration) {
        let full = self.first_pause.saturating_mul(1 << self.times_opened.min(8)).min(OPEN_MAX);
        // Breakers that opened at the same time should not probe at the same time.
        let chance = hash_fraction((self.dependency, self.times_opened, now.as_nanos()));
        let pause = full.mul_f64(0.8 + 0.2 * chance);
        self.times_opened += 1;
        self.state = CircuitState::Open { until: now + pause };
        tracing::warn!(
            dependency = self.dependency,
            open_ms = pause.as_millis() as u64,
            "breaker opened; no messages are fetched"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::FailedAttempt;

    fn failed() -> Outcome {
        Outcome::Retry(FailedAttempt { dependency: Some("bank"), ..FailedAttempt::default() })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn open_breaker() -> Breaker {
        let mut breaker = Breaker::of("bank");
        (0..10).for_each(|_| breaker.record_outcome(at(1), &failed()));
        breaker
    }

    #[test]
    fn it_opens_when_half_of_at_least_ten_calls_fail_because_of_the_dependency() {
        let mut breaker = Breaker::of("bank");
        (0..9).for_each(|_| breaker.record_outcome(at(1), &failed()));
        assert_eq!(breaker.blocked_for(at(1)), None);
        // Other failures do not count.
        let other = Outcome::Retry(FailedAttempt::default());
        (0..50).for_each(|_| breaker.record_outcome(at(1), &other));
        assert_eq!(breaker.admit(at(1), 7), 7);
        breaker.record_outcome(at(1), &failed());
        let open = breaker.blocked_for(at(1)).unwrap();
        assert!(open >= at(24) && open <= at(30), "{open:?}");
        assert_eq!(breaker.admit(at(2), 7), 0);
    }

    #[test]
    fn old_calls_and_many_successes_keep_it_closed() {
        let mut breaker = Breaker::of("bank");
        (0..9).for_each(|_| breaker.record_outcome(at(1), &failed()));
        (0..9).for_each(|_| breaker.record_outcome(at(30), &failed()));
        assert_eq!(breaker.blocked_for(at(30)), None);
        let mut breaker = Breaker::of("bank");
        for _ in 0..50 {
            breaker.record_outcome(at(1), &Outcome::Done);
            breaker.record_outcome(at(1), &Outcome::Done);
            breaker.record_outcome(at(1), &failed());
        }
        assert_eq!(breaker.blocked_for(at(1)), None);
    }

    #[test]
    fn it_admits_one_two_four_probes_and_closes() {
        let mut breaker = open_breaker();
        assert_eq!(breaker.admit(at(40), 100), 1);
        assert_eq!(breaker.admit(at(40), 100), 0);
        breaker.return_unused(1);
        assert_eq!(breaker.admit(at(40), 100), 1);
        breaker.record_outcome(at(40), &Outcome::Done);
        assert_eq!(breaker.admit(at(40), 100), 2);
        (0..2).for_each(|_| breaker.record_outcome(at(41), &Outcome::Done));
        assert_eq!(breaker.admit(at(41), 100), 4);
        (0..4).for_each(|_| breaker.record_outcome(at(41), &Outcome::Done));
        assert_eq!(breaker.admit(at(41), 100), 100);
    }

    #[test]
    fn a_failed_probe_opens_it_for_longer_up_to_five_minutes() {
        let mut breaker = open_breaker();
        let mut now = at(1);
        for _ in 0..10 {
            now += breaker.blocked_for(now).unwrap();
            assert_eq!(breaker.admit(now, 5), 1);
            breaker.record_outcome(now, &failed());
        }
        let open = breaker.blocked_for(now).unwrap();
        assert!(open >= at(240) && open <= at(300), "{open:?}");
    }
}
