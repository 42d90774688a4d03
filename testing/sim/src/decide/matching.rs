//! What rules mean, said once more and as plainly as possible: nothing here is the engine's.

use malote_model::{Filter, HeadersMatch, Message, Rule, Value};

/// Conditions and what each of them says. A rule of a world has one of these.
#[allow(clippy::type_complexity)]
pub const CONDITIONS: [(&str, fn(&Message) -> bool); 4] = [
    ("p0 > 10 OR sys.Label = 'red'", |m| {
        let large = matches!(m.properties.get("p0"), Some(Value::U64(n)) if *n > 10);
        large || m.subject.as_deref() == Some("red")
    }),
    ("p1 IS NULL", |m| m.properties.get("p1").is_none()),
    ("colour IN ('red', 'green')", |m| text(m, "colour").is_some_and(|c| c != "blue")),
    ("colour LIKE 'b%' AND NOT EXISTS(p0)", |m| {
        text(m, "colour") == Some("blue") && m.properties.get("p0").is_none()
    }),
];

/// Actions and what each of them does.
#[allow(clippy::type_complexity)]
pub const ACTIONS: [(&str, fn(&mut Message)); 3] = [
    ("SET p0 = 1; SET by = 'a rule'", |m| {
        // A number keeps the width that it had.
        let unsigned = matches!(m.properties.get("p0"), Some(Value::U64(_)));
        let one = if unsigned { Value::U64(1) } else { Value::I64(1) };
        m.properties.set("p0", one);
        m.properties.set("by", Value::String("a rule".into()));
    }),
    ("REMOVE p1; SET sys.Label = 'blue'", |m| {
        m.properties.remove("p1");
        m.subject = Some("blue".into());
    }),
    ("SET colour = 'green'; REMOVE p0", |m| {
        m.properties.set("colour", Value::String("green".into()));
        m.properties.remove("p0");
    }),
];

fn text<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    match message.properties.get(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// The routing key: its own, else its session, else the empty one.
fn key(message: &Message) -> &str {
    let session = || message.session.as_ref().map(|session| session.as_str());
    message.key.as_deref().or_else(session).unwrap_or_default()
}

/// Whether a filter takes a message.
pub(super) fn matches(filter: &Filter, message: &Message) -> bool {
    match filter {
        Filter::All => true,
        Filter::None => false,
        Filter::Key(wanted) => key(message) == wanted,
        Filter::Pattern(pattern) => fits(&words(pattern), &words(key(message))),
        Filter::Headers(headers) => {
            let all = matches!(headers.mode, HeadersMatch::All | HeadersMatch::AllWithX);
            let with_x = matches!(headers.mode, HeadersMatch::AllWithX | HeadersMatch::AnyWithX);
            let mut found = Vec::new();
            for (name, wanted) in &headers.values {
                if with_x || !name.starts_with("x-") {
                    let have = message.properties.get(name);
                    found.push(have.is_some() && (wanted.is_none() || wanted.as_ref() == have));
                }
            }
            if all { !found.contains(&false) } else { found.contains(&true) }
        }
        Filter::Correlation(wanted) => {
            let same = |wanted: &Option<String>, have: Option<&str>| {
                wanted.is_none() || wanted.as_deref() == have
            };
            let other =
                |(name, value): &(String, Value)| message.properties.get(name) != Some(value);
            same(&wanted.subject, message.subject.as_deref())
                && same(&wanted.key, Some(key(message)))
                && !wanted.properties.iter().any(other)
        }
        Filter::Sql(sql) => {
            let known = CONDITIONS.iter().find(|(text, _)| *text == sql.text());
            known.unwrap_or_else(|| panic!("nobody says what {sql:?} means")).1(message)
        }
    }
}

/// A filter that took a message, for counting.
pub(super) fn word(filter: &Filter) -> &'static str {
    match filter {
        Filter::All | Filter::None => "matched everything",
        Filter::Key(_) => "matched a key",
        Filter::Pattern(_) => "matched a pattern",
        Filter::Headers(_) => "matched headers",
        Filter::Correlation(_) => "matched fields",
        Filter::Sql(_) => "matched a condition",
    }
}

/// The words between dots; the empty key has none.
fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

/// `*` is one word, `#` any number of them.
fn fits(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern, key) {
        ([], []) => true,
        (["#", rest @ ..], _) => (0..=key.len()).any(|skipped| fits(rest, &key[skipped..])),
        ([word, rest @ ..], [first, others @ ..]) => {
            (*word == "*" || word == first) && fits(rest, others)
        }
        _ => false,
    }
}

/// The copy that a rule's action makes; it says by which rule.
pub(super) fn act(rule: &Rule, message: &Message) -> Message {
    let mut changed = message.clone();
    if let Some(action) = &rule.action {
        let known = ACTIONS.iter().find(|(text, _)| *text == action.text());
        known.unwrap_or_else(|| panic!("nobody says what {action:?} does")).1(&mut changed);
        changed.properties.set("RuleName", Value::String(rule.name.clone()));
    }
    changed
}
