//! Encoding of topics and their rules.
//!
//! A SQL text is stored as written and parsed again when it is read, so every text that was once valid must stay valid.

use std::sync::Arc;

use malote_model::{
    Correlation, Filter, HashOn, Headers, HeadersMatch, Refusal, Rule, SqlAction, SqlFilter,
    Status, TopicKind, TopicName, TopicSpec, Value,
};

use super::message::{get_value, put_value};
use super::read::{EncodeExt, Malformed, Reader};
use super::spec::{get_dedup, get_status, put_dedup, put_status};

/// Encodes a rule. An invalid rule is refused.
pub fn encode_rule(rule: &Rule) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::new();
    put_rule(&mut out, rule)?;
    Ok(out)
}

/// Decodes a rule.
pub fn decode_rule(bytes: &[u8]) -> Option<Rule> {
    let r = &mut Reader::new(bytes);
    let rule = get_rule(r).ok()?;
    r.rest().is_empty().then_some(rule)
}

/// Encodes the settings of a topic.
pub fn encode_topic_spec(spec: &TopicSpec) -> Vec<u8> {
    let mut out = Vec::new();
    put_topic_spec(&mut out, spec);
    out
}

/// Decodes the settings of a topic.
pub fn decode_topic_spec(bytes: &[u8]) -> Option<TopicSpec> {
    let r = &mut Reader::new(bytes);
    let spec = get_topic_spec(r, true).ok()?;
    r.rest().is_empty().then_some(spec)
}

pub(crate) fn put_topic_spec(out: &mut Vec<u8>, spec: &TopicSpec) {
    let TopicSpec { kind, auto_delete, internal, dedup, status, transient, alternate, hash_on } =
        spec;
    out.put_u8(match kind {
        TopicKind::Filter => 0,
        TopicKind::Direct => 1,
        TopicKind::Fanout => 2,
        TopicKind::Topic => 3,
        TopicKind::Headers => 4,
        TopicKind::Hash => 5,
        TopicKind::Queue => 6,
    });
    out.put_bool(*auto_delete);
    out.put_bool(*internal);
    put_dedup(out, *dedup);
    if !has_more(spec) {
        return put_status(out, *status);
    }
    let mut encoded = Vec::new();
    put_status(&mut encoded, *status);
    out.put_u8(encoded[0] | MORE);
    out.put_bool(*transient);
    out.put_str(alternate.as_ref().map_or("", |topic| topic.as_str()));
    match hash_on {
        HashOn::Key => out.put_u8(0),
        HashOn::MessageId => out.put_u8(1),
        HashOn::CorrelationId => out.put_u8(2),
        HashOn::Property(name) => {
            out.put_u8(3);
            out.put_str(name);
        }
    }
}

/// In the byte of the status: more settings follow. Formats up to 4 never set it.
const MORE: u8 = 0x80;

/// Whether the encoding of these settings needs format 5.
pub(super) fn has_more(spec: &TopicSpec) -> bool {
    let new_kind = matches!(spec.kind, TopicKind::Hash | TopicKind::Queue);
    spec.transient || spec.alternate.is_some() || new_kind
}

/// Without `more`, the encoding has no status.
pub(crate) fn get_topic_spec(r: &mut Reader<'_>, more: bool) -> Result<TopicSpec, Malformed> {
    let kind = match r.u8()? {
        0 => TopicKind::Filter,
        1 => TopicKind::Direct,
        2 => TopicKind::Fanout,
        3 => TopicKind::Topic,
        4 => TopicKind::Headers,
        5 => TopicKind::Hash,
        6 => TopicKind::Queue,
        _ => return Err(Malformed),
    };
    let (auto_delete, internal, dedup) = (r.bool()?, r.bool()?, get_dedup(r)?);
    let mut spec = TopicSpec { kind, auto_delete, internal, dedup, ..TopicSpec::default() };
    if !more {
        spec.status = Status::Active;
        return if has_more(&spec) { Err(Malformed) } else { Ok(spec) };
    }
    let status = r.u8()?;
    spec.status = get_status(&mut Reader::new(&[status & !MORE]))?;
    if status & MORE != 0 {
        spec.transient = r.bool()?;
        let alternate = r.str()?;
        if !alternate.is_empty() {
            spec.alternate = Some(TopicName::new(alternate).map_err(|_| Malformed)?);
        }
        spec.hash_on = match r.u8()? {
            0 => HashOn::Key,
            1 => HashOn::MessageId,
            2 => HashOn::CorrelationId,
            3 => HashOn::Property(r.str()?.to_owned()),
            _ => return Err(Malformed),
        };
    }
    // One encoding for each specification.
    if has_more(&spec) != (status & MORE != 0) {
        return Err(Malformed);
    }
    Ok(spec)
}

pub(crate) fn put_rule(out: &mut Vec<u8>, rule: &Rule) -> Result<(), Refusal> {
    rule.check()?;
    let Rule { name, filter, action } = rule;
    out.put_str(name);
    match filter {
        Filter::All => out.put_u8(0),
        Filter::None => out.put_u8(1),
        Filter::Key(key) => {
            out.put_u8(2);
            out.put_str(key);
        }
        Filter::Pattern(pattern) => {
            out.put_u8(3);
            out.put_str(pattern);
        }
        Filter::Headers(Headers { mode, values }) => {
            out.put_u8(4);
            out.put_u8(match mode {
                HeadersMatch::All => 0,
                HeadersMatch::Any => 1,
                HeadersMatch::AllWithX => 2,
                HeadersMatch::AnyWithX => 3,
            });
            out.put_var(values.len() as u64);
            for (name, value) in values {
                out.put_str(name);
                out.put_bool(value.is_some());
                value.iter().try_for_each(|value| put_value(out, value, 0))?;
            }
        }
        Filter::Correlation(correlation) => {
            out.put_u8(5);
            let texts = correlation.texts();
            let present = texts.iter().enumerate().filter(|(_, text)| text.is_some());
            out.put_var(present.fold(0, |mask, (i, _)| mask | 1 << i));
            texts.iter().flatten().for_each(|text| out.put_str(text));
            put_named(out, &correlation.properties)?;
        }
        Filter::Sql(sql) => {
            out.put_u8(6);
            out.put_str(sql.text());
            put_named(out, sql.parameters())?;
        }
        Filter::Weight(weight) => {
            out.put_u8(7);
            out.put_var(u64::from(*weight));
        }
    }
    out.put_bool(action.is_some());
    if let Some(action) = action {
        out.put_str(action.text());
        put_named(out, action.parameters())?;
    }
    Ok(())
}

pub(crate) fn get_rule(r: &mut Reader<'_>) -> Result<Rule, Malformed> {
    let name = r.str()?.to_owned();
    let filter = match r.u8()? {
        0 => Filter::All,
        1 => Filter::None,
        2 => Filter::Key(r.str()?.to_owned()),
        3 => Filter::Pattern(r.str()?.to_owned()),
        4 => {
            let mode = match r.u8()? {
                0 => HeadersMatch::All,
                1 => HeadersMatch::Any,
                2 => HeadersMatch::AllWithX,
                3 => HeadersMatch::AnyWithX,
                _ => return Err(Malformed),
            };
            let n = r.count()?;
            let each = |_| {
                let name = r.str()?.to_owned();
                let value = if r.bool()? { Some(get_value(r, 0)?) } else { None };
                Ok((name, value))
            };
            Filter::Headers(Headers { mode, values: (0..n).map(each).collect::<Result<_, _>>()? })
        }
        5 => {
            let mut correlation = Correlation::default();
            let mask = r.var()?;
            let texts = correlation.texts_mut();
            if mask >> texts.len() != 0 {
                return Err(Malformed);
            }
            for (i, text) in texts.into_iter().enumerate() {
                if mask & 1 << i != 0 {
                    *text = Some(r.str()?.to_owned());
                }
            }
            correlation.properties = get_named(r)?;
            Filter::Correlation(Arc::new(correlation))
        }
        6 => {
            let text = r.str()?;
            Filter::Sql(SqlFilter::new(text, get_named(r)?).map_err(|_| Malformed)?)
        }
        7 => Filter::Weight(r.var32()?),
        _ => return Err(Malformed),
    };
    let action = if r.bool()? {
        let text = r.str()?;
        Some(SqlAction::new(text, get_named(r)?).map_err(|_| Malformed)?)
    } else {
        None
    };
    let rule = Rule { name, filter, action };
    rule.check().map_err(|_| Malformed)?;
    Ok(rule)
}

fn put_named(out: &mut Vec<u8>, values: &[(String, Value)]) -> Result<(), Refusal> {
    out.put_var(values.len() as u64);
    values.iter().try_for_each(|(name, value)| {
        out.put_str(name);
        put_value(out, value, 0)
    })
}

fn get_named(r: &mut Reader<'_>) -> Result<Vec<(String, Value)>, Malformed> {
    let n = r.count()?;
    (0..n).map(|_| Ok((r.str()?.to_owned(), get_value(r, 0)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::Dedup;

    fn rules() -> Vec<Rule> {
        let rule = |name: &str, filter| Rule { name: name.into(), filter, action: None };
        let named = |values: Vec<(&str, Value)>| -> Vec<(String, Value)> {
            values.into_iter().map(|(name, value)| (name.into(), value)).collect()
        };
        let deep = Value::Map(vec![("k".into(), Value::List(vec![Value::F32(0.5), Value::Null]))]);
        let headers = |mode| {
            let values = vec![("a".into(), None), ("x-b".into(), Some(Value::U16(7)))];
            Filter::Headers(Headers { mode, values })
        };
        let mut all = Correlation { properties: named(vec![("deep", deep)]), ..<_>::default() };
        for (i, text) in all.texts_mut().into_iter().enumerate() {
            *text = Some(format!("text {i}"));
        }
        let some = Correlation { subject: Some(String::new()), ..Correlation::default() };
        let parameters = named(vec![("@p", Value::I64(-1))]);
        let sql = SqlFilter::new(" a = @p -- 1", parameters.clone()).unwrap();
        let action = SqlAction::new("SET b = @p; REMOVE c", parameters).unwrap();
        vec![
            rule("$Default", Filter::All),
            rule("none", Filter::None),
            rule("weight", Filter::Weight(1000)),
            rule("key", Filter::Key(String::new())),
            rule("pattern", Filter::Pattern("a.*.#".into())),
            rule("1", headers(HeadersMatch::All)),
            rule("2", headers(HeadersMatch::Any)),
            rule("3", headers(HeadersMatch::AllWithX)),
            rule("4", headers(HeadersMatch::AnyWithX)),
            rule("5", Filter::Correlation(Arc::new(Correlation::default()))),
            rule("6", Filter::Correlation(Arc::new(some))),
            rule("7", Filter::Correlation(Arc::new(all))),
            rule("8", Filter::Sql(sql.clone())),
            Rule { name: "9".into(), filter: Filter::Sql(sql), action: Some(action.clone()) },
            Rule { name: "10".into(), filter: Filter::All, action: Some(action) },
        ]
    }

    #[test]
    fn rules_round_trip_and_prefixes_are_refused() {
        for rule in rules() {
            let bytes = encode_rule(&rule).unwrap();
            assert_eq!(decode_rule(&bytes), Some(rule.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(decode_rule(&bytes[..cut]), None, "{rule:?} cut at {cut}");
            }
            let longer = [bytes.as_slice(), &[0]].concat();
            assert_eq!(decode_rule(&longer), None);
        }
    }

    #[test]
    fn mutated_bytes_decode_to_a_rule_or_an_error() {
        for rule in rules() {
            let bytes = encode_rule(&rule).unwrap();
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[at] ^= 1 << bit;
                    if let Some(other) = decode_rule(&changed) {
                        other.check().unwrap();
                        assert_eq!(decode_rule(&encode_rule(&other).unwrap()), Some(other));
                    }
                }
            }
        }
    }

    #[test]
    fn invalid_rules_are_not_encoded() {
        let rule = |name: &str, filter| Rule { name: name.into(), filter, action: None };
        encode_rule(&rule("", Filter::All)).unwrap_err();
        encode_rule(&rule("r", Filter::Key("k".repeat(513)))).unwrap_err();
        // A valid rule, except for its empty name.
        let mut bytes = encode_rule(&rule("r", Filter::All)).unwrap();
        bytes.splice(..2, [0]);
        assert_eq!(decode_rule(&bytes), None);
    }

    #[test]
    fn topic_specs_round_trip() {
        use TopicKind::{Direct, Fanout, Filter, Hash, Headers, Queue, Topic};
        for kind in [Filter, Direct, Fanout, Topic, Headers, Hash, Queue] {
            for flags in 0..32 {
                let (auto_delete, internal) = (flags & 1 != 0, flags & 2 != 0);
                let dedup = (flags & 4 != 0).then_some(Dedup {
                    window_ms: 9,
                    per_session: false,
                    content: true,
                });
                let status = if internal { Status::SendDisabled } else { Status::Active };
                let spec = TopicSpec {
                    kind,
                    auto_delete,
                    internal,
                    dedup,
                    status,
                    transient: flags & 8 != 0,
                    alternate: (flags & 16 != 0).then(|| TopicName::new("rest").unwrap()),
                    hash_on: match (kind, flags & 3) {
                        (Hash, 1) => HashOn::MessageId,
                        (Hash, 2) => HashOn::CorrelationId,
                        (Hash, 3) => HashOn::Property("tenant".into()),
                        _ => HashOn::Key,
                    },
                };
                let bytes = encode_topic_spec(&spec);
                assert_eq!(decode_topic_spec(&bytes), Some(spec));
                (0..bytes.len()).for_each(|cut| assert_eq!(decode_topic_spec(&bytes[..cut]), None));
            }
        }
        assert!(decode_topic_spec(&[0, 0, 0, 0, 0]).is_some());
        assert_eq!(decode_topic_spec(&[5, 0, 0, 0, 0]), None);
        assert_eq!(decode_topic_spec(&[0, 2, 0, 0, 0]), None);
        assert_eq!(decode_topic_spec(&[0, 0, 0, 0, 4]), None);
        assert_eq!(decode_topic_spec(&[0, 0, 0, 0, 0, 0]), None);
    }
}
