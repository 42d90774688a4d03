//! `DeleteMessage` and its batch.

use malote_engine::Peek;
use malote_model::{Action, Refusal, Settlement};

use super::{SqsQueue, batch};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::handle::ReceiptHandle;
use crate::wire::shapes::{BatchOut, DeleteBatchIn, DeleteIn, EmptyOut, IdOut};

pub(super) fn handle_of(queue: &SqsQueue, text: Option<&str>) -> Result<ReceiptHandle, SqsError> {
    let text = text.ok_or_else(|| SqsError::missing("ReceiptHandle"))?;
    ReceiptHandle::parse(queue.name(), text)
}

/// Whether a message is still in the queue, in flight or not.
pub(super) async fn message_exists(
    sqs: &Sqs,
    queue: &SqsQueue,
    handle: &ReceiptHandle,
) -> Result<bool, SqsError> {
    let peek =
        Peek { queue: queue.name().clone(), from: handle.seq, max: 1, session: None, state: None };
    let (seen, _) = sqs.0.engine.peek(peek).await?;
    Ok(seen.first().is_some_and(|seen| seen.seq == handle.seq))
}

pub(super) fn expired(handle: &str) -> SqsError {
    SqsError::invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
}

/// Deletes messages, each with its own outcome. Deleting a deleted message succeeds. In a standard queue, an expired
/// handle also deletes the message, unless it is in flight again; like the service, this reports success in either
/// case.
async fn delete_all(
    sqs: &Sqs,
    queue: &SqsQueue,
    handles: &[(ReceiptHandle, &str)],
) -> Result<Vec<Result<(), SqsError>>, SqsError> {
    if queue.fifo() {
        handles.iter().for_each(|(handle, _)| sqs.0.attempts.forget(handle.lease));
    }
    let leases = handles.iter().map(|(handle, _)| handle.lease).collect();
    let each = sqs.0.engine.settle(Some(queue.name()), leases, Settlement::Complete, None).await?;
    let mut outcomes = Vec::with_capacity(each.len());
    let mut late = Vec::new();
    for (outcome, (handle, text)) in each.into_iter().zip(handles) {
        outcomes.push(match outcome {
            Ok(()) => Ok(()),
            Err(Refusal::LeaseLost { .. }) if !queue.fifo() => {
                late.push((handle.seq, handle.at));
                Ok(())
            }
            Err(Refusal::LeaseLost { .. }) => match message_exists(sqs, queue, handle).await? {
                true => Err(expired(text)),
                false => Ok(()),
            },
            Err(other) => Err(other.into()),
        });
    }
    if !late.is_empty() {
        sqs.0.engine.complete_late(queue.name().clone(), late).await?;
    }
    Ok(outcomes)
}

pub async fn delete_message(
    sqs: &Sqs,
    call: &Call,
    request: DeleteIn,
) -> Result<EmptyOut, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Receive).await?;
    let handle = handle_of(&queue, request.receipt_handle.as_deref())?;
    let text = request.receipt_handle.as_deref().unwrap_or("");
    for outcome in delete_all(sqs, &queue, &[(handle, text)]).await? {
        outcome?;
    }
    Ok(EmptyOut {})
}

pub async fn delete_message_batch(
    sqs: &Sqs,
    call: &Call,
    request: DeleteBatchIn,
) -> Result<BatchOut<IdOut>, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Receive).await?;
    let entries = request.entries.unwrap_or_default();
    let ids = batch::check(
        "DeleteMessageBatchRequestEntry",
        entries.iter().map(|entry| entry.id.as_deref()),
    )?;
    let (mut good, mut good_ids, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (id, entry) in ids.into_iter().zip(&entries) {
        match handle_of(&queue, entry.receipt_handle.as_deref()) {
            Ok(handle) => {
                good.push((handle, entry.receipt_handle.as_deref().unwrap_or("")));
                good_ids.push(id);
            }
            Err(error) => failed.push(batch::failed(id, error)),
        }
    }
    let mut successful = Vec::with_capacity(good.len());
    for (outcome, id) in delete_all(sqs, &queue, &good).await?.into_iter().zip(good_ids) {
        match outcome {
            Ok(()) => successful.push(IdOut { id }),
            Err(error) => failed.push(batch::failed(id, error)),
        }
    }
    Ok(BatchOut { successful, failed })
}
