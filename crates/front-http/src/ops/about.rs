//! Small answers: the place of a key, what a scaler looks at, the disk, the version, what a problem means.

use axum::Json as Answer;
use axum::extract::{RawPathParams, State};
use serde_json::{Value, json};

use super::send::place;
use crate::Api;
use crate::extract::{Caller, Query, Queue};
use crate::problem::{Code, Problem};
use crate::wire::disk::DiskOut;
use crate::wire::peek::{PartitionOut, PartitionQuery, ScaleOut, VersionOut};

/// Where a key belongs on the queue's fixed list of sessions.
pub async fn partition(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<PartitionQuery>,
) -> Result<Answer<PartitionOut>, Problem> {
    api.allow_look(&caller, &queue)?;
    let spec = api.engine.describe(queue.clone()).await?.spec;
    let (session, index, of) = place(&queue, &spec, &query.key)?;
    Ok(Answer(PartitionOut { session: session.as_str().to_owned(), index, of }))
}

/// What a scaler looks at.
pub async fn scale(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<ScaleOut>, Problem> {
    api.allow_look(&caller, &queue)?;
    let facts = api.engine.describe(queue).await?;
    Ok(Answer(ScaleOut {
        backlog: facts.ready + facts.locked,
        in_flight: facts.locked,
        sessions: facts.sessions_ready + facts.sessions_held,
    }))
}

/// Who answers.
pub async fn version() -> Answer<VersionOut> {
    Answer(VersionOut { name: "malote", version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// What is on the broker's disk.
pub async fn disk(State(api): State<Api>) -> Answer<DiskOut> {
    Answer(DiskOut::from(api.engine.disk()))
}

/// What a problem's `type` points at.
pub async fn problem(params: RawPathParams) -> Result<Answer<Value>, Problem> {
    let word = params.iter().next().map(|(_, word)| word).unwrap_or_default();
    let code = Code::ALL.iter().find(|code| code.as_str() == word);
    let code = code.ok_or_else(|| Problem::new(Code::RouteNotFound, "there is no such problem"))?;
    Ok(Answer(json!({
        "code": code.as_str(), "status": code.status(), "title": code.title(), "fix": code.fix(),
    })))
}

/// The description of this API.
pub async fn openapi() -> Answer<Value> {
    Answer(crate::openapi::document())
}
