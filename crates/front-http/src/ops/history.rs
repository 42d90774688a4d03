//! One hour of a queue, or of all queues together: one point every ten seconds.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{QueueSample, SAMPLE_EVERY};
use malote_wire_native::about::{HistoryPoint, QueueHistory};

use crate::Api;
use crate::extract::{Caller, Queue};
use crate::problem::{Code, Problem};

pub async fn history(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<QueueHistory>, Problem> {
    api.allow_view(&caller, &queue)?;
    let samples = api.history.of(&queue);
    if samples.is_empty() {
        // A new queue has no sample yet; a missing queue is an error.
        api.engine.describe(queue).await?;
    }
    Ok(Answer(QueueHistory {
        step_ms: SAMPLE_EVERY.as_millis() as u64,
        points: samples.into_iter().map(point).collect(),
    }))
}

/// Sums over the queues that the caller may see.
pub async fn of_all(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Answer<QueueHistory>, Problem> {
    api.allow_lists(&caller)?;
    // Thousands of queues with hundreds of samples each: not on a thread that serves requests.
    let sum = move || api.history.sum(|queue| api.allow_view(&caller, queue).is_ok());
    let failed = |_| Problem::new(Code::Internal, "the history cannot be added up");
    let samples = tokio::task::spawn_blocking(sum).await.map_err(failed)?;
    Ok(Answer(QueueHistory {
        step_ms: SAMPLE_EVERY.as_millis() as u64,
        points: samples.into_iter().map(point).collect(),
    }))
}

fn point(sample: QueueSample) -> HistoryPoint {
    HistoryPoint {
        at: sample.at.0,
        ready: sample.ready,
        locked: sample.locked,
        delayed: sample.delayed,
        scheduled: sample.scheduled,
        deferred: sample.deferred,
        dead_lettered: sample.dead_lettered,
        oldest_age_ms: sample.oldest_age_ms,
        in_per_s: sample.in_per_s,
        out_per_s: sample.out_per_s,
    }
}
