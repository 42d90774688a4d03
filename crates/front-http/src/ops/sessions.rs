//! Operations on sessions: accept, renew, release, state, list.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_engine::StateChange;
use malote_model::{Action, LeaseToken, QueueName, Refusal, SessionId, limits};
use malote_wire_native::session::{
    AcceptRequest, HeldUntil, HoldRequest, SessionInfo, SessionList, SessionsQuery,
};

use crate::extract::{Caller, Json, Query, Queue, RawBody, Session};
use crate::problem::{Code, Problem};
use crate::requests::{check_accept, check_lock, check_state, sessions_page};
use crate::{Api, convert};

/// The header with the session token, for requests whose body is the state.
pub(crate) const TOKEN_HEADER: &str = "malote-session-token";

/// Lists sessions in no particular order. A page can be short or empty: `next` shows whether more follow.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<SessionsQuery>,
) -> Result<Answer<SessionList>, Problem> {
    api.allow_view(&caller, &queue)?;
    let (from, max) = sessions_page(&query)?;
    let (sessions, next) = api.engine.sessions(queue, from, max).await?;
    let sessions = sessions.into_iter().map(convert::session_info).collect();
    Ok(Answer(SessionList { sessions, next: next.map(|next| next.to_string()) }))
}

pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(session): Session,
) -> Result<Answer<SessionInfo>, Problem> {
    api.allow_view(&caller, &queue)?;
    let facts = api.engine.session(queue.clone(), session.clone()).await?;
    facts.map(|facts| Answer(convert::session_info(facts))).ok_or_else(|| {
        let why = format!(
            "session `{session}` of queue `{queue}` does not exist: it has no message, lock or state"
        );
        Problem::new(Code::MessageNotFound, why)
    })
}

/// Accepts a session by id, or the next ready one. Answers 204 if none is ready.
pub async fn accept(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<AcceptRequest>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    check_accept(&asked, limits::RECEIVE_WAIT_MS_MAX)?;
    let session = asked.session.as_deref().map(SessionId::new).transpose()?;
    let waiting = api.engine.accept(queue.clone(), session, asked.wait_ms, asked.lock_ms);
    let waiting = api.while_allowed(&caller, Action::Receive, &queue, waiting);
    let held = tokio::select! {
        biased;
        held = waiting => held??,
        () = api.shutdown.cancelled() => None,
    };
    Ok(match held {
        Some(held) => Answer(convert::held_session(held)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Releases a session.
pub async fn release(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(_): Session,
    Json(asked): Json<HoldRequest>,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    if asked.lock_ms.is_some() {
        return Err(Problem::new(
            Code::BadField,
            "`lock_ms` is not allowed when a session is released",
        ));
    }
    api.engine.release_session(Some(&queue), asked.token.parse()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renews the lock of a session.
pub async fn renew(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(_): Session,
    Json(asked): Json<HoldRequest>,
) -> Result<Answer<HeldUntil>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    check_lock(asked.lock_ms)?;
    let hold: LeaseToken = asked.token.parse()?;
    let mut renewed = api.engine.renew(Some(&queue), vec![hold], asked.lock_ms).await?;
    let until = renewed.pop().unwrap_or(Err(Refusal::LeaseLost { lease: hold }))?;
    Ok(Answer(HeldUntil { until: until.0 }))
}

fn token_of(headers: &HeaderMap) -> Result<Option<LeaseToken>, Problem> {
    let Some(value) = headers.get(TOKEN_HEADER) else { return Ok(None) };
    Ok(Some(value.to_str().unwrap_or("(not ASCII)").parse()?))
}

fn token_needed(headers: &HeaderMap) -> Result<LeaseToken, Problem> {
    let missing = || {
        let why = format!(
            "header {TOKEN_HEADER} is missing: only the holder of a session can change its state"
        );
        Problem::new(Code::BadHeader, why)
    };
    token_of(headers)?.ok_or_else(missing)
}

/// The state of a session, for its holder or for an operator without a token. Answers 204 if there is none.
pub async fn get_state(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(session): Session,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let hold = token_of(&headers)?;
    let action = if hold.is_some() { Action::Receive } else { Action::Manage };
    api.allow(&caller, action, &queue)?;
    Ok(match api.engine.get_state(queue, session, hold).await? {
        Some(state) => {
            ([(header::CONTENT_TYPE, "application/octet-stream")], state).into_response()
        }
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Sets the state of a held session.
pub async fn put_state(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(session): Session,
    headers: HeaderMap,
    RawBody(state): RawBody,
) -> Result<StatusCode, Problem> {
    check_state(state.len())?;
    change_state(&api, &caller, queue, session, &headers, Some(state)).await
}

/// Clears the state of a held session.
pub async fn delete_state(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(session): Session,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    change_state(&api, &caller, queue, session, &headers, None).await
}

async fn change_state(
    api: &Api,
    caller: &malote_model::Principal,
    queue: QueueName,
    session: SessionId,
    headers: &HeaderMap,
    state: Option<bytes::Bytes>,
) -> Result<StatusCode, Problem> {
    api.allow(caller, Action::Receive, &queue)?;
    let hold = token_needed(headers)?;
    // The token must belong to the session in the path.
    api.engine.get_state(queue.clone(), session, Some(hold)).await?;
    api.engine.set_state(Some(&queue), StateChange { hold, state }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Breaks the lock of a session.
pub async fn break_hold(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Session(session): Session,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.break_session(queue.clone(), session.clone()).await?;
    tracing::info!(%queue, %session, by = %caller, front = "http", "session lock broken");
    Ok(StatusCode::NO_CONTENT)
}
