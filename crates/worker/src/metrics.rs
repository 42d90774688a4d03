//! Metrics of a worker, for Prometheus, for autoscalers and for your own pages.
//!
//! There is no global state: [`crate::Running::metrics`] returns the metrics of one worker, and [`Metrics::add`] sums
//! those of several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use malote_wire_native::exposition::{Format, Kind, Page};
use serde::{Deserialize, Serialize};

use crate::breaker::BreakerState;
use crate::pool::Counts;
use crate::scale::{Reason, ScaleBlocker};

/// Upper bounds of the buckets of handler durations, in seconds.
const BUCKETS_S: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// One more bucket for longer durations.
const BUCKETS: usize = BUCKETS_S.len() + 1;

/// The metrics of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// The queue of the worker.
    pub queue: String,
    /// Messages by outcome.
    pub counts: Counts,
    /// The durations of handlers.
    pub times: DurationHistogram,
    /// Number of locks that were renewed.
    pub renewed: u64,
    /// Handlers that may run at a time.
    pub slots: usize,
    /// Slots that handle messages.
    pub busy: usize,
    /// Slots that hold a session without messages.
    pub idle: usize,
    /// Handlers that ignored their cancellation and were abandoned.
    pub stuck: usize,
    /// Whether the worker fetches messages. It does not while it stops, a breaker is open or a handler asked for a
    /// pause.
    pub taking: bool,
    /// The breakers of the worker.
    pub breakers: Vec<BreakerMetrics>,
    /// Why more slots or workers would not help now.
    pub hold: Option<ScaleBlocker>,
    /// The latest decision about the number of slots. `None` if the number is fixed.
    pub scaled: Option<ScaleTarget>,
}

/// The state of one breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerMetrics {
    /// The name of the dependency.
    pub dependency: String,
    /// The state of its breaker.
    pub state: BreakerState,
}

/// The wanted number of slots or processes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleTarget {
    /// The wanted number.
    pub wanted: usize,
    /// The signal that decided it.
    pub reason: Reason,
}

/// The durations of handlers since the worker started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationHistogram {
    /// Messages by bucket.
    counts: [u64; BUCKETS],
    /// The sum of all durations.
    pub sum: Duration,
}

impl DurationHistogram {
    /// The number of handled messages.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Records the durations of handlers.
#[derive(Default)]
pub(crate) struct DurationRecorder {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl DurationRecorder {
    /// Records that `messages` were handled together in the time `took`.
    pub(crate) fn add(&self, took: Duration, messages: usize) {
        let each = took / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        let bucket = BUCKETS_S.partition_point(|end| *end < each.as_secs_f64());
        self.counts[bucket].fetch_add(messages as u64, Ordering::Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> DurationHistogram {
        let counts = std::array::from_fn(|nth| self.counts[nth].load(Ordering::Relaxed));
        DurationHistogram { counts, sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }

    pub(crate) fn count_and_sum(&self) -> (u64, Duration) {
        let now = self.read();
        (now.count(), now.sum)
    }
}

impl Metrics {
    /// Adds the metrics of another running worker.
    pub fn add(&mut self, other: &Self) {
        self.add_ended(other);
        self.slots += other.slots;
        self.busy += other.busy;
        self.idle += other.idle;
        self.taking |= other.taking;
        for one in &other.breakers {
            let of = |known: &&mut BreakerMetrics| known.dependency == one.dependency;
            match self.breakers.iter_mut().find(of) {
                // If states differ, the worst counts.
                Some(known) if severity(known.state) < severity(one.state) => {
                    known.state = one.state;
                }
                Some(_) => {}
                None => self.breakers.push(one.clone()),
            }
        }
        self.hold = self.hold.or(other.hold);
    }

    /// Adds the metrics of a worker that has ended: counts and durations only.
    pub fn add_ended(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for (mine, others) in self.times.counts.iter_mut().zip(other.times.counts) {
            *mine += others;
        }
        self.times.sum += other.times.sum;
        self.renewed += other.renewed;
        self.stuck += other.stuck;
    }

    /// Renders a page for Prometheus. [`Format::of_accept`] selects the format that a scraper accepts.
    pub fn render(&self, format: Format) -> String {
        let mut page = Page::default();
        self.write(&mut page);
        page.render(format)
    }

    /// Writes the metrics as a part of a page.
    pub fn write(&self, page: &mut Page) {
        let queue = ("queue", self.queue.as_str());
        let Counts { started, done, retried, snoozed, released, dead, lost, panicked, timed_out } =
            self.counts;
        page.head("worker_started", Kind::Counter, "Messages for which a handler was started");
        page.sample(&[queue], started);
        page.head("worker_messages", Kind::Counter, "Messages by outcome");
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
        page.head("worker_broken", Kind::Counter, "Handlers that panicked or timed out");
        for (kind, count) in [("panicked", panicked), ("timed_out", timed_out)] {
            page.sample(&[queue, ("kind", kind)], count);
        }
        page.head("worker_renewed", Kind::Counter, "Locks renewed");
        page.sample(&[queue], self.renewed);
        page.head("worker_duration_seconds", Kind::Histogram, "Handler duration per message");
        page.histogram(&[queue], &BUCKETS_S, &self.times.counts, self.times.sum.as_secs_f64());
        for (name, help, value) in [
            ("worker_slots", "Handlers that may run at a time", self.slots),
            ("worker_busy", "Slots that handle messages", self.busy),
            ("worker_idle", "Slots that hold a session without messages", self.idle),
            (
                "worker_stuck",
                "Handlers that ignored their cancellation and were abandoned",
                self.stuck,
            ),
            ("worker_taking", "1 while the worker fetches messages", usize::from(self.taking)),
        ] {
            page.head(name, Kind::Gauge, help);
            page.sample(&[queue], value);
        }
        page.head("circuit_state", Kind::Gauge, "1 for the current state of each breaker");
        for BreakerMetrics { dependency, state } in &self.breakers {
            for one in BreakerState::ALL {
                let labels = [queue, ("dependency", dependency), ("state", one.word())];
                page.sample(&labels, usize::from(one == *state));
            }
        }
        if let Some(ScaleTarget { wanted, reason }) = self.scaled {
            page.head("worker_slots_wanted", Kind::Gauge, "Wanted number of slots, by reason");
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

    fn sample() -> Metrics {
        let recorder = DurationRecorder::default();
        recorder.add(Duration::from_micros(900), 1);
        recorder.add(Duration::from_millis(40), 4);
        recorder.add(Duration::from_secs(100), 1);
        Metrics {
            queue: "or\"ders".into(),
            counts: Counts { started: 6, done: 4, retried: 1, dead: 1, ..Counts::default() },
            times: recorder.read(),
            slots: 8,
            busy: 3,
            taking: true,
            breakers: vec![BreakerMetrics {
                dependency: "bank".into(),
                state: BreakerState::HalfOpen,
            }],
            scaled: Some(ScaleTarget { wanted: 8, reason: Reason::Waiting }),
            ..Metrics::default()
        }
    }

    #[test]
    fn metrics_are_rendered_for_prometheus() {
        expect![[r##"
            # HELP malote_worker_started Messages for which a handler was started.
            # TYPE malote_worker_started counter
            malote_worker_started_total{queue="or\"ders"} 6
            # HELP malote_worker_messages Messages by outcome.
            # TYPE malote_worker_messages counter
            malote_worker_messages_total{queue="or\"ders",outcome="done"} 4
            malote_worker_messages_total{queue="or\"ders",outcome="retried"} 1
            malote_worker_messages_total{queue="or\"ders",outcome="snoozed"} 0
            malote_worker_messages_total{queue="or\"ders",outcome="released"} 0
            malote_worker_messages_total{queue="or\"ders",outcome="dead"} 1
            malote_worker_messages_total{queue="or\"ders",outcome="lost"} 0
            # HELP malote_worker_broken Handlers that panicked or timed out.
            # TYPE malote_worker_broken counter
            malote_worker_broken_total{queue="or\"ders",kind="panicked"} 0
            malote_worker_broken_total{queue="or\"ders",kind="timed_out"} 0
            # HELP malote_worker_renewed Locks renewed.
            # TYPE malote_worker_renewed counter
            malote_worker_renewed_total{queue="or\"ders"} 0
            # HELP malote_worker_duration_seconds Handler duration per message.
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
            # HELP malote_worker_slots Handlers that may run at a time.
            # TYPE malote_worker_slots gauge
            malote_worker_slots{queue="or\"ders"} 8
            # HELP malote_worker_busy Slots that handle messages.
            # TYPE malote_worker_busy gauge
            malote_worker_busy{queue="or\"ders"} 3
            # HELP malote_worker_idle Slots that hold a session without messages.
            # TYPE malote_worker_idle gauge
            malote_worker_idle{queue="or\"ders"} 0
            # HELP malote_worker_stuck Handlers that ignored their cancellation and were abandoned.
            # TYPE malote_worker_stuck gauge
            malote_worker_stuck{queue="or\"ders"} 0
            # HELP malote_worker_taking 1 while the worker fetches messages.
            # TYPE malote_worker_taking gauge
            malote_worker_taking{queue="or\"ders"} 1
            # HELP malote_circuit_state 1 for the current state of each breaker.
            # TYPE malote_circuit_state gauge
            malote_circuit_state{queue="or\"ders",dependency="bank",state="closed"} 0
            malote_circuit_state{queue="or\"ders",dependency="bank",state="half_open"} 1
            malote_circuit_state{queue="or\"ders",dependency="bank",state="open"} 0
            # HELP malote_worker_slots_wanted Wanted number of slots, by reason.
            # TYPE malote_worker_slots_wanted gauge
            malote_worker_slots_wanted{queue="or\"ders",reason="waiting"} 8
            # EOF
        "##]]
        .assert_eq(&sample().render(Format::OpenMetrics));
    }

    #[test]
    fn metrics_of_several_workers_add_up_and_the_worst_breaker_state_counts() {
        let mut all = sample();
        let mut other = sample();
        other.breakers[0].state = BreakerState::Open;
        other.hold = Some(ScaleBlocker::Breaker);
        all.add(&other);
        assert_eq!((all.counts.done, all.times.count(), all.slots), (8, 12, 16));
        assert_eq!(all.breakers.len(), 1);
        assert_eq!(
            (all.breakers[0].state, all.hold),
            (BreakerState::Open, Some(ScaleBlocker::Breaker))
        );
        all.add_ended(&other);
        assert_eq!((all.counts.done, all.slots), (12, 16));
    }
}
