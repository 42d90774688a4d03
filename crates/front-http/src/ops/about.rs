//! Information about the server: partition of a key, scaling signals, disk, version, problems, OpenAPI.

use axum::Json as Answer;
use axum::extract::{RawPathParams, State};
use malote_wire_native::about::{DiskUsage, ServerVersion};
use malote_wire_native::problem::ProblemKind;
use malote_wire_native::queue::{KeyPartition, PartitionQuery, QueueScale};
use serde_json::Value;

use super::send::place;
use crate::extract::{Caller, Query, Queue};
use crate::problem::{Code, Problem};
use crate::{Api, convert};

/// The session of a key in a queue with a fixed list of sessions.
pub async fn partition(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<PartitionQuery>,
) -> Result<Answer<KeyPartition>, Problem> {
    api.allow_view(&caller, &queue)?;
    let spec = api.engine.describe(queue.clone()).await?.spec;
    let (session, index, of) = place(&queue, &spec, &query.key)?;
    Ok(Answer(KeyPartition { session: session.as_str().to_owned(), index, of }))
}

/// Signals for scaling workers.
pub async fn scale(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<QueueScale>, Problem> {
    api.allow_view(&caller, &queue)?;
    let facts = api.engine.describe(queue).await?;
    Ok(Answer(QueueScale {
        backlog: facts.ready + facts.locked,
        in_flight: facts.locked,
        sessions: facts.sessions_ready + facts.sessions_held,
    }))
}

/// The version of the server.
pub async fn version() -> Answer<ServerVersion> {
    Answer(ServerVersion {
        name: "malote".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        api: "v1".into(),
    })
}

/// The disk use of the broker.
pub async fn disk(State(api): State<Api>) -> Answer<DiskUsage> {
    Answer(convert::disk_usage(api.engine.disk()))
}

/// The description of a problem, at the URL of its `type`.
pub async fn problem(params: RawPathParams) -> Result<Answer<ProblemKind>, Problem> {
    let word = params.iter().next().map(|(_, word)| word).unwrap_or_default();
    let code = Code::ALL.iter().find(|code| code.as_str() == word);
    let code =
        code.ok_or_else(|| Problem::new(Code::RouteNotFound, "the problem does not exist"))?;
    Ok(Answer(ProblemKind {
        code: code.as_str().into(),
        status: code.status(),
        title: code.title().into(),
        fix: code.fix().into(),
    }))
}

/// The OpenAPI document.
pub async fn openapi() -> Answer<Value> {
    Answer(crate::openapi::document())
}
