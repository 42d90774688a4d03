//! Applies a plan, one call to the server after the other.

use malote_model::{QueueName, TopicName};
use malote_wire_native::message::NewMessage;
use malote_wire_native::rule::{NamedRule, RuleBody, RuleTest};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::plan::{Plan, Step};
use super::{Fields, Rules};
use crate::api::Api;

/// Lets the server check every new rule before anything changes, because a SQL filter can be invalid.
pub(super) async fn check_rules(api: &Api, plan: &Plan) -> anyhow::Result<()> {
    for change in &plan.changes {
        match &change.step {
            Step::Subscribe(_, _, rules) => {
                for (name, rule) in rules {
                    check(api, &format!("{} rule {name}", change.name), rule).await?;
                }
            }
            Step::AddRule(_, _, _, rule) | Step::ReplaceRule(_, _, _, rule) => {
                check(api, &change.name, rule).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn check(api: &Api, name: &str, rule: &Fields) -> anyhow::Result<()> {
    let RuleBody { filter, action } = read(rule)?;
    let test = RuleTest { filter, action, message: NewMessage::default() };
    api.test_rule(&test)
        .await
        .map(drop)
        .map_err(|error| anyhow::Error::new(error).context(name.to_owned()))
}

/// Fields as a type of the API.
fn read<T: DeserializeOwned>(fields: &Fields) -> anyhow::Result<T> {
    Ok(serde_json::from_value(Value::Object(fields.clone()))?)
}

fn named(name: &str, rule: &Fields) -> anyhow::Result<NamedRule> {
    let RuleBody { filter, action } = read(rule)?;
    Ok(NamedRule { name: name.to_owned(), filter, action })
}

/// Applies the changes in order and stops at the first error. A second run applies the rest.
pub(super) async fn apply(api: &Api, plan: &Plan) -> anyhow::Result<()> {
    for change in &plan.changes {
        let done = step(api, &change.step).await;
        done.map_err(|error| error.context(change.name.clone()))?;
    }
    Ok(())
}

async fn step(api: &Api, step: &Step) -> anyhow::Result<()> {
    match step {
        Step::None => Ok(()),
        Step::CreateTopic(topic, spec) => {
            Ok(api.declare_topic(topic, &read(spec)?).await.map(drop)?)
        }
        Step::RemoveTopic(topic) => Ok(api.delete_topic(topic).await?),
        Step::CreateQueue(queue, spec) => Ok(api.declare(queue, &read(spec)?).await.map(drop)?),
        Step::Subscribe(queue, spec, rules) => subscribe(api, queue, spec, rules).await,
        Step::UpdateQueue(queue, fields) => {
            Ok(api.update(queue, &read(fields)?).await.map(drop)?)
        }
        Step::RemoveQueue(queue) => Ok(api.delete(queue).await?),
        Step::AddRule(topic, queue, name, rule) => {
            Ok(api.bind(topic, queue, &named(name, rule)?).await.map(drop)?)
        }
        Step::ReplaceRule(topic, queue, name, rule) => {
            replace(api, topic, queue, &named(name, rule)?).await
        }
        Step::RemoveRule(topic, queue, rule) => Ok(api.unbind(topic, queue, rule).await?),
    }
}

async fn subscribe(
    api: &Api,
    queue: &QueueName,
    spec: &Fields,
    rules: &Rules,
) -> anyhow::Result<()> {
    let Some((topic, name)) = queue.subscription_of() else {
        anyhow::bail!("`{queue}` is not a subscription");
    };
    let rules: Vec<_> =
        rules.iter().map(|(name, rule)| named(name, rule)).collect::<anyhow::Result<_>>()?;
    Ok(api.subscribe(&topic, name, read(spec)?, Some(rules)).await.map(drop)?)
}

/// Replaces a rule. The new rule is added under a temporary name before the old one is deleted. One of them matches at
/// any time, so the queue gets every message.
async fn replace(
    api: &Api,
    topic: &TopicName,
    queue: &QueueName,
    rule: &NamedRule,
) -> anyhow::Result<()> {
    let temporary = NamedRule { name: format!("{} (new)", rule.name), ..rule.clone() };
    api.bind(topic, queue, &temporary).await?;
    api.unbind(topic, queue, &rule.name).await?;
    api.bind(topic, queue, rule).await?;
    Ok(api.unbind(topic, queue, &temporary.name).await?)
}
