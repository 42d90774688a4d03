//! JSON Schemas that cannot be derived.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::settings::is_nullable;
use crate::value::PropertyMap;

/// The schema of settings in an answer: every field is present, and only nullable fields can be null.
pub struct Complete<T>(PhantomData<T>);

impl<T: JsonSchema + DeserializeOwned + Serialize> JsonSchema for Complete<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Full{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        let mut names = Vec::new();
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            for (name, property) in properties.iter_mut() {
                names.push(Value::String(name.clone()));
                if !is_nullable::<T>(name) {
                    remove_null(property);
                }
            }
        }
        schema.insert("required".into(), Value::Array(names));
        schema
    }
}

fn remove_null(schema: &mut Value) {
    let null = |kind: &Value| kind == "null" || kind["type"] == "null";
    for key in ["type", "anyOf", "enum"] {
        if let Some(Value::Array(choices)) = schema.get_mut(key) {
            choices.retain(|choice| !null(choice) && !choice.is_null());
        }
    }
}

impl JsonSchema for PropertyMap {
    fn schema_name() -> Cow<'static, str> {
        "Properties".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description":
                "Names and values. Plain JSON values represent themselves; other types are {\"$type\": …, \"value\": …} \
                 with i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bytes (base64) timestamp (ms or RFC 3339) uuid map.",
        })
    }
}
