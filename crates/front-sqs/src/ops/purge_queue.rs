//! `PurgeQueue`.

use malote_model::Action;

use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::shapes::{EmptyOut, QueueIn};

/// Deletes all messages, including those in flight. Allowed once per `purge_pause`.
pub async fn purge_queue(sqs: &Sqs, call: &Call, request: QueueIn) -> Result<EmptyOut, SqsError> {
    let found = call.queue(sqs, request.queue_url.as_deref(), Action::Manage).await?;
    let now = sqs.0.engine.now();
    {
        let mut purges = sqs.0.purges.lock();
        if purges.get(found.name(), now).is_some() {
            let sqs_name = &found.sqs_name;
            let pause_s = sqs.0.settings.purge_pause.as_secs_f64().ceil();
            let text = format!(
                "Only one PurgeQueue operation on {sqs_name} is allowed every {pause_s} seconds."
            );
            return Err(SqsError::new(Code::PurgeQueueInProgress, text));
        }
        purges.put(found.name().clone(), (), now);
    }
    let purged = sqs.0.engine.purge_all(found.name().clone()).await;
    if purged.is_err() {
        sqs.0.purges.lock().remove(found.name());
    }
    purged?;
    Ok(EmptyOut {})
}
