//! `batch-delete-messages`: deletes unlocked messages, oldest first.

use malote_model::Timestamp;
use malote_wire_amqp::types::Map;

use super::{ManagementContext, OperationResult, argument_error};
use crate::limits;
use crate::refusal::{LockKind, engine_error};
use crate::wire::session::session_of;

/// Deletes up to `message-count` messages enqueued before a time, by default now.
pub(super) async fn batch(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?.clone();
    let count = context.number("message-count").and_then(|count| u64::try_from(count).ok());
    let count =
        count.filter(|count| (1..=limits::DELETE_MAX).contains(count)).ok_or_else(|| {
            argument_error(format!("`message-count` must be from 1 to {}", limits::DELETE_MAX))
        })?;
    let before = context.number("enqueued-time-utc");
    let before = before.map(|ms| Timestamp(u64::try_from(ms).unwrap_or(0)));
    let before = before.unwrap_or_else(|| context.front.engine.now());
    let session = context.text("session-id").map(session_of).transpose();
    let session = session.map_err(|refusal| argument_error(refusal.to_string()))?;
    let deleted = context.front.engine.purge_older(queue, session, before, count).await;
    let deleted = deleted.map_err(|error| engine_error(error, LockKind::Message))?;
    let deleted = i32::try_from(deleted).unwrap_or(i32::MAX);
    Ok((deleted > 0).then(|| Map::default().with_string("message-count", deleted)))
}
