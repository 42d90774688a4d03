//! Properties as JSON and MessagePack.
//!
//! Plain JSON values represent themselves: null, true, 42 (an i64, or a u64 if it is too large for that), 1.5 (an f64),
//! "text", lists and maps. Every other type is written as `{"$type": "i32", "value": 42}`. The types are i8 i16 i32 i64
//! u8 u16 u32 u64 f32 f64 bytes (base64) timestamp (ms, or RFC 3339) uuid map. A value that is written and read again
//! is the same, bit for bit. In MessagePack, bytes are `bin` and f32 is `float 32`, without a wrapper.

use std::fmt;

use malote_model::{Properties, Value, limits};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use crate::text;

/// Maximum number of properties of a message. Lookup is linear, so more would be slow.
pub const PROPERTIES_MAX: usize = 1024;

const TYPE: &str = "$type";
const VALUE: &str = "value";
const TYPES: &str = "i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bytes timestamp uuid map";

/// The properties of a message on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PropertyMap(pub Properties);

impl PropertyMap {
    /// The name and the JSON text of each property, in order.
    pub fn json_texts(&self) -> impl Iterator<Item = (&str, String)> {
        let text = |value| serde_json::to_string(&Out(value)).unwrap_or_default();
        self.0.iter().map(move |(name, value)| (name, text(value)))
    }
}

/// Reads the value of a property from JSON text.
pub fn from_json(text: &str) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = In { depth: 0 }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

impl Serialize for PropertyMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
            map.serialize_entry(name, &Out(value))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for PropertyMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = PropertyMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("properties: names and values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PropertyMap, A::Error> {
                let mut all = Properties::new();
                while let Some(name) = map.next_key::<String>()? {
                    let value = map.next_value_seed(In { depth: 0 })?;
                    if all.get(&name).is_some() {
                        return Err(de::Error::custom(format!("property `{name}` is given twice")));
                    }
                    if all.len() == PROPERTIES_MAX {
                        let why = format!("a message has at most {PROPERTIES_MAX} properties");
                        return Err(de::Error::custom(why));
                    }
                    all.set(name, value);
                }
                Ok(PropertyMap(all))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Writes a value.
struct Out<'a>(&'a Value);

/// Writes a value together with its type.
struct Typed<'a, T: ?Sized>(&'static str, &'a T);

impl<T: Serialize + ?Sized> Serialize for Typed<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(TYPE, self.0)?;
        map.serialize_entry(VALUE, self.1)?;
        map.end()
    }
}

/// Writes a map in which `$type` is an ordinary name.
struct PlainMap<'a>(&'a [(String, Value)]);

impl Serialize for PlainMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, &Out(value))?;
        }
        map.end()
    }
}

impl Serialize for Out<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = serializer.is_human_readable();
        match self.0 {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(v) => serializer.serialize_bool(*v),
            Value::I8(v) => Typed("i8", v).serialize(serializer),
            Value::I16(v) => Typed("i16", v).serialize(serializer),
            Value::I32(v) => Typed("i32", v).serialize(serializer),
            Value::I64(v) => serializer.serialize_i64(*v),
            Value::U8(v) => Typed("u8", v).serialize(serializer),
            Value::U16(v) => Typed("u16", v).serialize(serializer),
            Value::U32(v) => Typed("u32", v).serialize(serializer),
            // Without a type, a number that fits into an i64 would be read back as one.
            Value::U64(v) if i64::try_from(*v).is_ok() => Typed("u64", v).serialize(serializer),
            Value::U64(v) => serializer.serialize_u64(*v),
            Value::F32(v) if !text => serializer.serialize_f32(*v),
            // An f64 represents every f32 exactly.
            Value::F32(v) if v.is_finite() => Typed("f32", &f64::from(*v)).serialize(serializer),
            Value::F32(v) => Typed("f32", not_finite((*v).into())).serialize(serializer),
            Value::F64(v) if v.is_finite() || !text => serializer.serialize_f64(*v),
            Value::F64(v) => Typed("f64", not_finite(*v)).serialize(serializer),
            Value::String(v) => serializer.serialize_str(v),
            Value::Bytes(v) if text => Typed("bytes", &text::to_base64(v)).serialize(serializer),
            Value::Bytes(v) => serializer.serialize_bytes(v),
            Value::Time(v) => Typed("timestamp", v).serialize(serializer),
            Value::Uuid(v) => {
                Typed("uuid", &uuid::Uuid::from_bytes(*v).to_string()).serialize(serializer)
            }
            Value::List(all) => {
                let mut list = serializer.serialize_seq(Some(all.len()))?;
                for value in all {
                    list.serialize_element(&Out(value))?;
                }
                list.end()
            }
            Value::Map(all) if all.iter().any(|(name, _)| name == TYPE) => {
                Typed("map", &PlainMap(all)).serialize(serializer)
            }
            Value::Map(all) => PlainMap(all).serialize(serializer),
        }
    }
}

fn not_finite(value: f64) -> &'static str {
    match value {
        v if v.is_nan() => "NaN",
        v if v > 0.0 => "inf",
        _ => "-inf",
    }
}

/// Reads a value that is nested `depth` lists and maps deep.
#[derive(Clone, Copy)]
struct In {
    depth: usize,
}

impl In {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        if self.depth == limits::VALUE_DEPTH_MAX {
            let why = format!("lists and maps nest at most {} deep", limits::VALUE_DEPTH_MAX);
            return Err(E::custom(why));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for In {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for In {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value: null, a boolean, a number, text, bytes, a list or a map")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::I64(v))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or(Value::U64(v), Value::I64))
    }
    fn visit_f32<E>(self, v: f32) -> Result<Value, E> {
        Ok(Value::F32(v))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::F64(v))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.into()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_bytes<E>(self, v: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(v.to_vec().into()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut all = Vec::new();
        while let Some(value) = seq.next_element_seed(deeper)? {
            all.push(value);
        }
        Ok(Value::List(all))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut all: Vec<(String, Value)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if all.is_empty() && name == TYPE {
                return typed(deeper, map);
            }
            if name == TYPE {
                return Err(de::Error::custom(
                    "$type must come first; write a map that has this name as {\"$type\": \"map\", \"value\": {…}}",
                ));
            }
            all.push((name, map.next_value_seed(deeper)?));
        }
        Ok(Value::Map(all))
    }
}

/// Reads the rest of `{"$type": …, "value": …}`.
fn typed<'de, A: MapAccess<'de>>(seed: In, mut map: A) -> Result<Value, A::Error> {
    let kind: String = map.next_value()?;
    match map.next_key::<String>()? {
        Some(name) if name == VALUE => {}
        Some(name) => {
            return Err(de::Error::custom(format!("expected `value` after $type, found `{name}`")));
        }
        None => return Err(de::Error::missing_field(VALUE)),
    }
    let value = if kind == "map" {
        map.next_value_seed(RawMap(seed))?
    } else {
        let plain = map.next_value_seed(seed)?;
        cast(&kind, plain).map_err(de::Error::custom)?
    };
    match map.next_key::<String>()? {
        None => Ok(value),
        Some(name) => Err(de::Error::custom(format!("unexpected `{name}` after $type and value"))),
    }
}

/// Reads a map in which `$type` is an ordinary name.
struct RawMap(In);

impl<'de> DeserializeSeed<'de> for RawMap {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RawMap {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            all.push((name, map.next_value_seed(self.0)?));
        }
        Ok(Value::Map(all))
    }
}

/// Converts a plain value to the named type.
fn cast(kind: &str, plain: Value) -> Result<Value, String> {
    let wrong = |what: &str| format!("a {kind} value must be {what}");
    let integer = || match plain {
        Value::I64(v) => Ok(i128::from(v)),
        Value::U64(v) => Ok(i128::from(v)),
        _ => Err(wrong("an integer")),
    };
    let fits = |_| wrong("an integer that fits into the type");
    let float = || match &plain {
        Value::F64(v) => Ok(*v),
        Value::F32(v) => Ok(f64::from(*v)),
        Value::I64(v) => Ok(*v as f64),
        Value::U64(v) => Ok(*v as f64),
        Value::String(v) if v == "NaN" => Ok(f64::NAN),
        Value::String(v) if v == "inf" => Ok(f64::INFINITY),
        Value::String(v) if v == "-inf" => Ok(f64::NEG_INFINITY),
        _ => Err(wrong("a number, \"NaN\", \"inf\" or \"-inf\"")),
    };
    Ok(match kind {
        "i8" => Value::I8(integer()?.try_into().map_err(fits)?),
        "i16" => Value::I16(integer()?.try_into().map_err(fits)?),
        "i32" => Value::I32(integer()?.try_into().map_err(fits)?),
        "i64" => Value::I64(integer()?.try_into().map_err(fits)?),
        "u8" => Value::U8(integer()?.try_into().map_err(fits)?),
        "u16" => Value::U16(integer()?.try_into().map_err(fits)?),
        "u32" => Value::U32(integer()?.try_into().map_err(fits)?),
        "u64" => Value::U64(integer()?.try_into().map_err(fits)?),
        "f32" => Value::F32(float()? as f32),
        "f64" => Value::F64(float()?),
        "bytes" => match &plain {
            Value::Bytes(bytes) => Value::Bytes(bytes.clone()),
            Value::String(text) => Value::Bytes(text::from_base64("a bytes value", text)?),
            _ => return Err(wrong("base64")),
        },
        "timestamp" => match &plain {
            Value::I64(ms) => Value::Time(*ms),
            Value::String(text) => Value::Time(
                text::time_of(text)
                    .ok_or_else(|| wrong("milliseconds since 1970 or an RFC 3339 time"))?,
            ),
            _ => return Err(wrong("milliseconds since 1970 or an RFC 3339 time")),
        },
        "uuid" => match &plain {
            Value::String(text) => {
                let uuid = uuid::Uuid::parse_str(text).map_err(|_| wrong("a UUID"))?;
                Value::Uuid(uuid.into_bytes())
            }
            _ => return Err(wrong("a UUID")),
        },
        other => {
            let nearest = crate::nearest::nearest(other, TYPES.split(' '));
            let hint = nearest.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
            return Err(format!("unknown type `{other}`: use one of {TYPES}{hint}"));
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn everything() -> Properties {
        let values = vec![
            Value::Null,
            Value::Bool(true),
            Value::I8(-8),
            Value::I16(-16),
            Value::I32(32),
            Value::I64(i64::MIN),
            Value::I64(7),
            Value::U8(255),
            Value::U16(16),
            Value::U32(u32::MAX),
            Value::U64(7),
            Value::U64(u64::MAX),
            Value::F32(0.1),
            Value::F32(f32::MIN_POSITIVE),
            Value::F32(f32::INFINITY),
            Value::F64(0.1 + 0.2),
            Value::F64(1.0),
            Value::F64(-0.0),
            Value::F64(f64::MAX),
            Value::F64(5e-324),
            Value::F64(f64::NEG_INFINITY),
            Value::String("text \u{1F4EE} \"\\\n".into()),
            Value::Bytes(Bytes::from_static(&[0, 255, 1])),
            Value::Time(-1),
            Value::Time(1_700_000_000_000),
            Value::Uuid([7; 16]),
            Value::List(vec![Value::I32(1), Value::List(vec![])]),
            Value::Map(vec![("z".into(), Value::Null), ("a".into(), Value::U8(1))]),
            Value::Map(vec![
                ("$type".into(), Value::String("i32".into())),
                ("value".into(), Value::I64(1)),
            ]),
        ];
        values.into_iter().enumerate().map(|(i, v)| (format!("p{i}"), v)).collect()
    }

    #[test]
    fn every_type_survives_json_exactly() {
        let json = serde_json::to_string(&PropertyMap(everything())).unwrap();
        let back: PropertyMap = serde_json::from_str(&json).unwrap();
        assert_eq!(back.0, everything());
        let zero = back.0.get("p17").cloned();
        assert!(matches!(zero, Some(Value::F64(v)) if v.is_sign_negative()));
    }

    #[test]
    fn every_type_survives_messagepack_exactly() {
        let bytes = rmp_serde::to_vec_named(&PropertyMap(everything())).unwrap();
        let back: PropertyMap = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(back.0, everything());
    }

    #[test]
    fn not_a_number_survives() {
        let nan: Properties = [("n".to_owned(), Value::F64(f64::NAN))].into_iter().collect();
        let json = serde_json::to_string(&PropertyMap(nan)).unwrap();
        let back: PropertyMap = serde_json::from_str(&json).unwrap();
        assert!(matches!(back.0.get("n"), Some(Value::F64(v)) if v.is_nan()));
    }

    #[test]
    fn errors_name_the_cause() {
        for (json, says) in [
            (r#"{"a":{"$type":"i8","value":300}}"#, "fits"),
            (r#"{"a":{"$type":"u8","value":-1}}"#, "fits"),
            (r#"{"a":{"$type":"i33","value":1}}"#, "did you mean i32"),
            (r#"{"a":{"$type":"i8"}}"#, "missing field `value`"),
            (r#"{"a":{"value":1,"$type":"i8"}}"#, "$type must come first"),
            (r#"{"a":{"$type":"i8","value":1,"more":2}}"#, "after $type and value"),
            (r#"{"a":{"$type":"uuid","value":"x"}}"#, "a UUID"),
            (r#"{"a":1,"a":2}"#, "given twice"),
            ("[]", "names and values"),
        ] {
            let error = serde_json::from_str::<PropertyMap>(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(17), "]".repeat(17));
        let error = serde_json::from_str::<PropertyMap>(&deep).unwrap_err().to_string();
        assert!(error.contains("nest at most 16"), "{error}");
        let fine = format!("{{\"a\":{}{}}}", "[".repeat(16), "]".repeat(16));
        serde_json::from_str::<PropertyMap>(&fine).unwrap();
    }
}
