//! `peek-message`: looks without touching.

use bytes::Bytes;
use malote_engine::{MessageState, Peek, PeekedMessage};
use malote_model::{QueueName, Seq};
use malote_wire_amqp::types::{Map, Value};

use super::{Answered, Context, bad};
use crate::limits;
use crate::refusal::{Lock, error_of};
use crate::wire::message::{ACTIVE, DEFERRED, SCHEDULED, Telling, write};
use crate::wire::session::session_of;

pub(super) async fn peek(context: &Context<'_>) -> Answered {
    let queue = context.queue()?.clone();
    let from = context.number("from-sequence-number").unwrap_or(1).max(0);
    let count = context.number("message-count").unwrap_or(1);
    let count =
        usize::try_from(count).map_err(|_| bad("`message-count` is negative".to_owned()))?;
    let count = count.min(limits::PEEK_MAX);
    let session = context.text("session-id").map(session_of).transpose();
    let session = session.map_err(|refusal| bad(refusal.to_string()))?;
    // A session receiver sees its session only.
    let session = session.or_else(|| context.held.as_ref().map(|(session, _)| session.clone()));
    let without_body = context.flag("omit-message-body");
    let told =
        Telling { ttl_ms_max: context.ttl_ms(&queue).await?, without_body, ..Telling::default() };
    let mut next = Some(Seq(u64::try_from(from).unwrap_or(0)));
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while let Some(from) = next
        && messages.len() < count
        && bytes < limits::ANSWER_BYTES_MAX
    {
        let max = (count - messages.len()).min(PAGE);
        let peek = Peek { queue: queue.clone(), from, max, session: session.clone(), state: None };
        let peeked = context.front.engine.peek(peek).await;
        let (seen, more) = peeked.map_err(|error| error_of(error, Lock::Message))?;
        next = more;
        for seen in &seen {
            let Some(encoded) = encode(&queue, seen, &told) else { continue };
            bytes += encoded.len();
            if bytes > limits::ANSWER_BYTES_MAX && !messages.is_empty() {
                break;
            }
            messages.push(Value::Map(Map::default().with_string("message", encoded)));
        }
    }
    Ok((!messages.is_empty()).then(|| Map::default().with_string("messages", messages)))
}

/// Messages that are read at once: they may be large.
const PAGE: usize = 32;

fn encode(queue: &QueueName, seen: &PeekedMessage, told: &Telling) -> Option<Bytes> {
    // One that the disk holds no longer whole is told of when it is to be delivered.
    let stored = seen.stored.as_ref().ok()?;
    let state = match seen.state {
        // Whoever has it locked has received it by its number.
        _ if seen.deferred => DEFERRED,
        MessageState::Ready | MessageState::Locked | MessageState::Deferred => ACTIVE,
        // A delay that keeps the message's place is other protocols'; clients here have one word for both.
        MessageState::Delayed | MessageState::Scheduled => SCHEDULED,
    };
    let telling = Telling {
        state: Some(state),
        due: seen.due.filter(|_| state == SCHEDULED),
        ttl_ms_max: told.ttl_ms_max,
        without_body: told.without_body,
        ..Telling::of(queue, stored, seen.seq, seen.failed)
    };
    Some(write(stored, &telling))
}
