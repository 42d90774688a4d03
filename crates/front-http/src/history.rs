//! One hour of every queue in memory, a point every ten seconds. Lost at a restart; Prometheus is for longer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{Engine, EngineError, NoisyTenants, QueueFacts, Totals};
use malote_model::{QueueName, Timestamp};
use malote_wire_native::about::{HistoryPoint, QueueHistory};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Api;
use crate::extract::{Caller, Queue};
use crate::problem::Problem;

/// How far apart the points are.
pub const STEP: Duration = Duration::from_secs(10);
/// One hour of them.
const POINTS_MAX: usize = 360;
/// Queues with a history: 2,000 of them, all busy, are about 120 MB.
const QUEUES_MAX: usize = 2000;

/// A queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Milliseconds since 1970.
    pub at: u64,
    /// Waiting for a receiver.
    pub ready: u64,
    /// Out to receivers.
    pub locked: u64,
    /// In place, not yet due.
    pub delayed: u64,
    /// To be sent later.
    pub scheduled: u64,
    deferred: u64,
    dead_lettered: u64,
    /// Of the oldest ready message.
    pub oldest_age_ms: Option<u64>,
    /// Messages sent per second since the point before.
    in_per_s: f64,
    /// Messages completed per second since the point before.
    out_per_s: f64,
    /// Messages sent since the point before, or since the queue was created.
    pub sent: u64,
    /// Grants since the point before.
    pub delivered: u64,
    /// Messages completed since the point before.
    pub completed: u64,
    /// Tenants that others passed, and what they had.
    pub noisy: NoisyTenants,
    /// Of the oldest ready message of the others.
    pub quiet_oldest_age_ms: Option<u64>,
}

impl Point {
    fn answer(self) -> HistoryPoint {
        HistoryPoint {
            at: self.at,
            ready: self.ready,
            locked: self.locked,
            delayed: self.delayed,
            scheduled: self.scheduled,
            deferred: self.deferred,
            dead_lettered: self.dead_lettered,
            oldest_age_ms: self.oldest_age_ms,
            in_per_s: self.in_per_s,
            out_per_s: self.out_per_s,
        }
    }
}

/// What the next point counts from.
#[derive(Clone, Copy, Debug)]
struct Base {
    at: Timestamp,
    totals: Totals,
    /// Of the queue that the totals are of: another one may have got its name.
    created_at: Timestamp,
}

impl Base {
    /// A queue that was just created has counted nothing.
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
    points: VecDeque<Point>,
    base: Base,
}

/// The last hour of every queue.
#[derive(Debug, Default)]
pub struct History {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    series: HashMap<QueueName, Series>,
    /// When the queues were last listed: those created later have counted from zero since.
    listed_at: Option<Timestamp>,
}

impl History {
    /// Keeps the totals of all queues, so that the first points count what happens from now on. Totals survive a
    /// restart, so without this the first points of existing queues could not tell new messages from old ones.
    pub async fn begin(&self, engine: &Engine) -> Result<(), EngineError> {
        let now = engine.now();
        let facts = engine.list().await?;
        self.all.lock().update(now, &facts, |_, _, _| {});
        Ok(())
    }

    /// Takes a sample every ten seconds until shutdown.
    pub async fn run(&self, engine: &Engine, shutdown: &CancellationToken) {
        let mut ticks = tokio::time::interval(STEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // The time first: a queue that is created while the list is made counts as created after it.
            let now = engine.now();
            if let Ok(facts) = engine.list().await {
                self.sample(now, &facts);
            }
        }
    }

    /// Adds one point to every queue's series, and forgets the queues that are gone.
    pub fn sample(&self, now: Timestamp, facts: &[QueueFacts]) {
        self.all.lock().update(now, facts, Series::add);
    }

    /// What is remembered of a queue, oldest first.
    pub fn of(&self, queue: &QueueName) -> Vec<Point> {
        let all = self.all.lock();
        let series = all.series.get(queue);
        series.map(|series| series.points.iter().copied().collect()).unwrap_or_default()
    }
}

impl All {
    /// Brings the series up to the queues that exist, and does something with each.
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
                    // How much of its totals is recent is not known.
                    false => Base::now(now, facts),
                };
                let mut series = Series { points: VecDeque::new(), base };
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
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        let age_ms = |at: Option<Timestamp>| at.map(|at| now.0.saturating_sub(at.0));
        self.points.push_back(Point {
            at: now.0,
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

/// One hour of a queue.
pub async fn history(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<QueueHistory>, Problem> {
    api.allow_look(&caller, &queue)?;
    let points = api.history.of(&queue);
    if points.is_empty() {
        // Too young for a point, or not there at all: the engine knows.
        api.engine.describe(queue).await?;
    }
    Ok(Answer(QueueHistory {
        step_ms: STEP.as_millis() as u64,
        points: points.into_iter().map(Point::answer).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use malote_engine::Settings;
    use malote_model::{Message, QueueSpec};

    use super::*;

    async fn send(engine: &Engine, queue: &QueueName, many: usize) {
        let messages = (0..many).map(|_| (queue.clone(), Message::default()));
        engine.send(messages.collect()).await.unwrap();
    }

    /// What each point says was sent.
    fn sent(history: &History, queue: &QueueName) -> Vec<u64> {
        history.of(queue).iter().map(|point| point.sent).collect()
    }

    async fn sample(history: &History, engine: &Engine) {
        let now = engine.now();
        history.sample(now, &engine.list().await.unwrap());
    }

    #[tokio::test]
    async fn what_was_sent_before_the_first_point_is_counted_once() {
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
        assert_eq!(sent(&history, &queue), [4], "not the seven from before the restart");
    }
}
