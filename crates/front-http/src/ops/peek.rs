//! Peeks at messages without locking them.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use malote_engine::{Peek, PeekedMessage};
use malote_model::{Action, QueueName, Seq, SessionId};
use malote_wire_native::receive::{PeekQuery, PeekedMessages};
use tokio::sync::SemaphorePermit;

use crate::extract::{Caller, Query, Queue};
use crate::limits::PAGE_MAX;
use crate::problem::{Code, Problem};
use crate::requests::page_length;
use crate::{Api, convert};

/// Messages of the first read, when their size is unknown: each can have 32 MiB.
const STEP_FIRST: usize = 4;
/// Messages of a read at most.
const STEP: usize = 64;
/// Approximate size of a page.
const PAGE_BYTES: usize = 16 << 20;
/// Approximate bytes of a message in JSON, without its body.
const MESSAGE_BYTES: usize = 512;
/// Reads per page: the messages of a session can be far apart.
const STEPS_MAX: usize = 32;

/// Messages of a queue, in order. A page can be short or empty: `next` shows whether more follow.
pub async fn peek(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<PeekQuery>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    look(&api, queue, query).await
}

pub(super) async fn look(
    api: &Api,
    queue: QueueName,
    query: PeekQuery,
) -> Result<Response, Problem> {
    let max = page_length(query.max)?;
    let session = query.session.as_deref().map(SessionId::new).transpose()?;
    let state = query.state.map(convert::message_state);
    let from = Seq(query.from.unwrap_or_default());
    let _place = place(api).await?;
    let (seen, next, bytes) = read(api, Peek { queue, from, max, session, state }).await?;
    let messages = seen.into_iter().map(convert::peeked_message).collect();
    let page = PeekedMessages { messages, next: next.map(|seq| seq.0) };
    // Encoded before the next peek starts: `peeks_max` bounds the pages in memory, and the budget of answers bounds
    // the encoded ones.
    encode(&page, bytes)
}

/// Waits until another page may be in memory.
pub(super) async fn place(api: &Api) -> Result<SemaphorePermit<'_>, Problem> {
    match tokio::time::timeout(api.limits.publish_wait, api.peeks.acquire()).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(Problem::new(Code::Busy, "too many peeks at once")),
    }
}

/// Reads a page of about [`PAGE_BYTES`]. Returns it with the start of the next page and the bytes of all bodies.
pub(super) async fn read(
    api: &Api,
    asked: Peek,
) -> Result<(Vec<PeekedMessage>, Option<Seq>, usize), Problem> {
    let Peek { queue, from, max, session, state } = asked;
    let mut from = Some(from);
    let mut seen: Vec<PeekedMessage> = Vec::new();
    let mut bytes = 0;
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
    Ok((seen, from, bytes))
}

/// Encodes a page in a buffer that does not have to grow: bodies in base64, and the rest of each message.
fn encode(page: &PeekedMessages, body_bytes: usize) -> Result<Response, Problem> {
    let mut json = Vec::with_capacity(body_bytes / 3 * 4 + page.messages.len() * MESSAGE_BYTES);
    serde_json::to_writer(&mut json, page).map_err(|error| {
        tracing::error!(%error, "cannot encode a page of messages");
        Problem::new(Code::Internal, "cannot encode the page")
    })?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}
