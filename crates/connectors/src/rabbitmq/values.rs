//! Property values as AMQP 0-9-1 header values, and back without loss.
//!
//! Types that the protocol has are used directly. Others (u64, milliseconds, UUID, a map that is not sorted) become a
//! table of two entries: the type's name and the value. Other programs can read it.

use bytes::Bytes;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString, ShortString};
use malote_model::{Value, limits};

/// The entry with the type's name.
const TYPE: &str = "x-malote-type";
/// The entry with the value.
const VALUE: &str = "value";

pub(super) fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

/// A header name; none if longer than 255 bytes.
pub(super) fn name(name: &str) -> Option<ShortString> {
    ShortString::try_new(name).ok()
}

pub(super) fn to_amqp(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(v) => AMQPValue::Boolean(*v),
        Value::I8(v) => AMQPValue::ShortShortInt(*v),
        Value::I16(v) => AMQPValue::ShortInt(*v),
        Value::I32(v) => AMQPValue::LongInt(*v),
        Value::I64(v) => AMQPValue::LongLongInt(*v),
        Value::U8(v) => AMQPValue::ShortShortUInt(*v),
        Value::U16(v) => AMQPValue::ShortUInt(*v),
        Value::U32(v) => AMQPValue::LongUInt(*v),
        Value::U64(v) => typed("u64", text(&v.to_string())),
        Value::F32(v) => AMQPValue::Float(*v),
        Value::F64(v) => AMQPValue::Double(*v),
        Value::String(v) => text(v),
        Value::Bytes(v) => AMQPValue::ByteArray(ByteArray::from(&v[..])),
        Value::Time(ms) => match u64::try_from(*ms) {
            Ok(ms) if ms % 1000 == 0 => AMQPValue::Timestamp(ms / 1000),
            _ => typed("time", AMQPValue::LongLongInt(*ms)),
        },
        Value::Uuid(v) => typed("uuid", AMQPValue::ByteArray(ByteArray::from(&v[..]))),
        Value::List(all) => array(all.iter().map(to_amqp)),
        Value::Map(all) => table(all).unwrap_or_else(|| {
            let pairs = all.iter().map(|(key, value)| array([text(key), to_amqp(value)]));
            typed("map", array(pairs))
        }),
    }
}

fn array(all: impl IntoIterator<Item = AMQPValue>) -> AMQPValue {
    AMQPValue::FieldArray(FieldArray::from(all.into_iter().collect::<Vec<_>>()))
}

fn typed(kind: &str, value: AMQPValue) -> AMQPValue {
    let mut table = FieldTable::default();
    table.insert(TYPE.into(), text(kind));
    table.insert(VALUE.into(), value);
    AMQPValue::FieldTable(table)
}

/// A table, if the map survives it: tables come back sorted by name.
fn table(all: &[(String, Value)]) -> Option<AMQPValue> {
    let sorted = all.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !sorted || all.iter().any(|(key, _)| key == TYPE) {
        return None;
    }
    let mut table = FieldTable::default();
    for (key, value) in all {
        table.insert(name(key)?, to_amqp(value));
    }
    Some(AMQPValue::FieldTable(table))
}

pub(super) fn from_amqp(value: &AMQPValue) -> Value {
    at_depth(value, 0)
}

fn at_depth(value: &AMQPValue, depth: usize) -> Value {
    if depth > limits::VALUE_DEPTH_MAX {
        return Value::Null; // Malote never nests values this deep
    }
    let below = |value| at_depth(value, depth + 1);
    match value {
        AMQPValue::Boolean(v) => Value::Bool(*v),
        AMQPValue::ShortShortInt(v) => Value::I8(*v),
        AMQPValue::ShortShortUInt(v) => Value::U8(*v),
        AMQPValue::ShortInt(v) => Value::I16(*v),
        AMQPValue::ShortUInt(v) => Value::U16(*v),
        AMQPValue::LongInt(v) => Value::I32(*v),
        AMQPValue::LongUInt(v) => Value::U32(*v),
        AMQPValue::LongLongInt(v) => Value::I64(*v),
        AMQPValue::Float(v) => Value::F32(*v),
        AMQPValue::Double(v) => Value::F64(*v),
        AMQPValue::DecimalValue(v) => {
            Value::F64(f64::from(v.value) / 10_f64.powi(i32::from(v.scale)))
        }
        AMQPValue::ShortString(v) => Value::String(v.to_string()),
        AMQPValue::LongString(v) => match std::str::from_utf8(v.as_bytes()) {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => Value::Bytes(Bytes::copy_from_slice(v.as_bytes())),
        },
        AMQPValue::Timestamp(s) => {
            Value::Time(i64::try_from(s.saturating_mul(1000)).unwrap_or(i64::MAX))
        }
        AMQPValue::ByteArray(v) => Value::Bytes(Bytes::copy_from_slice(v.as_slice())),
        AMQPValue::Void => Value::Null,
        AMQPValue::FieldArray(all) => Value::List(all.as_slice().iter().map(below).collect()),
        AMQPValue::FieldTable(table) => untyped(table, depth).unwrap_or_else(|| {
            Value::Map(table.into_iter().map(|(key, v)| (key.to_string(), below(v))).collect())
        }),
    }
}

/// The value that a table of two entries stands for.
fn untyped(table: &FieldTable, depth: usize) -> Option<Value> {
    let all = table.inner();
    let (AMQPValue::LongString(kind), value) = (all.get(TYPE)?, all.get(VALUE)?) else {
        return None;
    };
    Some(match (kind.as_bytes(), value) {
        (b"u64", AMQPValue::LongString(text)) => {
            Value::U64(std::str::from_utf8(text.as_bytes()).ok()?.parse().ok()?)
        }
        (b"time", AMQPValue::LongLongInt(ms)) => Value::Time(*ms),
        (b"uuid", AMQPValue::ByteArray(bytes)) => Value::Uuid(bytes.as_slice().try_into().ok()?),
        (b"map", AMQPValue::FieldArray(pairs)) => {
            let pair = |pair: &AMQPValue| match pair {
                AMQPValue::FieldArray(pair) => match pair.as_slice() {
                    [AMQPValue::LongString(key), value] => {
                        let key = std::str::from_utf8(key.as_bytes()).ok()?;
                        Some((key.to_owned(), at_depth(value, depth + 1)))
                    }
                    _ => None,
                },
                _ => None,
            };
            Value::Map(pairs.as_slice().iter().map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_a_round_trip() {
        let map = |keys: &[&str]| {
            Value::Map(keys.iter().map(|key| ((*key).to_owned(), Value::Bool(true))).collect())
        };
        for value in [
            Value::Null,
            Value::Bool(true),
            Value::I8(-1),
            Value::I16(-2),
            Value::I32(-3),
            Value::I64(i64::MIN),
            Value::U8(1),
            Value::U16(2),
            Value::U32(3),
            Value::U64(u64::MAX),
            Value::F32(0.5),
            Value::F64(0.25),
            Value::String("é".into()),
            Value::Bytes(Bytes::from_static(&[0, 255])),
            Value::Time(-1),
            Value::Time(1_700_000_000_000),
            Value::Time(1_700_000_000_001),
            Value::Uuid([7; 16]),
            map(&["a", "b"]),
            map(&["b", "a"]),
            map(&[TYPE, VALUE]),
            Value::List(vec![Value::Null, Value::List(vec![map(&["z", "y"])])]),
        ] {
            assert_eq!(from_amqp(&to_amqp(&value)), value);
        }
    }

    #[test]
    fn a_foreign_table_with_the_same_entries_stays_a_table() {
        let mut table = FieldTable::default();
        table.insert(TYPE.into(), text("uuid"));
        table.insert(VALUE.into(), text("no bytes"));
        assert!(
            matches!(from_amqp(&AMQPValue::FieldTable(table)), Value::Map(all) if all.len() == 2)
        );
    }
}
