//! `ListQueues`.

use super::VIEW_ACTIONS;
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::SqsError;
use crate::wire::name;
use crate::wire::shapes::{ListQueuesIn, QueueUrlsOut};

const LIST_MAX: usize = 1000;

/// Lists queues whose names are valid in SQS and that the caller may see.
pub async fn list_queues(
    sqs: &Sqs,
    call: &Call,
    request: ListQueuesIn,
) -> Result<QueueUrlsOut, SqsError> {
    sqs.0.access.check_lists(&call.caller)?;
    let prefix = request.queue_name_prefix.unwrap_or_default();
    let mut facts = sqs.0.engine.list().await?;
    facts.retain(|facts| {
        let name = facts.name.as_str();
        name.starts_with(&prefix)
            && name::is_name(name)
            && call.check_permission(sqs, &facts.name, VIEW_ACTIONS).is_ok()
    });
    let mut names: Vec<String> =
        facts.into_iter().map(|facts| facts.name.as_str().to_owned()).collect();
    names.sort();
    let (names, next_token) = page(names, request.max_results, request.next_token.as_deref())?;
    let queue_urls = names.iter().map(|name| call.addressing.url(name)).collect();
    Ok(QueueUrlsOut { queue_urls, next_token })
}

/// A page of sorted names. The token is the last name of the previous page.
pub fn page(
    mut names: Vec<String>,
    max_results: Option<i64>,
    next_token: Option<&str>,
) -> Result<(Vec<String>, Option<String>), SqsError> {
    let rule = "Must be an integer between 1 and 1000.";
    let max = super::check_range(max_results, "MaxResults", 1..=1000, rule)?;
    names.retain(|name| next_token.is_none_or(|token| name.as_str() > token));
    let more = names.len() > max.map_or(LIST_MAX, |max| max as usize);
    names.truncate(max.map_or(LIST_MAX, |max| max as usize));
    let next = names.last().filter(|_| more && max.is_some()).cloned();
    Ok((names, next))
}
