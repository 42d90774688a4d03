//! Reads sagas. Workers run each saga in a session of the queue `saga.<name>`.

use axum::Json as Answer;
use axum::extract::State;
use malote_model::{Action, QueueName};
use malote_wire_native::saga::{QUEUE_PREFIX, SagaDetails, SagaList, SagaState};
use malote_wire_native::session::SessionsQuery;

use crate::extract::{Caller, Query, SagaName, Session};
use crate::problem::{Code, Problem};
use crate::requests::sessions_page;
use crate::{Api, convert};

/// Sessions per read.
const STEP: usize = 32;
/// Bounds of a page: the total size of the states, and the number of reads, because sagas can be far apart.
const PAGE_BYTES: usize = 16 << 20;
const STEPS_MAX: usize = 64;

fn queue_of(saga: &str) -> Result<QueueName, Problem> {
    Ok(QueueName::new(&format!("{QUEUE_PREFIX}{saga}"))?)
}

/// Lists sagas. A page can be short or empty: `next` shows whether more follow. Sessions without a saga are left out.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    SagaName(saga): SagaName,
    Query(query): Query<SessionsQuery>,
) -> Result<Answer<SagaList>, Problem> {
    let queue = queue_of(&saga)?;
    api.allow(&caller, Action::Receive, &queue)?;
    let (from, max) = sessions_page(&query)?;
    let mut from = Some(from);
    let (mut sagas, mut bytes) = (Vec::new(), 0);
    for _ in 0..STEPS_MAX {
        let Some(at) = from.filter(|_| sagas.len() < max && bytes < PAGE_BYTES) else { break };
        let step = STEP.min(max - sagas.len());
        let (sessions, next) = api.engine.sessions(queue.clone(), at, step).await?;
        from = next;
        for facts in sessions {
            let id = facts.session.as_str();
            let state = match facts.state_bytes {
                0 => None,
                _ => api.engine.get_state(queue.clone(), facts.session.clone(), None).await?,
            };
            bytes += state.as_ref().map_or(0, |state| state.len());
            match state.as_deref().map(SagaState::read).transpose() {
                Ok(state) => sagas.push(convert::saga_summary(id, state.as_ref(), Some(&facts))),
                Err(error) => tracing::debug!(%queue, id, error, "the state is not a saga"),
            }
        }
    }
    Ok(Answer(SagaList { sagas, next: from.map(|next| next.to_string()) }))
}

/// One saga, with its steps and its data.
pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    SagaName(saga): SagaName,
    Session(id): Session,
) -> Result<Answer<SagaDetails>, Problem> {
    let queue = queue_of(&saga)?;
    api.allow(&caller, Action::Receive, &queue)?;
    let facts = api.engine.session(queue.clone(), id.clone()).await?;
    let state = api.engine.get_state(queue, id.clone(), None).await?;
    if facts.is_none() && state.is_none() {
        let why = format!(
            "saga `{saga}` with the id `{id}` does not exist, or was removed after its end"
        );
        return Err(Problem::new(Code::SagaNotFound, why));
    }
    let state = state.as_deref().map(SagaState::read).transpose().map_err(|error| {
        let why = format!("the state of session `{id}` is not a saga: {error}");
        Problem::new(Code::SagaNotFound, why)
    })?;
    Ok(Answer(convert::saga_details(id.as_str(), state, facts.as_ref())))
}
