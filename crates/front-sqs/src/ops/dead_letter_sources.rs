//! `ListDeadLetterSourceQueues`.

use malote_model::{Action, DeadLetterTarget, QueueName};

use super::list_queues::page;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::shapes::{SourcesIn, SourcesOut};

pub async fn list_sources(
    sqs: &Sqs,
    call: &Call,
    request: SourcesIn,
) -> Result<SourcesOut, SqsError> {
    let found = call.queue(sqs, request.queue_url.as_deref(), Action::Manage).await?;
    let sources = sources_of(sqs, found.name()).await?;
    let names = sources.iter().map(|name| name.as_str().to_owned()).collect();
    let (names, next_token) = page(names, request.max_results, request.next_token.as_deref())?;
    Ok(SourcesOut {
        queue_urls: names.iter().map(|name| call.addressing.url(name)).collect(),
        next_token,
    })
}

/// Queues whose dead letters go to `queue`, sorted by name.
pub(super) async fn sources_of(sqs: &Sqs, queue: &QueueName) -> Result<Vec<QueueName>, SqsError> {
    let target = DeadLetterTarget::Queue(queue.clone());
    let all = sqs.0.engine.list().await?.into_iter();
    let sources = all.filter(|facts| facts.spec.dead_letter == target);
    let mut names: Vec<QueueName> = sources.map(|facts| facts.name).collect();
    names.sort();
    Ok(names)
}
