//! Deleting messages and changing how long they stay invisible.

use malote_engine::Peek;
use malote_model::{Action, Changes, Refusal, Settlement};

use super::{Found, batch, ranged};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::handle::Handle;
use crate::wire::shapes::{
    BatchOut, DeleteBatchIn, DeleteIn, IdOut, Nothing, VisibilityBatchIn, VisibilityIn,
};

/// How long a message may be out in all, from its receive on.
const VISIBILITY_S_MAX: u64 = 43_200;

fn handle_of(queue: &Found, text: Option<&str>) -> Result<Handle, SqsError> {
    let text = text.ok_or_else(|| SqsError::missing("ReceiptHandle"))?;
    Handle::parse(queue.name(), text)
}

/// Whether a message is still in the queue, whoever has it.
async fn is_there(sqs: &Sqs, queue: &Found, handle: &Handle) -> Result<bool, SqsError> {
    let peek =
        Peek { queue: queue.name().clone(), from: handle.seq, max: 1, session: None, state: None };
    let (seen, _) = sqs.0.engine.peek(peek).await?;
    Ok(seen.first().is_some_and(|seen| seen.seq == handle.seq))
}

fn expired(handle: &str) -> SqsError {
    SqsError::invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
}

const GONE: &str = "Message does not exist or is not available for visibility timeout change";

/// The answer to ChangeMessageVisibility of a message that was deleted, as recorded from the service.
fn gone(handle: &str) -> SqsError {
    let told = SqsError::invalid(handle, "ReceiptHandle", &format!("{GONE}."));
    SqsError { code: Code::MessageGone, ..told }
}

/// The same within a batch, where the service answers with another code and a shorter text.
fn gone_in_batch() -> SqsError {
    SqsError::new(Code::ReceiptHandleIsInvalid, GONE)
}

/// Deletes messages, each with its own outcome. One that is gone already is deleted. In a standard queue so is one whose
/// time is over, unless another receiver has it: then nothing is said, as the service says nothing.
async fn delete_all(
    sqs: &Sqs,
    queue: &Found,
    handles: &[(Handle, &str)],
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
            Err(Refusal::LeaseLost { .. }) => match is_there(sqs, queue, handle).await? {
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

/// `DeleteMessage`.
pub async fn delete(sqs: &Sqs, call: &Call, asked: DeleteIn) -> Result<Nothing, SqsError> {
    let queue = call.queue(sqs, asked.queue_url.as_deref(), Action::Receive).await?;
    let handle = handle_of(&queue, asked.receipt_handle.as_deref())?;
    let text = asked.receipt_handle.as_deref().unwrap_or("");
    for outcome in delete_all(sqs, &queue, &[(handle, text)]).await? {
        outcome?;
    }
    Ok(Nothing {})
}

/// `DeleteMessageBatch`.
pub async fn delete_batch(
    sqs: &Sqs,
    call: &Call,
    asked: DeleteBatchIn,
) -> Result<BatchOut<IdOut>, SqsError> {
    let queue = call.queue(sqs, asked.queue_url.as_deref(), Action::Receive).await?;
    let entries = asked.entries.unwrap_or_default();
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

async fn change(sqs: &Sqs, queue: &Found, asked: &VisibilityIn) -> Result<(), SqsError> {
    let text = asked.receipt_handle.as_deref();
    let handle = handle_of(queue, text)?;
    let rule = "Must be >= 0 and <= 43200, if provided.";
    let seconds = ranged(asked.visibility_timeout, "VisibilityTimeout", 0..=43_200, rule)?;
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
        Some(Err(Refusal::LeaseLost { .. })) => match is_there(sqs, queue, &handle).await? {
            true if queue.fifo() => Err(expired(text.unwrap_or(""))),
            // It is visible, or another receiver has it: the service says yes and changes nothing.
            true => Ok(()),
            false => Err(gone(text.unwrap_or(""))),
        },
        Some(Err(other)) => Err(other.into()),
    }
}

/// `ChangeMessageVisibility`: 0 gives the message back.
pub async fn visibility(sqs: &Sqs, call: &Call, asked: VisibilityIn) -> Result<Nothing, SqsError> {
    let queue = call.queue(sqs, asked.queue_url.as_deref(), Action::Receive).await?;
    change(sqs, &queue, &asked).await?;
    Ok(Nothing {})
}

/// `ChangeMessageVisibilityBatch`.
pub async fn visibility_batch(
    sqs: &Sqs,
    call: &Call,
    asked: VisibilityBatchIn,
) -> Result<BatchOut<IdOut>, SqsError> {
    let queue = call.queue(sqs, asked.queue_url.as_deref(), Action::Receive).await?;
    let entries = asked.entries.unwrap_or_default();
    let entry = "ChangeMessageVisibilityBatchRequestEntry";
    let ids = batch::check(entry, entries.iter().map(|entry| entry.id.as_deref()))?;
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, entry) in ids.into_iter().zip(&entries) {
        match change(sqs, &queue, entry).await {
            Ok(()) => successful.push(IdOut { id }),
            Err(error) if error.code == Code::InternalFailure => return Err(error),
            Err(error) if error.code == Code::MessageGone => {
                failed.push(batch::failed(id, gone_in_batch()));
            }
            Err(error) => failed.push(batch::failed(id, error)),
        }
    }
    Ok(BatchOut { successful, failed })
}
