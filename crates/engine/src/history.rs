//! One hour of samples of every queue, one every ten seconds, for front ends. It is in memory only: a restart loses it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use malote_model::{QueueName, Timestamp};
use parking_lot::Mutex;

use crate::{Engine, EngineError, NoisyTenants, QueueFacts, Totals};

/// Time between two samples of a queue.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// One hour of samples.
const SAMPLES_MAX: usize = 360;
/// Queues with a history. 2,000 busy queues need about 120 MB.
const QUEUES_MAX: usize = 2000;

/// A queue at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueSample {
    pub at: Timestamp,
    pub ready: u64,
    pub locked: u64,
    pub delayed: u64,
    pub scheduled: u64,
    pub deferred: u64,
    pub dead_lettered: u64,
    /// Age of the oldest ready message.
    pub oldest_age_ms: Option<u64>,
    /// Messages sent per second since the previous sample.
    pub in_per_s: f64,
    /// Messages completed per second since the previous sample.
    pub out_per_s: f64,
    /// Messages sent since the previous sample, or since the queue was created.
    pub sent: u64,
    /// Messages delivered since the previous sample.
    pub delivered: u64,
    /// Messages completed since the previous sample.
    pub completed: u64,
    pub noisy: NoisyTenants,
    /// Age of the oldest ready message of a tenant that is not noisy.
    pub quiet_oldest_age_ms: Option<u64>,
}

/// The totals that the next sample is compared with.
#[derive(Clone, Copy, Debug)]
struct Base {
    at: Timestamp,
    totals: Totals,
    /// When the queue was created. A new queue can have the name of a deleted one.
    created_at: Timestamp,
}

impl Base {
    /// For a queue that was created since the last list.
    fn zero(facts: &QueueFacts) -> Self {
        let created_at = facts.created_at;
        Self { at: created_at, totals: Totals::default(), created_at }
    }

    fn now(now: Timestamp, facts: &QueueFacts) -> Self {
        Self { at: now, totals: facts.totals, created_at: facts.created_at }
    }
}

#[derive(Debug)]
struct Series {
    samples: VecDeque<QueueSample>,
    base: Base,
}

/// The last hour of every queue.
#[derive(Debug, Default)]
pub struct History {
    all: Mutex<AllSeries>,
}

#[derive(Debug, Default)]
struct AllSeries {
    series: HashMap<QueueName, Series>,
    /// When the queues were last listed. The totals of queues created later start at zero.
    listed_at: Option<Timestamp>,
}

impl History {
    /// Stores the totals of all queues, so that the first samples count only what happens from now on. Totals survive a
    /// restart.
    pub async fn begin(&self, engine: &Engine) -> Result<(), EngineError> {
        let now = engine.now();
        let facts = engine.list().await?;
        self.all.lock().update(now, &facts, |_, _, _| {});
        Ok(())
    }

    /// Samples every ten seconds until shutdown.
    pub async fn run(&self, engine: &Engine, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut ticks = tokio::time::interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = ticks.tick() => {}
            }
            // The time is read first, so that a queue created during the list counts as created after it.
            let now = engine.now();
            if let Ok(facts) = engine.list().await {
                self.sample(now, &facts);
            }
        }
    }

    /// Adds a sample to the series of every queue, and forgets deleted queues.
    pub fn sample(&self, now: Timestamp, facts: &[QueueFacts]) {
        self.all.lock().update(now, facts, Series::add);
    }

    /// The last two samples of a queue, the older one first, if it has samples.
    pub fn recent(&self, queue: &QueueName) -> Option<(Option<QueueSample>, QueueSample)> {
        let all = self.all.lock();
        let samples = &all.series.get(queue)?.samples;
        let before = samples.len().checked_sub(2).map(|at| samples[at]);
        Some((before, *samples.back()?))
    }

    /// Sums of the samples of these queues, oldest first. The age is that of the oldest message of all.
    pub fn sum(&self, wanted: impl Fn(&QueueName) -> bool) -> Vec<QueueSample> {
        let mut sums: BTreeMap<Timestamp, QueueSample> = BTreeMap::new();
        let all = self.all.lock();
        let series = all.series.iter().filter(|(name, _)| wanted(name));
        for sample in series.flat_map(|(_, series)| &series.samples) {
            // All queues are sampled at the same time.
            let sum = sums.entry(sample.at).or_default();
            sum.at = sample.at;
            sum.ready += sample.ready;
            sum.locked += sample.locked;
            sum.delayed += sample.delayed;
            sum.scheduled += sample.scheduled;
            sum.deferred += sample.deferred;
            sum.dead_lettered += sample.dead_lettered;
            sum.oldest_age_ms = sum.oldest_age_ms.max(sample.oldest_age_ms);
            sum.in_per_s += sample.in_per_s;
            sum.out_per_s += sample.out_per_s;
            sum.sent += sample.sent;
            sum.delivered += sample.delivered;
            sum.completed += sample.completed;
        }
        sums.into_values().collect()
    }

    /// The samples of a queue, oldest first.
    pub fn of(&self, queue: &QueueName) -> Vec<QueueSample> {
        let all = self.all.lock();
        let series = all.series.get(queue);
        series.map(|series| series.samples.iter().copied().collect()).unwrap_or_default()
    }
}

impl AllSeries {
    /// Creates and removes series so that they match the queues, and calls `each` for every queue.
    fn update(
        &mut self,
        now: Timestamp,
        facts: &[QueueFacts],
        each: impl Fn(&mut Series, Timestamp, &QueueFacts),
    ) {
        let names: HashSet<&QueueName> = facts.iter().map(|f| &f.name).collect();
        self.series.retain(|name, _| names.contains(name));
        for facts in facts {
            let is_new = |listed_at: Timestamp| facts.created_at >= listed_at;
            if let Some(series) = self.series.get_mut(&facts.name) {
                if series.base.created_at != facts.created_at {
                    series.base = Base::zero(facts);
                }
                each(series, now, facts);
            } else if self.series.len() < QUEUES_MAX {
                let base = match self.listed_at.is_some_and(is_new) {
                    true => Base::zero(facts),
                    // The part of the totals that is recent is unknown.
                    false => Base::now(now, facts),
                };
                let mut series = Series { samples: VecDeque::new(), base };
                each(&mut series, now, facts);
                self.series.insert(facts.name.clone(), series);
            }
        }
        self.listed_at = Some(now);
    }
}

impl Series {
    fn add(&mut self, now: Timestamp, facts: &QueueFacts) {
        let Base { at, totals: was, .. } = std::mem::replace(&mut self.base, Base::now(now, facts));
        let grown = |count: fn(&Totals) -> u64| count(&facts.totals).saturating_sub(count(&was));
        let (sent, completed) = (grown(|t| t.sent), grown(|t| t.completed));
        let seconds = now.0.saturating_sub(at.0) as f64 / 1000.0;
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        let age_ms = |at: Option<Timestamp>| at.map(|at| now.0.saturating_sub(at.0));
        self.samples.push_back(QueueSample {
            at: now,
            ready: facts.ready,
            locked: facts.locked,
            delayed: facts.delayed,
            scheduled: facts.scheduled,
            deferred: facts.deferred,
            dead_lettered: facts.dead_lettered,
            oldest_age_ms: age_ms(facts.oldest_at),
            in_per_s: rate(sent),
            out_per_s: rate(completed),
            sent,
            delivered: grown(|t| t.delivered),
            completed,
            noisy: facts.noisy,
            quiet_oldest_age_ms: age_ms(facts.quiet_oldest_at),
        });
    }
}

#[cfg(test)]
mod tests {
    use malote_model::{Message, QueueSpec};

    use super::*;
    use crate::Settings;

    async fn send(engine: &Engine, queue: &QueueName, many: usize) {
        let messages = (0..many).map(|_| (queue.clone(), Message::default()));
        engine.send(messages.collect()).await.unwrap();
    }

    /// The number of messages sent, in each sample.
    fn sent(history: &History, queue: &QueueName) -> Vec<u64> {
        history.of(queue).iter().map(|sample| sample.sent).collect()
    }

    async fn sample(history: &History, engine: &Engine) {
        let now = engine.now();
        history.sample(now, &engine.list().await.unwrap());
    }

    #[tokio::test]
    async fn samples_of_several_queues_are_added() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, _running) = Engine::open(Settings::at(dir.path())).unwrap();
        let history = History::default();
        history.begin(&engine).await.unwrap();
        let queues = ["a", "b", "c"].map(|name| QueueName::new(name).unwrap());
        for queue in &queues {
            engine.declare(queue.clone(), QueueSpec::default()).await.unwrap();
            send(&engine, queue, 2).await;
        }
        sample(&history, &engine).await;
        let sums = history.sum(|queue| queue.as_str() != "c");
        assert_eq!(sums.len(), 1);
        assert_eq!((sums[0].sent, sums[0].ready), (4, 4));
        assert!(sums[0].oldest_age_ms.is_some());
        assert_eq!(history.sum(|_| false), []);
    }

    #[tokio::test]
    async fn messages_sent_before_the_first_sample_are_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let queue = QueueName::new("orders").unwrap();
        {
            let (engine, _running) = Engine::open(Settings::at(dir.path())).unwrap();
            let history = History::default();
            history.begin(&engine).await.unwrap();
            engine.declare(queue.clone(), QueueSpec::default()).await.unwrap();
            send(&engine, &queue, 3).await;
            sample(&history, &engine).await;
            assert_eq!(sent(&history, &queue), [3], "a new queue counts from zero");
            assert!(history.of(&queue)[0].in_per_s > 0.0);
            sample(&history, &engine).await;
            send(&engine, &queue, 2).await;
            sample(&history, &engine).await;
            assert_eq!(sent(&history, &queue), [3, 0, 2]);
            // Another queue of the same name counts from zero, too.
            engine.delete(queue.clone()).await.unwrap();
            let created_at = engine.now();
            while engine.now() == created_at {
                tokio::task::yield_now().await;
            }
            engine.declare(queue.clone(), QueueSpec::default()).await.unwrap();
            send(&engine, &queue, 7).await;
            sample(&history, &engine).await;
            assert_eq!(sent(&history, &queue), [3, 0, 2, 7]);
        }
        let (engine, _running) = Engine::open(Settings::at(dir.path())).unwrap();
        let history = History::default();
        history.begin(&engine).await.unwrap();
        send(&engine, &queue, 4).await;
        sample(&history, &engine).await;
        assert_eq!(sent(&history, &queue), [4], "messages from before the restart do not count");
    }
}
