//! Messages to send, and what the server answers.

use std::borrow::Cow;
use std::fmt;

use malote_model::{
    Address, Body, BodyKind, Message, QueueName, SessionId, Timestamp, TopicName, When,
};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::BodyContent;
use crate::fields::field_names;
use crate::received::ReceivedMessage;
use crate::value::PropertyMap;
use crate::{RequestError, text};

/// A message to send.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// The queue to send to, in requests that send to several
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The topic to send to, in requests that send to several
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Text, or any other JSON value, which is sent as its JSON text
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyContent>,
    /// The body as base64, in JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The FIFO session of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The sender's id; the server assigns one if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The key for de-duplication; `id` if absent
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Partition or routing key
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Further routing keys: a topic routes the message by each of them
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_keys: Vec<String>,
    /// What the message is about
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Destination, as the sender names it
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Where to send replies
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The session of replies
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to_session: Option<String>,
    /// The request that this message answers
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Media type of the body
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Encoding of the body
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    /// The user, as the sender names it
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The application that sent the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// Time to live in milliseconds, from when the message is enqueued
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Messages with a higher priority are delivered first
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Properties set by the application
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<PropertyMap>,
    /// Choose the session from the queue's fixed list by `key`
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub session_from_key: bool,
    /// Deliver after this number of milliseconds; the message keeps its place in the queue
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Send at this time
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
}

/// A time: milliseconds since 1970, or RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.0)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;
        impl Visitor<'_> for NumberOrText {
            type Value = Moment;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "milliseconds since 1970 or an RFC 3339 time such as 2030-01-31T08:00:00Z",
                )
            }
            fn visit_u64<E>(self, ms: u64) -> Result<Moment, E> {
                Ok(Moment(Timestamp(ms)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Moment, E> {
                let moment = text::moment_of(text).map(Moment);
                moment.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(NumberOrText)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": ["integer", "string"]})
    }
}

impl NewMessage {
    /// A message for a queue or topic, for the native connection.
    pub fn new(to: Address, message: Message) -> Self {
        let (queue, topic) = match to {
            Address::Queue(queue) => (Some(queue.as_str().to_owned()), None),
            Address::Topic(topic) => (None, Some(topic.as_str().to_owned())),
        };
        let (delay_ms, at) = match message.when {
            When::Now => (None, None),
            When::Delay(ms) => (Some(ms), None),
            When::At(at) => (None, Some(Moment(at))),
        };
        let body = match message.body.kind {
            BodyKind::Text => BodyContent::Text(message.body.bytes),
            _ => BodyContent::Bytes(message.body.bytes),
        };
        Self {
            queue,
            topic,
            body: Some(body),
            body_base64: None,
            session: message.session.map(|session| session.as_str().to_owned()),
            id: message.message_id,
            dedup_id: message.dedup_id,
            key: message.key,
            more_keys: message.more_keys,
            subject: message.subject,
            to: message.to,
            reply_to: message.reply_to,
            reply_to_session: message.reply_to_session,
            correlation_id: message.correlation_id,
            content_type: message.content_type,
            content_encoding: message.content_encoding,
            user_id: message.user_id,
            app_id: message.app_id,
            ttl_ms: message.ttl_ms,
            priority: (message.priority != 0).then_some(message.priority),
            properties: (!message.properties.is_empty()).then_some(PropertyMap(message.properties)),
            session_from_key: false,
            delay_ms,
            at,
        }
    }

    /// Sets the body: text if the bytes are UTF-8, otherwise base64.
    pub fn set_body(&mut self, bytes: &[u8]) {
        let text = std::str::from_utf8(bytes).ok();
        self.body = text.map(BodyContent::text);
        self.body_base64 = text.is_none().then(|| text::to_base64(bytes));
    }

    /// Reads a message from a line of JSON. The line may also be a received message: fields that only answers have
    /// are ignored.
    pub fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        let mut fields: std::collections::BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(line)?;
        let (new, received) = (field_names::<Self>(), field_names::<ReceivedMessage>());
        let answer_only = |name: &str| received.contains(&name) && !new.contains(&name);
        fields.retain(|name, _| !answer_only(name));
        serde_json::from_str(&serde_json::to_string(&fields)?)
    }

    /// Takes the queue or topic that the message names.
    pub fn take_address(&mut self) -> Result<Address, RequestError> {
        let bad = |why: &str| Err(RequestError::Field(why.to_owned()));
        match (self.queue.take(), self.topic.take()) {
            (Some(queue), None) => Ok(QueueName::new(&queue)?.into()),
            (None, Some(topic)) => Ok(TopicName::new(&topic)?.into()),
            (Some(_), Some(_)) => bad("a message names `queue` or `topic`, not both"),
            (None, None) => bad("missing field `queue` or `topic`: each message names its own"),
        }
    }

    /// Converts to a message of the model. The caller handles `queue`, `topic` and `session_from_key`.
    pub fn into_message(self) -> Result<Message, RequestError> {
        let bad = |why: &str| Err(RequestError::Field(why.to_owned()));
        let mut content_type = self.content_type;
        if let Some(BodyContent::Json(_)) = &self.body {
            content_type.get_or_insert_with(|| "application/json".into());
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => return bad("a message has `body` or `body_base64`, not both"),
            (Some(content), None) => content.into(),
            (None, Some(text)) => {
                let bytes = text::from_base64("body_base64", &text).map_err(RequestError::Field)?;
                Body { bytes, kind: BodyKind::Bytes }
            }
            (None, None) => Body::default(),
        };
        let when = match (self.delay_ms, self.at) {
            (Some(_), Some(_)) => return bad("a message has `delay_ms` or `at`, not both"),
            (Some(0) | None, None) => When::Now,
            (Some(ms), None) => When::Delay(ms),
            (None, Some(Moment(at))) => When::At(at),
        };
        if self.session_from_key && (self.session.is_some() || self.key.is_none()) {
            return bad("session_from_key needs `key` and excludes `session`");
        }
        Ok(Message {
            message_id: self.id,
            origin_id: None,
            session: self.session.as_deref().map(SessionId::new).transpose()?,
            key: self.key,
            more_keys: self.more_keys,
            blind_keys: Vec::new(),
            relaxed: false,
            subject: self.subject,
            to: self.to,
            reply_to: self.reply_to,
            reply_to_session: self.reply_to_session,
            correlation_id: self.correlation_id,
            content_type,
            content_encoding: self.content_encoding,
            user_id: self.user_id,
            app_id: self.app_id,
            properties: self.properties.unwrap_or_default().0,
            priority: self.priority.unwrap_or_default(),
            when,
            ttl_ms: self.ttl_ms,
            dedup_id: self.dedup_id,
            body,
            native: None,
        })
    }
}

impl From<ReceivedMessage> for NewMessage {
    /// The same message to send, without the fields that only answers have.
    fn from(received: ReceivedMessage) -> Self {
        Self {
            queue: None,
            topic: None,
            body: received.body,
            body_base64: received.body_base64,
            session: received.session,
            id: received.id,
            dedup_id: received.dedup_id,
            key: received.key,
            more_keys: received.more_keys,
            subject: received.subject,
            to: received.to,
            reply_to: received.reply_to,
            reply_to_session: received.reply_to_session,
            correlation_id: received.correlation_id,
            content_type: received.content_type,
            content_encoding: received.content_encoding,
            user_id: received.user_id,
            app_id: received.app_id,
            ttl_ms: received.ttl_ms,
            priority: received.priority,
            properties: received.properties,
            session_from_key: false,
            delay_ms: None,
            at: None,
        }
    }
}

/// Messages to send, all or none.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Batch"))]
#[serde(deny_unknown_fields)]
pub struct MessageBatch {
    /// The messages, in order
    pub messages: Vec<NewMessage>,
}

/// A message that was sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Sent"))]
pub struct SentMessage {
    /// Sequence number in the queue; of a topic, the number of a scheduled message, or 0
    pub seq: u64,
    /// The sender's id, or the one that the server assigned
    pub id: String,
    /// The message is a duplicate; `seq` is the number of the first one
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// Number of copies that the rules of a topic made, unless the message is scheduled
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
}

/// Messages that were sent, in order.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SentAll"))]
pub struct SentBatch {
    /// One entry for each message
    pub messages: Vec<SentMessage>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use malote_model::Value as PropertyValue;

    use super::*;
    use crate::frame::Encoding;

    fn new(json: &str) -> Result<Message, RequestError> {
        serde_json::from_str::<NewMessage>(json).unwrap().into_message()
    }

    #[test]
    fn a_string_body_is_text_and_other_values_are_json_text() {
        let text = new(r#"{"body":"a\nb"}"#).unwrap();
        assert_eq!((&text.body.bytes[..], text.body.kind), (&b"a\nb"[..], BodyKind::Text));
        assert_eq!(text.content_type, None);
        let json = new(r#"{"body":{"z":1.10,"a":[12345678901234567890123]}}"#).unwrap();
        assert_eq!(&json.body.bytes[..], br#"{"z":1.10,"a":[12345678901234567890123]}"#);
        assert_eq!(json.content_type.as_deref(), Some("application/json"));
        let bytes = new(r#"{"body_base64":"AP8="}"#).unwrap();
        assert_eq!((&bytes.body.bytes[..], bytes.body.kind), (&[0, 255][..], BodyKind::Bytes));
        assert_eq!(new("{}").unwrap().body, Body::default());
    }

    #[test]
    fn contradictions_are_refused() {
        for bad in [
            r#"{"body":"","body_base64":""}"#,
            r#"{"body_base64":"?"}"#,
            r#"{"delay_ms":1,"at":1}"#,
            r#"{"session":""}"#,
            r#"{"session_from_key":true}"#,
            r#"{"session_from_key":true,"key":"k","session":"s"}"#,
        ] {
            new(bad).unwrap_err();
        }
        for bad in [
            r#"{"delay_ms":-1}"#,
            r#"{"priority":256}"#,
            r#"{"at":"soon"}"#,
            r#"{"at":-1}"#,
            r#"{"bod":1}"#,
        ] {
            serde_json::from_str::<NewMessage>(bad).unwrap_err();
        }
    }

    #[test]
    fn a_received_message_can_be_sent_again() {
        let json = r#"{"body":"x","id":"i","session":"s","key":"k","subject":"a","to":"b","reply_to":"c",
            "reply_to_session":"d","correlation_id":"e","content_type":"f","content_encoding":"g","user_id":"h",
            "app_id":"j","dedup_id":"l","priority":3,"ttl_ms":9,"properties":{"n":{"$type":"i32","value":1}}}"#;
        let message = new(json).unwrap();
        assert_eq!(message.properties.get("n"), Some(&PropertyValue::I32(1)));
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let received = ReceivedMessage::new(message.clone(), encoding);
            let back: ReceivedMessage = match encoding {
                Encoding::Json => serde_json::from_value(serde_json::to_value(&received).unwrap()),
                Encoding::MessagePack => {
                    let bytes = rmp_serde::to_vec_named(&received).unwrap();
                    Ok(rmp_serde::from_slice(&bytes).unwrap())
                }
            }
            .unwrap();
            assert_eq!(back.clone().into_message(), message);
            assert_eq!(NewMessage::from(back).into_message().unwrap(), message);
        }
    }

    #[test]
    fn a_message_written_by_a_client_is_read_by_the_server() {
        let json = r#"{"body":"x","id":"i","session":"s","key":"k","subject":"a","to":"b","reply_to":"c",
            "reply_to_session":"d","correlation_id":"e","content_type":"f","content_encoding":"g","user_id":"h",
            "app_id":"j","dedup_id":"l","priority":3,"ttl_ms":9,"delay_ms":7,"properties":{"n":1}}"#;
        let message = new(json).unwrap();
        let to = Address::from(QueueName::new("q").unwrap());
        let bytes = rmp_serde::to_vec_named(&NewMessage::new(to.clone(), message.clone())).unwrap();
        let mut read: NewMessage = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(read.take_address(), Ok(to));
        assert_eq!(read.into_message().unwrap(), message);
    }

    #[test]
    fn a_received_line_can_be_sent_again() {
        let line = r#"{"seq":7,"state":"ready","body":"x","session":"s","properties":{"z":1,"a":{"$type":"i8","value":2}},"receives":1,"failed":0,"last":true,"dead_letter":{"reason":"r"},"deaths":[{"reason":"r"}]}"#;
        let message = NewMessage::from_line(line).unwrap();
        let again = serde_json::to_string(&message).unwrap();
        assert_eq!(
            again,
            r#"{"body":"x","session":"s","properties":{"z":1,"a":{"$type":"i8","value":2}}}"#
        );
        let received: ReceivedMessage = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&NewMessage::from(received)).unwrap(), again);
    }

    #[test]
    fn a_body_of_any_json_keeps_its_digits_and_unknown_fields_are_refused() {
        let message = NewMessage::from_line(r#"{"body":{"n":1.10}}"#).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), r#"{"body":{"n":1.10}}"#);
        assert!(
            NewMessage::from_line(r#"{"sesion":"a"}"#).unwrap_err().to_string().contains("sesion")
        );
        assert!(NewMessage::from_line("text").is_err());
    }

    #[test]
    fn bodies_are_bin_in_messagepack() {
        let body = Body { bytes: Bytes::from_static(&[0, 255]), kind: BodyKind::Bytes };
        let to = Address::from(QueueName::new("q").unwrap());
        let sent = NewMessage::new(to, Message { body: body.clone(), ..Message::default() });
        let bytes = rmp_serde::to_vec_named(&sent).unwrap();
        let message = rmp_serde::from_slice::<NewMessage>(&bytes).unwrap().into_message().unwrap();
        assert_eq!(message.body, body);
    }
}
