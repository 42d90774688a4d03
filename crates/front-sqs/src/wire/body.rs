//! Message bodies for SQS, which are always text.
//!
//! Text stays as it is. An AMQP string value becomes its text; other AMQP values, and sequences, become JSON. Anything
//! else is base64, marked with a message attribute; see docs/concepts/model.md.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use malote_model::message::{Body, BodyKind};
use malote_wire_amqp::message::Message;
use malote_wire_amqp::types::{Decoded, Reader, Value};
use serde_json::Value as Json;

use super::attribute::is_allowed;

#[derive(Debug, PartialEq, Eq)]
pub struct BodyText {
    pub text: String,
    /// Whether the text is base64.
    pub base64: bool,
}

/// Converts a body to text.
pub fn body_text(body: &Body) -> BodyText {
    let translated = match body.kind {
        BodyKind::Bytes | BodyKind::Text => None,
        BodyKind::AmqpValue => of_value(&body.bytes).ok(),
        BodyKind::AmqpSequence => of_sequences(&body.bytes).ok(),
    };
    let bytes = translated.as_ref().unwrap_or(&body.bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_allowed) => {
            BodyText { text: text.to_owned(), base64: false }
        }
        _ => BodyText { text: STANDARD.encode(bytes), base64: true },
    }
}

fn of_value(bytes: &Bytes) -> Decoded<Bytes> {
    Ok(match Reader::new(bytes).value()? {
        Value::String(text) => text.as_bytes().clone(),
        Value::Binary(bytes) => bytes,
        value => json(&value).to_string().into(),
    })
}

/// Joins the items of all sections into one list.
fn of_sequences(bytes: &Bytes) -> Decoded<Bytes> {
    let items = Message::parse(bytes.clone())?.sequences()?;
    let items: Json = items.iter().flatten().map(json).collect();
    Ok(items.to_string().into())
}

/// A value as JSON. Types that JSON lacks become text; bytes and 128-bit decimals become base64.
fn json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(truth) => (*truth).into(),
        Value::Ubyte(n) => (*n).into(),
        Value::Ushort(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Ulong(n) => (*n).into(),
        Value::Byte(n) => (*n).into(),
        Value::Short(n) => (*n).into(),
        Value::Int(n) => (*n).into(),
        Value::Long(n) | Value::Timestamp(n) => (*n).into(),
        Value::Float(n) => (*n).into(),
        Value::Double(n) => (*n).into(),
        Value::Decimal32(bytes) => STANDARD.encode(bytes).into(),
        Value::Decimal64(bytes) => STANDARD.encode(bytes).into(),
        Value::Decimal128(bytes) => STANDARD.encode(bytes).into(),
        Value::Char(c) => c.to_string().into(),
        Value::Uuid(bytes) => uuid::Uuid::from_bytes(*bytes).to_string().into(),
        Value::Binary(bytes) => STANDARD.encode(bytes).into(),
        Value::String(text) => text.as_str().into(),
        Value::Symbol(text) => text.to_string().into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Array(array) => array.items().iter().map(json).collect(),
        Value::Described(described) => json(&described.value),
        Value::Map(map) => {
            let name = |key: &Value| match key.as_str() {
                Some(text) => text.to_owned(),
                None => json(key).to_string(),
            };
            Json::Object(map.0.iter().map(|(key, value)| (name(key), json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use malote_wire_amqp::types::{Map, put_value};

    fn value(value: &Value) -> BodyText {
        let mut bytes = BytesMut::new();
        put_value(&mut bytes, value);
        body_text(&Body { bytes: bytes.freeze(), kind: BodyKind::AmqpValue })
    }

    fn text(text: &str) -> BodyText {
        BodyText { text: text.to_owned(), base64: false }
    }

    #[test]
    fn amqp_values_become_text_or_json() {
        let string = |text: &'static str| Value::String(text.to_owned().into());
        assert_eq!(value(&string("olá\n")), text("olá\n"));
        assert_eq!(value(&Value::Binary(Bytes::from_static(b"raw"))), text("raw"));
        assert_eq!(value(&Value::Ulong(7)), text("7"));
        assert_eq!(value(&Value::Null), text("null"));
        let map = Map(vec![
            (string("a"), Value::List(vec![Value::Int(-1), Value::Null, Value::Double(0.5)])),
            (Value::Uint(3), Value::Uuid([0; 16])),
        ]);
        let json = r#"{"3":"00000000-0000-0000-0000-000000000000","a":[-1,null,0.5]}"#;
        assert_eq!(value(&Value::Map(map)), text(json));
    }

    #[test]
    fn sequences_are_one_list() {
        let mut bytes = BytesMut::new();
        for items in [vec![Value::Int(1), Value::Int(2)], vec![Value::Bool(true)]] {
            // A described value: descriptor 0x76 as a small unsigned long.
            bytes.extend_from_slice(&[0x00, 0x53, 0x76]);
            put_value(&mut bytes, &Value::List(items));
        }
        let body = Body { bytes: bytes.freeze(), kind: BodyKind::AmqpSequence };
        assert_eq!(body_text(&body), text("[1,2,true]"));
    }

    #[test]
    fn unreadable_bodies_become_base64() {
        for kind in [BodyKind::Bytes, BodyKind::AmqpValue, BodyKind::AmqpSequence] {
            let bytes = Bytes::from_static(b"\xff\xfe");
            let all = BodyText { text: "//4=".to_owned(), base64: true };
            assert_eq!(body_text(&Body { bytes, kind }), all, "{kind:?}");
        }
        let control = Value::String("a\0b".to_owned().into());
        assert_eq!(value(&control), BodyText { text: "YQBi".to_owned(), base64: true });
    }
}
