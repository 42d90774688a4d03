//! Making, finding, listing, removing and emptying queues.

use malote_model::{Action, DeadLetterTarget, QueueName, QueueSpec};

use super::spec;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name;
use crate::wire::shapes::{
    CreateQueueIn, GetQueueUrlIn, ListQueuesIn, Nothing, QueueIn, QueueUrlOut, QueueUrlsOut, Texts,
};

const LIST_MAX: usize = 1000;

/// Any of these lets a caller see that a queue is there.
pub const LOOK: &[Action] = &[Action::Manage, Action::Send, Action::Receive];

/// Lays attributes over a queue, as `source` is called in SQS.
pub async fn lay_over(
    sqs: &Sqs,
    call: &Call,
    base: &mut QueueSpec,
    source: &str,
    attributes: &Texts,
) -> Result<(), SqsError> {
    for (name, text) in attributes {
        let target = match name.as_str() {
            "RedrivePolicy" if spec::keep_own_redrive(base, source, text)? => continue,
            "RedrivePolicy" => dead_letter_target(sqs, call, base, source, text).await?,
            _ => None,
        };
        spec::apply(base, name, text, target.as_ref())?;
    }
    spec::check_together(base)
}

async fn dead_letter_target(
    sqs: &Sqs,
    call: &Call,
    base: &QueueSpec,
    source: &str,
    text: &str,
) -> Result<Option<QueueName>, SqsError> {
    let Some(redrive) = spec::Redrive::parse(text)? else { return Ok(None) };
    let invalid = |reason: &str| SqsError::invalid(text, "RedrivePolicy", reason);
    // Whoever could not send there must not do so through the dead letters of another queue.
    let target = match call.named(sqs, &redrive.target, &[Action::Send]).await {
        Err(error) if error.code == Code::QueueDoesNotExist => {
            return Err(invalid("Dead letter target does not exist."));
        }
        found => found?,
    };
    if target.fifo() != base.sessions.required() {
        return Err(invalid("Dead-letter queue must be same type of queue as the source."));
    }
    if !spec::takes_dead_letters_of(&target.facts.spec, source) {
        return Err(invalid("Queue does not allow this queue to use it as a dead-letter queue."));
    }
    Ok(Some(target.facts.name))
}

/// `CreateQueue`: the same name again is the same queue, if what is asked for is what it is.
pub async fn create(sqs: &Sqs, call: &Call, asked: CreateQueueIn) -> Result<QueueUrlOut, SqsError> {
    let shown = asked.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
    let (attributes, tags) = (asked.attributes.unwrap_or_default(), asked.tags.unwrap_or_default());
    let wants_fifo =
        attributes.get("FifoQueue").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let named_fifo = shown.ends_with(".fifo");
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
    let queue = name::checked(&shown)?;
    call.allow(sqs, &queue, &[Action::Manage])?;
    let _alone = sqs.0.changing.lock().await;
    let url = QueueUrlOut { queue_url: call.place.url(&shown) };
    match call.named(sqs, &shown, &[Action::Manage]).await {
        Ok(found) => {
            let was = spec::shown(&found.facts, &shown, &call.place);
            let mut facts = found.facts;
            lay_over(sqs, call, &mut facts.spec, &shown, &attributes).await?;
            let now = spec::shown(&facts, &shown, &call.place);
            if let Some(name) = attributes.keys().find(|name| was.get(*name) != now.get(*name)) {
                let text = format!(
                    "A queue already exists with the same name and a different value for attribute {name}"
                );
                return Err(SqsError::new(Code::QueueNameExists, text));
            }
            Ok(url)
        }
        Err(error) if error.code == Code::QueueDoesNotExist => {
            let mut fresh = spec::fresh(named_fifo);
            lay_over(sqs, call, &mut fresh, &shown, &attributes).await?;
            spec::add_tags(&mut fresh, &shown, &tags)?;
            sqs.0.engine.declare(queue.clone(), fresh).await?;
            tracing::info!(%queue, front = "sqs", "queue created");
            Ok(url)
        }
        Err(error) => Err(error),
    }
}

/// `GetQueueUrl`.
pub async fn url(sqs: &Sqs, call: &Call, asked: GetQueueUrlIn) -> Result<QueueUrlOut, SqsError> {
    let name = asked.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
    let found = call.named(sqs, &name, LOOK).await?;
    Ok(QueueUrlOut { queue_url: call.place.url(&found.shown) })
}

/// A page of sorted names after a token, which is the last name of the page before.
pub fn page(
    mut names: Vec<String>,
    max_results: Option<i64>,
    next_token: Option<&str>,
) -> Result<(Vec<String>, Option<String>), SqsError> {
    let rule = "Must be an integer between 1 and 1000.";
    let max = super::ranged(max_results, "MaxResults", 1..=1000, rule)?;
    names.retain(|name| next_token.is_none_or(|token| name.as_str() > token));
    let more = names.len() > max.map_or(LIST_MAX, |max| max as usize);
    names.truncate(max.map_or(LIST_MAX, |max| max as usize));
    let next = names.last().filter(|_| more && max.is_some()).cloned();
    Ok((names, next))
}

/// `ListQueues`: those that SQS has a name for and the caller may see.
pub async fn list(sqs: &Sqs, call: &Call, asked: ListQueuesIn) -> Result<QueueUrlsOut, SqsError> {
    sqs.0.access.check_lists(&call.caller)?;
    let prefix = asked.queue_name_prefix.unwrap_or_default();
    let mut facts = sqs.0.engine.list().await?;
    facts.retain(|facts| {
        let name = facts.name.as_str();
        name.starts_with(&prefix)
            && name::is_name(name)
            && call.allow(sqs, &facts.name, LOOK).is_ok()
    });
    let mut names: Vec<String> =
        facts.into_iter().map(|facts| facts.name.as_str().to_owned()).collect();
    names.sort();
    let (names, next_token) = page(names, asked.max_results, asked.next_token.as_deref())?;
    let queue_urls = names.iter().map(|name| call.place.url(name)).collect();
    Ok(QueueUrlsOut { queue_urls, next_token })
}

/// `DeleteQueue`. Queues whose dead letters went there keep theirs in their own sets from then on: SQS lets a target
/// go, and nothing is lost by it.
pub async fn delete(sqs: &Sqs, call: &Call, asked: QueueIn) -> Result<Nothing, SqsError> {
    let found = call.queue(sqs, asked.queue_url.as_deref(), Action::Manage).await?;
    let _alone = sqs.0.changing.lock().await;
    let target = DeadLetterTarget::Queue(found.name().clone());
    for source in
        sqs.0.engine.list().await?.into_iter().filter(|facts| facts.spec.dead_letter == target)
    {
        let own = QueueSpec { dead_letter: DeadLetterTarget::Own, ..source.spec };
        sqs.0.engine.update(source.name, own).await?;
    }
    sqs.0.engine.delete(found.name().clone()).await?;
    tracing::info!(queue = %found.name(), front = "sqs", "queue deleted");
    Ok(Nothing {})
}

/// `PurgeQueue`, once a minute unless the operator chose another pause: all of it, also what is in flight.
pub async fn purge(sqs: &Sqs, call: &Call, asked: QueueIn) -> Result<Nothing, SqsError> {
    let found = call.queue(sqs, asked.queue_url.as_deref(), Action::Manage).await?;
    let now = sqs.0.engine.now();
    {
        let mut purges = sqs.0.purges.lock();
        if purges.get(found.name(), now).is_some() {
            let shown = &found.shown;
            let pause_s = sqs.0.settings.purge_pause.as_secs_f64().ceil();
            let text = format!(
                "Only one PurgeQueue operation on {shown} is allowed every {pause_s} seconds."
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
    Ok(Nothing {})
}
