//! Where a queue takes the session id of a message from, if not from its sender.

use std::fmt;
use std::str::FromStr;

use crate::ids::SessionId;
use crate::limits;
use crate::message::{Message, Value};
use crate::refusal::Refusal;

/// The field of a message that contains its session id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionFrom {
    /// The partition or routing key.
    Key,
    /// The correlation id.
    CorrelationId,
    /// A property: a text, or an integer, which becomes decimal text.
    Property(String),
}

const KEY: &str = "key";
const CORRELATION_ID: &str = "correlation_id";
const PROPERTY: &str = "property:";

impl SessionFrom {
    /// The session id of a message. `None` if the field is absent, or its value is not a valid session id.
    pub fn session_of(&self, message: &Message) -> Option<SessionId> {
        let id = match self {
            Self::Key => SessionId::new(message.key.as_deref()?),
            Self::CorrelationId => SessionId::new(message.correlation_id.as_deref()?),
            Self::Property(name) => match message.properties.get(name)? {
                Value::String(text) => SessionId::new(text),
                Value::I8(number) => SessionId::new(&number.to_string()),
                Value::I16(number) => SessionId::new(&number.to_string()),
                Value::I32(number) => SessionId::new(&number.to_string()),
                Value::I64(number) => SessionId::new(&number.to_string()),
                Value::U8(number) => SessionId::new(&number.to_string()),
                Value::U16(number) => SessionId::new(&number.to_string()),
                Value::U32(number) => SessionId::new(&number.to_string()),
                Value::U64(number) => SessionId::new(&number.to_string()),
                _ => return None,
            },
        };
        id.ok()
    }

    /// Returns a refusal if the name of the property is invalid.
    pub fn check(&self) -> Result<(), Refusal> {
        let most = limits::SESSION_FROM_BYTES_MAX;
        match self {
            Self::Property(name) if name.is_empty() || name.len() > most => {
                let why = format!("the name of the property must have 1 to {most} bytes");
                Err(Refusal::BadSpec { field: "session_from", why })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SessionFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str(KEY),
            Self::CorrelationId => f.write_str(CORRELATION_ID),
            Self::Property(name) => write!(f, "{PROPERTY}{name}"),
        }
    }
}

impl FromStr for SessionFrom {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let from = match text {
            KEY => Self::Key,
            CORRELATION_ID => Self::CorrelationId,
            _ => match text.strip_prefix(PROPERTY) {
                Some(name) => Self::Property(name.to_owned()),
                None => {
                    let why = "must be `key`, `correlation_id` or `property:NAME`".to_owned();
                    return Err(Refusal::BadSpec { field: "session_from", why });
                }
            },
        };
        from.check()?;
        Ok(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_integers_are_session_ids() {
        let mut message = Message { key: Some("k".into()), ..Message::default() };
        message.properties.set("customer", Value::I32(-7));
        message.properties.set("empty", Value::String(String::new()));
        message.properties.set("ratio", Value::F64(0.5));
        let session = |from: &str| {
            let from: SessionFrom = from.parse().unwrap();
            from.session_of(&message).map(|id| id.as_str().to_owned())
        };
        assert_eq!(session("key").as_deref(), Some("k"));
        assert_eq!(session("property:customer").as_deref(), Some("-7"));
        for absent in ["correlation_id", "property:empty", "property:ratio", "property:none"] {
            assert_eq!(session(absent), None, "{absent}");
        }
    }

    #[test]
    fn the_text_names_the_field() {
        for text in ["key", "correlation_id", "property:a b"] {
            let from: SessionFrom = text.parse().unwrap();
            assert_eq!(from.to_string(), text);
        }
        let long = format!("property:{}", "x".repeat(limits::SESSION_FROM_BYTES_MAX + 1));
        for bad in ["", "Key", "property:", long.as_str()] {
            bad.parse::<SessionFrom>().unwrap_err();
        }
    }
}
