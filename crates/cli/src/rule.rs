//! `malote rule …`: filters as flags, and testing a rule on a message.

use clap::ValueEnum;
use malote_model::Value as PropertyValue;
use malote_wire_native::PropertyMap;
use malote_wire_native::body::BodyContent;
use malote_wire_native::rule::{NamedRule, RuleFilter, RuleTest, RuleTestResult, SqlSource};
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::args::noun;
use crate::failure::Failure;
use crate::output::{Facts, Output};
use crate::send::{MessageArgs, property};

noun! {
    /// Test rules of topics
    Rule {
        Test(Test),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Match {
    /// All of them, except names that start with x-
    All,
    /// At least one of them, except names that start with x-
    Any,
    /// All of them, including names that start with x-
    AllWithX,
    /// At least one of them, including names that start with x-
    AnyWithX,
}

/// The filter and the action of a rule.
#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Match messages with exactly this key
    #[arg(id = "filter-key", long, value_name = "KEY", group = "filter", help_heading = "Rule")]
    key: Option<String>,
    /// Match the words of the key: `*` is one word between dots, `#` any number of words
    #[arg(long, value_name = "PATTERN", group = "filter", help_heading = "Rule")]
    pattern: Option<String>,
    /// Match a property: NAME=TEXT, NAME:=JSON, or NAME if any value matches
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header, group = "filter", help_heading = "Rule")]
    headers: Vec<(String, PropertyValue)>,
    /// How many of the headers must match
    #[arg(
        long = "match",
        value_enum,
        value_name = "HOW",
        requires = "headers",
        help_heading = "Rule"
    )]
    mode: Option<Match>,
    /// Match a field: FIELD=TEXT with id, subject, to, key, session, correlation_id …, or property.NAME=TEXT
    #[arg(long = "where", value_name = "FIELD=VALUE", value_parser = property, group = "filter", help_heading = "Rule")]
    fields: Vec<(String, PropertyValue)>,
    /// Match messages for which this SQL condition is true
    #[arg(long, value_name = "TEXT", group = "filter", help_heading = "Rule")]
    sql: Option<String>,
    /// Parameter in --sql or --action: @NAME=TEXT or @NAME:=JSON
    #[arg(long = "param", value_name = "@NAME=VALUE", value_parser = property, help_heading = "Rule")]
    params: Vec<(String, PropertyValue)>,
    /// Match no message
    #[arg(long, group = "filter", help_heading = "Rule")]
    nothing: bool,
    /// Filter as JSON, in the format of the API
    #[arg(long = "filter", value_name = "JSON", group = "filter", help_heading = "Rule")]
    json: Option<String>,
    /// Change the copy of the message: SET name = expression; REMOVE name
    #[arg(long, value_name = "SQL", help_heading = "Rule")]
    action: Option<String>,
}

/// `NAME=TEXT`, `NAME:=JSON`, or `NAME` alone.
fn header(text: &str) -> Result<(String, PropertyValue), String> {
    match text.contains('=') {
        true => property(text),
        false => Ok((text.to_owned(), PropertyValue::Null)),
    }
}

fn map(pairs: &[(String, PropertyValue)]) -> anyhow::Result<Map<String, Value>> {
    let properties = PropertyMap(pairs.iter().cloned().collect());
    Ok(match serde_json::to_value(properties)? {
        Value::Object(map) => map,
        _ => Map::new(),
    })
}

impl FilterArgs {
    /// Whether any of the flags was given.
    pub(crate) fn given(&self) -> bool {
        self.nothing
            || [&self.key, &self.pattern, &self.sql, &self.json, &self.action]
                .iter()
                .any(|flag| flag.is_some())
            || !self.headers.is_empty()
            || !self.fields.is_empty()
    }

    /// The filter and the action in the format of the API.
    pub(crate) fn rule(&self) -> anyhow::Result<(RuleFilter, Option<SqlSource>)> {
        let filter = if let Some(key) = &self.key {
            json!({"key": key})
        } else if let Some(pattern) = &self.pattern {
            json!({"pattern": pattern})
        } else if !self.headers.is_empty() {
            let mode = self.mode.unwrap_or(Match::All).to_possible_value();
            let mode = mode.map(|value| value.get_name().replace('-', "_"));
            json!({"headers": {"match": mode, "values": map(&self.headers)?}})
        } else if !self.fields.is_empty() {
            let (properties, mut fields): (Vec<_>, Vec<_>) =
                map(&self.fields)?.into_iter().partition(|(name, _)| name.starts_with("property."));
            let properties: Map<String, Value> = properties
                .into_iter()
                .map(|(name, value)| (name.trim_start_matches("property.").to_owned(), value))
                .collect();
            if !properties.is_empty() {
                fields.push(("properties".into(), Value::Object(properties)));
            }
            json!({"correlation": fields.into_iter().collect::<Map<_, _>>()})
        } else if let Some(text) = &self.sql {
            json!({"sql": self.sql_of(text)?})
        } else if let Some(text) = &self.json {
            let wrong = |e| Failure::Usage(format!("--filter is not JSON: {e}"));
            serde_json::from_str(text).map_err(wrong)?
        } else {
            Value::from(if self.nothing { "none" } else { "all" })
        };
        let filter = serde_json::from_value(filter)
            .map_err(|e| Failure::Usage(format!("the filter is wrong: {e}")))?;
        let action = self.action.as_deref().map(|text| self.sql_of(text)).transpose()?;
        Ok((filter, action.map(serde_json::from_value).transpose()?))
    }

    /// SQL text with the parameters that it uses.
    fn sql_of(&self, text: &str) -> anyhow::Result<Value> {
        let named = |(name, _): &&(String, PropertyValue)| text.contains(name.as_str());
        let params: Vec<_> = self.params.iter().filter(named).cloned().collect();
        Ok(match params.is_empty() {
            true => text.into(),
            false => json!({"text": text, "parameters": map(&params)?}),
        })
    }
}

/// A rule on one line.
pub(crate) fn rule_line(rule: &NamedRule) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let json = |value: Result<Value, _>| value.unwrap_or_default();
    let filter = match json(serde_json::to_value(&rule.filter)) {
        Value::Object(one) if one.len() == 1 => {
            one.iter().map(|(kind, value)| format!("{kind} {}", text(value))).collect()
        }
        other => text(&other),
    };
    match &rule.action {
        Some(action) => format!("{filter} → {}", text(&json(serde_json::to_value(action)))),
        None => filter,
    }
}

/// Test a filter and its action on a message; nothing is stored
///
/// Exits with 1 when the message does not match.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote rule test --sql 'total > 100' --prop total:=150
  malote rule test --pattern 'eu.#' --key eu.paid --action \"SET class = 'eu'\"")]
pub(crate) struct Test {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    message: MessageArgs,
    /// Body of the message; filters do not use it
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
}

impl Test {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let (filter, action) = self.filter.rule()?;
        let mut message = self.message.message();
        message.body = self.body.as_deref().map(BodyContent::text);
        let tested = api.test_rule(&RuleTest { filter, action, message }).await?;
        out.one(&tested)?;
        match tested.matches {
            true => Ok(()),
            false => Err(Failure::Unhealthy("the message does not match".into()).into()),
        }
    }
}

impl Facts for RuleTestResult {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("matches", self.matches.to_string())];
        let Some(message) = &self.message else { return facts };
        // The message is in no queue, so it has no sequence number and no attempts.
        let meant = |(name, _): &(&str, String)| !matches!(*name, "seq" | "attempts");
        facts.extend(Facts::facts(message).into_iter().filter(meant));
        facts
    }

    fn name(&self) -> String {
        self.matches.to_string()
    }
}
