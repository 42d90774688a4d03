//! Rules of topics: filters and actions as JSON.
//!
//! A filter is `"all"`, `"none"` or an object with one entry that names its kind: `{"key": "eu.paid"}`,
//! `{"pattern": "eu.#"}`, `{"headers": {…}}`, `{"correlation": {…}}`, `{"sql": "…"}`. What is shown reads back as the
//! same rule.

use std::sync::Arc;

use malote_model::{
    Correlation, Filter, Headers, HeadersMatch, Properties, Refusal, Rule, SqlAction, SqlFilter,
    Value,
};
use serde::{Deserialize, Serialize};

use super::message::NewMessage;
use super::value::PropertyMap;
use crate::problem::Problem;

/// Which messages.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterIn {
    /// Every message.
    #[default]
    All,
    /// No message.
    None,
    /// Those with exactly this key.
    Key(String),
    /// Those whose key fits: `*` is one word between dots, `#` any number of words.
    Pattern(String),
    /// Those with such properties.
    Headers(HeadersIn),
    /// Those with all of these fields.
    Correlation(Box<CorrelationIn>),
    /// Those for which the condition is true.
    Sql(SqlIn),
}

/// Values of properties; `null` asks only that the property is there.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeadersIn {
    #[serde(rename = "match")]
    mode: MatchWord,
    values: PropertyMap,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum MatchWord {
    #[default]
    All,
    Any,
    AllWithX,
    AnyWithX,
}

/// Equality with every field that is given, under the names that messages have.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CorrelationIn {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to_session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<PropertyMap>,
}

/// A SQL text, alone or with the values of its parameters.
#[derive(Debug, Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "sql must be a text or {\"text\": text, \"parameters\": {\"@name\": value}}"
)]
pub enum SqlIn {
    /// Without parameters.
    Text(String),
    /// With parameters.
    With(SqlWith),
}

/// A SQL text and the values of the names in it that begin with `@`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SqlWith {
    text: String,
    #[serde(default)]
    parameters: PropertyMap,
}

/// By name: their order means nothing, and a rule written in another order is the same rule.
fn pairs(properties: PropertyMap) -> Vec<(String, Value)> {
    let pairs = properties.0.iter().map(|(name, value)| (name.to_owned(), value.clone()));
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

fn map_of(pairs: &[(String, Value)]) -> PropertyMap {
    PropertyMap(pairs.iter().cloned().collect::<Properties>())
}

impl SqlIn {
    fn parts(self) -> (String, Vec<(String, Value)>) {
        match self {
            Self::Text(text) => (text, Vec::new()),
            Self::With(SqlWith { text, parameters }) => (text, pairs(parameters)),
        }
    }

    fn of(text: &str, parameters: &[(String, Value)]) -> Self {
        match parameters {
            [] => Self::Text(text.to_owned()),
            some => Self::With(SqlWith { text: text.to_owned(), parameters: map_of(some) }),
        }
    }

    fn action(self) -> Result<SqlAction, Refusal> {
        let (text, parameters) = self.parts();
        SqlAction::new(&text, parameters)
    }
}

impl FilterIn {
    /// The filter it means.
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
        })
    }
}

impl From<&Filter> for FilterIn {
    fn from(filter: &Filter) -> Self {
        match filter {
            Filter::All => Self::All,
            Filter::None => Self::None,
            Filter::Key(key) => Self::Key(key.clone()),
            Filter::Pattern(pattern) => Self::Pattern(pattern.clone()),
            Filter::Headers(headers) => Self::Headers(HeadersIn::of(headers)),
            Filter::Correlation(asked) => Self::Correlation(Box::new(CorrelationIn::of(asked))),
            Filter::Sql(sql) => Self::Sql(SqlIn::of(sql.text(), sql.parameters())),
        }
    }
}

impl HeadersIn {
    fn headers(self) -> Headers {
        let mode = match self.mode {
            MatchWord::All => HeadersMatch::All,
            MatchWord::Any => HeadersMatch::Any,
            MatchWord::AllWithX => HeadersMatch::AllWithX,
            MatchWord::AnyWithX => HeadersMatch::AnyWithX,
        };
        let there = |(name, value)| (name, Some(value).filter(|value| *value != Value::Null));
        Headers { mode, values: pairs(self.values).into_iter().map(there).collect() }
    }

    fn of(headers: &Headers) -> Self {
        let mode = match headers.mode {
            HeadersMatch::All => MatchWord::All,
            HeadersMatch::Any => MatchWord::Any,
            HeadersMatch::AllWithX => MatchWord::AllWithX,
            HeadersMatch::AnyWithX => MatchWord::AnyWithX,
        };
        let values = headers.values.iter().cloned();
        let values = values.map(|(name, value)| (name, value.unwrap_or(Value::Null)));
        Self { mode, values: PropertyMap(values.collect()) }
    }
}

impl CorrelationIn {
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

/// A rule whose name stands in the path.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleBody {
    #[serde(default)]
    filter: FilterIn,
    action: Option<SqlIn>,
}

impl RuleBody {
    /// The rule of that name.
    pub fn rule(self, name: String) -> Result<Rule, Refusal> {
        let action = self.action.map(SqlIn::action).transpose()?;
        let rule = Rule { name, filter: self.filter.filter()?, action };
        rule.check()?;
        Ok(rule)
    }
}

/// A rule, named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleIn {
    name: String,
    #[serde(default)]
    filter: FilterIn,
    action: Option<SqlIn>,
}

impl RuleIn {
    /// The rule it means; what is wrong with it is said with its name.
    pub fn rule(self) -> Result<Rule, Problem> {
        let shown: String = self.name.chars().take(64).collect();
        let rule = RuleBody { filter: self.filter, action: self.action }.rule(self.name);
        rule.map_err(|refusal| {
            let problem = Problem::from(refusal);
            Problem::new(problem.code(), format!("rule `{shown}`: {}", problem.detail()))
        })
    }
}

/// A rule as it is.
#[derive(Debug, Serialize)]
pub struct RuleOut {
    name: String,
    filter: FilterIn,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<SqlIn>,
}

impl From<&Rule> for RuleOut {
    fn from(rule: &Rule) -> Self {
        let action = rule.action.as_ref().map(|a| SqlIn::of(a.text(), a.parameters()));
        Self { name: rule.name.clone(), filter: (&rule.filter).into(), action }
    }
}

/// A filter, an action and a message to try them on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestIn {
    /// Which messages.
    #[serde(default)]
    pub filter: FilterIn,
    /// What is done to the copy.
    pub action: Option<SqlIn>,
    /// Whether this is one of them.
    #[serde(default)]
    pub message: NewMessage,
}

impl TestIn {
    /// The rule to try, and the message.
    pub fn parts(self) -> Result<(Rule, NewMessage), Refusal> {
        let rule = RuleBody { filter: self.filter, action: self.action }.rule("test".into())?;
        Ok((rule, self.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Result<Rule, String> {
        let body: RuleBody = serde_json::from_str(json).map_err(|e| e.to_string())?;
        body.rule("r".into()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn what_is_shown_makes_the_same_rule_again() {
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
            let mut shown = serde_json::to_value(RuleOut::from(&first)).unwrap();
            shown.as_object_mut().unwrap().remove("name");
            assert_eq!(rule(&shown.to_string()).unwrap(), first, "{json}");
        }
    }

    #[test]
    fn wrong_rules_are_explained() {
        for (json, says) in [
            (r#"{"filter":"everything"}"#, "unknown variant `everything`, expected one of `all`"),
            (r#"{"filter":{"sq":"x"}}"#, "unknown variant `sq`"),
            (r#"{"filter":{"sql":5}}"#, "sql must be a text"),
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
