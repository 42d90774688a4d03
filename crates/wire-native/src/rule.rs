//! Rules of topics: filters and actions.
//!
//! A filter is `"all"`, `"none"` or an object with one entry that names its kind: `{"key": "eu.paid"}`,
//! `{"pattern": "eu.#"}`, `{"headers": {…}}`, `{"correlation": {…}}`, `{"sql": "…"}`, `{"weight": 1}`. A rule in an answer can be used
//! as a request for the same rule.

use std::sync::Arc;

use malote_model::{
    Correlation, Filter, Headers, HeadersMatch, Properties, Refusal, Rule, SqlAction, SqlFilter,
    Value,
};
use serde::{Deserialize, Serialize};

use crate::message::NewMessage;
use crate::received::ReceivedMessage;
use crate::value::PropertyMap;

/// Which messages a rule selects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Filter"))]
#[serde(rename_all = "snake_case")]
pub enum RuleFilter {
    /// Matches all messages
    #[default]
    All,
    /// Matches no messages
    None,
    /// Messages with exactly this key
    Key(String),
    /// Messages whose key matches: `*` is one word between dots, `#` any number of words
    Pattern(String),
    /// Messages with these properties
    Headers(HeadersFilter),
    /// Messages with all of these fields
    Correlation(Box<CorrelationFilter>),
    /// Messages for which the condition is true
    Sql(SqlSource),
    /// A share of the messages of a hash topic
    Weight(u32),
}

/// Selects messages by their properties.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HeadersFilter {
    /// How many of the values must match
    #[serde(rename = "match")]
    pub mode: HeadersMatchWord,
    /// Properties; null: the property must exist
    pub values: PropertyMap,
}

/// How many of the values of a headers filter must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum HeadersMatchWord {
    /// All values whose name does not begin with `x-`
    #[default]
    All,
    /// At least one value whose name does not begin with `x-`
    Any,
    /// All headers must match, including those that begin with `x-`
    AllWithX,
    /// At least one value
    AnyWithX,
}

optional_fields! {
    /// Selects messages whose fields are equal to all of these.
    #[serde(deny_unknown_fields)]
    #[allow(missing_docs)] // the fields of a message
    pub struct CorrelationFilter {
        id: String,
        correlation_id: String,
        to: String,
        reply_to: String,
        subject: String,
        session: String,
        reply_to_session: String,
        content_type: String,
        key: String,
        properties: PropertyMap,
    }
}

/// SQL, with or without parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(
    untagged,
    expecting = "sql must be a string or {\"text\": text, \"parameters\": {\"@name\": value}}"
)]
pub enum SqlSource {
    /// An expression without parameters
    Text(String),
    /// An expression with parameters
    With(SqlWithParameters),
}

/// SQL and the values of its parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(deny_unknown_fields)]
pub struct SqlWithParameters {
    /// The SQL text
    pub text: String,
    /// Values of the parameters, whose names begin with `@`
    #[serde(default)]
    pub parameters: PropertyMap,
}

/// Sorted by name: rules that differ only in the order of properties are equal.
fn pairs(properties: PropertyMap) -> Vec<(String, Value)> {
    let pairs = properties.0.iter().map(|(name, value)| (name.to_owned(), value.clone()));
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

fn map_of(pairs: &[(String, Value)]) -> PropertyMap {
    PropertyMap(pairs.iter().cloned().collect::<Properties>())
}

impl SqlSource {
    fn parts(self) -> (String, Vec<(String, Value)>) {
        match self {
            Self::Text(text) => (text, Vec::new()),
            Self::With(SqlWithParameters { text, parameters }) => (text, pairs(parameters)),
        }
    }

    fn of(text: &str, parameters: &[(String, Value)]) -> Self {
        match parameters {
            [] => Self::Text(text.to_owned()),
            some => {
                Self::With(SqlWithParameters { text: text.to_owned(), parameters: map_of(some) })
            }
        }
    }

    fn action(self) -> Result<SqlAction, Refusal> {
        let (text, parameters) = self.parts();
        SqlAction::new(&text, parameters)
    }
}

impl RuleFilter {
    /// Converts to a filter of the model. Invalid SQL is refused.
    pub fn filter(self) -> Result<Filter, Refusal> {
        Ok(match self {
            Self::All => Filter::All,
            Self::None => Filter::None,
            Self::Key(key) => Filter::Key(key),
            Self::Pattern(pattern) => Filter::Pattern(pattern),
            Self::Headers(headers) => Filter::Headers(headers.headers()),
            Self::Correlation(asked) => Filter::Correlation(Arc::new(asked.correlation())),
            Self::Sql(sql) => {
                let (text, parameters) = sql.parts();
                Filter::Sql(SqlFilter::new(&text, parameters)?)
            }
            Self::Weight(weight) => Filter::Weight(weight),
        })
    }
}

impl From<&Filter> for RuleFilter {
    fn from(filter: &Filter) -> Self {
        match filter {
            Filter::All => Self::All,
            Filter::None => Self::None,
            Filter::Key(key) => Self::Key(key.clone()),
            Filter::Pattern(pattern) => Self::Pattern(pattern.clone()),
            Filter::Headers(headers) => Self::Headers(HeadersFilter::of(headers)),
            Filter::Correlation(asked) => Self::Correlation(Box::new(CorrelationFilter::of(asked))),
            Filter::Sql(sql) => Self::Sql(SqlSource::of(sql.text(), sql.parameters())),
            Filter::Weight(weight) => Self::Weight(*weight),
        }
    }
}

impl HeadersFilter {
    fn headers(self) -> Headers {
        let mode = match self.mode {
            HeadersMatchWord::All => HeadersMatch::All,
            HeadersMatchWord::Any => HeadersMatch::Any,
            HeadersMatchWord::AllWithX => HeadersMatch::AllWithX,
            HeadersMatchWord::AnyWithX => HeadersMatch::AnyWithX,
        };
        let value = |(name, value)| (name, Some(value).filter(|value| *value != Value::Null));
        Headers { mode, values: pairs(self.values).into_iter().map(value).collect() }
    }

    fn of(headers: &Headers) -> Self {
        let mode = match headers.mode {
            HeadersMatch::All => HeadersMatchWord::All,
            HeadersMatch::Any => HeadersMatchWord::Any,
            HeadersMatch::AllWithX => HeadersMatchWord::AllWithX,
            HeadersMatch::AnyWithX => HeadersMatchWord::AnyWithX,
        };
        let values = headers.values.iter().cloned();
        let values = values.map(|(name, value)| (name, value.unwrap_or(Value::Null)));
        Self { mode, values: PropertyMap(values.collect()) }
    }
}

impl CorrelationFilter {
    fn correlation(self) -> Correlation {
        Correlation {
            message_id: self.id,
            correlation_id: self.correlation_id,
            to: self.to,
            reply_to: self.reply_to,
            subject: self.subject,
            session: self.session,
            reply_to_session: self.reply_to_session,
            content_type: self.content_type,
            key: self.key,
            properties: pairs(self.properties.unwrap_or_default()),
        }
    }

    fn of(asked: &Correlation) -> Self {
        let properties = (!asked.properties.is_empty()).then(|| map_of(&asked.properties));
        Self {
            id: asked.message_id.clone(),
            correlation_id: asked.correlation_id.clone(),
            to: asked.to.clone(),
            reply_to: asked.reply_to.clone(),
            subject: asked.subject.clone(),
            session: asked.session.clone(),
            reply_to_session: asked.reply_to_session.clone(),
            content_type: asked.content_type.clone(),
            key: asked.key.clone(),
            properties,
        }
    }
}

/// A rule without its name, which is in the path.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleBody {
    /// Which messages the rule selects
    #[serde(default)]
    pub filter: RuleFilter,
    /// How the copy is changed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<SqlSource>,
}

impl RuleBody {
    /// The rule with this name.
    pub fn rule(self, name: String) -> Result<Rule, Refusal> {
        let action = self.action.map(SqlSource::action).transpose()?;
        let rule = Rule { name, filter: self.filter.filter()?, action };
        rule.check()?;
        Ok(rule)
    }
}

/// A rule and its name.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Rule"))]
#[serde(deny_unknown_fields)]
pub struct NamedRule {
    /// The name of the rule
    pub name: String,
    /// Which messages the rule selects
    #[serde(default)]
    pub filter: RuleFilter,
    /// How the copy is changed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<SqlSource>,
}

impl NamedRule {
    /// The filter and the action without the name.
    pub fn body(self) -> RuleBody {
        RuleBody { filter: self.filter, action: self.action }
    }
}

impl From<&Rule> for NamedRule {
    fn from(rule: &Rule) -> Self {
        let action = rule.action.as_ref().map(|a| SqlSource::of(a.text(), a.parameters()));
        Self { name: rule.name.clone(), filter: (&rule.filter).into(), action }
    }
}

/// Tries a filter and an action on a message.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleTest {
    /// Which messages the rule selects
    #[serde(default)]
    pub filter: RuleFilter,
    /// How the copy is changed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<SqlSource>,
    /// The message to try
    #[serde(default)]
    pub message: NewMessage,
}

impl RuleTest {
    /// The rule and the message.
    pub fn parts(self) -> Result<(Rule, NewMessage), Refusal> {
        let rule = RuleBody { filter: self.filter, action: self.action }.rule("test".into())?;
        Ok((rule, self.message))
    }
}

/// The result of a rule test.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "RuleTested"))]
pub struct RuleTestResult {
    /// Whether the filter selects the message
    pub matches: bool,
    /// The copy that the action made, if the filter selects the message
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<ReceivedMessage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Result<Rule, String> {
        let body: RuleBody = serde_json::from_str(json).map_err(|e| e.to_string())?;
        body.rule("r".into()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_rule_in_an_answer_declares_the_same_rule_again() {
        for json in [
            "{}",
            r#"{"filter":"none"}"#,
            r#"{"filter":{"key":""}}"#,
            r##"{"filter":{"pattern":"a.*.#"}}"##,
            r#"{"filter":{"headers":{"match":"any_with_x","values":{"a":1,"x-b":null,"c":{"$type":"u8","value":3}}}}}"#,
            r#"{"filter":{"headers":{}}}"#,
            r#"{"filter":{"correlation":{"id":"1","correlation_id":"2","to":"3","reply_to":"4","subject":"5",
                "session":"6","reply_to_session":"7","content_type":"8","key":"9","properties":{"p":true}}}}"#,
            r#"{"filter":{"sql":"total > 5"},"action":"SET vip = TRUE"}"#,
            r#"{"filter":{"sql":{"text":"total > @least","parameters":{"@least":5}}},
                "action":{"text":"SET of = @who","parameters":{"@who":"me"}}}"#,
        ] {
            let first = rule(json).unwrap();
            let mut shown = serde_json::to_value(NamedRule::from(&first)).unwrap();
            shown.as_object_mut().unwrap().remove("name");
            assert_eq!(rule(&shown.to_string()).unwrap(), first, "{json}");
        }
    }

    #[test]
    fn wrong_rules_are_explained() {
        for (json, says) in [
            (r#"{"filter":"everything"}"#, "unknown variant `everything`, expected one of `all`"),
            (r#"{"filter":{"sq":"x"}}"#, "unknown variant `sq`"),
            (r#"{"filter":{"sql":5}}"#, "sql must be a string"),
            (r#"{"filter":{"sql":"a = "}}"#, "at character 5"),
            (r#"{"action":"SET"}"#, "at character 4"),
            (r#"{"filter":{"headers":{"match":"some"}}}"#, "unknown variant `some`"),
            (r#"{"filter":{"correlation":{"label":"x"}}}"#, "unknown field `label`"),
            (r#"{"filter":{"key":"a","pattern":"b"}}"#, "expected"),
            (r#"{"filters":"all"}"#, "unknown field `filters`"),
        ] {
            let why = rule(json).unwrap_err();
            assert!(why.contains(says), "{json}: {why}");
        }
        let long = format!(r#"{{"filter":{{"key":"{}"}}}}"#, "k".repeat(513));
        assert!(rule(&long).unwrap_err().contains("512 bytes"));
    }
}
