//! The bytes of a message body or of a session state: text or base64 in JSON, `str` or `bin` in MessagePack.

use std::fmt;

use bytes::Bytes;
use malote_model::{Body, BodyKind};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The content of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyContent {
    /// Text in UTF-8
    Text(Bytes),
    /// Any other JSON value, as its JSON text; only in requests
    Json(String),
    /// Bytes, as MessagePack `bin`
    Bytes(Bytes),
}

impl BodyContent {
    /// Creates a body with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Bytes::from(text.into()))
    }

    /// The text, or `None` for bytes.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Json(text) => Some(text),
            Self::Bytes(_) => None,
        }
    }

    /// The bytes; text is UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(bytes) | Self::Bytes(bytes) => bytes,
            Self::Json(text) => text.as_bytes(),
        }
    }

    /// The bytes; text is UTF-8.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(bytes) | Self::Bytes(bytes) => bytes,
            Self::Json(text) => text.into(),
        }
    }
}

impl From<BodyContent> for Body {
    fn from(content: BodyContent) -> Self {
        let kind = match &content {
            BodyContent::Text(_) | BodyContent::Json(_) => BodyKind::Text,
            BodyContent::Bytes(_) => BodyKind::Bytes,
        };
        Self { bytes: content.into_bytes(), kind }
    }
}

impl Serialize for BodyContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => serializer.serialize_bytes(text),
            },
            Self::Json(text) if serializer.is_human_readable() => {
                let raw: &RawValue =
                    serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
                raw.serialize(serializer)
            }
            Self::Json(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for BodyContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            // Keep the raw text: numbers keep their digits, and objects keep their order.
            let raw = Box::<RawValue>::deserialize(deserializer)?;
            if raw.get().starts_with('"') {
                return serde_json::from_str(raw.get())
                    .map(|text: String| Self::text(text))
                    .map_err(de::Error::custom);
            }
            return Ok(Self::Json(raw.get().to_owned()));
        }
        struct BinOrStr;
        impl Visitor<'_> for BinOrStr {
            type Value = BodyContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a body: bin or str")
            }
            fn visit_str<E>(self, v: &str) -> Result<BodyContent, E> {
                Ok(BodyContent::Text(Bytes::copy_from_slice(v.as_bytes())))
            }
            fn visit_string<E>(self, v: String) -> Result<BodyContent, E> {
                Ok(BodyContent::text(v))
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<BodyContent, E> {
                Ok(BodyContent::Bytes(Bytes::copy_from_slice(v)))
            }
            fn visit_byte_buf<E>(self, v: Vec<u8>) -> Result<BodyContent, E> {
                Ok(BodyContent::Bytes(v.into()))
            }
        }
        deserializer.deserialize_any(BinOrStr)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BodyContent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Body".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({})
    }
}
