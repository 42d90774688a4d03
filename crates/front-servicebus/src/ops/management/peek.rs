//! `peek-message`: looks without touching.

use bytes::Bytes;
use malote_engine::{MessageState, Peek, Seen};
use malote_model::{Seq, SessionId};
use malote_wire_amqp::types::{Map, Value};

use super::{Answered, Context, bad};
use crate::limits;
use crate::refusal::{Lock, error_of};
use crate::wire::message::{Telling, client_seq, write};

pub(super) async fn peek(context: &Context<'_>) -> Answered {
    let queue = context.queue()?.clone();
    let from = context.number("from-sequence-number").unwrap_or(1).max(0);
    let count = context.number("message-count").unwrap_or(1);
    let count =
        usize::try_from(count).map_err(|_| bad("`message-count` is negative".to_owned()))?;
    let count = count.min(limits::PEEK_MAX);
    let session = context.text("session-id").map(SessionId::new).transpose();
    let session = session.map_err(|refusal| bad(refusal.to_string()))?;
    // A session receiver sees its session only.
    let session = session.or_else(|| context.held.as_ref().map(|(session, _)| session.clone()));
    let facts = context.front.engine.describe(queue.clone()).await;
    let facts = facts.map_err(|error| error_of(error, Lock::Message))?;
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !queue.is_dead_letters());
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
            let Some(encoded) = encode(seen, queue.is_dead_letters(), ttl_ms) else { continue };
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

fn encode(seen: &Seen, among_dead: bool, ttl_ms_max: Option<u64>) -> Option<Bytes> {
    // One that the disk holds no longer whole is told of when it is to be delivered.
    let stored = seen.stored.as_ref().ok()?;
    let state = match seen.state {
        MessageState::Ready | MessageState::Locked => 0,
        MessageState::Deferred => 1,
        // A delay that keeps the message's place is other protocols'; clients here have one word for both.
        MessageState::Delayed | MessageState::Scheduled => 2,
    };
    let dead = stored.dead.as_ref().filter(|_| !among_dead);
    let telling = Telling {
        seq: client_seq(seen.seq.0),
        failed: seen.failed,
        until: None,
        state: Some(state),
        due: seen.due.filter(|_| state == 2),
        source: dead.map(|dead| dead.from.to_string()),
        lock: None,
        ttl_ms_max,
    };
    Some(write(stored, &telling))
}
