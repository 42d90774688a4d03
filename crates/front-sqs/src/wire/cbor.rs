//! CBOR for CloudWatch clients that use Smithy RPC v2, converted to and from a JSON tree.
//!
//! Supports only what requests contain: integers, floats, strings, arrays, maps, booleans, null, and the tag for times.

use serde_json::{Map, Value};

use crate::refusal::{Code, SqsError};

/// Nesting depth of a request.
const DEPTH_MAX: usize = 16;
const TAG_TIME: u64 = 1;

fn wrong() -> SqsError {
    SqsError::new(Code::Serialization, "the body is not valid CBOR")
}

struct CborReader<'a>(&'a [u8]);

impl<'a> CborReader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], SqsError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(wrong)?;
        self.0 = tail;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, SqsError> {
        Ok(self.take(1)?[0])
    }

    /// Reads the number in or after a head; none for an indefinite length.
    fn number(&mut self, small: u8) -> Result<Option<u64>, SqsError> {
        let width = match small {
            0..=23 => return Ok(Some(small.into())),
            24..=27 => 1_usize << (small - 24),
            31 => return Ok(None),
            _ => return Err(wrong()),
        };
        Ok(Some(self.take(width)?.iter().fold(0, |n, &byte| n << 8 | u64::from(byte))))
    }

    fn ends(&mut self) -> bool {
        let ends = self.0.first() == Some(&0xff);
        if ends {
            self.0 = &self.0[1..];
        }
        ends
    }

    fn text(&mut self, len: Option<u64>) -> Result<String, SqsError> {
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or_else(wrong)?;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| wrong())
    }

    fn value(&mut self, depth: usize) -> Result<Value, SqsError> {
        if depth == 0 {
            return Err(wrong());
        }
        let head = self.byte()?;
        let (kind, small) = (head >> 5, head & 31);
        if kind == 7 {
            return self.simple(small);
        }
        let n = self.number(small)?;
        // Nothing is allocated for a declared count, so an excessive count simply fails at the end of the body.
        let goes_on = |reader: &mut Self, done: u64| match n {
            Some(n) => done < n,
            None => !reader.ends(),
        };
        match kind {
            0 => Ok(n.ok_or_else(wrong)?.into()),
            1 => {
                let n = i64::try_from(n.ok_or_else(wrong)?).map_err(|_| wrong())?;
                Ok((-1 - n).into())
            }
            3 => self.text(n).map(Value::String),
            4 => {
                let mut items = Vec::new();
                while goes_on(self, items.len() as u64) {
                    items.push(self.value(depth - 1)?);
                }
                Ok(Value::Array(items))
            }
            5 => {
                let (mut map, mut done) = (Map::new(), 0);
                while goes_on(self, done) {
                    let Value::String(name) = self.value(depth - 1)? else { return Err(wrong()) };
                    map.insert(name, self.value(depth - 1)?);
                    done += 1;
                }
                Ok(Value::Object(map))
            }
            6 if n == Some(TAG_TIME) => self.value(depth - 1),
            _ => Err(wrong()),
        }
    }

    fn simple(&mut self, small: u8) -> Result<Value, SqsError> {
        Ok(match small {
            20 => false.into(),
            21 => true.into(),
            22 | 23 => Value::Null,
            26 => f32::from_be_bytes(self.take(4)?.try_into().map_err(|_| wrong())?).into(),
            27 => f64::from_be_bytes(self.take(8)?.try_into().map_err(|_| wrong())?).into(),
            _ => return Err(wrong()),
        })
    }
}

pub fn decode(bytes: &[u8]) -> Result<Value, SqsError> {
    if bytes.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let mut reader = CborReader(bytes);
    let value = reader.value(DEPTH_MAX)?;
    if reader.0.is_empty() { Ok(value) } else { Err(wrong()) }
}

/// Numbers under `Timestamp` and `Timestamps` are encoded as times.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, value, false);
    out
}

fn head(out: &mut Vec<u8>, kind: u8, n: u64) {
    if n < 24 {
        out.push(kind << 5 | n as u8);
    } else {
        out.push(kind << 5 | 27);
        out.extend(n.to_be_bytes());
    }
}

fn put(out: &mut Vec<u8>, value: &Value, time: bool) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(truth) => out.push(if *truth { 0xf5 } else { 0xf4 }),
        Value::Number(number) if time => {
            head(out, 6, TAG_TIME);
            put(out, &Value::Number(number.clone()), false);
        }
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(n), _) => head(out, 0, n),
            (None, float) => {
                out.push(0xfb);
                out.extend(float.unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(text) => {
            head(out, 3, text.len() as u64);
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            head(out, 4, items.len() as u64);
            items.iter().for_each(|item| put(out, item, time));
        }
        Value::Object(map) => {
            head(out, 5, map.len() as u64);
            for (name, value) in map {
                head(out, 3, name.len() as u64);
                out.extend(name.as_bytes());
                put(out, value, name.starts_with("Timestamp"));
            }
        }
    }
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
