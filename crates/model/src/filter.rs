//! Rules of topics: which messages a queue gets a copy of, and what is done to the copy.
//!
//! [`Filter::matches`] says what each filter means, for one message at a time. The engine's router finds the same
//! answers for many rules at once.

use std::sync::Arc;

use crate::facts::Facts;
use crate::ids::{SessionId, Timestamp, clip};
use crate::limits;
use crate::message::{Message, Value};
use crate::refusal::Refusal;
use crate::sql::{SqlAction, SqlFilter};

/// A named filter and what it does to the copies that it makes. A binding of an exchange is one too.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Unique within its subscription or bound queue.
    pub name: String,
    /// Which messages.
    pub filter: Filter,
    /// A rule with an action makes a copy of its own.
    pub action: Option<SqlAction>,
}

/// Which messages.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// Every message.
    All,
    /// No message.
    None,
    /// Those with exactly this key.
    Key(String),
    /// Those whose key, cut at its dots, fits: `*` is one word, `#` any number of words.
    Pattern(String),
    /// Those with such properties, in the way of headers exchanges.
    Headers(Headers),
    /// Those with all of these fields. Shared: a router keeps them too, and there may be very many.
    Correlation(Arc<Correlation>),
    /// Those for which the condition is true.
    Sql(SqlFilter),
}

/// How many of a headers filter's values must be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadersMatch {
    /// All whose names do not begin with `x-`.
    #[default]
    All,
    /// At least one whose name does not begin with `x-`.
    Any,
    /// All.
    AllWithX,
    /// At least one.
    AnyWithX,
}

/// Values of properties, in the way of headers exchanges (`x-match`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers {
    /// How many.
    pub mode: HeadersMatch,
    /// Names and values; without a value, being there is enough.
    pub values: Vec<(String, Option<Value>)>,
}

/// Equality with every field that is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correlation {
    /// The sender's id.
    pub message_id: Option<String>,
    /// The request that it answers.
    pub correlation_id: Option<String>,
    /// Where the sender meant it to go.
    pub to: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// What it is about: the label.
    pub subject: Option<String>,
    /// Its session.
    pub session: Option<String>,
    /// The session that answers belong to.
    pub reply_to_session: Option<String>,
    /// The media type of its body.
    pub content_type: Option<String>,
    /// Its routing key.
    pub key: Option<String>,
    /// The user's own names and values, names in their exact case.
    pub properties: Vec<(String, Value)>,
}

/// How many texts a correlation can ask for.
pub const CORRELATION_FIELDS: usize = 9;

impl Correlation {
    /// The texts that it asks for, in a fixed order; see [`Correlation::texts_of`].
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

    /// The texts to write to, in the order of [`Correlation::texts`].
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

    /// What a message has in their places.
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

    /// Whether every field that is given equals the message's. One that asks for nothing takes everything.
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
    /// By the rules of headers exchanges: nothing asked for is had by everyone under `all`, by nobody under `any`.
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

/// The words of a key or pattern. The empty one has none; any other has one more than dots.
pub fn words(key: &str) -> impl Iterator<Item = &str> {
    key.split('.').filter(move |_| !key.is_empty())
}

/// Whether a key fits a pattern: one pass, with a step back to the last `#` where a word does not fit.
fn fits(pattern: &str, key: &str) -> bool {
    let pattern: Vec<&str> = words(pattern).collect();
    let key: Vec<&str> = words(key).collect();
    let (mut at, mut word) = (0, 0);
    // After the last `#`, and the word from which it was tried.
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
    /// The word for its kind.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::All => "all",
            Self::None => "none",
            Self::Key(_) => "key",
            Self::Pattern(_) => "pattern",
            Self::Headers(_) => "headers",
            Self::Correlation(_) => "correlation",
            Self::Sql(_) => "sql",
        }
    }

    /// Whether the message is one of those.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Key(key) => key == facts.key,
            Self::Pattern(pattern) => fits(pattern, facts.key),
            Self::Headers(headers) => headers.matches(facts),
            Self::Correlation(correlation) => correlation.matches(facts),
            Self::Sql(sql) => sql.matches(facts),
        }
    }

    /// Refuses what is larger than a filter may be.
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
        size_bytes += name.len() + value.map_or(0, |value| size_of(value, 0));
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

/// Roughly as encoded; what nests too deep is too large.
fn size_of(value: &Value, depth: usize) -> usize {
    if depth > limits::VALUE_DEPTH_MAX {
        return limits::RULE_VALUES_BYTES_MAX + 1;
    }
    let small = 16_usize;
    match value {
        Value::String(text) => small + text.len(),
        Value::Bytes(bytes) => small + bytes.len(),
        Value::List(items) => {
            items.iter().fold(small, |sum, v| sum.saturating_add(size_of(v, depth + 1)))
        }
        Value::Map(entries) => entries.iter().fold(small, |sum, (name, v)| {
            sum.saturating_add(name.len()).saturating_add(size_of(v, depth + 1))
        }),
        _ => small,
    }
}

impl Rule {
    /// The property under which a copy tells which rule's action it went through.
    pub const NAME_PROPERTY: &str = "RuleName";

    /// Refuses what no rule can be.
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

    /// Makes of a message the copy that the action asks for. Without an action there is nothing to do.
    pub fn act(&self, message: &mut Message, at: Timestamp) {
        if let Some(action) = &self.action {
            action.apply(message, at);
            message.properties.set(Self::NAME_PROPERTY, Value::String(self.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
