//! Subscriptions: a queue and its rules, created atomically.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, QueueName, QueueSpec, Refusal, Rule, TopicName};
use malote_wire_native::queue::ListQuery;
use malote_wire_native::topic::{SubscribeRequest, SubscriptionInfo, SubscriptionList};

use crate::extract::{Caller, Json, Query, Subscription, Topic};
use crate::limits::PAGE_MAX;
use crate::problem::{Code, Problem};
use crate::requests::named_rule;
use crate::{Api, convert};

/// Lists the subscriptions of a topic that the caller may see.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Query(query): Query<ListQuery>,
) -> Result<Answer<SubscriptionList>, Problem> {
    api.allow_lists(&caller)?;
    let max = query.max.unwrap_or(usize::MAX);
    if max == 0 {
        return Err(Problem::new(Code::BadQuery, "`max` must be at least 1"));
    }
    let mut found = Vec::new();
    for facts in api.engine.list().await? {
        let Some((_, name)) = facts.name.subscription_of().filter(|(of, _)| *of == topic) else {
            continue;
        };
        let wanted = query.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix))
            && query.after.as_deref().is_none_or(|after| name > after)
            && api.allow_view(&caller, &facts.name).is_ok();
        if wanted {
            found.push((name.to_owned(), facts));
        }
    }
    if found.is_empty() {
        // Distinguishes a topic without subscriptions from a missing one, for callers that may see the topic.
        api.allow_view_of(&caller, &topic.clone().into())?;
        api.engine.topic(topic.clone()).await?;
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let more = found.len() > max;
    found.truncate(max);
    let next = found.last().filter(|_| more).map(|(name, _)| name.clone());
    let of = |(name, facts): (String, malote_engine::QueueFacts)| {
        convert::subscription_info(topic.as_str().to_owned(), name, facts, None)
    };
    Ok(Answer(SubscriptionList { subscriptions: found.into_iter().map(of).collect(), next }))
}

/// Creates the subscription with its rules. It is no error if it exists with the same settings.
pub async fn declare(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
    Json(asked): Json<SubscribeRequest>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let before = QueueSpec::default();
    let spec = asked.spec.apply_to(before.clone())?;
    api.allow_targets(&caller, &before, &spec)?;
    let rules = asked.rules.map(|rules| rules.into_iter().map(named_rule).collect());
    let rules: Option<Vec<Rule>> = rules.transpose()?;
    let created = api.engine.subscribe(queue.clone(), spec, rules.clone()).await?;
    if created {
        tracing::info!(%queue, front = "http", "subscription created");
    } else if let Some(asked) = rules {
        same_rules(&api, &topic, &queue, asked).await?;
    }
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(shown(&api, topic, queue).await?)).into_response())
}

/// The engine keeps the rules of an existing subscription, so different rules in the request are an error.
async fn same_rules(
    api: &Api,
    topic: &TopicName,
    queue: &QueueName,
    mut asked: Vec<Rule>,
) -> Result<(), Problem> {
    let differs = |rule: &str| {
        let (topic, target) = (topic.clone(), queue.clone().into());
        Problem::from(Refusal::RuleDiffers { topic, target, rule: rule.to_owned() })
            .fix("Change rules one by one: …/subscriptions/{name}/rules/{rule}.")
    };
    asked.sort_by(|a, b| a.name.cmp(&b.name));
    let mut asked = asked.into_iter();
    let mut after = None;
    loop {
        let (topic, only) = (topic.clone(), Some(queue.clone().into()));
        let page = api.engine.rules(topic, only, after.take(), PAGE_MAX).await?;
        for have in &page {
            match asked.next() {
                Some(rule) if rule == have.rule => {}
                Some(rule) => return Err(differs(&rule.name)),
                None => return Err(differs(&have.rule.name)),
            }
        }
        match page.last() {
            Some(last) if page.len() >= PAGE_MAX => {
                after = Some((last.target.clone(), last.rule.name.clone()));
            }
            _ => break,
        }
    }
    asked.next().map_or(Ok(()), |rule| Err(differs(&rule.name)))
}

async fn shown(api: &Api, topic: TopicName, queue: QueueName) -> Result<SubscriptionInfo, Problem> {
    let facts = api.engine.describe(queue.clone()).await?;
    let name = queue.subscription_of().map_or("", |(_, name)| name).to_owned();
    let rules = api.engine.rules(topic.clone(), Some(queue.into()), None, PAGE_MAX).await?;
    let rules = convert::rule_page(&rules, PAGE_MAX, |_| true);
    Ok(convert::subscription_info(topic.as_str().to_owned(), name, facts, Some(rules)))
}

/// Describes the subscription with its rules.
pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
) -> Result<Answer<SubscriptionInfo>, Problem> {
    api.allow_view(&caller, &queue)?;
    Ok(Answer(shown(&api, topic, queue).await?))
}

/// Deletes the subscription and its messages.
pub async fn delete(
    State(api): State<Api>,
    Caller(caller): Caller,
    Subscription(queue): Subscription,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.delete(queue.clone()).await?;
    tracing::info!(%queue, front = "http", "subscription deleted");
    Ok(StatusCode::NO_CONTENT)
}
