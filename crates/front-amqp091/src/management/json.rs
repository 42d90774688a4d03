//! JSON ↔ field tables and properties, with the types that RabbitMQ's management API gives to numbers.

use data_encoding::BASE64;
use serde_json::{Map, Number, Value, json};

use super::error::ApiError;
use crate::limits::MANAGEMENT_JSON_DEPTH_MAX;
use crate::wire::properties::{BasicProperties, Properties};
use crate::wire::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};
use crate::wire::text::ShortString;

/// Arguments or headers. Integers become 64-bit integers and other numbers doubles, as in RabbitMQ.
pub(crate) fn table(value: &Value) -> Result<FieldTable, ApiError> {
    match value {
        Value::Object(object) => table_of(object, 1),
        // What Erlang's JSON makes of an empty object.
        Value::Array(array) if array.is_empty() => Ok(FieldTable::default()),
        _ => Err(ApiError::bad_request("arguments and headers must be objects")),
    }
}

fn table_of(object: &Map<String, Value>, depth: usize) -> Result<FieldTable, ApiError> {
    let mut table = FieldTable::builder();
    for (name, value) in object {
        ShortString::try_from(name.as_str())
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        with_value(value, depth, &mut |value| table.put(name, value))?;
    }
    Ok(table.build())
}

fn with_value(
    value: &Value,
    depth: usize,
    put: &mut dyn FnMut(FieldValue<'_>),
) -> Result<(), ApiError> {
    if depth > MANAGEMENT_JSON_DEPTH_MAX {
        return Err(ApiError::bad_request("the arguments have too many levels"));
    }
    match value {
        Value::Null => return Err(ApiError::bad_request("null_not_allowed")),
        Value::Bool(value) => put(FieldValue::Bool(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => put(FieldValue::I64(integer)),
            None if number.is_u64() => {
                return Err(ApiError::bad_request(format!("{number} exceeds 64 bits with a sign")));
            }
            None => put(FieldValue::F64(number.as_f64().unwrap_or(0.0))),
        },
        Value::String(text) => put(FieldValue::String(text.as_bytes())),
        Value::Array(items) => {
            let mut array = ArrayBuilder::default();
            for item in items {
                with_value(item, depth + 1, &mut |value| array.put(value))?;
            }
            put(FieldValue::Array(array.values()));
        }
        Value::Object(object) => put(FieldValue::Table(table_of(object, depth + 1)?.as_table())),
    }
    Ok(())
}

/// A table as an object.
pub(crate) fn object(table: TableRef<'_>) -> Value {
    table.fields().map(|field| (field.name.to_owned(), value(field.value))).collect()
}

fn value(field: FieldValue<'_>) -> Value {
    if let Some(integer) = field.as_integer() {
        return integer.into();
    }
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    match field {
        FieldValue::Bool(value) => value.into(),
        FieldValue::F32(value) => float(value.into()),
        FieldValue::F64(value) => float(value),
        FieldValue::Decimal { scale, value } => float(f64::from(value) / 10_f64.powi(scale.into())),
        FieldValue::String(bytes) | FieldValue::Bytes(bytes) => text(bytes),
        FieldValue::Array(values) => values.map(value).collect(),
        FieldValue::Timestamp(seconds) => seconds.into(),
        FieldValue::Table(table) => object(table),
        _ => Value::Null,
    }
}

/// Text, or base64 of bytes that are no text.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => BASE64.encode(bytes).into(),
    }
}

/// The properties of a message as an object.
pub(crate) fn properties_object(properties: &Properties) -> Value {
    let given = properties.decode();
    let texts = [
        ("content_type", given.content_type),
        ("content_encoding", given.content_encoding),
        ("correlation_id", given.correlation_id),
        ("reply_to", given.reply_to),
        ("expiration", given.expiration),
        ("message_id", given.message_id),
        ("type", given.kind),
        ("user_id", given.user_id),
        ("app_id", given.app_id),
        ("cluster_id", given.cluster_id),
    ];
    let mut all = Map::new();
    for (name, bytes) in texts {
        if let Some(bytes) = bytes {
            all.insert(name.into(), text(bytes));
        }
    }
    let numbers = [
        ("delivery_mode", given.delivery_mode.map(u64::from)),
        ("priority", given.priority.map(u64::from)),
        ("timestamp", given.timestamp),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            all.insert(name.into(), number.into());
        }
    }
    if let Some(headers) = given.headers {
        all.insert("headers".into(), object(headers));
    }
    // RabbitMQ shows no properties as an empty array.
    if all.is_empty() { json!([]) } else { Value::Object(all) }
}

/// The properties of a publication.
pub(crate) fn properties(value: &Value) -> Result<Properties, ApiError> {
    let empty = Map::new();
    let given = match value {
        Value::Object(object) => object,
        Value::Array(array) if array.is_empty() => &empty,
        _ => return Err(ApiError::bad_request("properties must be an object")),
    };
    let text = |name: &str| match given.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => match ShortString::try_from(text.as_str()) {
            Ok(_) => Ok(Some(text.as_bytes())),
            Err(error) => Err(ApiError::bad_request(format!("the property {name} is {error}"))),
        },
        // RabbitMQ takes a number for an expiration, too; but only a text means the same everywhere.
        Some(other) => {
            Err(ApiError::bad_request(format!("the property {name} must be a text, not {other}")))
        }
    };
    let number = |name: &str, most: u64| match given.get(name) {
        None => Ok(None),
        Some(value) => match integer(value)? {
            number if number <= most => Ok(Some(number)),
            number => {
                Err(ApiError::bad_request(format!("the property {name} is too large: {number}")))
            }
        },
    };
    let headers = given.get("headers").map(table).transpose()?;
    let octet = |name: &str| number(name, u8::MAX.into()).map(|n| n.map(|n| n as u8));
    Ok(BasicProperties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        headers: headers.as_ref().map(FieldTable::as_table),
        delivery_mode: octet("delivery_mode")?,
        priority: octet("priority")?,
        correlation_id: text("correlation_id")?,
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?,
        timestamp: number("timestamp", u64::MAX)?,
        kind: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    }
    .encode())
}

/// A boolean, or its word.
pub(crate) fn boolean(value: Option<&Value>) -> Result<bool, ApiError> {
    match value {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(word)) if word == "true" => Ok(true),
        Some(Value::String(word)) if word == "false" => Ok(false),
        Some(other) => Err(ApiError::bad_request(json!(["not_boolean", other]))),
    }
}

/// A number that is not negative, or its digits.
pub(crate) fn integer(value: &Value) -> Result<u64, ApiError> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(digits) => digits.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| ApiError::bad_request(json!(["not_integer", value])))
}

/// Fields that a request must have.
pub(crate) fn require<'o, const N: usize>(
    object: &'o Map<String, Value>,
    names: [&str; N],
) -> Result<[&'o Value; N], ApiError> {
    let missing: Vec<_> = names.iter().filter(|name| !object.contains_key(**name)).collect();
    if !missing.is_empty() {
        let missing: Vec<_> =
            missing.iter().map(|name| format!("{{key_missing,{name}}}")).collect();
        return Err(ApiError::bad_request(format!("[{}]", missing.join(","))));
    }
    Ok(names.map(|name| &object[name]))
}

/// A name or key of at most 255 bytes.
pub(crate) fn short(name: &str, text: &str) -> Result<ShortString, ApiError> {
    ShortString::try_from(text).map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_their_types() {
        let arguments = json!({
            "a": 1, "b": "x", "c": true, "d": 1.5, "e": [1, "z"], "f": { "g": -2 }, "h": 5_000_000_000_i64
        });
        let table = table(&arguments).unwrap();
        let types: Vec<_> = table.fields().map(|field| field.value.type_name()).collect();
        assert_eq!(types, ["long", "longstr", "bool", "double", "array", "table", "long"]);
        assert_eq!(object(table.as_table()), arguments);
        assert!(super::table(&json!([])).unwrap().is_empty());
    }

    #[test]
    fn arguments_without_a_type_are_refused() {
        for bad in [json!({ "a": null }), json!([1]), json!({ "a": u64::MAX })] {
            assert!(table(&bad).is_err(), "{bad}");
        }
        let deep = (0..200).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert!(table(&deep).is_err());
    }

    #[test]
    fn properties_are_read_back() {
        let given = json!({
            "content_type": "t", "delivery_mode": 2, "headers": { "n": 1 }, "timestamp": 5, "type": "k"
        });
        assert_eq!(properties_object(&properties(&given).unwrap()), given);
        assert_eq!(properties_object(&properties(&json!({})).unwrap()), json!([]));
        for bad in [json!({ "priority": 300 }), json!({ "app_id": 1 }), json!("x")] {
            assert!(properties(&bad).is_err(), "{bad}");
        }
    }
}
