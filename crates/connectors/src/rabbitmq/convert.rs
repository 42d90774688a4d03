//! A message as AMQP 0-9-1 carries it, and back.
//!
//! Basic properties where the protocol has them; `x-malote-…` headers for the rest, for what is too long for a short
//! string, and for what a broker counts. The user's own properties are headers under their own names. `user-id` is a
//! header of ours: RabbitMQ takes only the login's name there. What messages of other programs lack has a default.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery as Incoming;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, ShortString};
use malote_engine::chance::Chance;
use malote_model::{
    Body, BodyKind, DeadReason, Message, Native, Properties, SessionId, Timestamp, Value,
};
use tokio::time::Instant;

use super::values::{self, from_amqp, to_amqp};
use super::{new_id, refused, wall_ms};
use crate::broker::BrokerError;

/// Headers of ours begin like this; a user's may not.
const OURS: &str = "x-malote-";
/// Headers that the broker writes about deliveries and deaths.
const BROKERS: [&str; 4] =
    ["x-delivery-count", "x-acquired-count", "x-first-death-", "x-last-death-"];
const DEATHS: &str = "x-death";
/// As plugins for de-duplication spell it.
const DEDUP: &str = "x-deduplication-header";

const ORDER: &str = "x-malote-order";
const ENQUEUED: &str = "x-malote-enqueued-at";
const FAILED: &str = "x-malote-failed";
const RECEIVES: &str = "x-malote-receives";
/// Not before this time, in its place.
const NOT_BEFORE: &str = "x-malote-not-before";
/// Not before this time, and in no place until then.
const AT: &str = "x-malote-at";
const TTL: &str = "x-malote-ttl";
const REASON: &str = "x-malote-dead-reason";
const TEXT: &str = "x-malote-dead-text";
const KIND: &str = "x-malote-body-kind";
const NATIVE: &str = "x-malote-native";
const NATIVE_PROTOCOL: &str = "x-malote-native-protocol";
/// Not a message: the question of who receives from a partition.
const PROBE: &str = "x-malote-probe";

/// What frames of 128 KiB, RabbitMQ's default, have room for beside the rest of the header.
const HEADERS_BYTES_MAX: usize = 120 << 10;
/// RabbitMQ counts every return of a message alike: of a worker that vanished, and of one that gave back what it had
/// fetched ahead. So many returns count as one failure: whoever kills its workers ends among the dead letters all the
/// same.
const RETURNS_PER_FAILURE: u64 = 16;

/// A message that came, and what is known of it.
#[derive(Clone)]
pub(super) struct Arrived {
    pub message: Arc<Message>,
    /// Failed deliveries so far.
    pub failed: u32,
    /// Grants so far.
    pub receives: u32,
    pub enqueued_at: Timestamp,
    pub dead: Option<(String, String)>,
    /// It keeps its place and is not handed out before.
    pub not_before: Option<Instant>,
    /// It was to come at this time; the last step of its way may have been shorter.
    pub at: Option<Timestamp>,
}

impl Arrived {
    /// The same message come again, with what was known of it before.
    pub(super) fn again(self, newer: Self) -> Self {
        let (failed, receives) = (self.failed.max(newer.failed), self.receives.max(newer.receives));
        Self { failed, receives, not_before: self.not_before, message: self.message, ..newer }
    }
}

/// What came over a channel.
pub(super) enum Came {
    Message(Arrived),
    Probe(u64),
}

/// What goes with a message beside its own fields.
pub(super) struct Marks<'a> {
    /// None if whoever sent it gave none.
    pub id: Option<&'a str>,
    pub enqueued_at: Timestamp,
    pub failed: u32,
    pub receives: u32,
    pub not_before: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub dead: Option<(&'a str, &'a str)>,
}

/// The properties under which a message is published.
pub(super) fn outgoing(
    message: &Message,
    marks: &Marks<'_>,
) -> Result<BasicProperties, BrokerError> {
    let mut headers = Headers::default();
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
        marks.id, with_message_id, "x-malote-message-id";
        message.subject.as_deref(), with_type, "x-malote-subject";
        message.reply_to.as_deref(), with_reply_to, "x-malote-reply-to";
        message.correlation_id.as_deref(), with_correlation_id, "x-malote-correlation-id";
        message.content_type.as_deref(), with_content_type, "x-malote-content-type";
        message.content_encoding.as_deref(), with_content_encoding, "x-malote-content-encoding";
        message.app_id.as_deref(), with_app_id, "x-malote-app-id";
    }
    let origin = message.origin_id.as_deref().filter(|origin| Some(*origin) != marks.id);
    for (name, value) in [
        ("x-malote-origin-id", origin),
        ("x-malote-session", message.session.as_ref().map(SessionId::as_str)),
        ("x-malote-key", message.key.as_deref()),
        ("x-malote-to", message.to.as_deref()),
        ("x-malote-reply-to-session", message.reply_to_session.as_deref()),
        ("x-malote-user-id", message.user_id.as_deref()),
        (DEDUP, message.dedup_id.as_deref()),
        (REASON, marks.dead.map(|(reason, _)| reason)),
        (TEXT, marks.dead.map(|(_, text)| text)),
    ] {
        if let Some(value) = value {
            headers.set(name, values::text(value), value.len())?;
        }
    }
    for (name, value) in [
        (ENQUEUED, Some(marks.enqueued_at.0)),
        (FAILED, Some(marks.failed.into()).filter(|&n| n > 0)),
        (RECEIVES, Some(marks.receives.into()).filter(|&n| n > 0)),
        (NOT_BEFORE, marks.not_before.map(|at| at.0)),
        (AT, marks.at.map(|at| at.0)),
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
        let left = marks.enqueued_at.plus_ms(ttl_ms).0.saturating_sub(wall_ms());
        let left = if marks.receives == 0 { ttl_ms } else { left };
        properties = properties.with_expiration(left.to_string().into());
    }
    if message.priority > 0 {
        properties = properties.with_priority(message.priority);
    }
    Ok(properties.with_timestamp(marks.enqueued_at.0 / 1000).with_headers(headers.table))
}

/// What asks who receives from the partition of a session. It does not outlive its question.
pub(super) fn probe(number: u64, lives_ms: u64) -> BasicProperties {
    let mut table = FieldTable::default();
    table.insert(PROBE.into(), AMQPValue::LongLongInt(number as i64));
    BasicProperties::default().with_expiration(lives_ms.to_string().into()).with_headers(table)
}

#[derive(Default)]
struct Headers {
    table: FieldTable,
    bytes: usize,
}

impl Headers {
    fn set(&mut self, name: &str, value: AMQPValue, bytes: usize) -> Result<(), BrokerError> {
        let name = values::name(name).ok_or_else(|| {
            refused("bad_property", "a property's name has more than 255 bytes".into())
        })?;
        self.bytes = self.bytes.saturating_add(name.as_str().len()).saturating_add(bytes);
        if self.bytes > HEADERS_BYTES_MAX {
            let text = format!(
                "the message's properties take more than {HEADERS_BYTES_MAX} bytes, which RabbitMQ has no frame for: put them into the body"
            );
            return Err(refused("properties_too_large", text));
        }
        self.table.insert(name, value);
        Ok(())
    }

    /// A field of the protocol, or a header if it is too long for one.
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
                let text = format!("the property `{name}` has a name that is reserved");
                return Err(refused("bad_property", text));
            }
            // Counted before it is translated: what nests too deep has no end.
            let bytes = value.size();
            if bytes > HEADERS_BYTES_MAX {
                self.set(name, AMQPValue::Void, bytes)?;
            }
            self.set(name, to_amqp(value), bytes)?;
        }
        // Tables are read in the order of their names.
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

/// What came, of whomever. Nothing that can be in a message is an error. In a queue with sessions, the key that other
/// programs route by is the session unless they say another. A message without any id gets one, so that no two share a
/// row of an inbox; it is another one when the message comes again.
pub(super) fn incoming(delivery: Incoming, by_key: bool, chance: &Chance) -> Came {
    let Incoming { properties, data, routing_key, .. } = delivery;
    let empty = FieldTable::default();
    let table = properties.headers().as_ref().unwrap_or(&empty);
    let number = |name: &str| table.inner().get(name).and_then(as_number);
    let text = |name: &str| table.inner().get(name).and_then(as_text);
    if let Some(number) = table.inner().get(PROBE).and_then(as_integer) {
        return Came::Probe(number as u64);
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
            .or_else(|| Some(new_id(chance))),
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
    };
    let enqueued_at = number(ENQUEUED)
        .or_else(|| properties.timestamp().map(|s| s.saturating_mul(1000)))
        .unwrap_or_else(wall_ms);
    let returns = number("x-delivery-count").unwrap_or_default();
    let counted = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let failed = number(FAILED).unwrap_or_default().saturating_add(returns / RETURNS_PER_FAILURE);
    let receives = number(RECEIVES).unwrap_or_default().saturating_add(returns);
    Came::Message(Arrived {
        message: Arc::new(message),
        failed: counted(failed),
        receives: counted(receives),
        enqueued_at: Timestamp(enqueued_at),
        dead: dead(table),
        not_before: number(NOT_BEFORE).and_then(due),
        at: number(AT).filter(|&at| at > wall_ms()).map(Timestamp),
    })
}

/// The moment of a wall-clock time, if it is still to come.
fn due(at_ms: u64) -> Option<Instant> {
    let left = at_ms.checked_sub(wall_ms()).filter(|&left| left > 0)?;
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
    // The broker's own: it expired, or its queue was full.
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
