//! Looking at messages without touching them.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{Peek, PeekedMessage};
use malote_model::{Action, QueueName, Seq, SessionId};

use crate::Api;
use crate::extract::{Caller, Query, Queue};
use crate::limits::{PAGE_DEFAULT, PAGE_MAX};
use crate::problem::{Code, Problem};
use crate::wire::message::Received;
use crate::wire::peek::{PeekOut, PeekQuery};
use crate::wire::receive::range;

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
) -> Result<Answer<PeekOut>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    look(&api, queue, query).await
}

pub(super) async fn look(
    api: &Api,
    queue: QueueName,
    query: PeekQuery,
) -> Result<Answer<PeekOut>, Problem> {
    let max = query.max.unwrap_or(PAGE_DEFAULT as u64);
    range("max", max, 1, PAGE_MAX as u64)?;
    let session = query.session.as_deref().map(SessionId::new).transpose()?;
    let state = query.state.map(Into::into);
    let mut from = Some(Seq(query.from.unwrap_or_default()));
    let mut seen: Vec<PeekedMessage> = Vec::new();
    let mut bytes = 0;
    let room = tokio::time::timeout(api.limits.publish_wait, api.peeks.acquire()).await;
    let _place = match room {
        Ok(Ok(place)) => place,
        _ => return Err(Problem::new(Code::Busy, "too many peeks are under way")),
    };
    for _ in 0..STEPS_MAX {
        let Some(at) = from.filter(|_| seen.len() < max as usize && bytes < PAGE_BYTES) else {
            break;
        };
        let step = match seen.len() {
            0 => STEP_FIRST,
            count => ((PAGE_BYTES - bytes) / (bytes / count).max(1)).clamp(1, STEP),
        };
        let step = if session.is_some() { PAGE_MAX } else { step.min(max as usize - seen.len()) };
        let peek =
            Peek { queue: queue.clone(), from: at, max: step, session: session.clone(), state };
        let (mut more, next) = api.engine.peek(peek).await?;
        from = next;
        if let Some(cut) = more.get(max as usize - seen.len()).map(|first| first.seq) {
            more.truncate(max as usize - seen.len());
            from = Some(cut);
        }
        let size = |s: &PeekedMessage| {
            s.stored.as_ref().map_or(0, |stored| stored.message.body.bytes.len())
        };
        bytes += more.iter().map(size).sum::<usize>();
        seen.append(&mut more);
    }
    let messages = seen.into_iter().map(Received::seen).collect();
    Ok(Answer(PeekOut { messages, next: from.map(|seq| seq.0) }))
}
