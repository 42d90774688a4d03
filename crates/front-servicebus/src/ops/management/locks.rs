//! Message locks: `renew-lock`, and `update-disposition`, which is the only way to settle deferred messages.

use malote_model::Settlement;
use malote_wire_amqp::types::{Array, Kind, Map, Value};

use super::{ManagementContext, OperationResult, argument_error};
use crate::ops::settle::changes;
use crate::refusal::{LockKind, engine_error, refusal_error};
use crate::wire::timestamp;

pub(super) async fn renew(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?;
    let tokens = context.lock_tokens()?;
    let renewed = context.front.engine.renew(Some(queue), tokens, None).await;
    let renewed = renewed.map_err(|error| engine_error(error, LockKind::Message))?;
    let mut expirations = Vec::with_capacity(renewed.len());
    for one in renewed {
        let until = one.map_err(|refusal| refusal_error(&refusal, LockKind::Message))?;
        expirations.push(Value::Timestamp(timestamp(until)));
    }
    let expirations = Array::new(Kind::Timestamp, expirations).map_or(Value::Null, Value::Array);
    Ok(Some(Map::default().with_string("expirations", expirations)))
}

pub(super) async fn update_disposition(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?;
    let tokens = context.lock_tokens()?;
    let modified = || changes(context.body.get("properties-to-modify").and_then(Value::as_map));
    let text = |name: &str| context.text(name).unwrap_or_default().to_owned();
    let settlement = match context.text("disposition-status") {
        Some("completed") => Settlement::Complete,
        Some("abandoned") => Settlement::Abandon { delay_ms: 0, changes: modified() },
        Some("suspended") => Settlement::DeadLetter {
            reason: text("deadletter-reason"),
            text: text("deadletter-description"),
            changes: modified(),
        },
        // This is how the protocol spells it.
        Some("defered") => Settlement::Defer { changes: modified() },
        _ => {
            return Err(argument_error(
                "`disposition-status` must be completed, abandoned, suspended or defered"
                    .to_owned(),
            ));
        }
    };
    let session = context.session_lock.is_some() || context.text("session-id").is_some();
    let lock = if session { LockKind::Session } else { LockKind::Message };
    let settled = context.front.engine.settle(Some(queue), tokens, settlement, None).await;
    let settled = settled.map_err(|error| engine_error(error, lock))?;
    match settled.into_iter().find_map(Result::err) {
        Some(refusal) => Err(refusal_error(&refusal, lock)),
        None => Ok(Some(Map::default())),
    }
}
