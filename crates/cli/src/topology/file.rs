//! The file: TOML or JSON, with the fields of the API.
//!
//! A missing field has its default value. TOML has no null: write `"none"` in settings that can be null, and
//! `{"$type" = "null"}` in the values of a filter.

use std::collections::BTreeMap;
use std::path::Path;

use malote_model::{QueueName, QueueSpec, TopicName, TopicSpec};
use malote_wire_native::fields::field_names;
use malote_wire_native::rule::{NamedRule, RuleBody};
use malote_wire_native::settings::{self, QueueSettings};
use malote_wire_native::topic::TopicSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Fields, Rules, Subscription, Topic, Topology};
use crate::failure::Failure;

/// Names that are reserved for later versions.
const RESERVED: [&str; 2] = ["streams", "schedules"];

/// The settings of a queue that has none in the file.
pub(super) fn queue_defaults() -> anyhow::Result<Fields> {
    fields_of(&QueueSettings::from(QueueSpec::default()))
}

/// The settings of a topic that has none in the file.
pub(super) fn topic_defaults() -> anyhow::Result<Fields> {
    fields_of(&TopicSettings::from(TopicSpec::default()))
}

/// A type of the API as fields.
pub(super) fn fields_of(value: &impl Serialize) -> anyhow::Result<Fields> {
    Ok(fields(serde_json::to_value(value)?))
}

/// Whether a setting can be null, which TOML does not have.
fn is_nullable(name: &str) -> bool {
    settings::is_nullable::<QueueSettings>(name) || settings::is_nullable::<TopicSettings>(name)
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn invalid(at: &str, why: impl std::fmt::Display) -> anyhow::Error {
    Failure::Usage(format!("{at}: {why}")).into()
}

/// Reads a file; `-` is standard input.
pub(super) fn read(path: &Path) -> anyhow::Result<Topology> {
    let bytes = crate::files::read(path)?;
    let at = path.display().to_string();
    let text = String::from_utf8(bytes).map_err(|_| invalid(&at, "is not UTF-8 text"))?;
    let document = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(&text).map_err(|e| invalid(&at, format!("not JSON: {e}")))?,
        false => {
            let table: toml::Table = toml::from_str(&text).map_err(|e| invalid(&at, e))?;
            json_of(toml::Value::Table(table))
        }
    };
    topology(document)
}

fn json_of(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(json_of).collect(),
        toml::Value::Table(table) => {
            let is_null = table.len() == 1
                && table.get("$type").and_then(toml::Value::as_str) == Some("null");
            if is_null {
                return Value::Null;
            }
            Value::Object(table.into_iter().map(|(name, v)| (name, json_of(v))).collect())
        }
    }
}

fn table(at: &str, value: Value) -> anyhow::Result<Fields> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(invalid(at, "must be a table")),
    }
}

fn topology(document: Value) -> anyhow::Result<Topology> {
    let mut all = Topology::default();
    for (name, value) in table("the file", document)? {
        match name.as_str() {
            "queues" => {
                for (queue, spec) in table("queues", value)? {
                    let at = format!("queues.{queue}");
                    let checked = QueueName::new(&queue).map_err(|e| invalid(&at, e))?;
                    if checked.subscription_of().is_some() || checked.is_dead_letters() {
                        let why = "is not a plain queue: write subscriptions under their topic";
                        return Err(invalid(&at, why));
                    }
                    let spec = queue_settings(&at, table(&at, spec)?)?;
                    if spec.get("exclusive") == Some(&Value::Bool(true)) {
                        let why = "an exclusive queue belongs to a connection and cannot be declared in a file";
                        return Err(invalid(&at, why));
                    }
                    all.queues.insert(queue, spec);
                }
            }
            "topics" => {
                for (name, value) in table("topics", value)? {
                    let at = format!("topics.{name}");
                    TopicName::new(&name).map_err(|e| invalid(&at, e))?;
                    all.topics.insert(name, topic(&at, table(&at, value)?)?);
                }
            }
            reserved if RESERVED.contains(&reserved) => {
                let why = "not supported by this version: remove the table";
                return Err(invalid(reserved, why));
            }
            other => {
                return Err(invalid(other, "unknown name: a file has `queues` and `topics`"));
            }
        }
    }
    Ok(all)
}

fn topic(at: &str, mut spec: Fields) -> anyhow::Result<Topic> {
    let mut take = |name: &str| match spec.remove(name) {
        Some(value) => table(&format!("{at}.{name}"), value),
        None => Ok(Map::new()),
    };
    let (subscriptions, bindings) = (take("subscriptions")?, take("bindings")?);
    let spec: TopicSettings = read_settings(at, spec)?;
    let spec = fields_of(&TopicSettings::from(spec.apply_to(TopicSpec::default())?))?;
    let kind = spec.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut topic = Topic { spec, ..Topic::default() };
    for (name, value) in subscriptions {
        let at = format!("{at}.subscriptions.{name}");
        let mut spec = table(&at, value)?;
        let rules = match spec.remove("rules") {
            Some(given) => rules(&format!("{at}.rules"), given)?,
            None => default_rules(&kind),
        };
        let spec = queue_settings(&at, spec)?;
        topic.subscriptions.insert(name, Subscription { spec, rules });
    }
    for (queue, value) in bindings {
        let at = format!("{at}.bindings.{queue}");
        QueueName::new(&queue).map_err(|e| invalid(&at, e))?;
        topic.bindings.insert(queue, rules(&at, value)?);
    }
    Ok(topic)
}

/// The rules of a subscription that has none in the file.
pub(super) fn default_rules(kind: &str) -> Rules {
    match kind {
        "filter" | "fanout" => {
            BTreeMap::from([("$Default".to_owned(), fields(json!({"filter": "all"})))])
        }
        _ => Rules::new(),
    }
}

fn rules(at: &str, value: Value) -> anyhow::Result<Rules> {
    let mut all = Rules::new();
    for (name, rule) in table(at, value)? {
        let at = format!("{at}.{name}");
        let rule = table(&at, rule)?;
        if let Some(unknown) = rule.keys().find(|field| !matches!(&***field, "filter" | "action")) {
            return Err(invalid(
                &at,
                format!("`{unknown}` is unknown: a rule has filter and action"),
            ));
        }
        let body = serde_json::from_value(Value::Object(rule)).map_err(|e| invalid(&at, e))?;
        all.insert(name, normal_rule(body)?);
    }
    Ok(all)
}

/// A rule as the server writes it, so that rules can be compared.
pub(super) fn normal_rule(body: RuleBody) -> anyhow::Result<Fields> {
    let normal = match body.clone().rule("rule".into()) {
        Ok(rule) => NamedRule::from(&rule).body(),
        // The server reports the error.
        Err(_) => body,
    };
    fields_of(&normal)
}

/// All settings of a queue: those in the file, and the defaults.
fn queue_settings(at: &str, given: Fields) -> anyhow::Result<Fields> {
    let settings: QueueSettings = read_settings(at, given)?;
    let spec = settings.apply_to(QueueSpec::default()).map_err(|e| invalid(at, e))?;
    fields_of(&QueueSettings::from(spec))
}

/// Reads settings. Unknown names are refused, and `"none"` is null where a setting can be null.
fn read_settings<T: DeserializeOwned>(at: &str, mut given: Fields) -> anyhow::Result<T> {
    let known = field_names::<T>();
    for (name, value) in &mut given {
        if !known.contains(&name.as_str()) {
            let mut known = known.to_vec();
            known.sort_unstable();
            let why = format!("`{name}` is unknown: use {}", known.join(", "));
            return Err(invalid(at, why));
        }
        if value == "none" && is_nullable(name) {
            *value = Value::Null;
        }
    }
    serde_json::from_value(Value::Object(given)).map_err(|e| invalid(at, e))
}

/// The document that describes the objects. Fields with default values are left out.
pub(super) fn document(all: &Topology) -> anyhow::Result<Value> {
    let (queue_defaults, topic_defaults) = (queue_defaults()?, topic_defaults()?);
    let sparse = |spec: &Fields, defaults: &Fields| -> Fields {
        let differs = |(name, value): &(&String, &Value)| defaults.get(*name) != Some(*value);
        spec.iter().filter(differs).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let named = |rules: &Rules| -> Fields {
        rules.iter().map(|(name, rule)| (name.clone(), Value::Object(rule.clone()))).collect()
    };
    let mut queues = Map::new();
    for (name, spec) in &all.queues {
        queues.insert(name.clone(), sparse(spec, &queue_defaults).into());
    }
    let mut topics = Map::new();
    for (name, topic) in &all.topics {
        let mut fields = sparse(&topic.spec, &topic_defaults);
        let kind = topic.spec.get("kind").and_then(Value::as_str).unwrap_or_default();
        let mut subscriptions = Map::new();
        for (name, subscription) in &topic.subscriptions {
            let mut fields = sparse(&subscription.spec, &queue_defaults);
            if subscription.rules != default_rules(kind) {
                fields.insert("rules".into(), named(&subscription.rules).into());
            }
            subscriptions.insert(name.clone(), fields.into());
        }
        let bindings: Fields =
            topic.bindings.iter().map(|(q, rules)| (q.clone(), named(rules).into())).collect();
        for (name, part) in [("subscriptions", subscriptions), ("bindings", bindings)] {
            if !part.is_empty() {
                fields.insert(name.into(), part.into());
            }
        }
        topics.insert(name.clone(), fields.into());
    }
    Ok(json!({"queues": queues, "topics": topics}))
}

/// The document as TOML.
pub(super) fn toml_of(document: &Value) -> anyhow::Result<String> {
    let value = toml_value("", document)?;
    let text = toml::to_string(&value)?;
    Ok(if text.ends_with('\n') { text } else { format!("{text}\n") })
}

fn toml_value(name: &str, value: &Value) -> anyhow::Result<toml::Value> {
    Ok(match value {
        Value::Null if is_nullable(name) => "none".into(),
        Value::Null => {
            toml::Value::Table(toml::Table::from_iter([("$type".to_owned(), "null".into())]))
        }
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(number)) if !value.is_u64() => number.into(),
            _ => anyhow::bail!("TOML has no number as large as {number}: export with -o json"),
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| toml_value("", item));
            toml::Value::Array(items.collect::<anyhow::Result<_>>()?)
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(name, v)| Ok((name.clone(), toml_value(name, v)?)));
            toml::Value::Table(entries.collect::<anyhow::Result<_>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> anyhow::Result<Topology> {
        topology(json_of(toml::Value::Table(toml::from_str(text)?)))
    }

    #[test]
    fn a_written_file_can_be_read() {
        let text = r##"
            [queues.orders]
            sessions = ["a", "b"]
            failed_max = "none"
            dedup = { window_ms = 1000 }
            dead_letter = { topic = "dead", key = "k" }
            [topics.dead]
            kind = "headers"
            [topics.dead.bindings.orders.vip]
            filter = { headers = { match = "any", values = { vip = { "$type" = "null" }, n = { "$type" = "u8", value = 3 } } } }
            [topics.sales.subscriptions.large]
            ttl_ms = 5
            [topics.sales.subscriptions.large.rules.r]
            filter = { sql = { text = "a > @b", parameters = { "@b" = 1.5 } } }
            action = "SET a = 1"
            [topics.sales.subscriptions.none.rules]
            [topics.sales.subscriptions.all]
        "##;
        let all = toml(text).unwrap();
        let document = document(&all).unwrap();
        assert_eq!(toml(&toml_of(&document).unwrap()).unwrap(), all);
        assert_eq!(topology(document).unwrap(), all);
        assert_eq!(all.topics["sales"].subscriptions["all"].rules, default_rules("filter"));
        assert!(all.topics["sales"].subscriptions["none"].rules.is_empty());
    }

    #[test]
    fn equal_rules_have_one_normal_form() {
        let rule = |value: Value| normal_rule(serde_json::from_value(value).unwrap()).unwrap();
        assert_eq!(rule(json!({})), rule(json!({"filter": "all", "action": null})));
        assert_eq!(
            rule(json!({"filter": {"sql": {"text": "a = 1", "parameters": {}}}})),
            rule(json!({"filter": {"sql": "a = 1"}}))
        );
        assert_eq!(
            rule(json!({"filter": {"headers": {}}})),
            rule(json!({"filter": {"headers": {"match": "all", "values": {}}}}))
        );
        assert_eq!(
            rule(json!({"filter": {"correlation": {"to": null, "properties": {}}}})),
            rule(json!({"filter": {"correlation": {}}}))
        );
    }

    #[test]
    fn an_invalid_entry_is_reported_with_its_name() {
        for (text, says) in [
            ("[streams.a]", "streams: not supported by this version"),
            ("[schedules.a]", "schedules: not supported by this version"),
            ("[queue.a]", "queue: unknown name: a file has `queues` and `topics`"),
            ("queues = 5", "queues: must be a table"),
            ("[queues.a]\nlock = 5", "queues.a: `lock` is unknown: use auto_delete"),
            ("[queues.\"a/Subscriptions/b\"]", "write subscriptions under their topic"),
            ("[queues.\"$a\"]", "begins with $"),
            ("[queues.a]\nexclusive = true", "belongs to a connection"),
            ("[topics.t.subscriptions.s.rules.r]\nfilters = 1", "a rule has filter and action"),
        ] {
            let why = toml(text).unwrap_err().to_string();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
