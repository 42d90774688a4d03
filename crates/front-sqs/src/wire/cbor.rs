//! CBOR for CloudWatch clients that use Smithy RPC v2, converted to and from a JSON tree.
//!
//! Supports only what requests contain: integers, floats, strings, arrays, maps, booleans, null, and the tag for times.

use minicbor::data::{IanaTag, Type};
use minicbor::{Decoder, Encoder, decode as cbor};
use serde_json::{Map, Value};

use crate::refusal::{Code, SqsError};

/// Nesting depth of a request.
const DEPTH_MAX: usize = 16;

pub fn decode(bytes: &[u8]) -> Result<Value, SqsError> {
    if bytes.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let mut decoder = Decoder::new(bytes);
    match value(&mut decoder, DEPTH_MAX) {
        Ok(value) if decoder.position() == bytes.len() => Ok(value),
        _ => Err(SqsError::new(Code::Serialization, "the body is not valid CBOR")),
    }
}

fn value(decoder: &mut Decoder<'_>, depth: usize) -> Result<Value, cbor::Error> {
    let depth = depth.checked_sub(1).ok_or_else(|| cbor::Error::message("too deep"))?;
    Ok(match decoder.datatype()? {
        Type::Bool => decoder.bool()?.into(),
        Type::Null => decoder.null().map(|()| Value::Null)?,
        Type::Undefined => decoder.undefined().map(|()| Value::Null)?,
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => decoder.u64()?.into(),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => decoder.i64()?.into(),
        Type::F32 => decoder.f32()?.into(),
        Type::F64 => decoder.f64()?.into(),
        Type::String => decoder.str()?.into(),
        Type::Array | Type::ArrayIndef => {
            let (count, mut items) = (decoder.array()?, Vec::new());
            // Nothing is allocated for a declared count, so an excessive count fails at the end of the body.
            while has_more(decoder, count, items.len() as u64)? {
                items.push(value(decoder, depth)?);
            }
            Value::Array(items)
        }
        Type::Map | Type::MapIndef => {
            let (count, mut map, mut done) = (decoder.map()?, Map::new(), 0);
            while has_more(decoder, count, done)? {
                map.insert(decoder.str()?.to_owned(), value(decoder, depth)?);
                done += 1;
            }
            Value::Object(map)
        }
        Type::Tag if decoder.tag()? == IanaTag::Timestamp.tag() => value(decoder, depth)?,
        other => return Err(cbor::Error::type_mismatch(other)),
    })
}

/// Whether an array or map has more items. Reads the end of one without a count.
fn has_more(decoder: &mut Decoder<'_>, count: Option<u64>, done: u64) -> Result<bool, cbor::Error> {
    match count {
        Some(count) => Ok(done < count),
        None if decoder.datatype()? == Type::Break => decoder.skip().map(|()| false),
        None => Ok(true),
    }
}

/// Numbers under `Timestamp` and `Timestamps` are encoded as times.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    put(&mut encoder, value, false).expect("writing to a vector cannot fail");
    encoder.into_writer()
}

type EncodeResult = Result<(), minicbor::encode::Error<std::convert::Infallible>>;

fn put(encoder: &mut Encoder<Vec<u8>>, value: &Value, time: bool) -> EncodeResult {
    match value {
        Value::Null => encoder.null()?,
        Value::Bool(truth) => encoder.bool(*truth)?,
        Value::Number(number) => {
            if time {
                encoder.tag(IanaTag::Timestamp)?;
            }
            match number.as_u64() {
                Some(number) => encoder.u64(number)?,
                None => encoder.f64(number.as_f64().unwrap_or_default())?,
            }
        }
        Value::String(text) => encoder.str(text)?,
        Value::Array(items) => {
            encoder.array(items.len() as u64)?;
            return items.iter().try_for_each(|item| put(encoder, item, time));
        }
        Value::Object(map) => {
            encoder.map(map.len() as u64)?;
            return map.iter().try_for_each(|(name, value)| {
                encoder.str(name)?;
                put(encoder, value, name.starts_with("Timestamp"))
            });
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn trees_round_trip_and_malformed_bytes_are_refused() {
        let tree = json!({ "a": [1, 300, 1.5, "x", true, null], "Timestamps": [1_700_000_000], "m": { "n": "é" } });
        let bytes = encode(&tree);
        assert_eq!(decode(&bytes).unwrap(), tree);
        for n in 1..bytes.len() {
            decode(&bytes[..n]).unwrap_err();
        }
        // Indefinite lengths, as botocore writes maps.
        assert_eq!(decode(b"\xbf\x61a\x9f\x01\x20\xff\xff").unwrap(), json!({ "a": [1, -1] }));
        for bad in [
            &b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xff",
            b"\x1c",
        ] {
            decode(bad).unwrap_err();
        }
        decode(&[0x81; 100_000]).unwrap_err();
    }
}
