//! Rules of subscriptions: maps in requests, described lists in replies.

use std::sync::Arc;

use malote_model::{Correlation, Filter, Rule, SqlAction, SqlFilter};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::{Described, Map, Value};

use super::value::{of_model, string, to_model};

// The service really uses different numbers of zeros.
const RULE_DESCRIPTION: u64 = 0x0137_0000_0004;
const EMPTY_ACTION: u64 = 0x0137_0000_0005;
const SQL_ACTION: u64 = 0x0137_0000_0006;
const SQL_FILTER: u64 = 0x0013_7000_0006;
const TRUE_FILTER: u64 = 0x0013_7000_0007;
const FALSE_FILTER: u64 = 0x0013_7000_0008;
const CORRELATION_FILTER: u64 = 0x0013_7000_0009;

/// The compatibility level of SQL expressions that clients expect.
const SQL_COMPATIBILITY: i32 = 20;

/// Reads the `rule-description` of an `add-rule`.
pub fn read(name: &str, description: &Map) -> Result<Rule, AmqpError> {
    let bad = |text: String| AmqpError::new(condition::INVALID_FIELD, text);
    let expression = |of: &Value| {
        let text = of.as_map().and_then(|map| map.get("expression")?.as_str());
        text.map(str::to_owned)
            .ok_or_else(|| bad("a SQL filter or action must have an `expression`".to_owned()))
    };
    let present = |name: &str| description.get(name).filter(|value| **value != Value::Null);
    let filter = match (present("sql-filter"), present("correlation-filter")) {
        (Some(sql), _) => {
            let text = expression(sql)?;
            match text.trim() {
                "1=1" => Filter::All,
                "1=0" => Filter::None,
                text => {
                    Filter::Sql(SqlFilter::new(text, Vec::new()).map_err(|e| bad(e.to_string()))?)
                }
            }
        }
        (None, Some(Value::Map(map))) => Filter::Correlation(Arc::new(correlation(map))),
        _ => {
            return Err(
                bad("a rule must have a `sql-filter` or a `correlation-filter`".to_owned()),
            );
        }
    };
    let action = match present("sql-rule-action") {
        Some(action) => {
            let text = expression(action)?;
            Some(SqlAction::new(&text, Vec::new()).map_err(|e| bad(e.to_string()))?)
        }
        None => None,
    };
    Ok(Rule { name: name.to_owned(), filter, action })
}

fn correlation(map: &Map) -> Correlation {
    let text = |name: &str| map.get(name).and_then(Value::as_str).map(str::to_owned);
    let properties = map.get("properties").and_then(Value::as_map);
    let properties = properties.map_or(&[][..], |map| &map.0[..]);
    Correlation {
        message_id: text("message-id"),
        correlation_id: text("correlation-id"),
        to: text("to"),
        reply_to: text("reply-to"),
        subject: text("label"),
        session: text("session-id"),
        reply_to_session: text("reply-to-session-id"),
        content_type: text("content-type"),
        key: None,
        properties: properties
            .iter()
            .filter_map(|(name, value)| Some((name.as_str()?.to_owned(), to_model(value))))
            .collect(),
    }
}

/// Encodes a rule for `enumerate-rules`.
pub fn write(rule: &Rule) -> Value {
    let sql = |text: &str| vec![string(text), Value::Int(SQL_COMPATIBILITY)];
    let filter = match &rule.filter {
        Filter::All => described(TRUE_FILTER, sql("1=1")),
        Filter::None => described(FALSE_FILTER, sql("1=0")),
        Filter::Sql(filter) => described(SQL_FILTER, sql(filter.text())),
        Filter::Correlation(correlation) => written_correlation(correlation),
        // Rules of exchanges do not exist in this protocol; only a part of their meaning can be expressed.
        Filter::Key(key) | Filter::Pattern(key) => {
            let key = Correlation { key: Some(key.clone()), ..Correlation::default() };
            written_correlation(&key)
        }
        Filter::Weight(_) => written_correlation(&Correlation::default()),
        Filter::Headers(headers) => {
            let properties = headers.values.iter();
            let properties =
                properties.filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
            let all = Correlation { properties: properties.collect(), ..Correlation::default() };
            written_correlation(&all)
        }
    };
    let action = match &rule.action {
        Some(action) => described(SQL_ACTION, sql(action.text())),
        None => described(EMPTY_ACTION, Vec::new()),
    };
    described(RULE_DESCRIPTION, vec![filter, action, string(&rule.name)])
}

fn written_correlation(correlation: &Correlation) -> Value {
    let c = correlation;
    let texts = [
        &c.correlation_id,
        &c.message_id,
        &c.to,
        &c.reply_to,
        &c.subject,
        &c.session,
        &c.reply_to_session,
        &c.content_type,
    ];
    let shown = |text: &Option<String>| text.as_deref().map_or(Value::Null, string);
    let mut fields: Vec<Value> = texts.into_iter().map(shown).collect();
    let properties = c.properties.iter().map(|(name, value)| (string(name), of_model(value)));
    fields.push(Value::Map(Map(properties.collect())));
    described(CORRELATION_FILTER, fields)
}

fn described(code: u64, fields: Vec<Value>) -> Value {
    Described { descriptor: Value::Ulong(code), value: Value::List(fields) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn sql(text: &str) -> Value {
        Value::Map(Map::default().with_string("expression", text))
    }

    #[test]
    fn a_rule_needs_a_filter_that_parses() {
        for (description, error) in [
            (Map::default(), "a rule must have a `sql-filter` or a `correlation-filter`"),
            (
                Map::default().with_string("sql-filter", 1_i32),
                "a SQL filter or action must have an `expression`",
            ),
        ] {
            assert_eq!(read("r", &description).unwrap_err().description.unwrap().as_str(), error);
        }
        read("r", &Map::default().with_string("sql-filter", sql("a ="))).unwrap_err();
        let bad_action = Map::default()
            .with_string("sql-filter", sql("a = 1"))
            .with_string("sql-rule-action", sql("SET"));
        read("r", &bad_action).unwrap_err();
    }

    #[test]
    fn rules_are_encoded_as_described_lists() {
        let filter = Map::default()
            .with_string("label", "news")
            .with_string("properties", Value::Map(Map::default().with_string("n", 1_i32)));
        let description = Map::default()
            .with_string("correlation-filter", Value::Map(filter))
            .with_string("sql-rule-action", sql("SET a = 1"));
        let rule = read("mine", &description).unwrap();
        let Value::Described(encoded) = write(&rule) else { panic!("described") };
        assert_eq!(encoded.descriptor, Value::Ulong(0x0137_0000_0004));
        let items = encoded.value.as_items().unwrap();
        expect![[r#"
            Described(Described { descriptor: Ulong(1335734829062), value: List([String("SET a = 1"), Int(20)]) })"#]]
        .assert_eq(&format!("{:?}", items[1]));
        assert_eq!(items[2], string("mine"));
        assert_eq!(
            read("all", &Map::default().with_string("sql-filter", sql("1=1"))).unwrap().filter,
            Filter::All
        );
    }
}
