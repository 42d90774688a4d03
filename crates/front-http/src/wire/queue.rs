//! Queues: what they are and hold.

use malote_engine::{QueueFacts, Totals};
use malote_model::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use super::spec::SpecOut;

/// What a queue is and holds.
#[derive(Debug, Serialize)]
pub struct QueueOut {
    name: String,
    created_at: u64,
    paused: bool,
    spec: SpecOut,
    counts: CountsOut,
    totals: TotalsOut,
}

/// What it holds now.
#[derive(Debug, Serialize)]
struct CountsOut {
    ready: u64,
    locked: u64,
    delayed: u64,
    scheduled: u64,
    deferred: u64,
    dead_lettered: u64,
    bytes: u64,
    oldest_at: Option<u64>,
    consumers: u64,
    sessions: u64,
    sessions_held: u64,
    sessions_ready: u64,
}

/// What has happened since it was declared.
#[derive(Debug)]
struct TotalsOut(Totals);

impl Serialize for TotalsOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Totals::NAMES.iter().zip(self.0.values()))
    }
}

impl From<QueueFacts> for QueueOut {
    fn from(facts: QueueFacts) -> Self {
        Self {
            name: facts.name.as_str().to_owned(),
            created_at: facts.created_at.0,
            paused: facts.paused,
            spec: facts.spec.into(),
            counts: CountsOut {
                ready: facts.ready,
                locked: facts.locked,
                delayed: facts.delayed,
                scheduled: facts.scheduled,
                deferred: facts.deferred,
                dead_lettered: facts.dead_lettered,
                bytes: facts.bytes,
                oldest_at: facts.oldest_at.map(|at| at.0),
                consumers: facts.consumers,
                sessions: facts.sessions,
                sessions_held: facts.sessions_held,
                sessions_ready: facts.sessions_ready,
            },
            totals: TotalsOut(facts.totals),
        }
    }
}

/// What waits in a queue, for whoever scales workers.
#[derive(Debug, Serialize)]
pub struct DepthOut {
    ready: u64,
    delayed: u64,
    in_flight: u64,
    oldest_ms: u64,
    sent: u64,
    paused: bool,
    sessions: Option<SessionDepthOut>,
}

#[derive(Debug, Serialize)]
struct SessionDepthOut {
    runnable: u64,
    held: u64,
    other: u64,
}

impl DepthOut {
    /// As it is now.
    pub fn of(facts: &QueueFacts, now: Timestamp) -> Self {
        Self {
            ready: facts.ready,
            delayed: facts.delayed + facts.scheduled,
            in_flight: facts.locked,
            oldest_ms: facts.oldest_at.map_or(0, |at| now.0.saturating_sub(at.0)),
            sent: facts.totals.sent,
            paused: facts.paused,
            sessions: facts.spec.sessions.required().then(|| SessionDepthOut {
                runnable: facts.sessions_ready,
                held: facts.sessions_held,
                other: facts.sessions.saturating_sub(facts.sessions_ready + facts.sessions_held),
            }),
        }
    }
}

/// Which queues to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuesQuery {
    /// Only names that begin so.
    pub prefix: Option<String>,
    /// From after this name.
    pub after: Option<String>,
    /// At most so many; all if absent.
    pub max: Option<usize>,
}

/// Every queue that the caller may see; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct QueuesOut {
    /// By name.
    pub queues: Vec<QueueOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// How many messages an operation took away.
#[derive(Debug, Serialize)]
pub struct Removed {
    /// So many.
    pub removed: u64,
}
