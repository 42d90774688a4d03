//! Messages as rows. Everything but the body is a MessagePack map, so that later versions can add fields.

use std::io::Cursor;

use bytes::Bytes;
use malote_model::{Body, BodyKind, Message, Native, Properties, SessionId, When};
use malote_wire_native::PropertyMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::unreadable;
use crate::broker::BrokerError;

/// The maximum nesting depth when decoding. Properties have their own, smaller bound.
const DEPTH_MAX: usize = 64;

macro_rules! meta {
    ($($field:ident),+) => {
        #[derive(Default, Serialize, Deserialize)]
        struct MessageMeta {
            $(#[serde(default, skip_serializing_if = "Option::is_none")]
            $field: Option<String>,)+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            session: Option<String>,
            #[serde(default, skip_serializing_if = "is_zero")]
            priority: u8,
            #[serde(default, skip_serializing_if = "is_zero")]
            kind: u8,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            ttl_ms: Option<u64>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            properties: Option<PropertyMap>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            native: Option<NativeMeta>,
        }

        /// Encodes everything but the body.
        pub(super) fn encode(message: &mut Message) -> Result<Vec<u8>, BrokerError> {
            let properties = std::mem::take(&mut message.properties);
            let meta = MessageMeta {
                $($field: message.$field.take(),)+
                session: message.session.as_ref().map(|session| session.as_str().to_owned()),
                priority: message.priority,
                kind: message.body.kind as u8,
                ttl_ms: message.ttl_ms,
                properties: (!properties.is_empty()).then_some(PropertyMap(properties)),
                native: message.native.take().map(|native| NativeMeta {
                    protocol: native.protocol,
                    bytes: RawBytes(native.bytes),
                }),
            };
            rmp_serde::to_vec_named(&meta).map_err(|error| BrokerError::Refused {
                code: "bad_message".into(),
                text: format!("the message cannot be encoded: {error}"),
            })
        }

        /// Decodes a message and applies its changes.
        pub(super) fn decode(
            meta: &[u8],
            changes: Option<&[u8]>,
            body: &[u8],
        ) -> Result<Message, BrokerError> {
            let meta: MessageMeta = read(&mut &*meta)?;
            let mut properties = meta.properties.map_or_else(Properties::new, |map| map.0);
            let mut changes = changes.unwrap_or_default();
            while !changes.is_empty() {
                properties.lay_over(read::<PropertyMap>(&mut changes)?.0);
            }
            let kind = match meta.kind {
                1 => BodyKind::Text,
                2 => BodyKind::AmqpValue,
                3 => BodyKind::AmqpSequence,
                _ => BodyKind::Bytes,
            };
            let session = meta.session.map(|id| SessionId::new(&id).map_err(unreadable));
            Ok(Message {
                $($field: meta.$field,)+
                session: session.transpose()?,
                properties,
                priority: meta.priority,
                when: When::Now,
                ttl_ms: meta.ttl_ms,
                body: Body { bytes: Bytes::copy_from_slice(body), kind },
                native: meta
                    .native
                    .map(|native| Native { protocol: native.protocol, bytes: native.bytes.0 }),
                ..Message::default()
            })
        }
    };
}

meta!(
    message_id,
    origin_id,
    key,
    subject,
    to,
    reply_to,
    reply_to_session,
    correlation_id,
    content_type,
    content_encoding,
    user_id,
    app_id,
    dedup_id
);

#[derive(Serialize, Deserialize)]
struct NativeMeta {
    protocol: u8,
    bytes: RawBytes,
}

/// Bytes of the MessagePack type `bin`.
struct RawBytes(Bytes);

impl Serialize for RawBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for RawBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = RawBytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bin")
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<RawBytes, E> {
                Ok(RawBytes(Bytes::copy_from_slice(v)))
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

/// Decodes one value at the front of `bytes` and removes it.
fn read<T: DeserializeOwned>(bytes: &mut &[u8]) -> Result<T, BrokerError> {
    let mut reader = rmp_serde::Deserializer::new(Cursor::new(*bytes));
    reader.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut reader).map_err(unreadable)?;
    let read = usize::try_from(reader.position()).unwrap_or(usize::MAX);
    *bytes = bytes.get(read.max(1)..).unwrap_or_default();
    Ok(value)
}

/// Encodes changes of properties. Several encoded changes can be concatenated.
pub(super) fn encode_changes(properties: Properties) -> Result<Option<Vec<u8>>, BrokerError> {
    if properties.is_empty() {
        return Ok(None);
    }
    let encoded = rmp_serde::to_vec_named(&PropertyMap(properties));
    encoded.map(Some).map_err(|error| BrokerError::Refused {
        code: "bad_message".into(),
        text: format!("the changes cannot be encoded: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::Value;

    #[test]
    fn a_message_survives_a_round_trip_and_changes_apply_in_order() {
        let mut properties = Properties::new();
        properties.set("a", Value::I8(-1));
        let native = Some(Native { protocol: 1, bytes: vec![0, 255].into() });
        let body = Body { bytes: "x".into(), kind: BodyKind::AmqpValue };
        let session = Some(SessionId::new("s\0").unwrap());
        let sent = Message { properties, native, body, session, ..Message::default() };
        let meta = encode(&mut sent.clone()).unwrap();
        assert_eq!(decode(&meta, None, b"x").unwrap(), sent);
        let over = |name: &str, value: i64| {
            let mut over = Properties::new();
            over.set(name, Value::I64(value));
            encode_changes(over).unwrap().unwrap()
        };
        let changes = [over("a", 1), over("b", 2), over("a", 3)].concat();
        let read = decode(&meta, Some(&changes), b"x").unwrap();
        assert_eq!(read.properties.get("a"), Some(&Value::I64(3)));
        assert_eq!(read.properties.get("b"), Some(&Value::I64(2)));
    }

    #[test]
    fn invalid_bytes_are_an_error() {
        for bytes in [&[0xc1][..], &[0x81, 0xa1], &[0x91; 200], &[]] {
            assert!(decode(bytes, None, b"").is_err());
            assert!(decode(&[0x80], Some(bytes), b"").is_err() || bytes.is_empty());
        }
    }
}
