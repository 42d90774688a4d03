//! A circuit breaker: while a dependency is down, the worker takes no messages that it would only fail.
//!
//! Of the last hundred calls within twenty seconds, at least ten and half of them failed by the dependency's fault:
//! it opens for half a minute, for twice as long each time it fails again, at most five minutes. Then it lets one
//! message through, two, four, and closes. Of workers that share a broker, one at a time does (`fleet.rs`). Plain data:
//! whoever asks says what time it is.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::outcome::Outcome;

const WINDOW: Duration = Duration::from_secs(20);
const CALLS_MAX: usize = 100;
const CALLS_MIN: usize = 10;
const OPEN_FIRST: Duration = Duration::from_secs(30);
const OPEN_MAX: Duration = Duration::from_secs(300);
/// After as many successes in a row it closes.
const PROBES_MAX: u32 = 4;

/// A breaker for one dependency. Handlers name it with [`crate::Failure::of_dependency`].
#[derive(Clone, Debug)]
pub struct Breaker {
    dependency: &'static str,
    state: State,
    /// How long it stays open the first time.
    first: Duration,
    /// How often it opened since it was last closed.
    opened: u32,
}

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// All is well.
    Closed,
    /// A few are let through, to see.
    HalfOpen,
    /// The dependency is down: nothing begins.
    Open,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// A word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    /// When each call ended, and whether it failed.
    Closed(VecDeque<(Duration, bool)>),
    Open {
        until: Duration,
    },
    /// So many may be under way, so many are, so many of them succeeded.
    HalfOpen {
        allowed: u32,
        out: u32,
        succeeded: u32,
    },
}

impl Breaker {
    /// Closed.
    pub fn of(dependency: &'static str) -> Self {
        Self { dependency, state: State::Closed(VecDeque::new()), first: OPEN_FIRST, opened: 0 }
    }

    /// How long it stays open the first time, half a minute unless it is said; at most five minutes.
    #[must_use]
    pub fn open_for(mut self, first: Duration) -> Self {
        self.first = first.min(OPEN_MAX);
        self
    }

    pub(crate) fn dependency(&self) -> &'static str {
        self.dependency
    }

    /// Whether it would let a few through now, to see.
    pub(crate) fn is_trying(&mut self, now: Duration) -> bool {
        self.closed_for(now).is_none() && matches!(self.state, State::HalfOpen { .. })
    }

    /// Whether some of those are under way.
    pub(crate) fn is_tried(&self) -> bool {
        matches!(self.state, State::HalfOpen { out, .. } if out > 0)
    }

    /// Stays open a little longer: somebody else tries.
    pub(crate) fn put_off(&mut self, now: Duration, pause: Duration) {
        self.state = State::Open { until: now + pause };
    }

    /// How it stands now.
    pub(crate) fn state(&mut self, now: Duration) -> BreakerState {
        let _ = self.closed_for(now); // it may have become time to try
        match self.state {
            State::Closed(_) => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// How long nothing may begin.
    pub(crate) fn closed_for(&mut self, now: Duration) -> Option<Duration> {
        if let State::Open { until } = self.state {
            if now < until {
                return Some(until - now);
            }
            self.state = State::HalfOpen { allowed: 1, out: 0, succeeded: 0 };
        }
        None
    }

    /// How many of `wanted` may begin now; they count as under way.
    pub(crate) fn admit(&mut self, now: Duration, wanted: u32) -> u32 {
        if self.closed_for(now).is_some() {
            return 0;
        }
        match &mut self.state {
            State::HalfOpen { allowed, out, .. } => {
                let count = wanted.min(*allowed - (*out).min(*allowed));
                *out += count;
                count
            }
            State::Closed(_) | State::Open { .. } => wanted,
        }
    }

    /// So many did not begin after all.
    pub(crate) fn not_used(&mut self, count: u32) {
        if let State::HalfOpen { out, .. } = &mut self.state {
            *out = out.saturating_sub(count);
        }
    }

    /// A handler ended.
    pub(crate) fn ended(&mut self, now: Duration, outcome: &Outcome) {
        let failed = match outcome {
            Outcome::Retry(failed) => failed.dependency == Some(self.dependency),
            _ => false,
        };
        let succeeded = matches!(outcome, Outcome::Done);
        match &mut self.state {
            State::Closed(calls) if failed || succeeded => {
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
            State::HalfOpen { .. } if failed => self.open(now),
            State::HalfOpen { allowed, out, succeeded: good } => {
                *out = out.saturating_sub(1);
                *good += u32::from(succeeded);
                if *good >= *allowed {
                    (*allowed, *good) = (*allowed * 2, 0);
                }
                if *allowed > PROBES_MAX {
                    tracing::info!(dependency = self.dependency, "the breaker is closed");
                    (self.state, self.opened) = (State::Closed(VecDeque::new()), 0);
                }
            }
            State::Closed(_) | State::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Duration) {
        let full = self.first.saturating_mul(1 << self.opened.min(8)).min(OPEN_MAX);
        // Workers that opened together should not ask together.
        let mut hasher = DefaultHasher::new();
        (self.dependency, self.opened, now.as_nanos()).hash(&mut hasher);
        let pause = full.mul_f64(0.8 + 0.2 * (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64);
        self.opened += 1;
        self.state = State::Open { until: now + pause };
        tracing::warn!(
            dependency = self.dependency,
            open_ms = pause.as_millis() as u64,
            "the breaker is open: no messages are taken"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Failed;

    fn failed() -> Outcome {
        Outcome::Retry(Failed { dependency: Some("bank"), ..Failed::default() })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::of("bank");
        (0..10).for_each(|_| breaker.ended(at(1), &failed()));
        breaker
    }

    #[test]
    fn it_opens_when_half_of_enough_calls_fail_by_the_dependency() {
        let mut breaker = Breaker::of("bank");
        (0..9).for_each(|_| breaker.ended(at(1), &failed()));
        assert_eq!(breaker.closed_for(at(1)), None);
        // Failures of its own making do not count.
        let own = Outcome::Retry(Failed::default());
        (0..50).for_each(|_| breaker.ended(at(1), &own));
        assert_eq!(breaker.admit(at(1), 7), 7);
        breaker.ended(at(1), &failed());
        let open = breaker.closed_for(at(1)).unwrap();
        assert!(open >= at(24) && open <= at(30), "{open:?}");
        assert_eq!(breaker.admit(at(2), 7), 0);
    }

    #[test]
    fn old_calls_and_many_successes_keep_it_closed() {
        let mut breaker = Breaker::of("bank");
        (0..9).for_each(|_| breaker.ended(at(1), &failed()));
        (0..9).for_each(|_| breaker.ended(at(30), &failed()));
        assert_eq!(breaker.closed_for(at(30)), None);
        let mut breaker = Breaker::of("bank");
        for _ in 0..50 {
            breaker.ended(at(1), &Outcome::Done);
            breaker.ended(at(1), &Outcome::Done);
            breaker.ended(at(1), &failed());
        }
        assert_eq!(breaker.closed_for(at(1)), None);
    }

    #[test]
    fn it_lets_one_two_four_through_and_closes() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(at(40), 100), 1);
        assert_eq!(breaker.admit(at(40), 100), 0);
        breaker.not_used(1);
        assert_eq!(breaker.admit(at(40), 100), 1);
        breaker.ended(at(40), &Outcome::Done);
        assert_eq!(breaker.admit(at(40), 100), 2);
        (0..2).for_each(|_| breaker.ended(at(41), &Outcome::Done));
        assert_eq!(breaker.admit(at(41), 100), 4);
        (0..4).for_each(|_| breaker.ended(at(41), &Outcome::Done));
        assert_eq!(breaker.admit(at(41), 100), 100);
    }

    #[test]
    fn a_probe_that_fails_opens_it_for_longer_up_to_five_minutes() {
        let mut breaker = opened();
        let mut now = at(1);
        for _ in 0..10 {
            now += breaker.closed_for(now).unwrap();
            assert_eq!(breaker.admit(now, 5), 1);
            breaker.ended(now, &failed());
        }
        let open = breaker.closed_for(now).unwrap();
        assert!(open >= at(240) && open <= at(300), "{open:?}");
    }
}
