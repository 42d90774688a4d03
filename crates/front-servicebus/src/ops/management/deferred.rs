//! `receive-by-sequence-number`: deferred messages.

use malote_wire_amqp::types::{Map, Value};

use super::{Answered, Context};
use crate::refusal::{Lock, error_of};
use crate::wire::message::{DEFERRED, Telling, write};

/// `receiver-settle-mode` of those who want messages gone when they are sent.
const TAKE: i64 = 0;

pub(super) async fn receive(context: &Context<'_>) -> Answered {
    let queue = context.queue()?.clone();
    let seqs = context.sequence_numbers()?;
    let take = context.number("receiver-settle-mode") == Some(TAKE);
    let hold = match context.text("session-id") {
        Some(_) => Some(context.held()?.1),
        None => context.held.as_ref().map(|(_, hold)| *hold),
    };
    let (engine, lock) = match hold {
        Some(_) => {
            (context.engine.receive_deferred(queue.clone(), seqs, hold, take).await, Lock::Session)
        }
        // Its lease stands free of the connection, as all do outside of sessions.
        None => {
            let received =
                context.front.engine.receive_deferred(queue.clone(), seqs, None, None, take);
            (received.await, Lock::Message)
        }
    };
    let deliveries = engine.map_err(|error| error_of(error, lock))?;
    let ttl_ms = context.ttl_ms(&queue).await?;
    let messages: Vec<Value> = deliveries
        .iter()
        .map(|delivery| {
            let telling = Telling {
                until: delivery.lease.map(|_| delivery.until),
                state: Some(DEFERRED),
                lock: delivery.lease,
                ttl_ms_max: ttl_ms,
                ..Telling::of(&queue, &delivery.stored, delivery.seq, delivery.failed)
            };
            let mut entry = Map::default();
            if let Some(lease) = delivery.lease {
                entry = entry.with_string("lock-token", Value::Uuid(lease.to_bytes()));
            }
            Value::Map(entry.with_string("message", write(&delivery.stored, &telling)))
        })
        .collect();
    Ok(Some(Map::default().with_string("messages", messages)))
}
