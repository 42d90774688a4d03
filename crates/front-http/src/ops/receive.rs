//! Receives messages with a long poll, receives deferred messages, cancels scheduled messages.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::{Delivery, Receive};
use malote_model::{Action, Seq, limits};
use malote_wire_native::frame::Encoding;
use malote_wire_native::receive::{
    CancelRequest, CancelledCount, ReceiveDeferredRequest, ReceiveMode, ReceiveRequest,
    ReceivedBatch,
};

use crate::extract::{Caller, Json, Queue, RoomForAnswer};
use crate::problem::Problem;
use crate::requests::{check_list, check_lock, check_receive, parse_token};
use crate::{Api, convert};

/// Messages of the first step, when their size is unknown.
const FIRST_STEP: u32 = 64;
/// Approximate size of an answer. If the first step exceeds it, there is no second step.
const ANSWER_BYTES: usize = RoomForAnswer::BYTES;

/// How many messages of the same size still fit into the answer.
fn room_for_more(deliveries: &[Delivery], max: u32) -> u32 {
    let bytes: usize = deliveries.iter().map(|d| d.stored.message.body.bytes.len() + 256).sum();
    let each = bytes / deliveries.len().max(1);
    let room = ANSWER_BYTES.saturating_sub(bytes) / each.max(1);
    max.saturating_sub(deliveries.len() as u32).min(u32::try_from(room).unwrap_or(u32::MAX))
}

/// Waits for messages. If the caller disconnects, the future is dropped and no message is leased.
pub async fn receive(
    State(api): State<Api>,
    Caller(caller): Caller,
    _room: RoomForAnswer,
    Queue(queue): Queue,
    Json(asked): Json<ReceiveRequest>,
) -> Result<Answer<ReceivedBatch>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    check_receive(&asked)?;
    let receive = Receive {
        queue: queue.clone(),
        max: asked.max.min(FIRST_STEP),
        wait_ms: asked.wait_ms,
        lock_ms: asked.lock_ms,
        take: asked.mode == ReceiveMode::Delete,
        hold: parse_token(asked.session_token.as_deref())?,
        per_session: asked.per_session,
    };
    let waiting = api.engine.receive(receive.clone());
    let waiting = api.while_allowed(&caller, Action::Receive, &queue, waiting);
    let mut deliveries = tokio::select! {
        biased;
        deliveries = waiting => deliveries??,
        // A stopping broker ends all waits.
        () = api.shutdown.cancelled() => Vec::new(),
    };
    let more = room_for_more(&deliveries, asked.max);
    if deliveries.len() == FIRST_STEP as usize && more > 0 {
        // If the second step is refused, the caller still gets the messages of the first.
        let rest = Receive { max: more, wait_ms: 0, ..receive };
        deliveries.extend(api.engine.receive(rest).await.unwrap_or_default());
    }
    let messages =
        deliveries.into_iter().map(|d| convert::delivered_message(d, Encoding::Json)).collect();
    Ok(Answer(ReceivedBatch { messages }))
}

/// Receives deferred messages by sequence number.
pub async fn receive_deferred(
    State(api): State<Api>,
    Caller(caller): Caller,
    _room: RoomForAnswer,
    Queue(queue): Queue,
    Json(asked): Json<ReceiveDeferredRequest>,
) -> Result<Answer<ReceivedBatch>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    check_list("seqs", asked.seqs.len(), limits::RECEIVE_BATCH_MAX)?;
    check_lock(asked.lock_ms)?;
    let seqs = asked.seqs.into_iter().map(Seq).collect();
    let hold = parse_token(asked.session_token.as_deref())?;
    let take = asked.mode == ReceiveMode::Delete;
    let deliveries = api.engine.receive_deferred(queue, seqs, hold, asked.lock_ms, take).await?;
    let messages =
        deliveries.into_iter().map(|d| convert::delivered_message(d, Encoding::Json)).collect();
    Ok(Answer(ReceivedBatch { messages }))
}

/// Cancels scheduled messages.
pub async fn cancel(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<CancelRequest>,
) -> Result<Answer<CancelledCount>, Problem> {
    api.allow(&caller, Action::Send, &queue)?;
    check_list("seqs", asked.seqs.len(), limits::RECEIVE_BATCH_MAX)?;
    let seqs = asked.seqs.into_iter().map(Seq).collect();
    Ok(Answer(CancelledCount { cancelled: api.engine.cancel(queue, seqs).await? }))
}
