//! `peek-message`: reads messages without locking them.

use bytes::Bytes;
use malote_engine::{MessageState, Peek, PeekedMessage};
use malote_model::{QueueName, Seq};
use malote_wire_amqp::types::{Map, Value};

use super::{ManagementContext, OperationResult, argument_error};
use crate::limits;
use crate::refusal::{LockKind, engine_error};
use crate::wire::message::{ACTIVE, DEFERRED, DeliveryInfo, SCHEDULED, write};
use crate::wire::session::session_of;

pub(super) async fn peek(context: &ManagementContext<'_>) -> OperationResult {
    let queue = context.queue()?.clone();
    let from = context.number("from-sequence-number").unwrap_or(1).max(0);
    let count = context.number("message-count").unwrap_or(1);
    let count = usize::try_from(count)
        .map_err(|_| argument_error("`message-count` must not be negative".to_owned()))?;
    let count = count.min(limits::PEEK_MAX);
    let session = context.text("session-id").map(session_of).transpose();
    let session = session.map_err(|refusal| argument_error(refusal.to_string()))?;
    // A session receiver sees only its session.
    let session =
        session.or_else(|| context.session_lock.as_ref().map(|(session, _)| session.clone()));
    let without_body = context.flag("omit-message-body");
    let info = DeliveryInfo {
        ttl_ms_max: context.ttl_ms(&queue).await?,
        without_body,
        ..DeliveryInfo::default()
    };
    let mut next = Some(Seq(u64::try_from(from).unwrap_or(0)));
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while let Some(from) = next
        && messages.len() < count
        && bytes < limits::REPLY_BYTES_MAX
    {
        let max = (count - messages.len()).min(PAGE);
        let peek = Peek { queue: queue.clone(), from, max, session: session.clone(), state: None };
        let peeked = context.front.engine.peek(peek).await;
        let (seen, more) = peeked.map_err(|error| engine_error(error, LockKind::Message))?;
        next = more;
        for seen in &seen {
            let Some(encoded) = encode(&queue, seen, &info) else { continue };
            bytes += encoded.len();
            if bytes > limits::REPLY_BYTES_MAX && !messages.is_empty() {
                break;
            }
            messages.push(Value::Map(Map::default().with_string("message", encoded)));
        }
    }
    Ok((!messages.is_empty()).then(|| Map::default().with_string("messages", messages)))
}

/// Messages read at once; they may be large.
const PAGE: usize = 32;

fn encode(queue: &QueueName, seen: &PeekedMessage, settings: &DeliveryInfo) -> Option<Bytes> {
    // A message that is damaged on disk is reported when it is delivered.
    let stored = seen.stored.as_ref().ok()?;
    let state = match seen.state {
        // A deferred message stays deferred while it is locked.
        _ if seen.deferred => DEFERRED,
        MessageState::Ready | MessageState::Locked | MessageState::Deferred => ACTIVE,
        // The protocol has no separate state for delayed messages of other protocols.
        MessageState::Delayed | MessageState::Scheduled => SCHEDULED,
    };
    let info = DeliveryInfo {
        state: Some(state),
        due: seen.due.filter(|_| state == SCHEDULED),
        ttl_ms_max: settings.ttl_ms_max,
        without_body: settings.without_body,
        ..DeliveryInfo::of(queue, stored, seen.seq, seen.failed)
    };
    Some(write(stored, &info))
}
