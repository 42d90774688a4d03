//! The syntax of scripts: addresses, statuses, rules and names of leases.

use std::sync::Arc;

use malote_model::{
    Address, Correlation, Filter, QueueName, Rule, SqlAction, SqlFilter, Status, TopicName,
};

/// `@name` is a topic, anything else a queue.
pub(super) fn address(text: &str) -> Address {
    match text.strip_prefix('@') {
        Some(topic) => TopicName::new(topic).unwrap().into(),
        None => QueueName::new(text).unwrap().into(),
    }
}

pub(super) fn status<'a>(option: &impl Fn(&str) -> Option<&'a str>) -> Status {
    match option("status") {
        None => Status::Active,
        Some("send") => Status::SendDisabled,
        Some("receive") => Status::ReceiveDisabled,
        Some(_) => Status::Disabled,
    }
}

/// A rule named by its filter, unless it has a `name`: `all`, `key:k`, `pattern:p`, `subject:s`, `sql:text_with_underscores`.
pub(super) fn rule<'a>(text: &str, option: &impl Fn(&str) -> Option<&'a str>) -> Rule {
    let filter = match text.split_once(':') {
        None => Filter::All,
        Some(("key", key)) => Filter::Key(key.into()),
        Some(("weight", weight)) => Filter::Weight(weight.parse().unwrap()),
        Some(("pattern", pattern)) => Filter::Pattern(pattern.into()),
        Some(("subject", subject)) => Filter::Correlation(Arc::new(Correlation {
            subject: Some(subject.into()),
            ..Correlation::default()
        })),
        Some((_, sql)) => Filter::Sql(SqlFilter::new(&sql.replace('_', " "), vec![]).unwrap()),
    };
    let action = option("do")
        .map(|text| SqlAction::new(&text.replace('_', " ").replace(':', "="), vec![]).unwrap());
    Rule { name: option("name").unwrap_or(text).into(), filter, action }
}

/// The name of the nth lease or hold: a to z, then a1 to z1 and so on.
pub(super) fn name_of(nth: usize) -> String {
    let letter = char::from(b'a' + (nth % 26) as u8);
    if nth < 26 { letter.to_string() } else { format!("{letter}{}", nth / 26) }
}

/// Hides tokens, which differ from run to run.
pub(super) fn hide(text: &str) -> String {
    text.split(' ')
        .map(|word| if word.len() == 32 { "…" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}
