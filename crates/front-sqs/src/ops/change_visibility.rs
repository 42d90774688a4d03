//! `ChangeMessageVisibility` and its batch.

use malote_model::{Action, Changes, Refusal, Settlement};

use super::delete_message::{expired, handle_of, message_exists};
use super::{SqsQueue, batch, check_range};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::shapes::{BatchOut, EmptyOut, IdOut, VisibilityBatchIn, VisibilityIn};

/// Longest total time that a message may stay in flight after its receive.
const VISIBILITY_S_MAX: u64 = 43_200;

const MESSAGE_DELETED: &str =
    "Message does not exist or is not available for visibility timeout change";

/// The reply for a deleted message, as recorded from the service.
fn message_deleted(handle: &str) -> SqsError {
    let error = SqsError::invalid(handle, "ReceiptHandle", &format!("{MESSAGE_DELETED}."));
    SqsError { code: Code::MessageDeleted, ..error }
}

/// The same in a batch, for which the service uses another code and a shorter text.
fn message_deleted_in_batch() -> SqsError {
    SqsError::new(Code::ReceiptHandleIsInvalid, MESSAGE_DELETED)
}

async fn change_one(sqs: &Sqs, queue: &SqsQueue, request: &VisibilityIn) -> Result<(), SqsError> {
    let text = request.receipt_handle.as_deref();
    let handle = handle_of(queue, text)?;
    let rule = "Must be >= 0 and <= 43200, if provided.";
    let seconds = check_range(request.visibility_timeout, "VisibilityTimeout", 0..=43_200, rule)?;
    let seconds = seconds.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?;
    let now = sqs.0.engine.now();
    let so_far_s = now.0.saturating_sub(handle.at.0) / 1000;
    if so_far_s + seconds > VISIBILITY_S_MAX {
        let reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds].";
        return Err(SqsError::invalid(seconds, "VisibilityTimeout", reason));
    }
    if queue.fifo() {
        sqs.0.attempts.forget(handle.lease);
    }
    let outcome = if seconds == 0 {
        let again = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
        let mut each =
            sqs.0.engine.settle(Some(queue.name()), vec![handle.lease], again, None).await?;
        each.pop()
    } else {
        let leases = vec![handle.lease];
        let mut each = sqs.0.engine.renew(Some(queue.name()), leases, Some(seconds * 1000)).await?;
        each.pop().map(|outcome| outcome.map(drop))
    };
    match outcome {
        Some(Ok(())) | None => Ok(()),
        Some(Err(Refusal::LeaseLost { .. })) => match message_exists(sqs, queue, &handle).await? {
            true if queue.fifo() => Err(expired(text.unwrap_or(""))),
            // The message is visible or in flight elsewhere. The service replies with success and changes nothing.
            true => Ok(()),
            false => Err(message_deleted(text.unwrap_or(""))),
        },
        Some(Err(other)) => Err(other.into()),
    }
}

/// `ChangeMessageVisibility`; 0 makes the message visible again.
pub async fn change_visibility(
    sqs: &Sqs,
    call: &Call,
    request: VisibilityIn,
) -> Result<EmptyOut, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Receive).await?;
    change_one(sqs, &queue, &request).await?;
    Ok(EmptyOut {})
}

/// `ChangeMessageVisibilityBatch`.
pub async fn change_visibility_batch(
    sqs: &Sqs,
    call: &Call,
    request: VisibilityBatchIn,
) -> Result<BatchOut<IdOut>, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Receive).await?;
    let entries = request.entries.unwrap_or_default();
    let entry = "ChangeMessageVisibilityBatchRequestEntry";
    let ids = batch::check(entry, entries.iter().map(|entry| entry.id.as_deref()))?;
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, entry) in ids.into_iter().zip(&entries) {
        match change_one(sqs, &queue, entry).await {
            Ok(()) => successful.push(IdOut { id }),
            Err(error) if error.code == Code::InternalFailure => return Err(error),
            Err(error) if error.code == Code::MessageDeleted => {
                failed.push(batch::failed(id, message_deleted_in_batch()));
            }
            Err(error) => failed.push(batch::failed(id, error)),
        }
    }
    Ok(BatchOut { successful, failed })
}
