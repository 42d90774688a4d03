//! Session locks, session state, and the list of sessions.

use bytes::Bytes;
use malote_engine::{SessionFacts, StateChange};
use malote_model::Timestamp;
use malote_wire_amqp::performative::AmqpError;
use malote_wire_amqp::types::{Array, Map, Str, Value};

use super::{ManagementContext, OperationResult, argument_error};
use crate::limits;
use crate::refusal::{LockKind, engine_error, refusal_error, servicebus};
use crate::wire::session::session_text;
use crate::wire::timestamp;

/// 9999-12-31T23:59:59Z, the latest time that clients accept.
const LAST_MOMENT_MS: i64 = 253_402_300_799_000;

pub(super) async fn renew(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?;
    let (_, hold) = context.require_session_lock()?;
    let renewed = context.front.engine.renew(Some(queue), vec![hold], None).await;
    let mut renewed = renewed.map_err(|error| engine_error(error, LockKind::Session))?;
    let lost = malote_model::Refusal::LeaseLost { lease: hold };
    let until = renewed.pop().unwrap_or(Err(lost));
    let until = until.map_err(|refusal| refusal_error(&refusal, LockKind::Session))?;
    Ok(Some(Map::default().with_string("expiration", Value::Timestamp(timestamp(until)))))
}

pub(super) async fn get_state(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?.clone();
    let (session, hold) = context.require_session_lock()?;
    let state = context.front.engine.get_state(queue, session, Some(hold)).await;
    let state = state.map_err(|error| engine_error(error, LockKind::Session))?;
    let state = state.map_or(Value::Null, Value::Binary);
    Ok(Some(Map::default().with_string("session-state", state)))
}

pub(super) async fn set_state(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?;
    let (_, hold) = context.require_session_lock()?;
    let state = match context.body.get("session-state") {
        None | Some(Value::Null) => None,
        // Some clients clear the state with an empty value.
        Some(Value::Binary(state)) => Some(state.clone()).filter(|state| !state.is_empty()),
        // A string is stored as its bytes.
        Some(Value::String(state)) => Some(Bytes::copy_from_slice(state.as_bytes())),
        Some(_) => return Err(argument_error("`session-state` must be binary or null".to_owned())),
    };
    let set = context.front.engine.set_state(Some(queue), StateChange { hold, state }).await;
    set.map_err(|error| engine_error(error, LockKind::Session))?;
    Ok(Some(Map::default()))
}

/// Lists sessions with messages or state; with `last-updated-time`, those whose state was set since.
pub(super) async fn list(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?.clone();
    let page = |name: &str| context.number(name).and_then(|n| usize::try_from(n).ok());
    let skip = page("skip").unwrap_or(0);
    let top = page("top").unwrap_or(limits::PAGE_MAX).min(limits::PAGE_MAX);
    // Clients send the maximum to ask for all sessions.
    let since = context.number("last-updated-time").filter(|ms| *ms < LAST_MOMENT_MS);
    let since = since.map(|ms| Timestamp(u64::try_from(ms).unwrap_or(0)));
    let listed = |facts: &SessionFacts| match since {
        None => facts.messages > 0 || facts.state_bytes > 0,
        Some(since) => facts.state_bytes > 0 && facts.state_at > since,
    };
    let (mut ids, mut passed, mut from) = (Vec::new(), 0, Some(0));
    while let Some(at) = from
        && ids.len() < top
    {
        let looked = context.front.engine.sessions(queue.clone(), at, limits::PAGE_MAX).await;
        let (sessions, next) = looked.map_err(|error| engine_error(error, LockKind::Session))?;
        from = next;
        for facts in sessions.iter().filter(|facts| listed(facts)) {
            if passed >= skip && ids.len() < top {
                ids.push(Str::from(session_text(&facts.session)));
            }
            passed += 1;
        }
    }
    if ids.is_empty() {
        return Err(AmqpError::new(servicebus::SESSION_NOT_FOUND, "no more sessions"));
    }
    let next = i32::try_from(skip + ids.len()).unwrap_or(i32::MAX);
    let ids: Array = ids.into_iter().collect();
    Ok(Some(Map::default().with_string("skip", next).with_string("sessions-ids", ids)))
}
