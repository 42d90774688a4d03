//! Whether a message may begin now: a pause that a handler asked for, breakers, a rate.
//!
//! What may not begin is not fetched: it waits in the broker, where another worker may take it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState};
use crate::fleet::{Fleet, Right};
use crate::outcome::Outcome;
use crate::scale::Hold;

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
    /// Who else has breakers of the same names.
    fleet: Option<Fleet>,
    /// Of this worker, one slot at a time asks it.
    asking: tokio::sync::Mutex<()>,
    has_breakers: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    paused_until: Duration,
    /// When the next one may begin by the rate (GCRA's theoretical arrival time).
    next: Duration,
    breakers: Vec<Breaker>,
    /// Of dependencies that this worker tries, and nobody else; and since when.
    rights: HashMap<&'static str, (Right, Duration)>,
}

impl State {
    /// Lets others try what this worker does not.
    fn let_others(&mut self, now: Duration) {
        let breakers = &mut self.breakers;
        self.rights.retain(|name, _| {
            breakers.iter_mut().any(|b| b.dependency() == *name && b.is_trying(now))
        });
    }
}

impl Gate {
    pub(crate) fn new(rate: Option<Rate>, breakers: Vec<Breaker>, fleet: Option<Fleet>) -> Self {
        let has_breakers = !breakers.is_empty();
        let state = State { breakers, ..State::default() };
        let (begun, asking) = (Instant::now(), tokio::sync::Mutex::default());
        Self { begun, rate, fleet, asking, has_breakers, state: Mutex::new(state) }
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

    /// Each breaker's dependency, and how it stands.
    pub(crate) fn breakers(&self) -> Vec<(&'static str, BreakerState)> {
        let now = self.now();
        let mut state = self.state.lock();
        let each = state.breakers.iter_mut();
        each.map(|breaker| (breaker.dependency(), breaker.state(now))).collect()
    }

    /// What more slots could not help with now.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let now = self.now();
        let mut state = self.state.lock();
        let down = |breaker: &mut Breaker| breaker.state(now) != BreakerState::Closed;
        if state.breakers.iter_mut().any(down) {
            return Some(Hold::Breaker);
        }
        let late = self.rate.is_some_and(|rate| state.next > now + rate.burst);
        (late || state.paused_until > now).then_some(Hold::Limit)
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
            // It may have become time to try since the others were asked.
            let name = state.breakers[nth].dependency();
            let unasked = self.fleet.is_some() && !state.rights.contains_key(name);
            let admitted = match unasked && state.breakers[nth].is_trying(now) {
                true => 0,
                false => state.breakers[nth].admit(now, count),
            };
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
            self.ask_fleet().await;
            let (count, wait) = self.admit_at(self.now(), wanted);
            if count > 0 || self.closed_for().is_some() {
                return count;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks whether this worker may try a dependency that was down. If another one does, its breaker stays open.
    async fn ask_fleet(&self) {
        let Some(fleet) = &self.fleet else { return };
        if self.unasked().is_none() {
            return;
        }
        let _asking = self.asking.lock().await;
        while let Some(dependency) = self.unasked() {
            let right = fleet.ask(dependency).await;
            let now = self.now();
            let mut state = self.state.lock();
            if let Some(right) = right {
                state.rights.insert(dependency, (right, now));
                continue;
            }
            let of = |breaker: &&mut Breaker| breaker.dependency() == dependency;
            state.breakers.iter_mut().filter(of).for_each(|breaker| breaker.put_off(now, PUT_OFF));
        }
    }

    /// A dependency that would be tried now, by this worker without the right to.
    fn unasked(&self) -> Option<&'static str> {
        let now = self.now();
        let State { breakers, rights, .. } = &mut *self.state.lock();
        breakers.iter_mut().find_map(|breaker| {
            let name = breaker.dependency();
            (breaker.is_trying(now) && !rights.contains_key(name)).then_some(name)
        })
    }

    /// The same without waiting.
    pub(crate) fn admit_now(&self, wanted: usize) -> u32 {
        self.admit_at(self.now(), u32::try_from(wanted).unwrap_or(u32::MAX)).0
    }

    /// So many that were admitted did not begin.
    pub(crate) fn not_used(&self, count: u32) {
        let now = self.now();
        let mut state = self.state.lock();
        state.breakers.iter_mut().for_each(|breaker| breaker.not_used(count));
        // Whoever has had nothing to try with for a while lets others, and asks again after them.
        let State { breakers, rights, .. } = &mut *state;
        for breaker in breakers {
            let since = rights.get(breaker.dependency()).map(|(_, since)| *since);
            if since.is_some_and(|since| now >= since + PUT_OFF) && !breaker.is_tried() {
                breaker.put_off(now, 2 * PUT_OFF);
            }
        }
        state.let_others(now);
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
        state.let_others(now);
        if let Outcome::RateLimited(pause) = outcome {
            state.paused_until = state.paused_until.max(now + *pause);
        }
    }
}

/// Another worker tries: asked again after so long.
const PUT_OFF: Duration = Duration::from_secs(1);
/// Probes of a breaker are under way: looked again after so long.
const HALF_OPEN_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_even_and_never_exceeded_in_any_window() {
        let gate = Gate::new(Some(Rate::new(50, Duration::from_secs(1))), Vec::new(), None);
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
    fn a_rate_that_is_used_up_is_what_holds() {
        let gate = Gate::new(Some(Rate::new(1, Duration::from_secs(3600))), Vec::new(), None);
        assert_eq!(gate.hold(), None);
        assert_eq!(gate.admit_now(5), 1);
        assert_eq!(gate.hold(), Some(Hold::Limit));
        let gate = Gate::new(None, Vec::new(), None);
        gate.ended(&Outcome::RateLimited(Duration::from_secs(3600)));
        assert_eq!(gate.hold(), Some(Hold::Limit));
    }

    #[test]
    fn what_was_not_used_may_be_used() {
        let gate = Gate::new(Some(Rate::new(10, Duration::from_secs(1))), Vec::new(), None);
        assert_eq!(gate.admit_at(Duration::ZERO, 5).0, 1);
        assert_eq!(gate.admit_at(Duration::ZERO, 5), (0, Duration::from_millis(100)));
        gate.not_used(1);
        assert_eq!(gate.admit_at(Duration::ZERO, 5).0, 1);
    }

    #[test]
    fn without_a_rate_and_breakers_everything_may_begin() {
        let gate = Gate::new(None, Vec::new(), None);
        assert_eq!(gate.admit_at(Duration::ZERO, 1000).0, 1000);
        assert_eq!(gate.closed_for(), None);
        gate.ended(&Outcome::RateLimited(Duration::from_secs(3600)));
        assert!(gate.closed_for().is_some());
    }
}
