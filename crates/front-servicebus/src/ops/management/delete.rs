//! `batch-delete-messages`: messages that nobody has go, the oldest first.

use malote_model::Timestamp;
use malote_wire_amqp::types::Map;

use super::{Answered, Context, bad};
use crate::limits;
use crate::refusal::{Lock, error_of};
use crate::wire::session::session_of;

/// Those that were enqueued before a time, or before now; at most so many.
pub(super) async fn batch(context: &Context<'_>) -> Answered {
    let queue = context.queue()?.clone();
    let count = context.number("message-count").and_then(|count| u64::try_from(count).ok());
    let count = count
        .filter(|count| (1..=limits::DELETE_MAX).contains(count))
        .ok_or_else(|| bad(format!("`message-count` must be from 1 to {}", limits::DELETE_MAX)))?;
    let before = context.number("enqueued-time-utc");
    let before = before.map(|ms| Timestamp(u64::try_from(ms).unwrap_or(0)));
    let before = before.unwrap_or_else(|| context.front.engine.now());
    let session = context.text("session-id").map(session_of).transpose();
    let session = session.map_err(|refusal| bad(refusal.to_string()))?;
    let deleted = context.front.engine.purge_older(queue, session, before, count).await;
    let deleted = deleted.map_err(|error| error_of(error, Lock::Message))?;
    let deleted = i32::try_from(deleted).unwrap_or(i32::MAX);
    Ok((deleted > 0).then(|| Map::default().with_string("message-count", deleted)))
}
