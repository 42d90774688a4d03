//! A message as callers write it and as they get it.

use std::fmt;

use bytes::Bytes;
use malote_engine::{DeadLetter, Delivery, PeekedMessage, Stored, Unreadable};
use malote_model::{
    Address, Body, BodyKind, Message, QueueName, SessionId, Timestamp, TopicName, When,
};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Encoding;
use super::text;
use super::value::PropertyMap;
use crate::problem::{Code, Problem};

/// A message to send. In JSON `body` is text, or any other JSON value, which is sent as its own JSON text.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// Where to; only where one request sends to several queues.
    pub queue: Option<String>,
    /// Where to; only where one request sends to several topics.
    pub topic: Option<String>,
    /// The payload.
    pub body: Option<BodyIn>,
    /// The payload, in JSON, if it is not text.
    pub body_base64: Option<String>,
    /// The FIFO session it belongs to.
    pub session: Option<String>,
    /// Take the session from the queue's fixed list by `key`.
    #[serde(default)]
    pub session_from_key: bool,
    /// The sender's id.
    pub id: Option<String>,
    /// Key for de-duplication.
    pub dedup_id: Option<String>,
    /// Partition or routing key.
    pub key: Option<String>,
    /// What it is about.
    pub subject: Option<String>,
    /// Where the sender meant it to go.
    pub to: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// The session that answers belong to.
    pub reply_to_session: Option<String>,
    /// The request that this answers.
    pub correlation_id: Option<String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The encoding of the body.
    pub content_encoding: Option<String>,
    /// Who sent it, by the sender's word.
    pub user_id: Option<String>,
    /// Which application sent it.
    pub app_id: Option<String>,
    /// Delivered after so long, in its place.
    pub delay_ms: Option<u64>,
    /// Sent at that time.
    pub at: Option<Moment>,
    /// Expires so long after it was enqueued.
    pub ttl_ms: Option<u64>,
    /// Higher first.
    pub priority: Option<u8>,
    /// The user's own names and values.
    pub properties: Option<PropertyMap>,
}

/// Milliseconds since 1970, or an RFC 3339 time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
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
        deserializer.deserialize_any(Either)
    }
}

/// What `body` can be.
#[derive(Debug, PartialEq)]
pub enum BodyIn {
    /// A string.
    Text(String),
    /// Any other JSON value, as it was written.
    Json(String),
    /// MessagePack `bin`.
    Bytes(Bytes),
}

impl<'de> Deserialize<'de> for BodyIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            // Raw, so that a number keeps its digits and an object its order.
            let raw = Box::<RawValue>::deserialize(deserializer)?;
            if raw.get().starts_with('"') {
                return serde_json::from_str(raw.get()).map(Self::Text).map_err(de::Error::custom);
            }
            return Ok(Self::Json(raw.get().to_owned()));
        }
        struct Binary;
        impl Visitor<'_> for Binary {
            type Value = BodyIn;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a body: bin or str")
            }
            fn visit_str<E>(self, v: &str) -> Result<BodyIn, E> {
                Ok(BodyIn::Text(v.into()))
            }
            fn visit_string<E>(self, v: String) -> Result<BodyIn, E> {
                Ok(BodyIn::Text(v))
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<BodyIn, E> {
                Ok(BodyIn::Bytes(v.to_vec().into()))
            }
            fn visit_byte_buf<E>(self, v: Vec<u8>) -> Result<BodyIn, E> {
                Ok(BodyIn::Bytes(v.into()))
            }
        }
        deserializer.deserialize_any(Binary)
    }
}

impl NewMessage {
    /// The message it means; `queue` and `session_from_key` are the caller's to look at.
    pub fn into_message(self) -> Result<Message, Problem> {
        let bad = |why: &str| Err(Problem::new(Code::BadField, why));
        let mut content_type = self.content_type;
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => return bad("a message has `body` or `body_base64`, not both"),
            (Some(BodyIn::Text(text)), None) => Body { bytes: text.into(), kind: BodyKind::Text },
            (Some(BodyIn::Json(text)), None) => {
                content_type.get_or_insert_with(|| "application/json".into());
                Body { bytes: text.into(), kind: BodyKind::Text }
            }
            (Some(BodyIn::Bytes(bytes)), None) => Body { bytes, kind: BodyKind::Bytes },
            (None, Some(text)) => {
                Body { bytes: text::from_base64("body_base64", &text)?, kind: BodyKind::Bytes }
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

/// Several messages for one queue, or each with its own: all or nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// In this order.
    pub messages: Vec<NewMessage>,
}

/// What was sent.
#[derive(Clone, Debug, Serialize)]
pub struct SentOne {
    /// Its place in the queue; of a topic, its place among the scheduled, or 0.
    pub seq: u64,
    /// The sender's id, or the one that was given.
    pub id: String,
    /// It was sent before, and that is its place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// Of a topic, unless it is scheduled: how many copies its rules made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
}

impl From<malote_engine::Sent> for SentOne {
    fn from(sent: malote_engine::Sent) -> Self {
        let malote_engine::Sent { seq, message_id, duplicate, copies } = sent;
        Self { seq: seq.0, id: message_id, duplicate, copies }
    }
}

/// What a batch became, in order.
#[derive(Clone, Debug, Serialize)]
pub struct SentAll {
    /// One for each message.
    pub messages: Vec<SentOne>,
}

/// Bytes of a body as the encoding writes them.
#[derive(Debug)]
pub enum BodyOut {
    /// A string.
    Text(Bytes),
    /// MessagePack `bin`.
    Bytes(Bytes),
}

impl Serialize for BodyOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => serializer.serialize_bytes(text),
            },
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
        }
    }
}

/// A message in hand, or looked at.
#[derive(Debug, Default, Serialize)]
pub struct Received {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to_session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<PropertyMap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<BodyOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enqueued_at: Option<u64>,
    receives: u32,
    failed: u32,
    /// Under a hold: nothing was ready behind it in its session.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    last: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<DeadLetterOut>,
    /// Every place and reason for which it became a dead letter, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deaths: Vec<DeathOut>,
    /// The disk holds it no longer whole.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
    /// Which file, where in it, and what is wrong there.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Why a message is a dead letter.
#[derive(Debug, Serialize)]
pub struct DeadLetterOut {
    reason: String,
    text: String,
    at: u64,
    from: String,
    from_seq: u64,
    receives: u32,
    failed: u32,
}

impl From<DeadLetter> for DeadLetterOut {
    fn from(dead: DeadLetter) -> Self {
        Self {
            reason: dead.reason,
            text: dead.text,
            at: dead.at.0,
            from: dead.from.as_str().to_owned(),
            from_seq: dead.from_seq.0,
            receives: dead.receives,
            failed: dead.failed,
        }
    }
}

/// What killed a message, where, and how often; text and time are those of the last time.
#[derive(Debug, Serialize)]
pub struct DeathOut {
    reason: String,
    text: String,
    at: u64,
    from: String,
    count: u32,
}

impl DeathOut {
    /// The same death again is counted, and stands where its newest stands.
    fn all(deaths: Vec<DeadLetter>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for DeadLetter { reason, text, at, from, .. } in deaths {
            let same = |have: &&mut Self| have.reason == reason && have.from == from.as_str();
            match all.iter_mut().find(same) {
                Some(have) => have.count += 1,
                None => {
                    let from = from.as_str().to_owned();
                    all.push(Self { reason, text, at: at.0, from, count: 1 });
                }
            }
        }
        all
    }
}

impl Received {
    /// A message that is in no queue.
    pub fn loose(message: Message) -> Self {
        Self::content(message, Encoding::Json)
    }

    fn of(stored: Stored, encoding: Encoding) -> Self {
        let Stored { message, enqueued_at, dead, deaths, .. } = stored;
        Self {
            enqueued_at: Some(enqueued_at.0),
            dead_letter: dead.map(Into::into),
            deaths: DeathOut::all(deaths),
            ..Self::content(message, encoding)
        }
    }

    fn content(message: Message, encoding: Encoding) -> Self {
        let kind = message.body.kind;
        let bytes = message.body.bytes;
        let is_text = kind == BodyKind::Text && std::str::from_utf8(&bytes).is_ok();
        let (body, body_base64) = match encoding {
            _ if is_text => (Some(BodyOut::Text(bytes)), None),
            Encoding::MessagePack => (Some(BodyOut::Bytes(bytes)), None),
            Encoding::Json => (None, Some(text::to_base64(&bytes))),
        };
        let body_kind = match kind {
            BodyKind::Bytes | BodyKind::Text => None,
            BodyKind::AmqpValue => Some("amqp-value"),
            BodyKind::AmqpSequence => Some("amqp-sequence"),
        };
        Self {
            id: message.message_id,
            origin_id: message.origin_id,
            session: message.session.map(|s| s.as_str().to_owned()),
            key: message.key,
            subject: message.subject,
            to: message.to,
            reply_to: message.reply_to,
            reply_to_session: message.reply_to_session,
            correlation_id: message.correlation_id,
            content_type: message.content_type,
            content_encoding: message.content_encoding,
            user_id: message.user_id,
            app_id: message.app_id,
            dedup_id: message.dedup_id,
            priority: (message.priority != 0).then_some(message.priority),
            ttl_ms: message.ttl_ms,
            properties: (!message.properties.is_empty()).then_some(PropertyMap(message.properties)),
            body,
            body_base64,
            body_kind,
            ..Self::default()
        }
    }

    /// A message granted to a receiver.
    pub fn delivered(delivery: Delivery, encoding: Encoding) -> Self {
        let Delivery { seq, lease, until, receives, failed, last, stored, .. } = delivery;
        Self {
            seq: seq.0,
            lease: lease.map(|lease| lease.to_string()),
            until: lease.map(|_| until.0),
            receives,
            failed,
            last,
            ..Self::of(stored, encoding)
        }
    }

    /// A message looked at.
    pub fn seen(seen: PeekedMessage) -> Self {
        let PeekedMessage { seq, state, receives, failed, due, stored, .. } = seen;
        let message = match stored {
            Ok(stored) => Self::of(stored, Encoding::Json),
            Err(Unreadable { text, dead, .. }) => Self {
                damaged: true,
                problem: Some(text),
                dead_letter: dead.map(|dead| (*dead).into()),
                ..Self::default()
            },
        };
        Self {
            seq: seq.0,
            state: Some(super::peek::state_word(state)),
            due: due.map(|due| due.0),
            receives,
            failed,
            ..message
        }
    }
}

/// The queue or topic that one item of a send to several names.
pub fn address_of(message: &mut NewMessage) -> Result<Address, Problem> {
    let bad = |why: &str| Err(Problem::new(Code::BadField, why));
    match (message.queue.take(), message.topic.take()) {
        (Some(queue), None) => Ok(QueueName::new(&queue)?.into()),
        (None, Some(topic)) => Ok(TopicName::new(&topic)?.into()),
        (Some(_), Some(_)) => bad("a message names `queue` or `topic`, not both"),
        (None, None) => bad("missing field `queue` or `topic`: each message names its own"),
    }
}

#[cfg(test)]
mod tests {
    use malote_model::{Seq, Value};

    use super::*;

    fn new(json: &str) -> Result<Message, Problem> {
        serde_json::from_str::<NewMessage>(json).unwrap().into_message()
    }

    #[test]
    fn a_string_is_text_and_anything_else_its_own_json() {
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
    fn what_is_received_can_be_sent_again() {
        let json = r#"{"body":"x","id":"i","session":"s","key":"k","subject":"a","to":"b","reply_to":"c",
            "reply_to_session":"d","correlation_id":"e","content_type":"f","content_encoding":"g","user_id":"h",
            "app_id":"j","dedup_id":"l","priority":3,"ttl_ms":9,"properties":{"n":{"$type":"i32","value":1}}}"#;
        let message = new(json).unwrap();
        assert_eq!(message.properties.get("n"), Some(&Value::I32(1)));
        let stored = Stored {
            message: message.clone(),
            enqueued_at: Timestamp(5),
            sent_at: Timestamp(5),
            dead: None,
            first_seq: None,
            deaths: Vec::new(),
            depth: 1,
        };
        let delivery = Delivery {
            seq: Seq(1),
            lease: None,
            until: Timestamp(0),
            receives: 1,
            failed: 0,
            first_at: None,
            last: false,
            stored,
        };
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let out = Received::delivered(delivery.clone(), encoding);
            let mut value = match encoding {
                Encoding::Json => serde_json::to_value(&out).unwrap(),
                Encoding::MessagePack => {
                    rmp_serde::from_slice(&rmp_serde::to_vec_named(&out).unwrap()).unwrap()
                }
            };
            let map = value.as_object_mut().unwrap();
            for added in ["seq", "receives", "failed", "enqueued_at"] {
                map.remove(added).unwrap();
            }
            assert_eq!(new(&value.to_string()).unwrap(), message);
        }
    }

    #[test]
    fn bodies_are_bin_in_messagepack() {
        #[derive(Serialize)]
        struct Send<'a> {
            #[serde(serialize_with = "bin")]
            body: &'a [u8],
        }
        fn bin<S: Serializer>(bytes: &&[u8], s: S) -> Result<S::Ok, S::Error> {
            s.serialize_bytes(bytes)
        }
        let bytes = rmp_serde::to_vec_named(&Send { body: &[0, 255] }).unwrap();
        let message = rmp_serde::from_slice::<NewMessage>(&bytes).unwrap().into_message().unwrap();
        assert_eq!((&message.body.bytes[..], message.body.kind), (&[0, 255][..], BodyKind::Bytes));
    }

    #[test]
    fn a_damaged_message_is_shown_as_such() {
        let dead = DeadLetter {
            reason: "Damaged".into(),
            text: "in 00000001.log".into(),
            at: Timestamp(5),
            from: QueueName::new("q").unwrap(),
            from_seq: Seq(1),
            receives: 1,
            failed: 0,
        };
        let unreadable =
            Unreadable { text: "in 00000001.log".into(), dead: Some(Box::new(dead)), gone: false };
        let (seq, state, due, stored) =
            (Seq(7), malote_engine::MessageState::Ready, None, Err(unreadable));
        let (deferred, receives, failed, first_at) = (false, 1, 0, None);
        let seen = PeekedMessage { seq, state, deferred, receives, failed, first_at, due, stored };
        let json = serde_json::to_value(Received::seen(seen)).unwrap();
        assert_eq!((&json["seq"], &json["damaged"]), (&7.into(), &true.into()));
        assert_eq!(json["problem"], "in 00000001.log");
        assert_eq!(json["dead_letter"]["reason"], "Damaged");
        assert!(json.get("body").is_none() && json.get("body_base64").is_none());
    }
}
