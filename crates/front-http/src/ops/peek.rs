//! Looking at messages without touching them.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::Peek;
use malote_model::{Action, QueueName, Seq, SessionId};

use crate::Api;
use crate::extract::{Caller, Query, Queue};
use crate::limits::{PAGE_DEFAULT, PAGE_MAX};
use crate::problem::Problem;
use crate::wire::message::Received;
use crate::wire::peek::{PeekOut, PeekQuery};
use crate::wire::receive::range;

/// Messages of a queue, in order.
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
    let peek = Peek {
        queue,
        from: Seq(query.from.unwrap_or_default()),
        max: max as usize,
        session: query.session.as_deref().map(SessionId::new).transpose()?,
        state: query.state.map(Into::into),
    };
    let (seen, next) = api.engine.peek(peek).await?;
    let messages = seen.into_iter().map(Received::seen).collect();
    Ok(Answer(PeekOut { messages, next: next.map(|seq| seq.0) }))
}
