//! Messages to send, batches, and received messages.

use std::fmt;

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::connection::{DeliveryId, Incoming};
use malote_wire_amqp::message::{
    BATCH_FORMAT, Body, BodyKind, Draft, Header, Message as Wire, Properties, encode_batch,
};
use malote_wire_amqp::types::{Map, Str, Symbol, Value};

use super::error::{Error, Result};

const SCHEDULED: &str = "x-opt-scheduled-enqueue-time";
const PARTITION_KEY: &str = "x-opt-partition-key";
/// The overhead of a data section: a descriptor, a code, a length.
const SECTION_BYTES: usize = 8;

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The payload: bytes, a value or a sequence.
    pub body: Body,
    /// The message id, which is also used to detect duplicates.
    pub message_id: Option<String>,
    /// The session that the message belongs to.
    pub session_id: Option<String>,
    /// Usually the id of the message that this one answers.
    pub correlation_id: Option<String>,
    /// The subject, also called label.
    pub subject: Option<String>,
    /// The intended destination.
    pub to: Option<String>,
    /// The address for replies.
    pub reply_to: Option<String>,
    /// The session for replies.
    pub reply_to_session_id: Option<String>,
    /// The content type of the body.
    pub content_type: Option<String>,
    /// The partition key, for partitioned entities.
    pub partition_key: Option<String>,
    /// The time to live.
    pub ttl_ms: Option<u32>,
    /// When to enqueue the message, in milliseconds since 1970.
    pub scheduled_ms: Option<i64>,
    /// The application's own properties.
    pub properties: Map,
}

impl Message {
    /// A message with a binary body.
    pub fn new(body: impl Into<Bytes>) -> Message {
        Message { body: Body::Data(vec![body.into()]), ..Message::default() }
    }

    /// Encodes the message for the wire.
    pub fn encode(&self) -> Bytes {
        let text = |text: &Option<String>| text.as_deref().map(Str::from);
        let id = |text: &Option<String>| text.as_deref().map(Value::from);
        let mut annotations = Map::default();
        if let Some(at) = self.scheduled_ms {
            annotations = annotations.with(SCHEDULED, Value::Timestamp(at));
        }
        if let Some(key) = &self.partition_key {
            annotations = annotations.with(PARTITION_KEY, key.as_str());
        }
        let properties = Properties {
            message_id: id(&self.message_id),
            to: text(&self.to),
            subject: text(&self.subject),
            reply_to: text(&self.reply_to),
            correlation_id: id(&self.correlation_id),
            content_type: self.content_type.as_deref().map(Symbol::lossy),
            group_id: text(&self.session_id),
            reply_to_group_id: text(&self.reply_to_session_id),
            ..Properties::default()
        };
        Draft {
            // Other brokers store only durable messages.
            header: Some(Header { durable: true, ttl: self.ttl_ms, ..Header::default() }),
            message_annotations: annotations,
            properties: (properties != Properties::default()).then_some(properties),
            application_properties: self.properties.clone(),
            body: self.body.clone(),
            ..Draft::default()
        }
        .to_bytes()
    }
}

/// Messages that are sent atomically.
#[derive(Debug, Clone)]
pub struct Batch {
    messages: Vec<Bytes>,
    /// Fields of the first message, which the service reads from the envelope.
    envelope: Draft,
    size_bytes: usize,
    size_bytes_max: usize,
}

impl Batch {
    /// An empty batch with a size limit.
    pub(super) fn new(size_bytes_max: usize) -> Batch {
        let envelope = Draft::default();
        Batch { messages: Vec::new(), envelope, size_bytes: 0, size_bytes_max }
    }

    /// Adds a message; false if it does not fit.
    #[must_use]
    pub fn add(&mut self, message: &Message) -> bool {
        let encoded = message.encode();
        let mut size = encoded.len() + SECTION_BYTES;
        if self.messages.is_empty() {
            self.envelope = envelope(message);
            size += self.envelope.to_bytes().len();
        }
        if self.size_bytes + size > self.size_bytes_max {
            return false;
        }
        self.size_bytes += size;
        self.messages.push(encoded);
        true
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Encodes the batch and returns its message format, for [`super::Sender::start_encoded`].
    pub fn encode(&self) -> (u32, Bytes) {
        let mut out = BytesMut::with_capacity(self.size_bytes);
        self.envelope.encode(&mut out);
        encode_batch(&self.messages, &mut out);
        (BATCH_FORMAT, out.freeze())
    }
}

fn envelope(first: &Message) -> Draft {
    let properties = Properties {
        message_id: first.message_id.as_deref().map(Value::from),
        group_id: first.session_id.as_deref().map(Str::from),
        ..Properties::default()
    };
    let key = first.partition_key.as_deref();
    let annotations = key.map(|key| Map::default().with(PARTITION_KEY, key)).unwrap_or_default();
    Draft {
        message_annotations: annotations,
        properties: (properties != Properties::default()).then_some(properties),
        ..Draft::default()
    }
}

/// The token of a message lock, in network byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockToken(pub [u8; 16]);

impl LockToken {
    /// Converts a delivery tag: the same GUID in the byte order of .NET, whose first three groups are little-endian.
    fn from_tag(tag: &[u8]) -> Option<LockToken> {
        let tag: [u8; 16] = tag.try_into().ok()?;
        let [a, b, c, d, e, f, g, h, rest @ ..] = tag;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&[d, c, b, a, f, e, h, g]);
        bytes[8..].copy_from_slice(&rest);
        Some(LockToken(bytes))
    }
}

impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The position of a message in its entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceNumber(pub i64);

/// How a received message is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettleVia {
    /// On its link, by the link's number.
    Link(u64, DeliveryId),
    /// By its lock token, over `$management`.
    Management,
    /// The message is not locked: it was peeked, or received and deleted.
    NotLocked,
}

/// A received or peeked message. Sections are decoded when they are read.
#[derive(Debug, Clone)]
pub struct Received {
    pub(super) settle_via: SettleVia,
    lock_token: Option<LockToken>,
    message: Wire,
    annotations: Map,
    delivery_count: u32,
}

impl Received {
    pub(super) fn from_delivery(link: u64, incoming: Incoming) -> Result<Received> {
        let settle_via = match incoming.settled {
            true => SettleVia::NotLocked,
            false => SettleVia::Link(link, incoming.delivery),
        };
        let token = LockToken::from_tag(&incoming.tag).filter(|_| !incoming.settled);
        Received::new(settle_via, token, incoming.payload)
    }

    pub(super) fn new(
        settle_via: SettleVia,
        token: Option<LockToken>,
        encoded: Bytes,
    ) -> Result<Received> {
        let message = Wire::parse(encoded)?;
        let annotations = message.message_annotations()?;
        let delivery_count = message.header()?.delivery_count;
        Ok(Received { settle_via, lock_token: token, message, annotations, delivery_count })
    }

    /// The lock token, if the message is locked.
    pub fn lock_token(&self) -> Option<LockToken> {
        self.lock_token
    }

    /// The sequence number; brokers other than Service Bus have none.
    pub fn sequence_number(&self) -> Option<SequenceNumber> {
        self.annotation("x-opt-sequence-number").map(SequenceNumber)
    }

    /// Failed deliveries before this one.
    pub fn delivery_count(&self) -> u32 {
        self.delivery_count
    }

    /// When it was enqueued, in milliseconds since 1970.
    pub fn enqueued_ms(&self) -> Option<i64> {
        self.annotation("x-opt-enqueued-time")
    }

    /// When the lock ends, in milliseconds since 1970. In a session, the session's lock applies.
    pub fn locked_until_ms(&self) -> Option<i64> {
        self.annotation("x-opt-locked-until")
    }

    /// When a scheduled message will be enqueued, in milliseconds since 1970.
    pub fn scheduled_ms(&self) -> Option<i64> {
        self.annotation(SCHEDULED)
    }

    fn annotation(&self, name: &str) -> Option<i64> {
        self.annotations.get(name).and_then(Value::as_i64)
    }

    /// The message annotations.
    pub fn annotations(&self) -> &Map {
        &self.annotations
    }

    /// The standard properties.
    pub fn properties(&self) -> Result<Properties> {
        Ok(self.message.properties()?)
    }

    /// The session that the message belongs to, if it has one.
    pub fn session_id(&self) -> Result<Option<String>> {
        Ok(self.properties()?.group_id.map(|id| id.as_str().to_owned()))
    }

    /// The message id as text, whatever its type.
    pub fn message_id(&self) -> Result<Option<String>> {
        Ok(self.properties()?.message_id.map(|id| match id {
            Value::String(text) => text.as_str().to_owned(),
            Value::Uuid(bytes) => LockToken(bytes).to_string(),
            Value::Ulong(number) => number.to_string(),
            Value::Binary(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            other => format!("{other:?}"),
        }))
    }

    /// The application's own properties.
    pub fn application_properties(&self) -> Result<Map> {
        Ok(self.message.application_properties()?)
    }

    /// The body as bytes: the data sections, or a value that is a string or binary.
    pub fn body(&self) -> Result<Bytes> {
        match self.message.body_kind() {
            BodyKind::Absent => Ok(Bytes::new()),
            BodyKind::Data => {
                let mut parts = self.message.data()?;
                Ok(match parts.len() {
                    1 => parts.swap_remove(0),
                    _ => parts.concat().into(),
                })
            }
            BodyKind::Value => match self.message.value()? {
                Some(Value::Binary(bytes)) => Ok(bytes),
                Some(Value::String(text)) => Ok(text.as_bytes().clone()),
                _ => Err(Error::Unreadable(
                    "the body is a value that is neither a string nor binary".to_owned(),
                )),
            },
            BodyKind::Sequence => {
                Err(Error::Unreadable("the body is a sequence of lists".to_owned()))
            }
        }
    }

    /// The message with all its sections.
    pub fn wire(&self) -> &Wire {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_wire_amqp::message::decode_batch;

    fn full() -> Message {
        Message {
            message_id: Some("id".to_owned()),
            session_id: Some("s".to_owned()),
            correlation_id: Some("c".to_owned()),
            subject: Some("subject".to_owned()),
            to: Some("to".to_owned()),
            reply_to: Some("back".to_owned()),
            reply_to_session_id: Some("rs".to_owned()),
            content_type: Some("text/plain".to_owned()),
            partition_key: Some("s".to_owned()),
            ttl_ms: Some(5_000),
            scheduled_ms: Some(1_700_000_000_000),
            properties: Map::default().with_string("n", 1_i32),
            ..Message::new("hello")
        }
    }

    #[test]
    fn a_message_survives_a_round_trip() {
        let received = Received::new(SettleVia::NotLocked, None, full().encode()).unwrap();
        let properties = received.properties().unwrap();
        assert_eq!(properties.group_id.as_deref(), Some("s"));
        assert_eq!(properties.reply_to_group_id.as_deref(), Some("rs"));
        assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
        assert_eq!(received.message_id().unwrap().as_deref(), Some("id"));
        assert_eq!(received.scheduled_ms(), Some(1_700_000_000_000));
        assert_eq!(received.wire().header().unwrap().ttl, Some(5_000));
        assert_eq!(received.application_properties().unwrap().get("n"), Some(&Value::Int(1)));
        assert_eq!(received.body().unwrap(), "hello");
    }

    #[test]
    fn a_batch_does_not_exceed_its_size_limit() {
        let one = full();
        let mut batch = Batch::new(1_000);
        while batch.add(&one) {}
        assert!(batch.len() > 2, "{}", batch.len());
        let (format, encoded) = batch.encode();
        assert_eq!(format, 0x8001_3700);
        assert!(encoded.len() <= 1_000, "{}", encoded.len());
        let envelope = Wire::parse(encoded).unwrap();
        assert_eq!(envelope.properties().unwrap().group_id.as_deref(), Some("s"));
        let messages = decode_batch(&envelope, 100).unwrap().unwrap();
        assert_eq!(messages.len(), batch.len());
        assert!(messages.iter().all(|message| *message.encoded() == one.encode()));
    }

    #[test]
    fn a_delivery_tag_is_the_lock_token_in_another_byte_order() {
        let tag = *b"\x33\x22\x11\x00\x55\x44\x77\x66\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        let token = LockToken::from_tag(&tag).unwrap();
        assert_eq!(token.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(LockToken::from_tag(b"short"), None);
    }
}
