//! Arguments of queues, exchanges and bindings ↔ JSON, as RabbitMQ's management API and definitions have them.
//!
//! JSON has fewer types: every integer becomes a 64-bit one, every text a long string.

use data_encoding::BASE64;
use serde_json::{Map, Value, json};

use crate::limits;
use crate::wire::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};

/// A table as JSON.
pub(crate) fn to_json(table: TableRef<'_>) -> Map<String, Value> {
    table.fields().map(|field| (field.name.to_owned(), value_to_json(field.value))).collect()
}

fn value_to_json(value: FieldValue<'_>) -> Value {
    if let Some(number) = value.as_integer() {
        return number.into();
    }
    if let Some(text) = value.as_str() {
        return text.into();
    }
    if let Some(table) = value.as_table() {
        return Value::Object(to_json(table));
    }
    if let Some(values) = value.as_array() {
        return values.map(value_to_json).collect();
    }
    match value {
        FieldValue::Bool(flag) => flag.into(),
        FieldValue::F32(number) => json!(number),
        FieldValue::F64(number) => json!(number),
        FieldValue::Timestamp(seconds) => seconds.into(),
        FieldValue::Decimal { scale, value } => {
            json!(f64::from(value) / 10_f64.powi(scale.into()))
        }
        FieldValue::String(bytes) | FieldValue::Bytes(bytes) => text_or_base64(bytes),
        _ => Value::Null,
    }
}

/// Text, or base64 of bytes that are no text.
pub(crate) fn text_or_base64(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => BASE64.encode(bytes).into(),
    }
}

/// JSON as a table. Objects and lists inside each other are bounded as on the wire.
pub(crate) fn to_table(object: &Map<String, Value>) -> Result<FieldTable, String> {
    table_at(object, 0)
}

fn table_at(object: &Map<String, Value>, depth: usize) -> Result<FieldTable, String> {
    if depth >= limits::TABLE_DEPTH_MAX {
        return Err(format!("arguments are nested more than {} levels", limits::TABLE_DEPTH_MAX));
    }
    let mut table = FieldTable::builder();
    for (name, value) in object {
        if name.len() > 255 {
            return Err("the name of an argument has more than 255 bytes".to_owned());
        }
        put(value, depth, &mut |value| table.put(name, value))?;
    }
    Ok(table.build())
}

fn put(value: &Value, depth: usize, sink: &mut dyn FnMut(FieldValue<'_>)) -> Result<(), String> {
    match value {
        Value::Null => sink(FieldValue::Void),
        Value::Bool(flag) => sink((*flag).into()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => sink(number.into()),
            (None, Some(number)) => sink(FieldValue::F64(number)),
            (None, None) => return Err(format!("{number} is not a number that AMQP has")),
        },
        Value::String(text) => sink(text.as_str().into()),
        Value::Object(object) => sink(FieldValue::Table(table_at(object, depth + 1)?.as_table())),
        Value::Array(values) => {
            if depth >= limits::TABLE_DEPTH_MAX {
                return Err("arguments are nested too deeply".to_owned());
            }
            let mut array = ArrayBuilder::default();
            for value in values {
                put(value, depth + 1, &mut |value| array.put(value))?;
            }
            sink(FieldValue::Array(array.values()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_back_as_written() {
        let object = json!({
            "x-max-length": 7,
            "x-single-active-consumer": true,
            "x-dead-letter-exchange": "",
            "ratio": 0.5,
            "void": null,
            "list": [1, "two", [3]],
            "table": { "a": { "b": -1 } },
        });
        let Value::Object(object) = object else { unreachable!() };
        let table = to_table(&object).unwrap();
        assert_eq!(to_json(table.as_table()), object);
    }

    #[test]
    fn deep_nesting_is_refused() {
        let mut value = json!(1);
        for _ in 0..100 {
            value = json!({ "a": value });
        }
        let Value::Object(object) = value else { unreachable!() };
        to_table(&object).unwrap_err();
        let mut value = json!(1);
        for _ in 0..100 {
            value = json!([value]);
        }
        to_table(&Map::from_iter([("a".to_owned(), value)])).unwrap_err();
    }
}
