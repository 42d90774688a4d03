//! Looking at messages without touching them.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{Peek, PeekedMessage};
use malote_model::{Action, QueueName, Seq, SessionId};
use malote_wire_native::receive::{PeekQuery, PeekedMessages};

use crate::extract::{Caller, Query, Queue};
use crate::limits::PAGE_MAX;
use crate::problem::{Code, Problem};
use crate::requests::page_length;
use crate::{Api, convert};

/// Messages read at a time, before it is known how large they are: each may have 16 MiB.
const STEP_FIRST: usize = 4;
/// The same, however small they are.
const STEP: usize = 64;
/// A page ends when it has about so many bytes.
const PAGE_BYTES: usize = 16 << 20;
/// A page ends after so many looks: a session's messages may be far apart.
const STEPS_MAX: usize = 32;

/// Messages of a queue, in order. A page may be short, even empty: `next` tells whether more follow.
pub async fn peek(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<PeekQuery>,
) -> Result<Answer<PeekedMessages>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    look(&api, queue, query).await
}

pub(super) async fn look(
    api: &Api,
    queue: QueueName,
    query: PeekQuery,
) -> Result<Answer<PeekedMessages>, Problem> {
    let max = page_length(query.max)?;
    let session = query.session.as_deref().map(SessionId::new).transpose()?;
    let state = query.state.map(convert::message_state);
    let mut from = Some(Seq(query.from.unwrap_or_default()));
    let mut seen: Vec<PeekedMessage> = Vec::new();
    let mut bytes = 0;
    let room = tokio::time::timeout(api.limits.publish_wait, api.peeks.acquire()).await;
    let _place = match room {
        Ok(Ok(place)) => place,
        _ => return Err(Problem::new(Code::Busy, "too many peeks are under way")),
    };
    for _ in 0..STEPS_MAX {
        let Some(at) = from.filter(|_| seen.len() < max && bytes < PAGE_BYTES) else {
            break;
        };
        let step = match seen.len() {
            0 => STEP_FIRST,
            count => ((PAGE_BYTES - bytes) / (bytes / count).max(1)).clamp(1, STEP),
        };
        let step = if session.is_some() { PAGE_MAX } else { step.min(max - seen.len()) };
        let peek =
            Peek { queue: queue.clone(), from: at, max: step, session: session.clone(), state };
        let (mut more, next) = api.engine.peek(peek).await?;
        from = next;
        if let Some(cut) = more.get(max - seen.len()).map(|first| first.seq) {
            more.truncate(max - seen.len());
            from = Some(cut);
        }
        let size = |s: &PeekedMessage| {
            s.stored.as_ref().map_or(0, |stored| stored.message.body.bytes.len())
        };
        bytes += more.iter().map(size).sum::<usize>();
        seen.append(&mut more);
    }
    let messages = seen.into_iter().map(convert::peeked_message).collect();
    Ok(Answer(PeekedMessages { messages, next: from.map(|seq| seq.0) }))
}
