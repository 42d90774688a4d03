//! Typed values: AMQP ↔ model.
//!
//! The model has no symbols, characters, decimals, arrays and described values. They are preserved in the message's
//! original bytes; other protocols see the closest type.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use malote_model::Value as Model;
use malote_wire_amqp::types::{Map, Str, Value};

/// The closest value of the model.
pub fn to_model(value: &Value) -> Model {
    match value {
        Value::Null => Model::Null,
        Value::Bool(v) => Model::Bool(*v),
        Value::Ubyte(v) => Model::U8(*v),
        Value::Ushort(v) => Model::U16(*v),
        Value::Uint(v) => Model::U32(*v),
        Value::Ulong(v) => Model::U64(*v),
        Value::Byte(v) => Model::I8(*v),
        Value::Short(v) => Model::I16(*v),
        Value::Int(v) => Model::I32(*v),
        Value::Long(v) => Model::I64(*v),
        Value::Float(v) => Model::F32(*v),
        Value::Double(v) => Model::F64(*v),
        Value::Decimal32(v) => Model::Bytes(Bytes::copy_from_slice(v)),
        Value::Decimal64(v) => Model::Bytes(Bytes::copy_from_slice(v)),
        Value::Decimal128(v) => Model::Bytes(Bytes::copy_from_slice(v)),
        Value::Char(v) => Model::String(v.to_string()),
        Value::Timestamp(v) => Model::Time(*v),
        Value::Uuid(v) => Model::Uuid(*v),
        Value::Binary(v) => Model::Bytes(v.clone()),
        Value::String(v) => Model::String(v.as_str().to_owned()),
        Value::Symbol(v) => Model::String(v.as_str().to_owned()),
        Value::List(items) => Model::List(items.iter().map(to_model).collect()),
        Value::Array(array) => Model::List(array.items().iter().map(to_model).collect()),
        Value::Map(map) => {
            Model::Map(map.0.iter().map(|(key, value)| (text(key), to_model(value))).collect())
        }
        Value::Described(described) => to_model(&described.value),
    }
}

pub fn of_model(value: &Model) -> Value {
    match value {
        Model::Null => Value::Null,
        Model::Bool(v) => Value::Bool(*v),
        Model::I8(v) => Value::Byte(*v),
        Model::I16(v) => Value::Short(*v),
        Model::I32(v) => Value::Int(*v),
        Model::I64(v) => Value::Long(*v),
        Model::U8(v) => Value::Ubyte(*v),
        Model::U16(v) => Value::Ushort(*v),
        Model::U32(v) => Value::Uint(*v),
        Model::U64(v) => Value::Ulong(*v),
        Model::F32(v) => Value::Float(*v),
        Model::F64(v) => Value::Double(*v),
        Model::String(v) => Value::String(v.as_str().into()),
        Model::Bytes(v) => Value::Binary(v.clone()),
        Model::Time(v) => Value::Timestamp(*v),
        Model::Uuid(v) => Value::Uuid(*v),
        Model::List(items) => Value::List(items.iter().map(of_model).collect()),
        Model::Map(entries) => Value::Map(Map(entries
            .iter()
            .map(|(key, value)| (Value::String(key.as_str().into()), of_model(value)))
            .collect())),
    }
}

/// A message id as text; it may be a string, number, UUID or bytes.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(_) | Value::Symbol(_) => value.as_str().unwrap_or_default().to_owned(),
        Value::Uuid(bytes) => {
            let [a, b, c, d, e] =
                [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]]
                    .map(|part| HEXLOWER.encode(part));
            format!("{a}-{b}-{c}-{d}-{e}")
        }
        Value::Binary(bytes) => HEXLOWER.encode(bytes),
        Value::Ulong(number) => number.to_string(),
        other => other.as_i64().map_or_else(|| format!("{other:?}"), |number| number.to_string()),
    }
}

pub fn string(text: &str) -> Value {
    Value::String(Str::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_wire_amqp::types::Symbol;

    #[test]
    fn model_values_keep_their_type() {
        let values = [
            Value::Null,
            Value::Bool(true),
            Value::Ubyte(1),
            Value::Ushort(2),
            Value::Uint(3),
            Value::Ulong(u64::MAX),
            Value::Byte(-1),
            Value::Short(-2),
            Value::Int(-3),
            Value::Long(i64::MIN),
            Value::Float(1.5),
            Value::Double(2.5),
            Value::Timestamp(-5),
            Value::Uuid([7; 16]),
            Value::Binary(Bytes::from_static(b"b")),
            string("s"),
            Value::List(vec![Value::Int(1), Value::Null]),
            Value::Map(Map::default().with_string("k", 1_i32)),
        ];
        for value in values {
            assert_eq!(of_model(&to_model(&value)), value);
        }
        assert_eq!(of_model(&to_model(&Value::Symbol(Symbol::from_static("x")))), string("x"));
    }

    #[test]
    fn message_ids_of_every_type_become_text() {
        let mut uuid = [0; 16];
        uuid[0] = 0xab;
        assert_eq!(text(&Value::Uuid(uuid)), "ab000000-0000-0000-0000-000000000000");
        assert_eq!(text(&Value::Ulong(u64::MAX)), u64::MAX.to_string());
        assert_eq!(text(&Value::Binary(Bytes::from_static(&[1, 255]))), "01ff");
        assert_eq!(text(&string("x")), "x");
    }
}
