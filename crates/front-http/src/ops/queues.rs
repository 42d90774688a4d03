//! Declaring, changing and looking at queues.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, QueueSpec};

use crate::Api;
use crate::extract::{Caller, Json, Queue};
use crate::problem::Problem;
use crate::wire::queue::{QueueOut, QueuesOut, Removed, SpecIn};

/// Every queue that the caller may see.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Answer<QueuesOut>, Problem> {
    let facts = api.engine.list().await?;
    let seen = facts.into_iter().filter(|f| api.allow_look(&caller, &f.name).is_ok());
    Ok(Answer(QueuesOut { queues: seen.map(QueueOut::from).collect() }))
}

/// Makes the queue, or finds it just as asked.
pub async fn declare(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(spec): Json<SpecIn>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let created = api.engine.declare(queue.clone(), spec.over(QueueSpec::default())?).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    if created {
        tracing::info!(%queue, front = "http", "queue created");
    }
    let facts = api.engine.describe(queue).await?;
    Ok((status, Answer(QueueOut::from(facts))).into_response())
}

/// Changes only what is given.
pub async fn update(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(spec): Json<SpecIn>,
) -> Result<Answer<QueueOut>, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let have = api.engine.describe(queue.clone()).await?.spec;
    api.engine.update(queue.clone(), spec.over(have)?).await?;
    Ok(Answer(api.engine.describe(queue).await?.into()))
}

/// What the queue is and holds.
pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<QueueOut>, Problem> {
    api.allow_look(&caller, &queue)?;
    Ok(Answer(api.engine.describe(queue).await?.into()))
}

/// Removes the queue, its dead letters and all they hold.
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

/// Drops every message that is not out to a receiver.
pub async fn purge(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<Removed>, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    Ok(Answer(Removed { removed: api.engine.purge(queue).await? }))
}

/// Stops delivery; sending and settling go on.
pub async fn pause(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.pause(queue, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resumes delivery.
pub async fn resume(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.pause(queue, false).await?;
    Ok(StatusCode::NO_CONTENT)
}
