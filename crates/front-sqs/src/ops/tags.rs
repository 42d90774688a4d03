//! `TagQueue`, `UntagQueue`, `ListQueueTags`. Tags are labels of the queue.

use super::permissions::change;
use super::{VIEW_ACTIONS, queue_spec};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name;
use crate::wire::shapes::{EmptyOut, QueueIn, TagIn, TagsOut, UntagIn};

pub async fn tag_queue(sqs: &Sqs, call: &Call, request: TagIn) -> Result<EmptyOut, SqsError> {
    let tags =
        request.tags.filter(|tags| !tags.is_empty()).ok_or_else(|| SqsError::missing("Tags"))?;
    change(sqs, call, request.queue_url.as_deref(), |spec, sqs_name| {
        queue_spec::add_tags(spec, sqs_name, &tags)
    })
    .await
}

pub async fn untag_queue(sqs: &Sqs, call: &Call, request: UntagIn) -> Result<EmptyOut, SqsError> {
    let keys = request.tag_keys.ok_or_else(|| SqsError::missing("TagKeys"))?;
    if keys.is_empty() {
        let text = "Tag keys must be between 1 and 128 characters in length.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    change(sqs, call, request.queue_url.as_deref(), |spec, _| {
        queue_spec::remove_tags(spec, &keys);
        Ok(())
    })
    .await
}

pub async fn list_queue_tags(
    sqs: &Sqs,
    call: &Call,
    request: QueueIn,
) -> Result<TagsOut, SqsError> {
    let url = request.queue_url.or_else(|| (call.path.len() > 1).then(|| call.path.clone()));
    let url = url.ok_or_else(|| SqsError::missing("QueueUrl"))?;
    let found = call.queue_by_name(sqs, name::of_url(&url)?, VIEW_ACTIONS).await?;
    Ok(TagsOut { tags: queue_spec::tags(&found.facts.spec) })
}
