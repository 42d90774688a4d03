//! `GetQueueAttributes` and `SetQueueAttributes`.

use malote_model::Action;

use super::VIEW_ACTIONS;
use super::create_queue::apply_attributes;
use super::queue_spec;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::name;
use crate::wire::shapes::{AttributesOut, EmptyOut, GetAttributesIn, SetAttributesIn};

/// Returns only the requested attributes.
pub async fn get(
    sqs: &Sqs,
    call: &Call,
    request: GetAttributesIn,
) -> Result<AttributesOut, SqsError> {
    let names = request.attribute_names.unwrap_or_default();
    names.iter().try_for_each(|name| queue_spec::check_name(name))?;
    let url = request.queue_url.or_else(|| (call.path.len() > 1).then(|| call.path.clone()));
    let url = url.ok_or_else(|| SqsError::missing("QueueUrl"))?;
    let found = call.queue_by_name(sqs, name::of_url(&url)?, VIEW_ACTIONS).await?;
    let mut attributes = queue_spec::attributes_of(&found.facts, &found.sqs_name, &call.addressing);
    if !names.iter().any(|name| name == "All") {
        attributes.retain(|have, _| names.contains(have));
    }
    Ok(AttributesOut { attributes })
}

/// Sets all of the attributes or none.
pub async fn set(sqs: &Sqs, call: &Call, request: SetAttributesIn) -> Result<EmptyOut, SqsError> {
    let attributes = request.attributes.ok_or_else(|| SqsError::missing("Attributes"))?;
    let _guard = sqs.0.changing.lock().await;
    let found = call.queue(sqs, request.queue_url.as_deref(), Action::Manage).await?;
    let mut changed = found.facts.spec;
    apply_attributes(sqs, call, &mut changed, &found.sqs_name, &attributes).await?;
    queue_spec::set_last_modified(&mut changed, sqs.0.engine.now());
    sqs.0.engine.update(found.facts.name, changed).await?;
    Ok(EmptyOut {})
}
