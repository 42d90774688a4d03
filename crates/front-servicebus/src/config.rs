//! Creates the entities of a `Config.json`, the start-up file of Microsoft's emulator.
//!
//! Entities in the file are created, or updated to match it. Entities not in the file stay. Properties without a
//! meaning in Malote are logged and ignored.

use std::collections::BTreeMap;
use std::sync::Arc;

use malote_engine::{Engine, EngineError};
use malote_model::{
    Address, Correlation, DeadLetterTarget, Dedup, Filter, OnExpiry, QueueName, QueueSpec, Refusal,
    Rule, Sessions, SqlAction, SqlFilter, Status, TopicName, TopicSpec, Value,
};
use serde::Deserialize;

use crate::entity;
use crate::wire::duration::parse_ms;

/// Why the entities of a file could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("not a valid Config.json of the Service Bus emulator: {0}")]
    Json(#[from] serde_json::Error),
    /// A property has an invalid value.
    #[error("`{entity}`: {field} is `{value}`; expected {expected}")]
    Value { entity: String, field: &'static str, value: String, expected: &'static str },
    /// The engine refused the entity.
    #[error("`{entity}`: {why}")]
    Refused { entity: String, why: EngineError },
}

/// The parsed file.
#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(rename = "UserConfig")]
    user: UserConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UserConfig {
    #[serde(default)]
    namespaces: Vec<NamespaceConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NamespaceConfig {
    #[serde(default)]
    queues: Vec<EntityConfig>,
    #[serde(default)]
    topics: Vec<EntityConfig>,
}

/// A queue, topic or subscription.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EntityConfig {
    name: String,
    #[serde(default)]
    properties: EntityProperties,
    #[serde(default)]
    subscriptions: Vec<EntityConfig>,
    rules: Option<Vec<RuleEntry>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct EntityProperties {
    lock_duration: Option<String>,
    default_message_time_to_live: Option<String>,
    duplicate_detection_history_time_window: Option<String>,
    max_delivery_count: Option<u32>,
    requires_session: bool,
    requires_duplicate_detection: bool,
    dead_lettering_on_message_expiration: bool,
    forward_to: Option<String>,
    forward_dead_lettered_messages_to: Option<String>,
    status: Option<String>,
    #[serde(flatten)]
    other: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RuleEntry {
    name: String,
    #[serde(default)]
    properties: RuleProperties,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RuleProperties {
    correlation_filter: Option<CorrelationFilter>,
    sql_filter: Option<SqlConfig>,
    action: Option<SqlConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SqlConfig {
    sql_expression: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct CorrelationFilter {
    content_type: Option<String>,
    correlation_id: Option<String>,
    label: Option<String>,
    subject: Option<String>,
    message_id: Option<String>,
    reply_to: Option<String>,
    reply_to_session_id: Option<String>,
    session_id: Option<String>,
    to: Option<String>,
    properties: BTreeMap<String, serde_json::Value>,
}

impl Config {
    /// Parses the file.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Ok(serde_json::from_str(text.trim_start_matches('\u{feff}'))?)
    }

    /// Creates or updates the entities.
    pub async fn apply(&self, engine: &Engine) -> Result<(), ConfigError> {
        // Forwarding is set up last, because its targets must exist.
        let mut forwarding = Vec::new();
        for namespace in &self.user.namespaces {
            let topics: Vec<&str> = namespace.topics.iter().map(|topic| &*topic.name).collect();
            for topic in &namespace.topics {
                create_topic(engine, topic).await?;
                for subscription in &topic.subscriptions {
                    let name = create_subscription(engine, topic, subscription, &topics).await?;
                    forwarding.extend(name);
                }
            }
            for queue in &namespace.queues {
                let name = name_of(&queue.name)?;
                let spec = spec_of(queue, &name, None, &topics)?;
                declare(engine, &name, without_forwarding(&spec), None).await?;
                forwarding.extend(forwards(&spec).then_some((name, spec)));
            }
        }
        for (name, spec) in forwarding {
            let entity = name.to_string();
            engine.update(name, spec).await.map_err(|why| refused(&entity, why))?;
        }
        Ok(())
    }
}

fn refused(entity: &str, why: EngineError) -> ConfigError {
    ConfigError::Refused { entity: entity.to_owned(), why }
}

fn name_of(name: &str) -> Result<QueueName, ConfigError> {
    QueueName::new(name).map_err(|refusal| refused(name, refusal.into()))
}

fn topic_of(name: &str) -> Result<TopicName, ConfigError> {
    TopicName::new(name).map_err(|refusal| refused(name, refusal.into()))
}

fn forwards(spec: &QueueSpec) -> bool {
    spec.forward_to.is_some() || spec.dead_letter != DeadLetterTarget::Own
}

fn without_forwarding(spec: &QueueSpec) -> QueueSpec {
    QueueSpec { forward_to: None, dead_letter: DeadLetterTarget::Own, ..spec.clone() }
}

async fn create_topic(engine: &Engine, topic: &EntityConfig) -> Result<(), ConfigError> {
    let name = topic_of(&topic.name)?;
    let (dedup, status) = (dedup_of(topic)?, status_of(topic)?);
    let spec = TopicSpec { dedup, status, ..TopicSpec::default() };
    let made = match engine.declare_topic(name.clone(), spec.clone()).await {
        Err(EngineError::Refused(Refusal::TopicDiffers { .. })) => {
            engine.update_topic(name, spec).await
        }
        made => made.map(drop),
    };
    made.map_err(|why| refused(&topic.name, why))
}

async fn create_subscription(
    engine: &Engine,
    topic: &EntityConfig,
    subscription: &EntityConfig,
    topics: &[&str],
) -> Result<Option<(QueueName, QueueSpec)>, ConfigError> {
    let of = topic_of(&topic.name)?;
    let name = QueueName::subscription(&of, &subscription.name)
        .map_err(|refusal| refused(&subscription.name, refusal.into()))?;
    let spec = spec_of(subscription, &name, Some(topic), topics)?;
    let rules = match &subscription.rules {
        Some(rules) if !rules.is_empty() => {
            Some(rules.iter().map(|entry| rule_of(&name, entry)).collect::<Result<Vec<_>, _>>()?)
        }
        _ => None,
    };
    let created = declare(engine, &name, without_forwarding(&spec), Some(rules.clone())).await?;
    if let Some(rules) = rules.filter(|_| !created) {
        replace_rules(engine, &of, &name, rules)
            .await
            .map_err(|why| refused(name.as_str(), why))?;
    }
    Ok(forwards(&spec).then_some((name, spec)))
}

/// Creates a queue or, with rules, a subscription. Updates an existing one that differs. Returns whether it was
/// created.
async fn declare(
    engine: &Engine,
    name: &QueueName,
    spec: QueueSpec,
    rules: Option<Option<Vec<Rule>>>,
) -> Result<bool, ConfigError> {
    let made = match rules {
        None => engine.declare(name.clone(), spec.clone()).await,
        Some(rules) => engine.subscribe(name.clone(), spec.clone(), rules).await,
    };
    let made = match made {
        Err(EngineError::Refused(Refusal::QueueDiffers { .. })) => {
            engine.update(name.clone(), spec).await.map(|()| false)
        }
        made => made,
    };
    made.map_err(|why| refused(name.as_str(), why))
}

/// Replaces the rules of an existing subscription with those of the file.
async fn replace_rules(
    engine: &Engine,
    topic: &TopicName,
    queue: &QueueName,
    rules: Vec<Rule>,
) -> Result<(), EngineError> {
    const RULES_MAX: usize = 10_000;
    let there = engine.rules(topic.clone(), Some(queue.clone().into()), None, RULES_MAX).await?;
    for binding in there.iter().filter(|binding| !rules.contains(&binding.rule)) {
        engine.unbind(topic.clone(), queue.clone(), binding.rule.name.clone()).await?;
    }
    for rule in rules {
        engine.bind(topic.clone(), queue.clone(), rule).await?;
    }
    Ok(())
}

fn span(
    entity: &str,
    field: &'static str,
    value: &Option<String>,
) -> Result<Option<u64>, ConfigError> {
    let Some(value) = value.as_ref().filter(|value| !value.is_empty()) else { return Ok(None) };
    parse_ms(value).ok_or_else(|| ConfigError::Value {
        entity: entity.to_owned(),
        field,
        value: value.clone(),
        expected: "a duration such as PT1M",
    })
}

fn dedup_of(entity: &EntityConfig) -> Result<Option<Dedup>, ConfigError> {
    let properties = &entity.properties;
    let field = "DuplicateDetectionHistoryTimeWindow";
    let window = span(&entity.name, field, &properties.duplicate_detection_history_time_window)?;
    Ok(properties.requires_duplicate_detection.then(|| Dedup {
        window_ms: window.unwrap_or(entity::DEDUP_WINDOW_MS),
        per_session: false,
        content: false,
    }))
}

fn status_of(entity: &EntityConfig) -> Result<Status, ConfigError> {
    let Some(word) = entity.properties.status.as_deref().filter(|word| !word.is_empty()) else {
        return Ok(Status::Active);
    };
    entity::status_of(word).ok_or_else(|| ConfigError::Value {
        entity: entity.name.clone(),
        field: "Status",
        value: word.to_owned(),
        expected: entity::STATUSES,
    })
}

fn spec_of(
    entity: &EntityConfig,
    name: &QueueName,
    topic: Option<&EntityConfig>,
    topics: &[&str],
) -> Result<QueueSpec, ConfigError> {
    let p = &entity.properties;
    for other in p.other.keys() {
        tracing::warn!(entity = name.as_str(), property = other, "property ignored");
    }
    let ttl = |of: &EntityConfig| {
        span(&of.name, "DefaultMessageTimeToLive", &of.properties.default_message_time_to_live)
    };
    let of_topic = topic.map(ttl).transpose()?.flatten();
    let address = |text: &String| -> Result<Address, ConfigError> {
        match topics.contains(&text.as_str()) {
            true => topic_of(text).map(Address::Topic),
            false => name_of(text).map(Address::Queue),
        }
    };
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let dead_letter = match named(&p.forward_dead_lettered_messages_to).as_ref().map(address) {
        None => DeadLetterTarget::Own,
        Some(target) => match target? {
            Address::Queue(queue) => DeadLetterTarget::Queue(queue),
            Address::Topic(topic) => DeadLetterTarget::Topic { topic, key: None },
        },
    };
    Ok(QueueSpec {
        sessions: if p.requires_session { Sessions::Dynamic } else { Sessions::None },
        lock_ms: span(&entity.name, "LockDuration", &p.lock_duration)?.unwrap_or(entity::LOCK_MS),
        failed_max: Some(p.max_delivery_count.unwrap_or(entity::FAILED_MAX)),
        ttl_ms: [ttl(entity)?, of_topic].into_iter().flatten().min(),
        on_expiry: match p.dead_lettering_on_message_expiration {
            true => OnExpiry::DeadLetter,
            false => OnExpiry::Drop,
        },
        dedup: if topic.is_some() { None } else { dedup_of(entity)? },
        forward_to: named(&p.forward_to).as_ref().map(address).transpose()?,
        dead_letter,
        status: status_of(entity)?,
        ..entity::queue_spec()
    })
}

fn rule_of(subscription: &QueueName, entry: &RuleEntry) -> Result<Rule, ConfigError> {
    let refused =
        |refusal: Refusal| refused(&format!("{subscription}/{}", entry.name), refusal.into());
    let p = &entry.properties;
    let filter = match (&p.sql_filter, &p.correlation_filter) {
        (Some(sql), _) => {
            Filter::Sql(SqlFilter::new(&sql.sql_expression, Vec::new()).map_err(refused)?)
        }
        (None, Some(correlation)) => Filter::Correlation(Arc::new(correlation_of(correlation))),
        (None, None) => Filter::All,
    };
    let action = p.action.as_ref().filter(|action| !action.sql_expression.trim().is_empty());
    let action = action.map(|sql| SqlAction::new(&sql.sql_expression, Vec::new()));
    let action = action.transpose().map_err(refused)?;
    Ok(Rule { name: entry.name.clone(), filter, action })
}

fn correlation_of(filter: &CorrelationFilter) -> Correlation {
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::Bool(is) => Value::Bool(*is),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::I64(number),
            None => Value::F64(number.as_f64().unwrap_or(0.0)),
        },
        serde_json::Value::String(text) => Value::String(text.clone()),
        other => Value::String(other.to_string()),
    };
    Correlation {
        message_id: filter.message_id.clone(),
        correlation_id: filter.correlation_id.clone(),
        to: filter.to.clone(),
        reply_to: filter.reply_to.clone(),
        subject: filter.label.clone().or_else(|| filter.subject.clone()),
        session: filter.session_id.clone(),
        reply_to_session: filter.reply_to_session_id.clone(),
        content_type: filter.content_type.clone(),
        key: None,
        properties: filter.properties.iter().map(|(name, v)| (name.clone(), value(v))).collect(),
    }
}
