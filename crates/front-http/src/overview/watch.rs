//! Reads the queues of the engine for all readers of overviews together.
//!
//! Without readers, nothing runs. A reader that finds old counts reads the next pages of the list of queues. The work
//! on the core thread is bounded by [`PAGES_PER_STEP`] pages a second, not by the number of queues or readers: with
//! more queues, a pass takes several seconds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_engine::{Engine, EngineError, History, QueueFacts, Totals};
use malote_model::{QueueName, Status, Timestamp, limits};
use malote_wire_native::overview::QueueRates;
use malote_wire_native::queue::QueueCounts;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::convert;

/// Shortest time between two steps.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Counts of a reader that left earlier than this are not shown to the next one.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Pages of 256 queues that one step reads.
const PAGES_PER_STEP: usize = 8;
/// Rates are averages over this time.
const RATES_OVER_MS: u64 = 5_000;
/// Older totals, from before a pause without readers, are useless for rates.
const PAST_MS_MAX: u64 = 15_000;
/// Totals of earlier passes that are kept, over all passes; the previous pass is always kept.
const PAST_QUEUES_MAX: usize = 20_000;

/// The queues at one time, by name.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub at: Timestamp,
    pub queues: Vec<WatchedQueue>,
}

/// What overviews show of a queue.
#[derive(Clone, Debug)]
pub(crate) struct WatchedQueue {
    pub name: QueueName,
    pub created_at: Timestamp,
    pub paused: bool,
    pub status: Status,
    pub with_sessions: bool,
    pub backlog_warning: u64,
    pub counts: QueueCounts,
    pub totals: Totals,
    pub rates: QueueRates,
}

/// The shared counts, and the pass that replaces them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Locked while a step runs: other readers wait for its result.
    pass: Mutex<Pass>,
}

#[derive(Debug, Default)]
struct Pass {
    latest: Option<Arc<Snapshot>>,
    stepped_at: Option<Instant>,
    /// The queues that this pass has read so far.
    partial: Vec<WatchedQueue>,
    past: VecDeque<Past>,
}

/// Totals of an earlier pass, for rates.
#[derive(Debug)]
struct Past {
    at: Timestamp,
    queues: Vec<(QueueName, Timestamp, Totals)>,
}

impl Watch {
    /// The newest complete counts. Only the first call, or the first after a while, reads all queues at once.
    pub(crate) async fn snapshot(
        &self,
        engine: &Engine,
        history: &History,
    ) -> Result<Arc<Snapshot>, EngineError> {
        let mut pass = self.pass.lock().await;
        if let (Some(latest), Some(at)) = (&pass.latest, pass.stepped_at)
            && at.elapsed() < REFRESH_EVERY
        {
            return Ok(latest.clone());
        }
        if pass.stepped_at.is_some_and(|at| at.elapsed() > STALE_AFTER) {
            // After a pause without readers, old counts are worse than waiting for a whole pass.
            pass.latest = None;
            pass.partial.clear();
        }
        let mut pages = 0;
        loop {
            // Dropping the caller here loses nothing: the next one continues the pass.
            let page = engine.list_page(pass.partial.last().map(|last| last.name.clone())).await?;
            let is_last = page.len() < limits::LIST_MAX;
            pass.partial.extend(page.into_iter().map(WatchedQueue::of));
            pages += 1;
            if is_last {
                return Ok(pass.complete(engine.now(), history));
            }
            if let (Some(latest), true) = (pass.latest.clone(), pages >= PAGES_PER_STEP) {
                pass.stepped_at = Some(Instant::now());
                return Ok(latest);
            }
        }
    }
}

impl Pass {
    /// Ends a pass: computes the rates and replaces the counts.
    fn complete(&mut self, now: Timestamp, history: &History) -> Arc<Snapshot> {
        let mut queues = std::mem::take(&mut self.partial);
        self.past.retain(|past| now.0.saturating_sub(past.at.0) <= PAST_MS_MAX);
        // The newest one that is old enough, otherwise the oldest.
        let old = |past: &&Past| now.0.saturating_sub(past.at.0) >= RATES_OVER_MS;
        let base = self.past.iter().rfind(old).or(self.past.front());
        for queue in &mut queues {
            queue.rates = match base.and_then(|base| base.totals_of(queue).zip(Some(base.at))) {
                Some((before, at)) => rates(&before, &queue.totals, now.0.saturating_sub(at.0)),
                None => recent_rates(history, &queue.name),
            };
        }
        let totals = |queue: &WatchedQueue| (queue.name.clone(), queue.created_at, queue.totals);
        self.past.push_back(Past { at: now, queues: queues.iter().map(totals).collect() });
        let kept = |past: &VecDeque<Past>| past.iter().map(|past| past.queues.len()).sum::<usize>();
        while self.past.len() > 1 && kept(&self.past) > PAST_QUEUES_MAX.max(queues.len()) {
            self.past.pop_front();
        }
        let snapshot = Arc::new(Snapshot { at: now, queues });
        self.latest = Some(snapshot.clone());
        self.stepped_at = Some(Instant::now());
        snapshot
    }
}

impl Past {
    fn totals_of(&self, queue: &WatchedQueue) -> Option<Totals> {
        let at = self.queues.binary_search_by(|(name, ..)| name.cmp(&queue.name)).ok()?;
        let (_, created_at, totals) = &self.queues[at];
        (*created_at == queue.created_at).then_some(*totals)
    }
}

fn rates(before: &Totals, after: &Totals, ms: u64) -> QueueRates {
    let rate = |count: fn(&Totals) -> u64| match ms {
        0 => 0.0,
        _ => count(after).saturating_sub(count(before)) as f64 * 1000.0 / ms as f64,
    };
    QueueRates {
        sent: rate(|totals| totals.sent),
        delivered: rate(|totals| totals.delivered),
        completed: rate(|totals| totals.completed),
        dead_lettered: rate(|totals| totals.dead_lettered),
    }
}

/// The rates of the last sample of the history, for the first reader after a while.
fn recent_rates(history: &History, queue: &QueueName) -> QueueRates {
    let Some((_, sample)) = history.recent(queue) else { return QueueRates::default() };
    let seconds = malote_engine::SAMPLE_EVERY.as_secs_f64();
    QueueRates {
        sent: sample.in_per_s,
        delivered: sample.delivered as f64 / seconds,
        completed: sample.out_per_s,
        dead_lettered: 0.0,
    }
}

impl WatchedQueue {
    fn of(facts: QueueFacts) -> Self {
        Self {
            name: facts.name.clone(),
            created_at: facts.created_at,
            paused: facts.paused,
            status: facts.spec.status,
            with_sessions: facts.spec.sessions.required(),
            backlog_warning: facts.spec.backlog_warning,
            counts: convert::queue_counts(&facts),
            totals: facts.totals,
            rates: QueueRates::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, sent: u64) -> WatchedQueue {
        WatchedQueue {
            name: QueueName::new(name).unwrap(),
            created_at: Timestamp(1),
            paused: false,
            status: Status::Active,
            with_sessions: false,
            backlog_warning: 1000,
            counts: QueueCounts::default(),
            totals: Totals { sent, ..Totals::default() },
            rates: QueueRates::default(),
        }
    }

    /// Ends a pass with the queue `a` at this time, and returns the rate of sends.
    fn pass(pass: &mut Pass, at: u64, sent: u64) -> f64 {
        pass.partial = vec![queue("a", sent)];
        pass.complete(Timestamp(at), &History::default()).queues[0].rates.sent
    }

    #[test]
    fn rates_are_averages_over_the_last_seconds() {
        let mut passes = Pass::default();
        assert_eq!(pass(&mut passes, 0, 100), 0.0, "the first pass has nothing to compare with");
        assert_eq!(pass(&mut passes, 1000, 150), 50.0);
        for second in 2..=20 {
            pass(&mut passes, second * 1000, 150);
        }
        assert_eq!(pass(&mut passes, 21_000, 650), 100.0, "500 messages in 5 s");
        assert!(passes.past.len() <= 16);
        assert_eq!(pass(&mut passes, 90_000, 9000), 0.0, "totals from long ago are not compared");
    }

    #[test]
    fn a_queue_of_the_same_name_starts_again() {
        let mut passes = Pass::default();
        pass(&mut passes, 0, 100);
        let new = WatchedQueue { created_at: Timestamp(500), ..queue("a", 120) };
        passes.partial = vec![new];
        let snapshot = passes.complete(Timestamp(1000), &History::default());
        assert_eq!(snapshot.queues[0].rates.sent, 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_reads_a_bounded_number_of_queues() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, _running) = Engine::open(malote_engine::Settings::at(dir.path())).unwrap();
        let (watch, history) = (Watch::default(), History::default());
        let step = PAGES_PER_STEP * limits::LIST_MAX;
        let declare = async |n: usize| {
            let name = QueueName::new(&format!("q{n:05}")).unwrap();
            engine.declare(name, malote_model::QueueSpec::default()).await.unwrap();
        };
        futures_util::future::join_all((0..=step).map(&declare)).await;
        let seen = async || watch.snapshot(&engine, &history).await.unwrap().queues.len();
        assert_eq!(seen().await, step + 1, "the first reader waits for all queues");
        declare(step + 1).await;
        assert_eq!(seen().await, step + 1, "within a second, nothing is read");
        tokio::time::advance(REFRESH_EVERY).await;
        assert_eq!(seen().await, step + 1, "the pass is not complete");
        tokio::time::advance(REFRESH_EVERY).await;
        assert_eq!(seen().await, step + 2);
        declare(step + 2).await;
        tokio::time::advance(STALE_AFTER * 2).await;
        assert_eq!(seen().await, step + 3, "old counts are not shown");
    }

    #[test]
    fn the_memory_for_rates_is_bounded() {
        let mut passes = Pass::default();
        let name = |n: usize| format!("q{n:05}");
        for second in 0..10 {
            passes.partial = (0..9000).map(|n| queue(&name(n), 0)).collect();
            passes.complete(Timestamp(second * 1000), &History::default());
        }
        assert_eq!(passes.past.len(), 2);
    }
}
