//! Rules: list, add, delete, and test with a message.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, Address, Facts, Principal, QueueName, TopicName};
use malote_wire_native::frame::Encoding;
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::rule::{NamedRule, RuleBody, RuleTest, RuleTestResult};
use malote_wire_native::topic::{RuleList, RulesQuery};

use crate::extract::{
    Caller, Json, JsonMessages, Query, Queue, RuleName, Subscription, TargetTopic, Topic,
};
use crate::problem::{Code, Problem};
use crate::requests::{RulesPage, rules_page};
use crate::{Api, convert};

/// Lists the rules of a topic by queue and name.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Query(query): Query<RulesQuery>,
) -> Result<Answer<RuleList>, Problem> {
    api.allow_view_of(&caller, &topic.clone().into())?;
    let RulesPage { queue, after, max } = rules_page(query)?;
    let manages = api.allow_topic(&caller, Action::Manage, &topic).is_ok();
    let rules = api.engine.rules(topic, queue.map(Into::into), after, max).await?;
    // Rules of targets that the caller may not see are left out.
    let shown = |target: &Address| manages || api.allow_view_of(&caller, target).is_ok();
    Ok(Answer(convert::rule_page(&rules, max, shown)))
}

/// Lists the rules of a subscription by name.
pub async fn list_of_subscription(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Subscription(queue): Subscription,
    Query(query): Query<RulesQuery>,
) -> Result<Answer<RuleList>, Problem> {
    api.allow_view(&caller, &queue)?;
    let RulesPage { queue: other, after, max } = rules_page(query)?;
    if other.is_some() {
        return Err(Problem::new(Code::BadQuery, "`queue` is not allowed here: it is in the path"));
    }
    let rules = api.engine.rules(topic, Some(queue.into()), after, max).await?;
    Ok(Answer(convert::rule_page(&rules, max, |_| true)))
}

/// Binds a queue to a topic with a rule.
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
    target: impl Into<Address>,
    name: String,
    body: RuleBody,
) -> Result<Response, Problem> {
    let rule = body.rule(name)?;
    let shown = NamedRule::from(&rule);
    let created = api.engine.bind(topic, target, rule).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(shown)).into_response())
}

/// Passes messages on to another topic by a rule.
pub async fn bind_topic(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    TargetTopic(target): TargetTopic,
    RuleName(name): RuleName,
    Json(body): Json<RuleBody>,
) -> Result<Response, Problem> {
    api.allow_topic(&caller, Action::Manage, &target)?;
    api.allow_topic(&caller, Action::Manage, &topic)?;
    add(&api, topic, target, name, body).await
}

/// Removes a rule that leads to another topic.
pub async fn unbind_topic(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    TargetTopic(target): TargetTopic,
    RuleName(name): RuleName,
) -> Result<StatusCode, Problem> {
    api.allow_topic(&caller, Action::Manage, &target)?;
    api.allow_topic(&caller, Action::Manage, &topic)?;
    api.engine.unbind(topic, target, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a rule of a queue.
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

/// Deletes a rule of a subscription.
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

/// Checks the permission to bind. A subscription belongs to its topic and has its own name. For any other queue, the
/// caller needs permissions on the topic and on the queue.
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

/// Tests whether a rule matches a message, and applies its action. Nothing is stored.
pub async fn test(
    State(api): State<Api>,
    JsonMessages(asked, _share): JsonMessages<RuleTest>,
) -> Result<Answer<RuleTestResult>, Problem> {
    let (rule, message) = asked.parts()?;
    if message.queue.is_some() || message.topic.is_some() || message.session_from_key {
        let why = "`queue`, `topic` and `session_from_key` are not allowed in a test of a rule";
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
