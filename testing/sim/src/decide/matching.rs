//! The meaning of rules, written independently of the engine and as simply as possible.

use malote_model::{Filter, HeadersMatch, Message, Rule, Value};

/// SQL conditions with their meaning. Rules of a world use only these.
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

/// SQL actions with their meaning.
#[allow(clippy::type_complexity)]
pub const ACTIONS: [(&str, fn(&mut Message)); 3] = [
    ("SET p0 = 1; SET by = 'a rule'", |m| {
        // A number keeps its type.
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

/// The routing key: its own, or its session, or the empty one.
fn key(message: &Message) -> &str {
    let session = || message.session.as_ref().map(|session| session.as_str());
    message.key.as_deref().or_else(session).unwrap_or_default()
}

/// Whether a filter matches a message.
pub(super) fn matches(filter: &Filter, message: &Message) -> bool {
    match filter {
        Filter::All => true,
        // A hash topic chooses one of its rules: see `chosen`.
        Filter::None | Filter::Weight(_) => false,
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
            known.unwrap_or_else(|| panic!("the model does not know the condition {sql:?}")).1(
                message,
            )
        }
    }
}

/// The name under which a match is counted.
pub(super) fn word(filter: &Filter) -> &'static str {
    match filter {
        Filter::All | Filter::None => "matched everything",
        Filter::Key(_) => "matched a key",
        Filter::Pattern(_) => "matched a pattern",
        Filter::Headers(_) => "matched headers",
        Filter::Correlation(_) => "matched fields",
        Filter::Sql(_) => "matched a condition",
        Filter::Weight(_) => "matched a share",
    }
}

/// The rule that a hash topic chooses, of rules in the order in which their targets were created: the bucket of the key,
/// where each rule has as many buckets as its weight.
pub(super) fn chosen(weights: &[u32], message: &Message) -> Option<usize> {
    let buckets: Vec<usize> = weights
        .iter()
        .enumerate()
        .flat_map(|(rule, &weight)| std::iter::repeat_n(rule, weight as usize))
        .collect();
    let mut seed = xxhash_rust::xxh3::xxh3_64(key(message).as_bytes());
    let (mut bucket, mut next) = (None, 0_usize);
    while next < buckets.len() {
        bucket = Some(next);
        seed = seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let share = 2_147_483_648_f64 / ((seed >> 33) + 1) as f64;
        next = ((next as f64 + 1.0) * share) as usize;
    }
    bucket.map(|bucket| buckets[bucket])
}

/// The words between dots; the empty key has none.
fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

/// `*` matches one word, `#` any number of words.
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

/// The copy that a rule's action makes; it contains the rule's name.
pub(super) fn act(rule: &Rule, message: &Message) -> Message {
    let mut changed = message.clone();
    if let Some(action) = &rule.action {
        let known = ACTIONS.iter().find(|(text, _)| *text == action.text());
        known.unwrap_or_else(|| panic!("the model does not know the action {action:?}")).1(
            &mut changed,
        );
        changed.properties.set("RuleName", Value::String(rule.name.clone()));
    }
    changed
}
