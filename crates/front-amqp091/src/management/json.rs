//! JSON ↔ field tables and properties, with the types that RabbitMQ's management API gives to numbers.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use crate::arguments_json::{text_or_base64, to_json, to_table};
use crate::wire::properties::{BasicProperties, Properties};
use crate::wire::table::{FieldTable, TableRef};
use crate::wire::text::ShortString;

/// Arguments or headers. RabbitMQ refuses null in them.
pub(crate) fn table(value: &Value) -> Result<FieldTable, ApiError> {
    match value {
        Value::Object(_) if has_null(value) => Err(ApiError::bad_request("null_not_allowed")),
        Value::Object(object) => to_table(object).map_err(ApiError::bad_request),
        // What Erlang's JSON makes of an empty object.
        Value::Array(array) if array.is_empty() => Ok(FieldTable::default()),
        _ => Err(ApiError::bad_request("arguments and headers must be objects")),
    }
}

/// The depth of what was parsed is bounded.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(object) => object.values().any(has_null),
        _ => false,
    }
}

/// A table as an object.
pub(crate) fn object(table: TableRef<'_>) -> Value {
    Value::Object(to_json(table))
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
            all.insert(name.into(), text_or_base64(bytes));
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
        for bad in [json!({ "a": null }), json!([1]), json!({ "a": [{ "b": null }] })] {
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
