//! Whether a message may begin now: a pause that a handler asked for, breakers, a rate.
//!
//! What may not begin is not fetched: it waits in the broker, where another worker may take it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::outcome::Outcome;

/// At most so many in a time, evenly: this worker's own share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Time from one to the next.
    each: Duration,
    /// How far ahead of it some may be.
    burst: Duration,
}

impl Rate {
    /// `max` messages in `per`, evenly: at most a tenth of them, and at least one, at once.
    pub fn new(max: u32, per: Duration) -> Self {
        let each = per / max.max(1);
        Self { each, burst: each * (max / 10).saturating_sub(1) }
    }
}

/// What stands before every message.
pub(crate) struct Gate {
    begun: Instant,
    rate: Option<Rate>,
    has_breakers: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    paused_until: Duration,
    /// When the next one may begin by the rate (GCRA's theoretical arrival time).
    next: Duration,
    breakers: Vec<Breaker>,
}

impl Gate {
    pub(crate) fn new(rate: Option<Rate>, breakers: Vec<Breaker>) -> Self {
        let has_breakers = !breakers.is_empty();
        let state = State { breakers, ..State::default() };
        Self { begun: Instant::now(), rate, has_breakers, state: Mutex::new(state) }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether there is anything that could keep a message from beginning.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some() || self.has_breakers
    }

    /// How long nothing at all may begin.
    pub(crate) fn closed_for(&self) -> Option<Duration> {
        let now = self.now();
        let mut state = self.state.lock();
        let paused = state.paused_until.checked_sub(now).filter(|left| !left.is_zero());
        let open = state.breakers.iter_mut().filter_map(|breaker| breaker.closed_for(now)).max();
        paused.max(open)
    }

    /// How many of `wanted` may begin now, and how long to wait when it is none.
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
            let admitted = state.breakers[nth].admit(now, count);
            for earlier in &mut state.breakers[..nth] {
                earlier.not_used(count - admitted);
            }
            count = admitted;
        }
        if let Some(Rate { each, .. }) = self.rate {
            state.next = state.next.max(now) + each * count;
        }
        (count, HALF_OPEN_PAUSE)
    }

    /// Waits until at least one may begin, and takes up to `wanted`; none if the gate closed meanwhile.
    pub(crate) async fn admit(&self, wanted: usize) -> u32 {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        if !self.is_limited() {
            return wanted; // a pause was looked at before
        }
        loop {
            let (count, wait) = self.admit_at(self.now(), wanted);
            if count > 0 || self.closed_for().is_some() {
                return count;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// The same without waiting.
    pub(crate) fn admit_now(&self, wanted: usize) -> u32 {
        self.admit_at(self.now(), u32::try_from(wanted).unwrap_or(u32::MAX)).0
    }

    /// So many that were admitted did not begin.
    pub(crate) fn not_used(&self, count: u32) {
        let mut state = self.state.lock();
        state.breakers.iter_mut().for_each(|breaker| breaker.not_used(count));
        if let Some(Rate { each, .. }) = self.rate {
            state.next = state.next.saturating_sub(each * count);
        }
    }

    /// A handler ended.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        if !self.has_breakers && !matches!(outcome, Outcome::RateLimited(_)) {
            return;
        }
        let now = self.now();
        let mut state = self.state.lock();
        state.breakers.iter_mut().for_each(|breaker| breaker.ended(now, outcome));
        if let Outcome::RateLimited(pause) = outcome {
            state.paused_until = state.paused_until.max(now + *pause);
        }
    }
}

/// Probes of a breaker are under way: looked again after so long.
const HALF_OPEN_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_even_and_never_exceeded_in_any_window() {
        let gate = Gate::new(Some(Rate::new(50, Duration::from_secs(1))), Vec::new());
        let (mut now, mut begun) = (Duration::ZERO, Vec::new());
        while now < Duration::from_secs(60) {
            let (count, wait) = gate.admit_at(now, 7);
            begun.extend(std::iter::repeat_n(now, count as usize));
            now += if count == 0 { wait } else { Duration::from_millis(1) };
        }
        assert!((2970..=3030).contains(&begun.len()), "{}", begun.len());
        for (at, start) in begun.iter().enumerate() {
            let end = *start + Duration::from_secs(1);
            let within = begun[at..].iter().take_while(|time| **time < end).count();
            assert!(within <= 55, "{within} within a second from {start:?}");
        }
    }

    #[test]
    fn what_was_not_used_may_be_used() {
        let gate = Gate::new(Some(Rate::new(10, Duration::from_secs(1))), Vec::new());
        assert_eq!(gate.admit_at(Duration::ZERO, 5).0, 1);
        assert_eq!(gate.admit_at(Duration::ZERO, 5), (0, Duration::from_millis(100)));
        gate.not_used(1);
        assert_eq!(gate.admit_at(Duration::ZERO, 5).0, 1);
    }

    #[test]
    fn without_a_rate_and_breakers_everything_may_begin() {
        let gate = Gate::new(None, Vec::new());
        assert_eq!(gate.admit_at(Duration::ZERO, 1000).0, 1000);
        assert_eq!(gate.closed_for(), None);
        gate.ended(&Outcome::RateLimited(Duration::from_secs(3600)));
        assert!(gate.closed_for().is_some());
    }
}
