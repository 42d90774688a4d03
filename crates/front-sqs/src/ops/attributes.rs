//! Reading and changing attributes of queues.

use malote_model::Action;

use super::queues::{LOOK, lay_over};
use super::spec;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::name;
use crate::wire::shapes::{AttributesOut, GetAttributesIn, Nothing, SetAttributesIn};

/// `GetQueueAttributes`: what is not asked for is not told.
pub async fn get(
    sqs: &Sqs,
    call: &Call,
    asked: GetAttributesIn,
) -> Result<AttributesOut, SqsError> {
    let names = asked.attribute_names.unwrap_or_default();
    names.iter().try_for_each(|name| spec::check_name(name))?;
    let url = asked.queue_url.or_else(|| (call.path.len() > 1).then(|| call.path.clone()));
    let url = url.ok_or_else(|| SqsError::missing("QueueUrl"))?;
    let found = call.named(sqs, name::of_url(&url)?, LOOK).await?;
    let mut attributes = spec::shown(&found.facts, &found.shown, &call.place);
    if !names.iter().any(|name| name == "All") {
        attributes.retain(|have, _| names.contains(have));
    }
    Ok(AttributesOut { attributes })
}

/// `SetQueueAttributes`: all of them or none.
pub async fn set(sqs: &Sqs, call: &Call, asked: SetAttributesIn) -> Result<Nothing, SqsError> {
    let attributes = asked.attributes.ok_or_else(|| SqsError::missing("Attributes"))?;
    let _alone = sqs.0.changing.lock().await;
    let found = call.queue(sqs, asked.queue_url.as_deref(), Action::Manage).await?;
    let mut changed = found.facts.spec;
    lay_over(sqs, call, &mut changed, &found.shown, &attributes).await?;
    spec::touch(&mut changed, sqs.0.engine.now());
    sqs.0.engine.update(found.facts.name, changed).await?;
    Ok(Nothing {})
}
