//! `receive-by-sequence-number`: deferred messages.

use malote_wire_amqp::types::{Map, Value};

use super::{ManagementContext, OperationResult};
use crate::refusal::{LockKind, engine_error};
use crate::wire::message::{DEFERRED, DeliveryInfo, write};

/// `receiver-settle-mode` for receive-and-delete.
const TAKE: i64 = 0;

pub(super) async fn receive(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?.clone();
    let seqs = context.sequence_numbers()?;
    let take = context.number("receiver-settle-mode") == Some(TAKE);
    let hold = match context.text("session-id") {
        Some(_) => Some(context.require_session_lock()?.1),
        None => context.session_lock.as_ref().map(|(_, hold)| *hold),
    };
    let (engine, lock) = match hold {
        Some(_) => (
            context.engine.receive_deferred(queue.clone(), seqs, hold, take).await,
            LockKind::Session,
        ),
        // Outside of sessions, leases do not belong to the connection.
        None => {
            let received =
                context.front.engine.receive_deferred(queue.clone(), seqs, None, None, take);
            (received.await, LockKind::Message)
        }
    };
    let deliveries = engine.map_err(|error| engine_error(error, lock))?;
    let ttl_ms = context.ttl_ms(&queue).await?;
    let messages: Vec<Value> = deliveries
        .iter()
        .map(|delivery| {
            let info = DeliveryInfo {
                until: delivery.lease.map(|_| delivery.until),
                state: Some(DEFERRED),
                lock: delivery.lease,
                ttl_ms_max: ttl_ms,
                ..DeliveryInfo::of(&queue, &delivery.stored, delivery.seq, delivery.failed)
            };
            let mut entry = Map::default();
            if let Some(lease) = delivery.lease {
                entry = entry.with_string("lock-token", Value::Uuid(lease.to_bytes()));
            }
            Value::Map(entry.with_string("message", write(&delivery.stored, &info)))
        })
        .collect();
    Ok(Some(Map::default().with_string("messages", messages)))
}
