//! `CreateQueue`, and how attributes are applied to a queue.

use malote_model::{Action, QueueName, QueueSpec};

use super::queue_spec;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name;
use crate::wire::shapes::{CreateQueueIn, QueueUrlOut, StringMap};

/// Applies attributes to a specification. `source` is the queue's name in SQS.
pub async fn apply_attributes(
    sqs: &Sqs,
    call: &Call,
    base: &mut QueueSpec,
    source: &str,
    attributes: &StringMap,
) -> Result<(), SqsError> {
    for (name, text) in attributes {
        let target = match name.as_str() {
            "RedrivePolicy" if queue_spec::keep_own_redrive(base, source, text)? => continue,
            "RedrivePolicy" => dead_letter_target(sqs, call, base, source, text).await?,
            _ => None,
        };
        queue_spec::apply(base, name, text, target.as_ref())?;
    }
    queue_spec::check_combination(base)
}

async fn dead_letter_target(
    sqs: &Sqs,
    call: &Call,
    base: &QueueSpec,
    source: &str,
    text: &str,
) -> Result<Option<QueueName>, SqsError> {
    let Some(redrive) = queue_spec::RedrivePolicy::parse(text)? else { return Ok(None) };
    let invalid = |reason: &str| SqsError::invalid(text, "RedrivePolicy", reason);
    // Otherwise, a caller could send to a queue without permission, by way of dead letters.
    let target = match call.queue_by_name(sqs, &redrive.target, &[Action::Send]).await {
        Err(error) if error.code == Code::QueueDoesNotExist => {
            return Err(invalid("Dead letter target does not exist."));
        }
        found => found?,
    };
    if target.fifo() != base.sessions.required() {
        return Err(invalid("Dead-letter queue must be same type of queue as the source."));
    }
    if !queue_spec::allows_dead_letters_from(&target.facts.spec, source) {
        return Err(invalid("Queue does not allow this queue to use it as a dead-letter queue."));
    }
    Ok(Some(target.facts.name))
}

/// `CreateQueue`. Succeeds for an existing queue if its attributes have the requested values.
pub async fn create_queue(
    sqs: &Sqs,
    call: &Call,
    request: CreateQueueIn,
) -> Result<QueueUrlOut, SqsError> {
    let sqs_name = request.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
    let (attributes, tags) =
        (request.attributes.unwrap_or_default(), request.tags.unwrap_or_default());
    let wants_fifo =
        attributes.get("FifoQueue").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let named_fifo = sqs_name.ends_with(".fifo");
    if wants_fifo && !named_fifo {
        let text = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, \
                    must end with .fifo suffix and be 1 to 80 in length.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    if named_fifo && !wants_fifo {
        let text =
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    let queue = name::checked(&sqs_name)?;
    call.check_permission(sqs, &queue, &[Action::Manage])?;
    let _guard = sqs.0.changing.lock().await;
    let url = QueueUrlOut { queue_url: call.addressing.url(&sqs_name) };
    match call.queue_by_name(sqs, &sqs_name, &[Action::Manage]).await {
        Ok(found) => {
            let was = queue_spec::attributes_of(&found.facts, &sqs_name, &call.addressing);
            let mut facts = found.facts;
            apply_attributes(sqs, call, &mut facts.spec, &sqs_name, &attributes).await?;
            let now = queue_spec::attributes_of(&facts, &sqs_name, &call.addressing);
            if let Some(name) = attributes.keys().find(|name| was.get(*name) != now.get(*name)) {
                let text = format!(
                    "A queue already exists with the same name and a different value for attribute {name}"
                );
                return Err(SqsError::new(Code::QueueNameExists, text));
            }
            Ok(url)
        }
        Err(error) if error.code == Code::QueueDoesNotExist => {
            let mut fresh = queue_spec::default_spec(named_fifo);
            apply_attributes(sqs, call, &mut fresh, &sqs_name, &attributes).await?;
            queue_spec::add_tags(&mut fresh, &sqs_name, &tags)?;
            sqs.0.engine.declare(queue.clone(), fresh).await?;
            tracing::info!(%queue, front = "sqs", "queue created");
            Ok(url)
        }
        Err(error) => Err(error),
    }
}
