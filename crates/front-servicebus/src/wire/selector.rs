//! JMS selectors (`apache.org:selector-filter:string`) as SQL filters.
//!
//! The two languages are nearly the same. The names of JMS header fields, and `BETWEEN` with literals, are translated.
//! Anything else that the filter language does not support is refused with the position of the error.

use malote_engine::Stored;
use malote_model::{Facts, Refusal, SqlFilter, Value as Model};
use malote_wire_amqp::types::{Described, Value};

use super::message::{JmsFields, jms_fields};

/// The descriptor as a symbol; clients use this or the number.
const SELECTOR: &str = "apache.org:selector-filter:string";
const SELECTOR_CODE: u64 = 0x0000_468c_0000_0004;
/// The JMS filter that hides a connection's own messages.
const NO_LOCAL: &str = "apache.org:no-local-filter:list";
const NO_LOCAL_CODE: u64 = 0x0000_468c_0000_0003;

/// Whether a filter is a selector. Clients choose its key freely.
pub fn is_selector(filter: &Value) -> bool {
    is_described(filter, SELECTOR, SELECTOR_CODE)
}

pub fn is_no_local(filter: &Value) -> bool {
    is_described(filter, NO_LOCAL, NO_LOCAL_CODE)
}

fn is_described(filter: &Value, name: &str, number: u64) -> bool {
    let Value::Described(described) = filter else { return false };
    let Described { descriptor, .. } = &**described;
    descriptor.as_str() == Some(name) || *descriptor == Value::Ulong(number)
}

/// JMS header fields, and the fields in the filter language.
const FIELDS: [(&str, &str); 5] = [
    ("JMSMessageID", "sys.MessageId"),
    ("JMSCorrelationID", "sys.CorrelationId"),
    ("JMSType", "sys.Label"),
    ("JMSXGroupID", "sys.SessionId"),
    ("JMSReplyTo", "sys.ReplyTo"),
];
const PRIORITY: &str = "JMSPriority";
const TIMESTAMP: &str = "JMSTimestamp";
const DELIVERY_MODE: &str = "JMSDeliveryMode";
/// Header fields that only browsers can select by, because rules do not support them.
const BROWSED: [&str; 3] = [PRIORITY, TIMESTAMP, DELIVERY_MODE];

/// Translates a selector into the rule of a subscription.
pub fn rule(selector: &str) -> Result<SqlFilter, Refusal> {
    let tokens = tokens(selector);
    if let Some(field) = tokens.iter().find(|token| BROWSED.contains(token)) {
        let why = format!(
            "`{field}` can be used in the selector of a browser only, not of a subscription"
        );
        return Err(Refusal::BadSpec { field: "selector", why });
    }
    SqlFilter::new(&translate(&tokens), Vec::new())
}

/// Translates the selector of a browser.
pub fn browsed(selector: &str) -> Result<SqlFilter, Refusal> {
    SqlFilter::new(&translate(&tokens(selector)), Vec::new())
}

/// Whether a browsed message matches.
pub fn fits(filter: &SqlFilter, stored: &Stored) -> bool {
    if !BROWSED.iter().any(|field| filter.text().contains(field)) {
        return filter.matches(&Facts::new(&stored.message, stored.enqueued_at));
    }
    // Fields that rules do not support are added as properties. The body is shared, not copied.
    let mut message = stored.message.clone();
    let JmsFields { priority, durable, created_ms } = jms_fields(stored);
    let mode = if durable { "PERSISTENT" } else { "NON_PERSISTENT" };
    message.properties.set(PRIORITY.to_owned(), Model::I32(priority.into()));
    message.properties.set(DELIVERY_MODE.to_owned(), Model::String(mode.to_owned()));
    message.properties.set(TIMESTAMP.to_owned(), Model::I64(created_ms));
    filter.matches(&Facts::new(&message, stored.enqueued_at))
}

/// Splits the text into words, quoted strings, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            // A doubled quote becomes two adjacent tokens, which concatenate to the original text.
            '\'' => {
                rest.get(1..).and_then(|inside| inside.find('\'')).map_or(rest.len(), |at| at + 2)
            }
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        all.push(token);
        rest = after;
    }
    all
}

/// In JMS, `$` is a letter. Numbers are words here; `-2.5` is three tokens.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || c == '.'
}

fn translate(tokens: &[&str]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut next = 0;
    while let Some(&token) = tokens.get(next) {
        if token.eq_ignore_ascii_case("BETWEEN")
            && let Some((low, high, after)) = bounds(tokens, next + 1)
            && let Some((negated, operand)) = operand_before(&mut out)
        {
            let not = if negated { "NOT " } else { "" };
            out.push(format!("{not}({operand} >= {low} AND {operand} <= {high})"));
            next = after;
            continue;
        }
        out.push(match FIELDS.iter().find(|(jms, _)| *jms == token) {
            Some((_, field)) => (*field).to_owned(),
            None if is_name(token) && token.contains(['$', '.']) && !is_scoped(token) => {
                format!("[{token}]")
            }
            None => token.to_owned(),
        });
        next += 1;
    }
    out.concat()
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '$')
}

/// A field or property that is already in the syntax of the filter language.
fn is_scoped(token: &str) -> bool {
    token.split_once('.').is_some_and(|(scope, _)| {
        scope.eq_ignore_ascii_case("sys") || scope.eq_ignore_ascii_case("user")
    })
}

/// The two literals after `BETWEEN`, and the index after them.
fn bounds(tokens: &[&str], from: usize) -> Option<(String, String, usize)> {
    let (low, at) = literal(tokens, from)?;
    let (and, at) = word(tokens, at)?;
    let (high, at) = literal(tokens, at)?;
    and.eq_ignore_ascii_case("AND").then_some((low, high, at))
}

fn word<'a>(tokens: &[&'a str], mut at: usize) -> Option<(&'a str, usize)> {
    while tokens.get(at)?.trim().is_empty() {
        at += 1;
    }
    Some((tokens[at], at + 1))
}

fn literal(tokens: &[&str], at: usize) -> Option<(String, usize)> {
    let (first, at) = word(tokens, at)?;
    match first {
        "-" | "+" => word(tokens, at).map(|(number, at)| (format!("{first}{number}"), at)),
        literal => Some((literal.to_owned(), at)),
    }
}

/// Removes the name before `BETWEEN`, and an optional `NOT`, from the output.
fn operand_before(out: &mut Vec<String>) -> Option<(bool, String)> {
    let last = |out: &mut Vec<String>| loop {
        let token = out.pop()?;
        if !token.trim().is_empty() {
            return Some(token);
        }
    };
    let written = out.clone();
    let first = last(out)?;
    let found = match first.eq_ignore_ascii_case("NOT") {
        true => last(out).map(|operand| (true, operand)),
        false => Some((false, first)),
    };
    let found = found.filter(|(_, operand)| is_name(operand) || operand.starts_with('['));
    if found.is_none() {
        *out = written;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_translated() {
        for (selector, sql) in [
            ("color = 'blue'", "color = 'blue'"),
            (
                "JMSType = 'a' AND JMSCorrelationID IS NULL",
                "sys.Label = 'a' AND sys.CorrelationId IS NULL",
            ),
            // Not inside a string, and not as a part of a name.
            ("x = 'it''s JMSType' OR myJMSType = 1", "x = 'it''s JMSType' OR myJMSType = 1"),
            ("a.b = 1 AND $c > 2.5", "[a.b] = 1 AND [$c] > 2.5"),
            ("n BETWEEN 1 AND -2.5 AND b", "(n >= 1 AND n <= -2.5) AND b"),
            ("NOT n NOT BETWEEN 'a' AND 'b'", "NOT NOT (n >= 'a' AND n <= 'b')"),
        ] {
            assert_eq!(translate(&tokens(selector)), sql, "{selector}");
            rule(selector).unwrap();
        }
    }

    #[test]
    fn unsupported_selectors_are_refused() {
        for bad in ["color =", "JMSPriority > 4", "n + 1 BETWEEN 2 AND 3"] {
            rule(bad).unwrap_err();
        }
        browsed("JMSPriority > 4").unwrap();
    }
}
