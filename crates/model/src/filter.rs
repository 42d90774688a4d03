//! Rules of topics: which messages a queue gets a copy of, and how the copy is changed.
//!
//! [`Filter::matches`] defines each filter for one message at a time. The engine's router gives the same answers for
//! many rules at once.

use std::sync::Arc;

use crate::facts::Facts;
use crate::ids::{SessionId, Timestamp, clip};
use crate::limits;
use crate::message::{Message, Value};
use crate::refusal::Refusal;
use crate::sql::{SqlAction, SqlFilter};

/// A named filter with an optional action. A binding of an exchange is a rule as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The name; unique within its subscription or bound queue.
    pub name: String,
    /// Which messages match.
    pub filter: Filter,
    /// Changes the copy. A rule with an action makes its own copy.
    pub action: Option<SqlAction>,
}

/// Which messages match.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// Matches every message.
    All,
    /// Matches no message.
    None,
    /// Messages with exactly this key.
    Key(String),
    /// Messages whose key matches the pattern. Words are separated by dots; `*` matches one word, `#` any number of
    /// words.
    Pattern(String),
    /// Messages with these properties, as in a headers exchange.
    Headers(Headers),
    /// Messages whose fields all equal these. Shared, because the router keeps them too and there may be very many.
    Correlation(Arc<Correlation>),
    /// Messages for which the condition is true.
    Sql(SqlFilter),
    /// A share of the messages of a hash topic, in proportion to this weight. The topic's other rules decide too, so the
    /// filter alone matches nothing.
    Weight(u32),
}

/// How many values of a headers filter must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadersMatch {
    /// All values whose names do not begin with `x-`.
    #[default]
    All,
    /// At least one value whose name does not begin with `x-`.
    Any,
    /// All headers must match, including those that begin with `x-`.
    AllWithX,
    /// At least one value.
    AnyWithX,
}

/// Property values to match, as in a headers exchange (`x-match`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers {
    /// How many values must match.
    pub mode: HeadersMatch,
    /// Names and values. Without a value, any value of the property matches.
    pub values: Vec<(String, Option<Value>)>,
}

/// Matches messages whose fields equal all fields given here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correlation {
    /// The message id.
    pub message_id: Option<String>,
    /// The correlation id.
    pub correlation_id: Option<String>,
    /// The `to` field.
    pub to: Option<String>,
    /// The `reply_to` field.
    pub reply_to: Option<String>,
    /// The subject that a message must have.
    pub subject: Option<String>,
    /// The session id.
    pub session: Option<String>,
    /// The `reply_to_session` field.
    pub reply_to_session: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// The routing key.
    pub key: Option<String>,
    /// Application properties. Names are case-sensitive.
    pub properties: Vec<(String, Value)>,
}

/// The number of text fields of a correlation.
pub const CORRELATION_FIELDS: usize = 9;

impl Correlation {
    /// The text fields, in a fixed order; see [`Correlation::texts_of`].
    pub fn texts(&self) -> [Option<&str>; CORRELATION_FIELDS] {
        let texts = [
            &self.message_id,
            &self.correlation_id,
            &self.to,
            &self.reply_to,
            &self.subject,
            &self.session,
            &self.reply_to_session,
            &self.content_type,
            &self.key,
        ];
        texts.map(|text| text.as_deref())
    }

    /// Mutable access to the text fields, in the order of [`Correlation::texts`].
    pub fn texts_mut(&mut self) -> [&mut Option<String>; CORRELATION_FIELDS] {
        [
            &mut self.message_id,
            &mut self.correlation_id,
            &mut self.to,
            &mut self.reply_to,
            &mut self.subject,
            &mut self.session,
            &mut self.reply_to_session,
            &mut self.content_type,
            &mut self.key,
        ]
    }

    /// The fields of a message in the order of [`Correlation::texts`].
    pub fn texts_of<'a>(facts: &Facts<'a>) -> [Option<&'a str>; CORRELATION_FIELDS] {
        let m = facts.message;
        [
            m.message_id.as_deref(),
            m.correlation_id.as_deref(),
            m.to.as_deref(),
            m.reply_to.as_deref(),
            m.subject.as_deref(),
            m.session.as_ref().map(SessionId::as_str),
            m.reply_to_session.as_deref(),
            m.content_type.as_deref(),
            Some(facts.key),
        ]
    }

    /// Whether every given field equals the message's. Without any field, every message matches.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let mut texts = self.texts().into_iter().zip(Self::texts_of(facts));
        let equal = |(name, value): &(String, Value)| {
            facts.message.properties.get(name).is_some_and(|have| have.same(value))
        };
        texts.all(|(want, have)| want.is_none() || want == have)
            && self.properties.iter().all(equal)
    }
}

impl Headers {
    /// Matches as a headers exchange does. Without any value, `all` matches every message and `any` matches none.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let with_x = matches!(self.mode, HeadersMatch::AllWithX | HeadersMatch::AnyWithX);
        let mut asked = self.values.iter().filter(|(name, _)| with_x || !name.starts_with("x-"));
        let has = |(name, value): &(String, Option<Value>)| {
            let have = facts.message.properties.get(name);
            have.is_some_and(|have| value.as_ref().is_none_or(|value| value.same(have)))
        };
        match self.mode {
            HeadersMatch::All | HeadersMatch::AllWithX => asked.all(has),
            HeadersMatch::Any | HeadersMatch::AnyWithX => asked.any(has),
        }
    }
}

/// The words of a key or pattern, separated by dots. An empty key has no words.
pub fn words(key: &str) -> impl Iterator<Item = &str> {
    key.split('.').filter(move |_| !key.is_empty())
}

/// Whether a key matches a pattern. One pass; on a mismatch it goes back to the last `#`.
fn fits(pattern: &str, key: &str) -> bool {
    let pattern: Vec<&str> = words(pattern).collect();
    let key: Vec<&str> = words(key).collect();
    let (mut at, mut word) = (0, 0);
    // The position after the last `#`, and the word at which matching it began.
    let mut back = None;
    while word < key.len() {
        match pattern.get(at) {
            Some(&"#") => {
                at += 1;
                back = Some((at, word));
            }
            Some(&want) if want == "*" || want == key[word] => {
                at += 1;
                word += 1;
            }
            _ => match back {
                Some((after, from)) => {
                    (at, word) = (after, from + 1);
                    back = Some((after, word));
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|rest| *rest == "#")
}

impl Filter {
    /// The name of the filter kind.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::All => "all",
            Self::None => "none",
            Self::Key(_) => "key",
            Self::Pattern(_) => "pattern",
            Self::Headers(_) => "headers",
            Self::Correlation(_) => "correlation",
            Self::Sql(_) => "sql",
            Self::Weight(_) => "weight",
        }
    }

    /// Whether the message matches.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::All => true,
            Self::None | Self::Weight(_) => false,
            Self::Key(key) => key == facts.key,
            Self::Pattern(pattern) => fits(pattern, facts.key),
            Self::Headers(headers) => headers.matches(facts),
            Self::Correlation(correlation) => correlation.matches(facts),
            Self::Sql(sql) => sql.matches(facts),
        }
    }

    /// Returns a refusal if the filter is too large.
    fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::All | Self::None => Ok(()),
            Self::Key(text) | Self::Pattern(text) => check_text(text),
            Self::Headers(Headers { values, .. }) => {
                check_values(values.iter().map(|(name, value)| (name, value.as_ref())))
            }
            Self::Correlation(correlation) => {
                correlation.texts().into_iter().flatten().try_for_each(check_text)?;
                check_values(correlation.properties.iter().map(|(n, value)| (n, Some(value))))
            }
            Self::Sql(sql) => check_values(sql.parameters().iter().map(|(n, v)| (n, Some(v)))),
            Self::Weight(weight) if *weight > limits::HASH_WEIGHT_MAX => {
                Err(bad(format!("a weight must be from 0 to {}", limits::HASH_WEIGHT_MAX)))
            }
            Self::Weight(_) => Ok(()),
        }
    }
}

fn bad(why: String) -> Refusal {
    Refusal::BadSpec { field: "filter", why }
}

fn check_text(text: &str) -> Result<(), Refusal> {
    if text.len() > limits::RULE_KEY_BYTES_MAX {
        let max = limits::RULE_KEY_BYTES_MAX;
        return Err(bad(format!("a key, a pattern or a field must have at most {max} bytes")));
    }
    Ok(())
}

fn check_values<'a>(
    values: impl Iterator<Item = (&'a String, Option<&'a Value>)>,
) -> Result<(), Refusal> {
    let mut names = Vec::new();
    let mut size_bytes = 0;
    for (name, value) in values {
        size_bytes += name.len() + value.map_or(0, |value| value.size());
        names.push(name);
        if names.len() > limits::RULE_VALUES_MAX || size_bytes > limits::RULE_VALUES_BYTES_MAX {
            let (n, bytes) = (limits::RULE_VALUES_MAX, limits::RULE_VALUES_BYTES_MAX);
            let depth = limits::VALUE_DEPTH_MAX;
            return Err(bad(format!(
                "must have at most {n} values, {bytes} bytes together, nested at most {depth} deep"
            )));
        }
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(bad(format!("names `{}` twice", clip(pair[0])))),
        None => Ok(()),
    }
}

impl Rule {
    /// The property that names the rule whose action changed a copy.
    pub const NAME_PROPERTY: &str = "RuleName";

    /// Returns a refusal if the rule is invalid.
    pub fn check(&self) -> Result<(), Refusal> {
        let name = &self.name;
        if name.is_empty() || name.len() > limits::RULE_NAME_BYTES_MAX {
            let why = format!("must have 1 to {} bytes", limits::RULE_NAME_BYTES_MAX);
            return Err(Refusal::BadSpec { field: "name", why });
        }
        self.filter.check()?;
        let parameters = self.action.as_ref().map_or(&[][..], SqlAction::parameters);
        check_values(parameters.iter().map(|(name, value)| (name, Some(value))))
    }

    /// Applies the action to a copy. Without an action, the copy stays unchanged.
    pub fn act(&self, message: &mut Message, at: Timestamp) {
        if let Some(action) = &self.action {
            action.apply(message, at);
            message.properties.set(Self::NAME_PROPERTY, Value::String(self.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
