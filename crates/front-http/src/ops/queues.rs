//! Operations on queues.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, QueueSpec};
use malote_wire_native::queue::{ListQuery, QueueInfo, QueueList, RemovedCount};
use malote_wire_native::settings::QueueSettings;

use crate::extract::{Caller, Json, Query, Queue};
use crate::problem::{Code, Problem};
use crate::{Api, convert};

/// Lists the queues that the caller may see.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Answer<QueueList>, Problem> {
    api.allow_lists(&caller)?;
    let max = query.max.unwrap_or(usize::MAX);
    if max == 0 {
        return Err(Problem::new(Code::BadQuery, "`max` must be at least 1"));
    }
    let mut facts = api.engine.list().await?;
    facts.retain(|facts| {
        let name = facts.name.as_str();
        query.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix))
            && query.after.as_deref().is_none_or(|after| name > after)
            && api.allow_view(&caller, &facts.name).is_ok()
    });
    let more = facts.len() > max;
    facts.truncate(max);
    let next = facts.last().filter(|_| more).map(|last| last.name.as_str().to_owned());
    Ok(Answer(QueueList { queues: facts.into_iter().map(convert::queue_info).collect(), next }))
}

/// Creates the queue. It is no error if the queue exists with the same settings.
pub async fn declare(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(spec): Json<QueueSettings>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let before = QueueSpec::default();
    let spec = spec.apply_to(before.clone())?;
    api.allow_targets(&caller, &before, &spec)?;
    let created = api.engine.declare(queue.clone(), spec).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    if created {
        tracing::info!(%queue, front = "http", "queue created");
    }
    let facts = api.engine.describe(queue).await?;
    Ok((status, Answer(convert::queue_info(facts))).into_response())
}

/// Changes the given settings.
pub async fn update(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(spec): Json<QueueSettings>,
) -> Result<Answer<QueueInfo>, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let before = api.engine.describe(queue.clone()).await?.spec;
    let spec = spec.apply_to(before.clone())?;
    api.allow_targets(&caller, &before, &spec)?;
    api.engine.update(queue.clone(), spec).await?;
    Ok(Answer(convert::queue_info(api.engine.describe(queue).await?)))
}

/// Describes the queue.
pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<QueueInfo>, Problem> {
    api.allow_view(&caller, &queue)?;
    Ok(Answer(convert::queue_info(api.engine.describe(queue).await?)))
}

/// Deletes the queue and its dead letters.
pub async fn delete(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.delete(queue.clone()).await?;
    tracing::info!(%queue, front = "http", "queue deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes all messages that are not leased.
pub async fn purge(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<RemovedCount>, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    Ok(Answer(RemovedCount { removed: api.engine.purge(queue).await? }))
}

/// Stops delivery. Sending and settling still work.
pub async fn pause(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.pause(queue, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn resume(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.pause(queue, false).await?;
    Ok(StatusCode::NO_CONTENT)
}
