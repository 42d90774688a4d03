//! `GetQueueUrl`.

use super::VIEW_ACTIONS;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::shapes::{GetQueueUrlIn, QueueUrlOut};

pub async fn get_queue_url(
    sqs: &Sqs,
    call: &Call,
    request: GetQueueUrlIn,
) -> Result<QueueUrlOut, SqsError> {
    let name = request.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
    let found = call.queue_by_name(sqs, &name, VIEW_ACTIONS).await?;
    Ok(QueueUrlOut { queue_url: call.addressing.url(&found.sqs_name) })
}
