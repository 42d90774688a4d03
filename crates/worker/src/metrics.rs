//! How a worker does, as numbers: for Prometheus, for whoever scales it, for a page of yours.
//!
//! Nothing here is global: a worker that runs tells its own ([`crate::Running::metrics`]), and those of several add up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use malote_wire_native::exposition::{Format, Kind, Page};
use serde::{Deserialize, Serialize};

use crate::breaker::BreakerState;
use crate::pool::Counts;
use crate::scale::{Hold, Reason};

/// Upper ends of the times that handlers took, in seconds.
const BUCKETS_S: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// And those that took longer.
const BUCKETS: usize = BUCKETS_S.len() + 1;

/// How a worker does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Its queue.
    pub queue: String,
    /// What became of messages.
    pub counts: Counts,
    /// How long handlers took.
    pub times: TimesNow,
    /// Locks that were prolonged.
    pub renewed: u64,
    /// Handlers that may run at once.
    pub slots: usize,
    /// Slots that have something to do.
    pub busy: usize,
    /// Slots that hold a session without messages.
    pub idle: usize,
    /// Handlers that ignore that they were cancelled.
    pub stuck: usize,
    /// It takes messages: not while it ends, a breaker is open or it was asked to slow down.
    pub taking: bool,
    /// Its breakers.
    pub breakers: Vec<BreakerMetrics>,
    /// What more slots, or workers, could not help with now.
    pub hold: Option<Hold>,
    /// What was decided last about its slots, if that is decided.
    pub scaled: Option<Scaled>,
}

/// How a breaker stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerMetrics {
    /// Of what.
    pub dependency: String,
    /// How.
    pub state: BreakerState,
}

/// How many there should be, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaled {
    /// So many.
    pub wanted: usize,
    /// What asks for it.
    pub reason: Reason,
}

/// How long handlers took, so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesNow {
    /// How many, by how long; the last are those that took longest.
    counts: [u64; BUCKETS],
    /// Together.
    pub sum: Duration,
}

impl TimesNow {
    /// How many ended.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counts how long handlers took.
#[derive(Default)]
pub(crate) struct Times {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Times {
    /// So many messages were handled together, in so long.
    pub(crate) fn add(&self, took: Duration, messages: usize) {
        let each = took / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        let bucket = BUCKETS_S.partition_point(|end| *end < each.as_secs_f64());
        self.counts[bucket].fetch_add(messages as u64, Ordering::Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> TimesNow {
        let counts = std::array::from_fn(|nth| self.counts[nth].load(Ordering::Relaxed));
        TimesNow { counts, sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }

    /// How many ended, and how long they took together.
    pub(crate) fn all(&self) -> (u64, Duration) {
        let now = self.read();
        (now.count(), now.sum)
    }
}

impl Metrics {
    /// Those of another worker as well: together they are a fleet.
    pub fn add(&mut self, other: &Self) {
        self.add_ended(other);
        self.slots += other.slots;
        self.busy += other.busy;
        self.idle += other.idle;
        self.taking |= other.taking;
        for one in &other.breakers {
            let of = |known: &&mut BreakerMetrics| known.dependency == one.dependency;
            match self.breakers.iter_mut().find(of) {
                // Of several that do not agree: the worst.
                Some(known) if severity(known.state) < severity(one.state) => {
                    known.state = one.state;
                }
                Some(_) => {}
                None => self.breakers.push(one.clone()),
            }
        }
        self.hold = self.hold.or(other.hold);
    }

    /// Of a worker that has ended: only what it did.
    pub fn add_ended(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for (mine, others) in self.times.counts.iter_mut().zip(other.times.counts) {
            *mine += others;
        }
        self.times.sum += other.times.sum;
        self.renewed += other.renewed;
        self.stuck += other.stuck;
    }

    /// A page for Prometheus. [`Format::of_accept`] tells which format a scraper wants.
    pub fn render(&self, format: Format) -> String {
        let mut page = Page::default();
        self.write(&mut page);
        page.render(format)
    }

    /// The same, as a part of a page.
    pub fn write(&self, page: &mut Page) {
        let queue = ("queue", self.queue.as_str());
        let Counts { started, done, retried, snoozed, released, dead, lost, panicked, timed_out } =
            self.counts;
        page.head("worker_started", Kind::Counter, "Handlers that began");
        page.sample(&[queue], started);
        page.head("worker_messages", Kind::Counter, "What became of messages");
        for (outcome, count) in [
            ("done", done),
            ("retried", retried),
            ("snoozed", snoozed),
            ("released", released),
            ("dead", dead),
            ("lost", lost),
        ] {
            page.sample(&[queue, ("outcome", outcome)], count);
        }
        page.head("worker_broken", Kind::Counter, "Handlers that panicked or took too long");
        for (kind, count) in [("panicked", panicked), ("timed_out", timed_out)] {
            page.sample(&[queue, ("kind", kind)], count);
        }
        page.head("worker_renewed", Kind::Counter, "Locks that were prolonged");
        page.sample(&[queue], self.renewed);
        page.head("worker_duration_seconds", Kind::Histogram, "How long handlers took");
        page.histogram(&[queue], &BUCKETS_S, &self.times.counts, self.times.sum.as_secs_f64());
        for (name, help, value) in [
            ("worker_slots", "Handlers that may run at once", self.slots),
            ("worker_busy", "Slots that have something to do", self.busy),
            ("worker_idle", "Slots that hold a session without messages", self.idle),
            ("worker_stuck", "Handlers that ignore that they were cancelled", self.stuck),
            ("worker_taking", "1 while messages are taken", usize::from(self.taking)),
        ] {
            page.head(name, Kind::Gauge, help);
            page.sample(&[queue], value);
        }
        page.head("circuit_state", Kind::Gauge, "Breakers: 1 for the state that each is in");
        for BreakerMetrics { dependency, state } in &self.breakers {
            for one in BreakerState::ALL {
                let labels = [queue, ("dependency", dependency), ("state", one.word())];
                page.sample(&labels, usize::from(one == *state));
            }
        }
        if let Some(Scaled { wanted, reason }) = self.scaled {
            page.head("worker_slots_wanted", Kind::Gauge, "Slots that there should be, and why");
            page.sample(&[queue, ("reason", reason.word())], wanted);
        }
    }
}

fn severity(state: BreakerState) -> usize {
    BreakerState::ALL.iter().position(|one| *one == state).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn some() -> Metrics {
        let times = Times::default();
        times.add(Duration::from_micros(900), 1);
        times.add(Duration::from_millis(40), 4);
        times.add(Duration::from_secs(100), 1);
        Metrics {
            queue: "or\"ders".into(),
            counts: Counts { started: 6, done: 4, retried: 1, dead: 1, ..Counts::default() },
            times: times.read(),
            slots: 8,
            busy: 3,
            taking: true,
            breakers: vec![BreakerMetrics {
                dependency: "bank".into(),
                state: BreakerState::HalfOpen,
            }],
            scaled: Some(Scaled { wanted: 8, reason: Reason::Waiting }),
            ..Metrics::default()
        }
    }

    #[test]
    fn a_page_for_prometheus() {
        expect![[r##"
            # HELP malote_worker_started Handlers that began.
            # TYPE malote_worker_started counter
            malote_worker_started_total{queue="or\"ders"} 6
            # HELP malote_worker_messages What became of messages.
            # TYPE malote_worker_messages counter
            malote_worker_messages_total{queue="or\"ders",outcome="done"} 4
            malote_worker_messages_total{queue="or\"ders",outcome="retried"} 1
            malote_worker_messages_total{queue="or\"ders",outcome="snoozed"} 0
            malote_worker_messages_total{queue="or\"ders",outcome="released"} 0
            malote_worker_messages_total{queue="or\"ders",outcome="dead"} 1
            malote_worker_messages_total{queue="or\"ders",outcome="lost"} 0
            # HELP malote_worker_broken Handlers that panicked or took too long.
            # TYPE malote_worker_broken counter
            malote_worker_broken_total{queue="or\"ders",kind="panicked"} 0
            malote_worker_broken_total{queue="or\"ders",kind="timed_out"} 0
            # HELP malote_worker_renewed Locks that were prolonged.
            # TYPE malote_worker_renewed counter
            malote_worker_renewed_total{queue="or\"ders"} 0
            # HELP malote_worker_duration_seconds How long handlers took.
            # TYPE malote_worker_duration_seconds histogram
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.001"} 1
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.0025"} 1
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.005"} 1
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.01"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.025"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.05"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.1"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.25"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="0.5"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="1.0"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="2.5"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="5.0"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="10.0"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="30.0"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="60.0"} 5
            malote_worker_duration_seconds_bucket{queue="or\"ders",le="+Inf"} 6
            malote_worker_duration_seconds_sum{queue="or\"ders"} 100.0409
            malote_worker_duration_seconds_count{queue="or\"ders"} 6
            # HELP malote_worker_slots Handlers that may run at once.
            # TYPE malote_worker_slots gauge
            malote_worker_slots{queue="or\"ders"} 8
            # HELP malote_worker_busy Slots that have something to do.
            # TYPE malote_worker_busy gauge
            malote_worker_busy{queue="or\"ders"} 3
            # HELP malote_worker_idle Slots that hold a session without messages.
            # TYPE malote_worker_idle gauge
            malote_worker_idle{queue="or\"ders"} 0
            # HELP malote_worker_stuck Handlers that ignore that they were cancelled.
            # TYPE malote_worker_stuck gauge
            malote_worker_stuck{queue="or\"ders"} 0
            # HELP malote_worker_taking 1 while messages are taken.
            # TYPE malote_worker_taking gauge
            malote_worker_taking{queue="or\"ders"} 1
            # HELP malote_circuit_state Breakers: 1 for the state that each is in.
            # TYPE malote_circuit_state gauge
            malote_circuit_state{queue="or\"ders",dependency="bank",state="closed"} 0
            malote_circuit_state{queue="or\"ders",dependency="bank",state="half_open"} 1
            malote_circuit_state{queue="or\"ders",dependency="bank",state="open"} 0
            # HELP malote_worker_slots_wanted Slots that there should be, and why.
            # TYPE malote_worker_slots_wanted gauge
            malote_worker_slots_wanted{queue="or\"ders",reason="waiting"} 8
            # EOF
        "##]]
        .assert_eq(&some().render(Format::OpenMetrics));
    }

    #[test]
    fn several_add_up_and_the_worst_breaker_counts() {
        let mut all = some();
        let mut other = some();
        other.breakers[0].state = BreakerState::Open;
        other.hold = Some(Hold::Breaker);
        all.add(&other);
        assert_eq!((all.counts.done, all.times.count(), all.slots), (8, 12, 16));
        assert_eq!(all.breakers.len(), 1);
        assert_eq!((all.breakers[0].state, all.hold), (BreakerState::Open, Some(Hold::Breaker)));
        all.add_ended(&other);
        assert_eq!((all.counts.done, all.slots), (12, 16));
    }
}
