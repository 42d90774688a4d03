//! Rules of a subscription.

use malote_model::{QueueName, Refusal, TopicName};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::{Map, Value};

use super::{ManagementContext, OperationResult, argument_error};
use crate::limits;
use crate::refusal::{LockKind, engine_error, servicebus};
use crate::wire::rule;

fn subscription<'a>(
    context: &'a ManagementContext<'_>,
) -> Result<(TopicName, &'a QueueName), AmqpError> {
    let queue = context.queue()?;
    let of = queue.subscription_of();
    let (topic, _) =
        of.ok_or_else(|| AmqpError::new(condition::NOT_ALLOWED, "only subscriptions have rules"))?;
    Ok((topic, queue))
}

fn rule_name<'a>(context: &'a ManagementContext<'_>) -> Result<&'a str, AmqpError> {
    context.text("rule-name").ok_or_else(|| argument_error("`rule-name` is missing".to_owned()))
}

pub(super) async fn add(context: &ManagementContext<'_>) -> OperationResult {
    let (topic, queue) = subscription(context)?;
    let name = rule_name(context)?;
    let description = context.body.get("rule-description").and_then(Value::as_map);
    let description =
        description.ok_or_else(|| argument_error("`rule-description` is missing".to_owned()))?;
    let rule = rule::read(name, description)?;
    let bound = context.front.engine.bind(topic, queue.clone(), rule).await;
    match bound.map_err(|error| engine_error(error, LockKind::Message))? {
        true => Ok(Some(Map::default())),
        false => {
            let text = format!("rule `{name}` already exists");
            Err(AmqpError::new(servicebus::ENTITY_ALREADY_EXISTS, text))
        }
    }
}

pub(super) async fn remove(context: &ManagementContext<'_>) -> OperationResult {
    let (topic, queue) = subscription(context)?;
    let name = rule_name(context)?.to_owned();
    let removed = context.front.engine.unbind(topic, queue.clone(), name).await;
    removed.map_err(|error| engine_error(error, LockKind::Message))?;
    Ok(Some(Map::default()))
}

pub(super) async fn list(context: &ManagementContext<'_>) -> OperationResult {
    let (topic, queue) = subscription(context)?;
    let page = |name: &str| context.number(name).and_then(|n| usize::try_from(n).ok());
    let skip = page("skip").unwrap_or(0);
    let top = page("top").unwrap_or(limits::PAGE_MAX).min(limits::PAGE_MAX);
    // A subscription has few rules, so skipped ones are simply read again.
    let max = skip.saturating_add(top).min(RULES_MAX);
    let rules = context.front.engine.rules(topic, Some(queue.clone().into()), None, max).await;
    let rules = rules.map_err(|error| match error {
        malote_engine::EngineError::Refused(Refusal::QueueNotFound { .. }) => {
            AmqpError::new(condition::NOT_FOUND, "the subscription does not exist")
        }
        error => engine_error(error, LockKind::Message),
    })?;
    let rules: Vec<Value> = rules
        .iter()
        .skip(skip)
        .map(|binding| {
            Value::Map(Map::default().with_string("rule-description", rule::write(&binding.rule)))
        })
        .collect();
    Ok((!rules.is_empty()).then(|| Map::default().with_string("rules", rules)))
}

/// Rules that a client can page through; the service allows 2,000 per topic.
const RULES_MAX: usize = 2_000;
