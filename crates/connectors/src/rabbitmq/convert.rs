//! Messages as AMQP 0-9-1 deliveries, and back.
//!
//! Fields become basic properties where the protocol has them. Headers `x-malote-…` carry the rest, values too long
//! for a short string, and counters. The user's properties are headers under their own names. `user-id` is a header
//! too, because RabbitMQ accepts only the login's name in the property. Fields missing in messages of other programs
//! get defaults.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery as AmqpDelivery;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, ShortString};
use malote_model::{
    Body, BodyKind, DeadReason, Message, Native, Properties, SessionId, Timestamp, Value,
};
use tokio::time::Instant;

use super::values::{self, from_amqp, to_amqp};
use super::{now_ms, refused};
use crate::broker::BrokerError;
use crate::system;

/// Prefix of Malote's headers; names of users' properties must not start with it.
const OURS: &str = "x-malote-";
/// Headers that RabbitMQ writes about deliveries and dead letters.
const BROKERS: [&str; 4] =
    ["x-delivery-count", "x-acquired-count", "x-first-death-", "x-last-death-"];
const DEATHS: &str = "x-death";
/// The name that de-duplication plugins use.
const DEDUP: &str = "x-deduplication-header";

const ORDER: &str = "x-malote-order";
const ENQUEUED: &str = "x-malote-enqueued-at";
const FAILED: &str = "x-malote-failed";
const RECEIVES: &str = "x-malote-receives";
/// Not delivered before this time; keeps its position in the session.
const NOT_BEFORE: &str = "x-malote-not-before";
/// Not delivered before this time; has no position in the session until then.
const AT: &str = "x-malote-at";
const TTL: &str = "x-malote-ttl";
const REASON: &str = "x-malote-dead-reason";
const TEXT: &str = "x-malote-dead-text";
const KIND: &str = "x-malote-body-kind";
const NATIVE: &str = "x-malote-native";
const NATIVE_PROTOCOL: &str = "x-malote-native-protocol";
/// Marks a probe: not a message, but the question which process consumes a partition.
const PROBE: &str = "x-malote-probe";

/// Fits into a frame of 128 KiB, RabbitMQ's default, together with the rest of the header.
const HEADERS_BYTES_MAX: usize = 120 << 10;
/// RabbitMQ's delivery count does not distinguish a worker that crashed from one that returned prefetched messages.
/// So this many returns count as one failure: messages that crash their workers still become dead letters.
const RETURNS_PER_FAILURE: u64 = 16;

/// A decoded message with its metadata.
#[derive(Clone)]
pub(super) struct InboundMessage {
    pub message: Arc<Message>,
    /// Failed deliveries before this one.
    pub failed: u32,
    /// Deliveries before this one.
    pub receives: u32,
    pub enqueued_at: Timestamp,
    pub dead: Option<(String, String)>,
    /// Not handed out before this time; keeps its position.
    pub not_before: Option<Instant>,
    /// The scheduled time, if it is still to come: the last delay queue was shorter than the rest of the delay.
    pub at: Option<Timestamp>,
}

impl InboundMessage {
    /// The metadata for a redelivery of this message: the higher counters, and the content and delay known before.
    pub(super) fn merge_redelivery(self, newer: Self) -> Self {
        let (failed, receives) = (self.failed.max(newer.failed), self.receives.max(newer.receives));
        Self { failed, receives, not_before: self.not_before, message: self.message, ..newer }
    }
}

/// What a delivery contains.
pub(super) enum DecodedDelivery {
    Message(InboundMessage),
    Probe(u64),
}

/// Metadata of a message that is published.
pub(super) struct DeliveryMetadata<'a> {
    /// None if the sender set no id.
    pub id: Option<&'a str>,
    pub enqueued_at: Timestamp,
    pub failed: u32,
    pub receives: u32,
    pub not_before: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub dead: Option<(&'a str, &'a str)>,
}

/// The properties for publishing a message.
pub(super) fn encode_properties(
    message: &Message,
    metadata: &DeliveryMetadata<'_>,
) -> Result<BasicProperties, BrokerError> {
    let mut headers = HeaderBuilder::default();
    headers.users(&message.properties)?;
    let mut properties = BasicProperties::default().with_delivery_mode(2);
    macro_rules! short {
        ($($value:expr, $with:ident, $name:literal;)+) => {$(
            if let Some(value) = headers.short($value, $name)? {
                properties = properties.$with(value);
            }
        )+};
    }
    short! {
        metadata.id, with_message_id, "x-malote-message-id";
        message.subject.as_deref(), with_type, "x-malote-subject";
        message.reply_to.as_deref(), with_reply_to, "x-malote-reply-to";
        message.correlation_id.as_deref(), with_correlation_id, "x-malote-correlation-id";
        message.content_type.as_deref(), with_content_type, "x-malote-content-type";
        message.content_encoding.as_deref(), with_content_encoding, "x-malote-content-encoding";
        message.app_id.as_deref(), with_app_id, "x-malote-app-id";
    }
    let origin = message.origin_id.as_deref().filter(|origin| Some(*origin) != metadata.id);
    for (name, value) in [
        ("x-malote-origin-id", origin),
        ("x-malote-session", message.session.as_ref().map(SessionId::as_str)),
        ("x-malote-key", message.key.as_deref()),
        ("x-malote-to", message.to.as_deref()),
        ("x-malote-reply-to-session", message.reply_to_session.as_deref()),
        ("x-malote-user-id", message.user_id.as_deref()),
        (DEDUP, message.dedup_id.as_deref()),
        (REASON, metadata.dead.map(|(reason, _)| reason)),
        (TEXT, metadata.dead.map(|(_, text)| text)),
    ] {
        if let Some(value) = value {
            headers.set(name, values::text(value), value.len())?;
        }
    }
    for (name, value) in [
        (ENQUEUED, Some(metadata.enqueued_at.0)),
        (FAILED, Some(metadata.failed.into()).filter(|&n| n > 0)),
        (RECEIVES, Some(metadata.receives.into()).filter(|&n| n > 0)),
        (NOT_BEFORE, metadata.not_before.map(|at| at.0)),
        (AT, metadata.at.map(|at| at.0)),
        (TTL, message.ttl_ms),
        (KIND, Some(message.body.kind as u64).filter(|&kind| kind > 0)),
        (NATIVE_PROTOCOL, message.native.as_ref().map(|native| native.protocol.into())),
    ] {
        if let Some(value) = value {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            headers.set(name, AMQPValue::LongLongInt(value), 8)?;
        }
    }
    if let Some(native) = &message.native {
        let bytes = AMQPValue::ByteArray(ByteArray::from(&native.bytes[..]));
        headers.set(NATIVE, bytes, native.bytes.len())?;
    }
    if let Some(ttl_ms) = message.ttl_ms {
        let left = metadata.enqueued_at.plus_ms(ttl_ms).0.saturating_sub(now_ms());
        let left = if metadata.receives == 0 { ttl_ms } else { left };
        properties = properties.with_expiration(left.to_string().into());
    }
    if message.priority > 0 {
        properties = properties.with_priority(message.priority);
    }
    Ok(properties.with_timestamp(metadata.enqueued_at.0 / 1000).with_headers(headers.table))
}

/// The properties of a probe. It expires after `lives_ms`.
pub(super) fn probe(number: u64, lives_ms: u64) -> BasicProperties {
    let mut table = FieldTable::default();
    table.insert(PROBE.into(), AMQPValue::LongLongInt(number as i64));
    BasicProperties::default().with_expiration(lives_ms.to_string().into()).with_headers(table)
}

#[derive(Default)]
struct HeaderBuilder {
    table: FieldTable,
    bytes: usize,
}

impl HeaderBuilder {
    fn set(&mut self, name: &str, value: AMQPValue, bytes: usize) -> Result<(), BrokerError> {
        let name = values::name(name).ok_or_else(|| {
            refused(
                "bad_property",
                "the name of a property is longer than 255 bytes: shorten it".into(),
            )
        })?;
        self.bytes = self.bytes.saturating_add(name.as_str().len()).saturating_add(bytes);
        if self.bytes > HEADERS_BYTES_MAX {
            let text = format!(
                "the message's properties take more than {HEADERS_BYTES_MAX} bytes, which do not fit into a frame of RabbitMQ: move them into the body"
            );
            return Err(refused("properties_too_large", text));
        }
        self.table.insert(name, value);
        Ok(())
    }

    /// Returns a value that fits into a short string; a longer one becomes a header.
    fn short(
        &mut self,
        value: Option<&str>,
        name: &'static str,
    ) -> Result<Option<ShortString>, BrokerError> {
        let Some(value) = value else { return Ok(None) };
        match ShortString::try_new(value) {
            Ok(short) => Ok(Some(short)),
            Err(_) => self.set(name, values::text(value), value.len()).map(|()| None),
        }
    }

    fn users(&mut self, properties: &Properties) -> Result<(), BrokerError> {
        for (name, value) in properties.iter() {
            if name.starts_with(OURS) || name == DEDUP || is_brokers(name) {
                let text = format!("the property name `{name}` is reserved: choose another name");
                return Err(refused("bad_property", text));
            }
            // The size is checked before the conversion, which is recursive.
            let bytes = value.size();
            if bytes > HEADERS_BYTES_MAX {
                self.set(name, AMQPValue::Void, bytes)?;
            }
            self.set(name, to_amqp(value), bytes)?;
        }
        // Headers come back sorted by name.
        let names: Vec<&str> = properties.iter().map(|(name, _)| name).collect();
        if !names.is_sorted() {
            let bytes = names.iter().map(|name| name.len() + 8).sum();
            let names: Vec<_> = names.into_iter().map(values::text).collect();
            self.set(ORDER, AMQPValue::FieldArray(FieldArray::from(names)), bytes)?;
        }
        Ok(())
    }
}

fn is_brokers(name: &str) -> bool {
    name == DEATHS || BROKERS.iter().any(|start| name.starts_with(start))
}

/// Decodes a delivery. Messages of other programs never cause an error. In a queue with sessions, the routing key is
/// the session of a message without a session header. A message without an id gets a random one, so that no two
/// messages share an inbox row; a redelivery gets a different one.
pub(super) fn decode_delivery(delivery: AmqpDelivery, by_key: bool) -> DecodedDelivery {
    let AmqpDelivery { properties, data, routing_key, .. } = delivery;
    let empty = FieldTable::default();
    let table = properties.headers().as_ref().unwrap_or(&empty);
    let number = |name: &str| table.inner().get(name).and_then(as_number);
    let text = |name: &str| table.inner().get(name).and_then(as_text);
    if let Some(number) = table.inner().get(PROBE).and_then(as_integer) {
        return DecodedDelivery::Probe(number as u64);
    }
    let short = |field: &Option<ShortString>, name: &str| {
        field.as_ref().map(ShortString::to_string).or_else(|| text(name))
    };
    let message_id = short(properties.message_id(), "x-malote-message-id");
    let session = text("x-malote-session").or_else(|| text("x-session"));
    let session = session.or_else(|| by_key.then(|| routing_key.to_string()));
    let body = Body { bytes: Bytes::from(data), kind: number(KIND).map_or(BodyKind::Bytes, kind) };
    let native = table.inner().get(NATIVE).and_then(|bytes| match bytes {
        AMQPValue::ByteArray(bytes) => Some(Native {
            protocol: u8::try_from(number(NATIVE_PROTOCOL)?).ok()?,
            bytes: Bytes::copy_from_slice(bytes.as_slice()),
        }),
        _ => None,
    });
    let expiration = properties.expiration().as_ref().and_then(|ms| ms.as_str().parse().ok());
    let message = Message {
        origin_id: text("x-malote-origin-id")
            .or_else(|| message_id.clone())
            .or_else(|| Some(system::random_id())),
        session: session.and_then(|id| SessionId::new(&id).ok()),
        key: text("x-malote-key"),
        subject: short(properties.kind(), "x-malote-subject"),
        to: text("x-malote-to"),
        reply_to: short(properties.reply_to(), "x-malote-reply-to"),
        reply_to_session: text("x-malote-reply-to-session"),
        correlation_id: short(properties.correlation_id(), "x-malote-correlation-id"),
        content_type: short(properties.content_type(), "x-malote-content-type"),
        content_encoding: short(properties.content_encoding(), "x-malote-content-encoding"),
        user_id: short(properties.user_id(), "x-malote-user-id"),
        app_id: short(properties.app_id(), "x-malote-app-id"),
        properties: users(table),
        priority: properties.priority().unwrap_or_default(),
        when: Default::default(),
        ttl_ms: number(TTL).or(expiration),
        dedup_id: text(DEDUP),
        message_id,
        body,
        native,
        ..Message::default()
    };
    let enqueued_at = number(ENQUEUED)
        .or_else(|| properties.timestamp().map(|s| s.saturating_mul(1000)))
        .unwrap_or_else(now_ms);
    let returns = number("x-delivery-count").unwrap_or_default();
    let counted = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let failed = number(FAILED).unwrap_or_default().saturating_add(returns / RETURNS_PER_FAILURE);
    let receives = number(RECEIVES).unwrap_or_default().saturating_add(returns);
    DecodedDelivery::Message(InboundMessage {
        message: Arc::new(message),
        failed: counted(failed),
        receives: counted(receives),
        enqueued_at: Timestamp(enqueued_at),
        dead: dead(table),
        not_before: number(NOT_BEFORE).and_then(due),
        at: number(AT).filter(|&at| at > now_ms()).map(Timestamp),
    })
}

/// The instant of a wall-clock time, if it is in the future.
fn due(at_ms: u64) -> Option<Instant> {
    let left = at_ms.checked_sub(now_ms()).filter(|&left| left > 0)?;
    Instant::now().checked_add(std::time::Duration::from_millis(left))
}

fn users(table: &FieldTable) -> Properties {
    let own = |name: &str| !(name.starts_with(OURS) || name == DEDUP || is_brokers(name));
    let mut rest: Vec<(String, Value)> = table
        .into_iter()
        .filter(|(name, _)| own(name.as_str()))
        .map(|(name, value)| (name.to_string(), from_amqp(value)))
        .collect();
    if let Some(AMQPValue::FieldArray(order)) = table.inner().get(ORDER) {
        let order: std::collections::HashMap<String, usize> =
            order.as_slice().iter().filter_map(as_text).zip(0..).collect();
        rest.sort_by_key(|(name, _)| order.get(name).copied().unwrap_or(usize::MAX));
    }
    rest.into_iter().collect()
}

fn dead(table: &FieldTable) -> Option<(String, String)> {
    let text = |name: &str| table.inner().get(name).and_then(as_text);
    if let Some(reason) = text(REASON) {
        return Some((reason, text(TEXT).unwrap_or_default()));
    }
    // Dead-lettered by RabbitMQ itself: expired, or dropped from a full queue.
    let reason = match text("x-first-death-reason")?.as_str() {
        "expired" => DeadReason::Expired,
        "maxlen" => DeadReason::Overflowed,
        _ => return None,
    };
    Some((reason.word().to_owned(), reason.text()))
}

fn as_integer(value: &AMQPValue) -> Option<i64> {
    Some(match *value {
        AMQPValue::ShortShortInt(v) => v.into(),
        AMQPValue::ShortShortUInt(v) => v.into(),
        AMQPValue::ShortInt(v) => v.into(),
        AMQPValue::ShortUInt(v) => v.into(),
        AMQPValue::LongInt(v) => v.into(),
        AMQPValue::LongUInt(v) => v.into(),
        AMQPValue::LongLongInt(v) => v,
        _ => return None,
    })
}

fn as_number(value: &AMQPValue) -> Option<u64> {
    as_integer(value).and_then(|number| u64::try_from(number).ok())
}

fn as_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

fn kind(number: u64) -> BodyKind {
    match number {
        1 => BodyKind::Text,
        2 => BodyKind::AmqpValue,
        3 => BodyKind::AmqpSequence,
        _ => BodyKind::Bytes,
    }
}
