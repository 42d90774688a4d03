//! One hour of every queue in memory, a point every ten seconds. Lost at a restart; Prometheus is for longer.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{Engine, Noisy, QueueFacts};
use malote_model::{QueueName, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    /// Messages sent until then: other front ends tell of totals, and in their own way.
    #[serde(skip)]
    pub sent: u64,
    /// Grants until then.
    #[serde(skip)]
    pub delivered: u64,
    /// Messages completed until then.
    #[serde(skip)]
    pub completed: u64,
    /// Tenants that others passed, and what they had.
    #[serde(skip)]
    pub noisy: Noisy,
    /// Of the oldest ready message of the others.
    #[serde(skip)]
    pub quiet_oldest_age_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Series {
    points: VecDeque<Point>,
    /// When, and the totals then: for the rates.
    last: Option<(Timestamp, u64, u64)>,
}

/// The last hour of every queue.
#[derive(Debug, Default)]
pub struct History {
    series: Mutex<HashMap<QueueName, Series>>,
}

impl History {
    /// Takes a sample every ten seconds until shutdown.
    pub async fn run(&self, engine: &Engine, shutdown: &CancellationToken) {
        let mut ticks = tokio::time::interval(STEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if let Ok(facts) = engine.list().await {
                self.sample(engine.now(), &facts);
            }
        }
    }

    /// Adds one point to every queue's series, and forgets the queues that are gone.
    pub fn sample(&self, now: Timestamp, facts: &[QueueFacts]) {
        let mut all = self.series.lock();
        let names: std::collections::HashSet<&QueueName> = facts.iter().map(|f| &f.name).collect();
        all.retain(|name, _| names.contains(name));
        for facts in facts {
            if all.len() >= QUEUES_MAX && !all.contains_key(&facts.name) {
                continue;
            }
            all.entry(facts.name.clone()).or_default().add(now, facts);
        }
    }

    /// What is remembered of a queue, oldest first.
    pub fn of(&self, queue: &QueueName) -> Vec<Point> {
        let all = self.series.lock();
        all.get(queue).map(|series| series.points.iter().copied().collect()).unwrap_or_default()
    }
}

impl Series {
    fn add(&mut self, now: Timestamp, facts: &QueueFacts) {
        let (sent, completed) = (facts.totals.sent, facts.totals.completed);
        let rate = |was: u64, is: u64, from: Timestamp| {
            let seconds = now.0.saturating_sub(from.0) as f64 / 1000.0;
            if seconds > 0.0 { is.saturating_sub(was) as f64 / seconds } else { 0.0 }
        };
        let rates = self.last.map(|(at, was_sent, was_completed)| {
            (rate(was_sent, sent, at), rate(was_completed, completed, at))
        });
        let (in_per_s, out_per_s) = rates.unwrap_or_default();
        self.last = Some((now, sent, completed));
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
            in_per_s,
            out_per_s,
            sent,
            delivered: facts.totals.delivered,
            completed,
            noisy: facts.noisy,
            quiet_oldest_age_ms: age_ms(facts.quiet_oldest_at),
        });
    }
}

/// The answer: oldest point first.
#[derive(Debug, Serialize)]
pub struct HistoryOut {
    step_ms: u64,
    points: Vec<Point>,
}

/// One hour of a queue.
pub async fn history(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<HistoryOut>, Problem> {
    api.allow_look(&caller, &queue)?;
    let points = api.history.of(&queue);
    if points.is_empty() {
        // Too young for a point, or not there at all: the engine knows.
        api.engine.describe(queue).await?;
    }
    Ok(Answer(HistoryOut { step_ms: STEP.as_millis() as u64, points }))
}
