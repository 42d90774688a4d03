//! Rules: listing, adding and taking away, and trying one on a message.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, Facts, Principal, QueueName, TopicName};
use malote_wire_native::frame::Encoding;
use malote_wire_native::message::ReceivedMessage;
use malote_wire_native::rule::{NamedRule, RuleBody, RuleTest, RuleTestResult};
use malote_wire_native::topic::{RuleList, RulesQuery};

use crate::extract::{Caller, Json, JsonMessages, Query, Queue, RuleName, Subscription, Topic};
use crate::problem::{Code, Problem};
use crate::requests::{RulesPage, rules_page};
use crate::{Api, convert};

/// Rules of a topic over all its queues, by queue and name.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Query(query): Query<RulesQuery>,
) -> Result<Answer<RuleList>, Problem> {
    api.allow_look_at(&caller, &topic.clone().into())?;
    let RulesPage { queue, after, max } = rules_page(query)?;
    let manages = api.allow_topic(&caller, Action::Manage, &topic).is_ok();
    let rules = api.engine.rules(topic, queue, after, max).await?;
    // Whoever may only send learns nothing of queues that it may not see.
    let shown = |queue: &QueueName| manages || api.allow_look(&caller, queue).is_ok();
    Ok(Answer(convert::rule_page(&rules, max, shown)))
}

/// Rules of one subscription, by name.
pub async fn list_of_subscription(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
    Query(query): Query<RulesQuery>,
) -> Result<Answer<RuleList>, Problem> {
    api.allow_look(&caller, &queue)?;
    let RulesPage { queue: other, after, max } = rules_page(query)?;
    if other.is_some() {
        return Err(Problem::new(Code::BadQuery, "`queue` means nothing here: the path names it"));
    }
    let rules = api.engine.rules(topic, Some(queue), after, max).await?;
    Ok(Answer(convert::rule_page(&rules, max, |_| true)))
}

/// Lets a queue have copies by a rule.
pub async fn bind(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Queue(queue): Queue,
    RuleName(name): RuleName,
    Json(body): Json<RuleBody>,
) -> Result<Response, Problem> {
    may_bind(&api, &caller, &topic, &queue)?;
    add(&api, topic, queue, name, body).await
}

/// Adds a rule to a subscription.
pub async fn bind_subscription(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
    RuleName(name): RuleName,
    Json(body): Json<RuleBody>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    add(&api, topic, queue, name, body).await
}

async fn add(
    api: &Api,
    topic: TopicName,
    queue: QueueName,
    name: String,
    body: RuleBody,
) -> Result<Response, Problem> {
    let rule = body.rule(name)?;
    let shown = NamedRule::from(&rule);
    let created = api.engine.bind(topic, queue, rule).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(shown)).into_response())
}

/// Takes a rule of a queue away.
pub async fn unbind(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Queue(queue): Queue,
    RuleName(name): RuleName,
) -> Result<StatusCode, Problem> {
    may_bind(&api, &caller, &topic, &queue)?;
    api.engine.unbind(topic, queue, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes a rule of a subscription away.
pub async fn unbind_subscription(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
    RuleName(name): RuleName,
) -> Result<StatusCode, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    api.engine.unbind(topic, queue, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A subscription belongs to its topic and is managed by its own name; any other queue is somebody else's, so that
/// both ends are asked.
fn may_bind(
    api: &Api,
    caller: &Principal,
    topic: &TopicName,
    queue: &QueueName,
) -> Result<(), Problem> {
    api.allow(caller, Action::Manage, queue)?;
    if queue.subscription_of().is_some_and(|(of, _)| of == *topic) {
        return Ok(());
    }
    api.allow_topic(caller, Action::Manage, topic)
}

/// Whether a rule takes a message, and what becomes of the copy. Nothing is stored.
pub async fn test(
    State(api): State<Api>,
    JsonMessages(asked, _share): JsonMessages<RuleTest>,
) -> Result<Answer<RuleTestResult>, Problem> {
    let (rule, message) = asked.parts()?;
    if message.queue.is_some() || message.topic.is_some() || message.session_from_key {
        let why = "`queue`, `topic` and `session_from_key` mean nothing to a rule";
        return Err(Problem::new(Code::BadField, why));
    }
    let mut message = message.into_message()?;
    let now = api.engine.now();
    let matches = rule.filter.matches(&Facts::new(&message, now));
    if matches && let Some(action) = &rule.action {
        action.apply(&mut message, now);
    }
    Ok(Answer(RuleTestResult {
        matches,
        message: matches.then(|| ReceivedMessage::new(message, Encoding::Json)),
    }))
}
