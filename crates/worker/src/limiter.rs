//! Limits when messages may start: a pause that a handler asked for, breakers, and a rate.
//!
//! A message that may not start is not fetched. It stays in the broker, where another worker may take it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState};
use crate::outcome::Outcome;
use crate::probe_lock::{ProbeLock, ProbePermit};
use crate::scale::ScaleBlocker;

/// A rate limit of one worker, spread evenly over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Time between two messages.
    each: Duration,
    /// How far messages may be ahead of the even rate.
    burst: Duration,
}

impl Rate {
    /// `max` messages in the time `per`. At most a tenth of them, and at least one, may start at once.
    pub fn new(max: u32, per: Duration) -> Self {
        let each = per / max.max(1);
        Self { each, burst: each * (max / 10).saturating_sub(1) }
    }
}

/// Decides how many messages may start.
pub(crate) struct Limiter {
    started: Instant,
    rate: Option<Rate>,
    /// Coordinates probes with other workers that have breakers of the same names.
    probe_lock: Option<ProbeLock>,
    /// Held by the slot that acquires permits.
    acquiring: tokio::sync::Mutex<()>,
    has_breakers: bool,
    state: Mutex<LimiterState>,
}

#[derive(Default)]
struct LimiterState {
    paused_until: Duration,
    /// When the next message may start by the rate (the theoretical arrival time of GCRA).
    next: Duration,
    breakers: Vec<Breaker>,
    /// Permits to probe a dependency, with the time when they were acquired.
    permits: HashMap<&'static str, (ProbePermit, Duration)>,
}

impl LimiterState {
    /// Lets other workers probe dependencies that this worker does not probe.
    fn drop_unused_permits(&mut self, now: Duration) {
        let breakers = &mut self.breakers;
        self.permits.retain(|name, _| {
            breakers.iter_mut().any(|b| b.dependency() == *name && b.is_half_open(now))
        });
    }
}

impl Limiter {
    pub(crate) fn new(
        rate: Option<Rate>,
        breakers: Vec<Breaker>,
        probe_lock: Option<ProbeLock>,
    ) -> Self {
        let has_breakers = !breakers.is_empty();
        let state = LimiterState { breakers, ..LimiterState::default() };
        let (started, acquiring) = (Instant::now(), tokio::sync::Mutex::default());
        Self { started, rate, probe_lock, acquiring, has_breakers, state: Mutex::new(state) }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether there is a rate or a breaker.
    pub(crate) fn has_limits(&self) -> bool {
        self.rate.is_some() || self.has_breakers
    }

    /// How long no message may start. None if messages may start.
    pub(crate) fn blocked_for(&self) -> Option<Duration> {
        let now = self.now();
        let mut state = self.state.lock();
        let paused = state.paused_until.checked_sub(now).filter(|left| !left.is_zero());
        let open = state.breakers.iter_mut().filter_map(|breaker| breaker.blocked_for(now)).max();
        paused.max(open)
    }

    /// The dependency and the state of each breaker.
    pub(crate) fn breakers(&self) -> Vec<(&'static str, BreakerState)> {
        let now = self.now();
        let mut state = self.state.lock();
        let each = state.breakers.iter_mut();
        each.map(|breaker| (breaker.dependency(), breaker.state(now))).collect()
    }

    /// Why more slots would not help now.
    pub(crate) fn scale_blocker(&self) -> Option<ScaleBlocker> {
        let now = self.now();
        let mut state = self.state.lock();
        let is_not_closed = |breaker: &mut Breaker| breaker.state(now) != BreakerState::Closed;
        if state.breakers.iter_mut().any(is_not_closed) {
            return Some(ScaleBlocker::Breaker);
        }
        let is_rate_used_up = self.rate.is_some_and(|rate| state.next > now + rate.burst);
        (is_rate_used_up || state.paused_until > now).then_some(ScaleBlocker::Limit)
    }

    /// How many of `wanted` messages may start now, and how long to wait if none may.
    fn admit_at(&self, now: Duration, wanted: u32) -> (u32, Duration) {
        let mut state = self.state.lock();
        let mut count = wanted;
        if let Some(Rate { each, burst }) = self.rate {
            let from = state.next.max(now);
            let room = (now + burst).checked_sub(from);
            let fits = room.map_or(0, |room| {
                let more = room.as_nanos() / each.as_nanos().max(1);
                u32::try_from(more).unwrap_or(u32::MAX).saturating_add(1)
            });
            count = count.min(fits);
            if count == 0 {
                return (0, from - now - burst);
            }
        }
        for nth in 0..state.breakers.len() {
            // The breaker may have become half-open since the permits were acquired.
            let name = state.breakers[nth].dependency();
            let needs_permit = self.probe_lock.is_some() && !state.permits.contains_key(name);
            let admitted = match needs_permit && state.breakers[nth].is_half_open(now) {
                true => 0,
                false => state.breakers[nth].admit(now, count),
            };
            for earlier in &mut state.breakers[..nth] {
                earlier.return_unused(count - admitted);
            }
            count = admitted;
        }
        if let Some(Rate { each, .. }) = self.rate {
            state.next = state.next.max(now) + each * count;
        }
        (count, PROBE_POLL)
    }

    /// Waits until at least one message may start, and admits up to `wanted`. Returns 0 if all messages became blocked.
    pub(crate) async fn admit(&self, wanted: usize) -> u32 {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        if !self.has_limits() {
            return wanted; // the caller has checked for a pause
        }
        loop {
            self.acquire_permits().await;
            let (count, wait) = self.admit_at(self.now(), wanted);
            if count > 0 || self.blocked_for().is_some() {
                return count;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Acquires permits to probe dependencies whose breakers are half-open. If another worker probes, the breaker stays
    /// open here.
    async fn acquire_permits(&self) {
        let Some(probe_lock) = &self.probe_lock else { return };
        if self.needs_permit().is_none() {
            return;
        }
        let _acquiring = self.acquiring.lock().await;
        while let Some(dependency) = self.needs_permit() {
            let permit = probe_lock.acquire(dependency).await;
            let now = self.now();
            let mut state = self.state.lock();
            if let Some(permit) = permit {
                state.permits.insert(dependency, (permit, now));
                continue;
            }
            let of = |breaker: &&mut Breaker| breaker.dependency() == dependency;
            state
                .breakers
                .iter_mut()
                .filter(of)
                .for_each(|breaker| breaker.stay_open(now, PERMIT_RETRY));
        }
    }

    /// A dependency that this worker could probe now, but has no permit for.
    fn needs_permit(&self) -> Option<&'static str> {
        let now = self.now();
        let LimiterState { breakers, permits, .. } = &mut *self.state.lock();
        breakers.iter_mut().find_map(|breaker| {
            let name = breaker.dependency();
            (breaker.is_half_open(now) && !permits.contains_key(name)).then_some(name)
        })
    }

    /// Like [`Self::admit`], without waiting.
    pub(crate) fn admit_now(&self, wanted: usize) -> u32 {
        self.admit_at(self.now(), u32::try_from(wanted).unwrap_or(u32::MAX)).0
    }

    /// Takes back admissions that were not used.
    pub(crate) fn return_unused(&self, count: u32) {
        let now = self.now();
        let mut state = self.state.lock();
        state.breakers.iter_mut().for_each(|breaker| breaker.return_unused(count));
        // A worker that had no message to probe with for a while lets other workers probe.
        let LimiterState { breakers, permits, .. } = &mut *state;
        for breaker in breakers {
            let since = permits.get(breaker.dependency()).map(|(_, since)| *since);
            if since.is_some_and(|since| now >= since + PERMIT_RETRY) && !breaker.has_probes() {
                breaker.stay_open(now, 2 * PERMIT_RETRY);
            }
        }
        state.drop_unused_permits(now);
        if let Some(Rate { each, .. }) = self.rate {
            state.next = state.next.saturating_sub(each * count);
        }
    }

    /// Records the outcome of a handler.
    pub(crate) fn record_outcome(&self, outcome: &Outcome) {
        if !self.has_breakers && !matches!(outcome, Outcome::RateLimited(_)) {
            return;
        }
        let now = self.now();
        let mut state = self.state.lock();
        state.breakers.iter_mut().for_each(|breaker| breaker.record_outcome(now, outcome));
        state.drop_unused_permits(now);
        if let Outcome::RateLimited(pause) = outcome {
            state.paused_until = state.paused_until.max(now + *pause);
        }
    }
}

/// How long to wait for a permit that another worker has.
const PERMIT_RETRY: Duration = Duration::from_secs(1);
/// How often to check whether the running probes of a breaker have ended.
const PROBE_POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_even_and_never_exceeded_in_any_window() {
        let limiter = Limiter::new(Some(Rate::new(50, Duration::from_secs(1))), Vec::new(), None);
        let (mut now, mut started) = (Duration::ZERO, Vec::new());
        while now < Duration::from_secs(60) {
            let (count, wait) = limiter.admit_at(now, 7);
            started.extend(std::iter::repeat_n(now, count as usize));
            now += if count == 0 { wait } else { Duration::from_millis(1) };
        }
        assert!((2970..=3030).contains(&started.len()), "{}", started.len());
        for (at, start) in started.iter().enumerate() {
            let end = *start + Duration::from_secs(1);
            let within = started[at..].iter().take_while(|time| **time < end).count();
            assert!(within <= 55, "{within} within a second from {start:?}");
        }
    }

    #[test]
    fn a_rate_that_is_used_up_blocks_scaling() {
        let limiter = Limiter::new(Some(Rate::new(1, Duration::from_secs(3600))), Vec::new(), None);
        assert_eq!(limiter.scale_blocker(), None);
        assert_eq!(limiter.admit_now(5), 1);
        assert_eq!(limiter.scale_blocker(), Some(ScaleBlocker::Limit));
        let limiter = Limiter::new(None, Vec::new(), None);
        limiter.record_outcome(&Outcome::RateLimited(Duration::from_secs(3600)));
        assert_eq!(limiter.scale_blocker(), Some(ScaleBlocker::Limit));
    }

    #[test]
    fn unused_admissions_can_be_used_again() {
        let limiter = Limiter::new(Some(Rate::new(10, Duration::from_secs(1))), Vec::new(), None);
        assert_eq!(limiter.admit_at(Duration::ZERO, 5).0, 1);
        assert_eq!(limiter.admit_at(Duration::ZERO, 5), (0, Duration::from_millis(100)));
        limiter.return_unused(1);
        assert_eq!(limiter.admit_at(Duration::ZERO, 5).0, 1);
    }

    #[test]
    fn without_a_rate_and_breakers_every_message_may_start() {
        let limiter = Limiter::new(None, Vec::new(), None);
        assert_eq!(limiter.admit_at(Duration::ZERO, 1000).0, 1000);
        assert_eq!(limiter.blocked_for(), None);
        limiter.record_outcome(&Outcome::RateLimited(Duration::from_secs(3600)));
        assert!(limiter.blocked_for().is_some());
    }
}
