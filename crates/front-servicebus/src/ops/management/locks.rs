//! Locks of messages: renewed, or ended by `update-disposition`, which is the only way for deferred messages.

use malote_model::{Refusal, Settlement};
use malote_wire_amqp::performative::AmqpError;
use malote_wire_amqp::types::{Array, Kind, Map, Value};

use super::{Answered, Context, bad};
use crate::ops::settle::changes;
use crate::refusal::{Lock, error_of, of_refusal};
use crate::wire::timestamp;

pub(super) async fn renew(context: &Context<'_>) -> Answered {
    let queue = context.queue()?;
    let tokens = context.lock_tokens()?;
    let renewed = context.front.engine.renew(Some(queue), tokens, None).await;
    let renewed = renewed.map_err(|error| error_of(error, Lock::Message))?;
    let mut expirations = Vec::with_capacity(renewed.len());
    for one in renewed {
        let until = one.map_err(|refusal| of_refusal(&refusal, Lock::Message))?;
        expirations.push(Value::Timestamp(timestamp(until)));
    }
    let expirations = Array::new(Kind::Timestamp, expirations).map_or(Value::Null, Value::Array);
    Ok(Some(Map::default().with_string("expirations", expirations)))
}

pub(super) async fn update_disposition(context: &Context<'_>) -> Answered {
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
        // The protocol's own spelling.
        Some("defered") => Settlement::Defer { changes: modified() },
        _ => {
            return Err(bad(
                "`disposition-status` is not one of the four that are known".to_owned()
            ));
        }
    };
    let session = context.held.is_some() || context.text("session-id").is_some();
    let lock = if session { Lock::Session } else { Lock::Message };
    let settled = context.front.engine.settle(Some(queue), tokens, settlement, None).await;
    let settled = settled.map_err(|error| error_of(error, lock))?;
    let failed = settled.into_iter().find_map(Result::err);
    let told = |refusal: Refusal| -> AmqpError { of_refusal(&refusal, lock) };
    failed.map_or_else(|| Ok(Some(Map::default())), |refusal| Err(told(refusal)))
}
