//! `DeleteQueue`.

use malote_model::{Action, DeadLetterTarget, QueueSpec};

use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::shapes::{EmptyOut, QueueIn};

/// Queues that used it as their dead-letter queue keep their dead letters in their own sets from now on. Like SQS, this
/// deletes a dead-letter queue that is in use, and no message of the sources is lost.
pub async fn delete_queue(sqs: &Sqs, call: &Call, request: QueueIn) -> Result<EmptyOut, SqsError> {
    let found = call.queue(sqs, request.queue_url.as_deref(), Action::Manage).await?;
    let _guard = sqs.0.changing.lock().await;
    let target = DeadLetterTarget::Queue(found.name().clone());
    for source in
        sqs.0.engine.list().await?.into_iter().filter(|facts| facts.spec.dead_letter == target)
    {
        let own = QueueSpec { dead_letter: DeadLetterTarget::Own, ..source.spec };
        sqs.0.engine.update(source.name, own).await?;
    }
    sqs.0.engine.delete(found.name().clone()).await?;
    tracing::info!(queue = %found.name(), front = "sqs", "queue deleted");
    Ok(EmptyOut {})
}
