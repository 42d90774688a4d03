//! Received and peeked messages, and why a message is a dead letter.

use std::borrow::Cow;

use bytes::Bytes;
use malote_model::{Body, BodyKind, Message, SessionId, When};
use serde::{Deserialize, Serialize};

use crate::body::BodyContent;
use crate::frame::Encoding;
use crate::text;
use crate::value::PropertyMap;

/// `body_kind` of a body that is an AMQP value.
pub const AMQP_VALUE: &str = "amqp-value";
/// `body_kind` of a body that is an AMQP sequence.
pub const AMQP_SEQUENCE: &str = "amqp-sequence";

/// A message from a queue.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Message"))]
#[serde(default)]
pub struct ReceivedMessage {
    /// Sequence number in the queue
    pub seq: u64,
    /// The id of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The first id of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_id: Option<String>,
    /// The FIFO session of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
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
    /// The key for de-duplication
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Messages with a higher priority are delivered first
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Time to live in milliseconds, from when the message was enqueued
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Properties set by the application
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<PropertyMap>,
    /// The body, if it is text
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyContent>,
    /// The body as base64, in JSON, if it is not text
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The AMQP type of the body, if it is not plain text or bytes
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String", extend("enum" = [AMQP_VALUE, AMQP_SEQUENCE])))]
    pub body_kind: Option<Cow<'static, str>>,
    /// Send time in milliseconds since 1970
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<u64>,
    /// Number of deliveries
    pub receives: u32,
    /// Number of failed deliveries
    pub failed: u32,
    /// No other message of the held session is ready
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// The token of the lease
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// When the lease ends
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The state of a peeked message
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::receive::MessageStateWord"))]
    pub state: Option<Cow<'static, str>>,
    /// When the message is due
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    /// Why the message is in a dead-letter queue
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetterInfo>,
    /// Every queue and reason for which the message was dead-lettered, newest first
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deaths: Vec<DeathInfo>,
    /// The message is damaged on disk
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
    /// The damage: file, position and kind
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl ReceivedMessage {
    /// The fields of a message of the model.
    pub fn new(message: Message, encoding: Encoding) -> Self {
        let kind = message.body.kind;
        let bytes = message.body.bytes;
        let is_text = kind == BodyKind::Text && std::str::from_utf8(&bytes).is_ok();
        let (body, body_base64) = match encoding {
            _ if is_text => (Some(BodyContent::Text(bytes)), None),
            Encoding::MessagePack => (Some(BodyContent::Bytes(bytes)), None),
            Encoding::Json => (None, Some(text::to_base64(&bytes))),
        };
        let body_kind = match kind {
            BodyKind::Bytes | BodyKind::Text => None,
            BodyKind::AmqpValue => Some(AMQP_VALUE.into()),
            BodyKind::AmqpSequence => Some(AMQP_SEQUENCE.into()),
        };
        Self {
            id: message.message_id,
            origin_id: message.origin_id,
            session: message.session.map(|s| s.as_str().to_owned()),
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
            priority: (message.priority != 0).then_some(message.priority),
            ttl_ms: message.ttl_ms,
            properties: (!message.properties.is_empty()).then_some(PropertyMap(message.properties)),
            body,
            body_base64,
            body_kind,
            ..Self::default()
        }
    }

    /// The body as it was sent.
    pub fn body_bytes(&self) -> Bytes {
        match (&self.body, &self.body_base64) {
            (Some(content), _) => content.clone().into_bytes(),
            (None, Some(text)) => text::from_base64("body_base64", text).unwrap_or_default(),
            (None, None) => Bytes::new(),
        }
    }

    /// The message of the model.
    pub fn into_message(self) -> Message {
        let kind = match (self.body_kind.as_deref(), &self.body) {
            (Some(AMQP_VALUE), _) => BodyKind::AmqpValue,
            (Some(AMQP_SEQUENCE), _) => BodyKind::AmqpSequence,
            (_, Some(BodyContent::Text(_) | BodyContent::Json(_))) => BodyKind::Text,
            _ => BodyKind::Bytes,
        };
        let bytes = self.body_bytes();
        Message {
            message_id: self.id,
            origin_id: self.origin_id,
            session: self.session.and_then(|id| SessionId::new(&id).ok()),
            dedup_id: self.dedup_id,
            key: self.key,
            more_keys: self.more_keys,
            blind_keys: Vec::new(),
            relaxed: false,
            subject: self.subject,
            to: self.to,
            reply_to: self.reply_to,
            reply_to_session: self.reply_to_session,
            correlation_id: self.correlation_id,
            content_type: self.content_type,
            content_encoding: self.content_encoding,
            user_id: self.user_id,
            app_id: self.app_id,
            properties: self.properties.unwrap_or_default().0,
            priority: self.priority.unwrap_or_default(),
            when: When::Now,
            ttl_ms: self.ttl_ms,
            body: Body { bytes, kind },
            native: None,
        }
    }
}

/// Why a message is in a dead-letter queue.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetter"))]
#[serde(default)]
pub struct DeadLetterInfo {
    /// A short, stable word
    pub reason: String,
    /// Description of the failure
    pub text: String,
    /// When, in milliseconds since 1970
    pub at: u64,
    /// The queue that the message came from
    pub from: String,
    /// The sequence number there
    pub from_seq: u64,
    /// Number of deliveries there
    pub receives: u32,
    /// Number of failed deliveries there
    pub failed: u32,
}

/// A queue and reason for which a message was dead-lettered; `text` and `at` are those of the last time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Death"))]
#[serde(default)]
pub struct DeathInfo {
    /// A short, stable word
    pub reason: String,
    /// Description of the failure
    pub text: String,
    /// When, in milliseconds since 1970
    pub at: u64,
    /// The queue that the message came from
    pub from: String,
    /// Number of failures of this kind
    pub count: u32,
}
