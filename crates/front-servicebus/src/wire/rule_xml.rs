//! Rules of subscriptions as XML, for the administration API.

use std::sync::Arc;

use malote_model::{Correlation, Filter, Rule, SqlAction, SqlFilter, Value};

use super::xml::{Element, escape, escaped};

/// Reads a `RuleDescription`, or returns what is wrong with it. Without a filter, it matches everything.
pub fn read(name: &str, description: &Element) -> Result<Rule, String> {
    let filter = match description.child("Filter") {
        Some(filter) => read_filter(filter)?,
        None => Filter::All,
    };
    let action = match description.child("Action") {
        Some(action) => read_action(action)?,
        None => None,
    };
    Ok(Rule { name: name.to_owned(), filter, action })
}

fn read_filter(filter: &Element) -> Result<Filter, String> {
    let sql = filter.text_of("SqlExpression").map(str::trim).filter(|text| !text.is_empty());
    Ok(match (filter.kind.as_deref(), sql) {
        (Some("TrueFilter"), _) => Filter::All,
        (Some("FalseFilter"), _) => Filter::None,
        (Some("CorrelationFilter"), _) => Filter::Correlation(Arc::new(read_correlation(filter)?)),
        (_, Some("1=1")) => Filter::All,
        (_, Some("1=0")) => Filter::None,
        (_, Some(text)) => {
            let parameters = read_values(filter.child("Parameters"))?;
            Filter::Sql(SqlFilter::new(text, parameters).map_err(|refusal| refusal.to_string())?)
        }
        (_, None) => {
            return Err("a filter must have a SqlExpression, or fields to compare".to_owned());
        }
    })
}

fn read_action(action: &Element) -> Result<Option<SqlAction>, String> {
    let sql = action.text_of("SqlExpression").map(str::trim).filter(|text| !text.is_empty());
    let Some(text) = sql else { return Ok(None) };
    let parameters = read_values(action.child("Parameters"))?;
    SqlAction::new(text, parameters).map(Some).map_err(|refusal| refusal.to_string())
}

/// The fields of a correlation filter and their elements.
fn fields(correlation: &mut Correlation) -> [(&'static str, &mut Option<String>); 8] {
    let c = correlation;
    [
        ("CorrelationId", &mut c.correlation_id),
        ("MessageId", &mut c.message_id),
        ("To", &mut c.to),
        ("ReplyTo", &mut c.reply_to),
        ("Label", &mut c.subject),
        ("SessionId", &mut c.session),
        ("ReplyToSessionId", &mut c.reply_to_session),
        ("ContentType", &mut c.content_type),
    ]
}

fn read_correlation(filter: &Element) -> Result<Correlation, String> {
    let properties = read_values(filter.child("Properties"))?;
    let mut correlation = Correlation { properties, ..Correlation::default() };
    for (name, field) in fields(&mut correlation) {
        *field = filter.text_of(name).filter(|text| !text.is_empty()).map(str::to_owned);
    }
    Ok(correlation)
}

fn read_values(list: Option<&Element>) -> Result<Vec<(String, Value)>, String> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let pairs = list.children.iter().filter(|child| child.name == "KeyValueOfstringanyType");
    let pair = |pair: &Element| {
        let (Some(key), Some(value)) = (pair.text_of("Key"), pair.child("Value")) else {
            return Err("a value must have a Key and a Value".to_owned());
        };
        let kind = value.kind.as_deref().unwrap_or("string");
        let read = read_value(kind, &value.text);
        let read = read.ok_or_else(|| format!("the value of `{key}` is not of type {kind}"))?;
        Ok((key.to_owned(), read))
    };
    pairs.map(pair).collect()
}

fn read_value(kind: &str, text: &str) -> Option<Value> {
    let number = text.trim();
    Some(match kind {
        "int" => Value::I32(number.parse().ok()?),
        "short" => Value::I16(number.parse().ok()?),
        "long" => Value::I64(number.parse().ok()?),
        "unsignedInt" => Value::U32(number.parse().ok()?),
        "unsignedLong" => Value::U64(number.parse().ok()?),
        "double" | "float" | "decimal" => Value::F64(number.parse().ok()?),
        "boolean" => Value::Bool(match number {
            "1" => true,
            "0" => false,
            word => word.to_ascii_lowercase().parse().ok()?,
        }),
        "dateTime" => Value::Time(read_time(number)?),
        // Other types, such as durations, are text in messages.
        _ => Value::String(text.to_owned()),
    })
}

/// A time without a zone is UTC.
fn read_time(text: &str) -> Option<i64> {
    let zoned = text.parse::<jiff::Timestamp>().ok();
    let plain = || {
        let at: jiff::civil::DateTime = text.parse().ok()?;
        jiff::tz::Offset::UTC.to_timestamp(at).ok()
    };
    zoned.or_else(plain).map(|at| at.as_millisecond())
}

/// Writes filter, action and name of a rule. The enclosing document must declare the prefix `i`.
pub fn write(out: &mut String, rule: &Rule) {
    match &rule.filter {
        Filter::All => put_sql(out, "Filter", "TrueFilter", "1=1", &[]),
        Filter::None => put_sql(out, "Filter", "FalseFilter", "1=0", &[]),
        Filter::Sql(sql) => put_sql(out, "Filter", "SqlFilter", sql.text(), sql.parameters()),
        Filter::Correlation(correlation) => put_correlation(out, correlation),
        // Rules of exchanges do not exist in this protocol; only a part of their meaning can be expressed.
        Filter::Key(_) | Filter::Pattern(_) | Filter::Weight(_) => {
            put_correlation(out, &Correlation::default())
        }
        Filter::Headers(headers) => {
            let values = headers.values.iter();
            let properties = values.filter_map(|(name, v)| Some((name.clone(), v.clone()?)));
            let properties = properties.collect();
            put_correlation(out, &Correlation { properties, ..Correlation::default() });
        }
    }
    match &rule.action {
        Some(sql) => put_sql(out, "Action", "SqlRuleAction", sql.text(), sql.parameters()),
        None => out.push_str("<Action i:type=\"EmptyRuleAction\"></Action>"),
    }
    out.push_str(&format!("<Name>{}</Name>", escaped(&rule.name)));
}

fn put_sql(out: &mut String, name: &str, kind: &str, text: &str, values: &[(String, Value)]) {
    out.push_str(&format!("<{name} i:type=\"{kind}\"><SqlExpression>"));
    escape(out, text);
    out.push_str("</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>");
    put_values(out, "Parameters", values);
    out.push_str(&format!("</{name}>"));
}

fn put_correlation(out: &mut String, correlation: &Correlation) {
    out.push_str("<Filter i:type=\"CorrelationFilter\">");
    let mut shown = correlation.clone();
    for (name, field) in fields(&mut shown) {
        if let Some(text) = field {
            out.push_str(&format!("<{name}>{}</{name}>", escaped(text)));
        }
    }
    put_values(out, "Properties", &correlation.properties);
    out.push_str("</Filter>");
}

/// Clients expect a type prefix of four letters, and no element for an empty list.
fn put_values(out: &mut String, name: &str, values: &[(String, Value)]) {
    if values.is_empty() {
        return;
    }
    out.push_str(&format!("<{name}>"));
    for (key, value) in values {
        let (kind, text) = written(value);
        out.push_str(&format!(
            "<KeyValueOfstringanyType><Key>{}</Key>\
             <Value xmlns:d6p1=\"http://www.w3.org/2001/XMLSchema\" i:type=\"d6p1:{kind}\">{}</Value>\
             </KeyValueOfstringanyType>",
            escaped(key),
            escaped(&text)
        ));
    }
    out.push_str(&format!("</{name}>"));
}

fn written(value: &Value) -> (&'static str, String) {
    match value {
        Value::Bool(is) => ("boolean", is.to_string()),
        Value::I8(n) => ("int", n.to_string()),
        Value::I16(n) => ("int", n.to_string()),
        Value::I32(n) => ("int", n.to_string()),
        Value::U8(n) => ("int", n.to_string()),
        Value::U16(n) => ("int", n.to_string()),
        Value::I64(n) => ("long", n.to_string()),
        Value::U32(n) => ("long", n.to_string()),
        Value::U64(n) => ("long", n.to_string()),
        Value::F32(n) => ("double", n.to_string()),
        Value::F64(n) => ("double", n.to_string()),
        Value::String(text) => ("string", text.clone()),
        Value::Time(ms) => {
            let at = jiff::Timestamp::from_millisecond(*ms).unwrap_or_default();
            ("dateTime", format!("{at:.3}"))
        }
        Value::Null => ("string", String::new()),
        Value::Uuid(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
            ("string", format!("{value:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn read_text(text: &str) -> Result<Rule, String> {
        read("r", &Element::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn rules_read_as_they_are_written() {
        let text = r#"<RuleDescription xmlns:i="x"><Filter i:type="SqlFilter"><SqlExpression>a &lt; @n</SqlExpression>
            <Parameters><KeyValueOfstringanyType><Key>@n</Key><Value i:type="l28:double">1.5</Value></KeyValueOfstringanyType></Parameters></Filter>
            <Action i:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression></Action><Name>ignored</Name></RuleDescription>"#;
        let rule = read_text(text).unwrap();
        let mut out = String::new();
        write(&mut out, &rule);
        expect![[r#"<Filter i:type="SqlFilter"><SqlExpression>a &lt; @n</SqlExpression><CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@n</Key><Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema" i:type="d6p1:double">1.5</Value></KeyValueOfstringanyType></Parameters></Filter><Action i:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Action><Name>r</Name>"#]]
            .assert_eq(&out);
        assert_eq!(read_text(&format!("<RuleDescription>{out}</RuleDescription>")), Ok(rule));
    }

    #[test]
    fn correlations_have_typed_properties() {
        let values = [
            ("int", "7"),
            ("long", "8000000000"),
            ("boolean", "true"),
            ("string", "a&lt;b"),
            ("dateTime", "2026-01-02T03:04:05.006Z"),
        ];
        let values = values.map(|(kind, text)| {
            format!("<KeyValueOfstringanyType><Key>{kind}</Key><Value i:type=\"x:{kind}\">{text}</Value></KeyValueOfstringanyType>")
        });
        let text = format!(
            "<RuleDescription><Filter i:type=\"CorrelationFilter\"><Label>news</Label><To></To><Properties>{}</Properties></Filter></RuleDescription>",
            values.concat()
        );
        let rule = read_text(&text).unwrap();
        let Filter::Correlation(correlation) = &rule.filter else { panic!("{rule:?}") };
        assert_eq!((correlation.subject.as_deref(), &correlation.to), (Some("news"), &None));
        let mut out = String::new();
        write(&mut out, &rule);
        assert_eq!(read_text(&format!("<RuleDescription>{out}</RuleDescription>")), Ok(rule));
    }

    #[test]
    fn constant_filters_and_invalid_filters() {
        assert_eq!(read_text("<RuleDescription/>").unwrap().filter, Filter::All);
        let kind =
            |kind: &str| format!("<RuleDescription><Filter i:type=\"{kind}\"/></RuleDescription>");
        assert_eq!(read_text(&kind("TrueFilter")).unwrap().filter, Filter::All);
        assert_eq!(read_text(&kind("FalseFilter")).unwrap().filter, Filter::None);
        read_text(&kind("SqlFilter")).unwrap_err();
        let bad = "<RuleDescription><Filter><SqlExpression>a =</SqlExpression></Filter></RuleDescription>";
        read_text(bad).unwrap_err();
    }
}
