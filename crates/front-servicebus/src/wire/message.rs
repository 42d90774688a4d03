//! AMQP messages ↔ messages of the model.
//!
//! The bare message is preserved byte for byte, with these exceptions: a missing message-id is added, and changes to
//! properties are applied (rule actions, properties modified by a disposition, the reason of a dead letter).

use bytes::{Bytes, BytesMut};
use malote_engine::{DeadLetter, Stored};
use malote_model::{Body, DeadReason, LeaseToken, Message, QueueName, Seq, Timestamp, When};
use malote_wire_amqp::message::{
    DELIVERY_ANNOTATIONS, Draft, Header, MESSAGE_ANNOTATIONS, Message as Wire, Properties,
};
use malote_wire_amqp::performative::{AmqpError, Composite, condition};
use malote_wire_amqp::types::{Map, SectionWriter, Str, Symbol, Value};

use crate::limits::HEADERS_BYTES_MAX;

use super::native::{body_of, decode_native, encode_native, head_bytes, put_body};
use super::session::{session_of, session_text};
use super::value::{of_model, string, text, to_model};

/// Annotations that the broker sets. Those of the sender are dropped.
const BROKER_ANNOTATIONS: &[&str] = &[
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    PARTITION_KEY,
];
const SCHEDULED_TIME: &str = "x-opt-scheduled-enqueue-time";
/// Delivery time of JMS clients, as a timestamp; others send a delay in milliseconds.
const DELIVERY_TIME: &str = "x-opt-delivery-time";
const DELIVERY_DELAY: &str = "x-opt-delivery-delay";
const PARTITION_KEY: &str = "x-opt-partition-key";
/// The delivery annotation that the broker sets.
const LOCK_TOKEN: &str = "x-opt-lock-token";
/// Estimated bytes of header, annotations and message id.
const OWN_BYTES: usize = 320;
/// Priority if the header has none.
const PRIORITY_DEFAULT: u8 = 4;

/// Converts a received message.
pub fn read(wire: &Wire, now: impl Fn() -> Timestamp) -> Result<Message, AmqpError> {
    let mut message = Message::default();
    let headers_bytes = head_bytes(wire);
    if headers_bytes > HEADERS_BYTES_MAX {
        let text =
            format!("The headers have {headers_bytes} bytes; the limit is {HEADERS_BYTES_MAX}.");
        return Err(AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text));
    }
    let properties = wire.properties()?;
    read_properties(&properties, &mut message)?;
    for (name, value) in &wire.application_properties()?.0 {
        message.properties.set(text(name), to_model(value));
    }
    let header = wire.header()?;
    message.priority = match header.priority {
        PRIORITY_DEFAULT => 0,
        priority => priority,
    };
    let expires = properties
        .absolute_expiry_time
        .map(|at| u64::try_from(at.0).unwrap_or(0).saturating_sub(now().0));
    // The header cannot express longer times, so the expiry time counts.
    let ttl_ms = header.ttl.filter(|ms| *ms != u32::MAX || expires.is_none());
    message.ttl_ms = ttl_ms.map(u64::from).or(expires);

    let mut annotations = wire.message_annotations()?;
    if let Some(at) = due(&annotations, &now) {
        message.when = When::At(at);
    }
    let key = annotations.get(PARTITION_KEY).filter(|key| **key != Value::Null);
    message.key = key.map(|key| match key {
        // The Python client sends back a received key as bytes.
        Value::Binary(bytes) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| text(key)),
        _ => text(key),
    });
    annotations
        .0
        .retain(|(name, _)| name.as_str().is_none_or(|name| !BROKER_ANNOTATIONS.contains(&name)));

    message.body = body_of(wire)?;
    // By the AMQP specification, delivery annotations end at the next hop. The service passes them on.
    let mut of_delivery = wire.delivery_annotations()?;
    of_delivery.0.retain(|(name, _)| name.as_str() != Some(LOCK_TOKEN));
    // `durable` has no effect, but is passed on.
    let header = header.durable.then(|| Header { durable: true, ..Header::default() });
    let kept = Draft {
        header,
        delivery_annotations: of_delivery,
        message_annotations: annotations,
        ..Draft::default()
    };
    message.native = Some(encode_native(wire, &kept.to_bytes(), &message.body));
    Ok(message)
}

/// The delivery time that the sender asked for.
fn due(annotations: &Map, now: impl Fn() -> Timestamp) -> Option<Timestamp> {
    let number = |name| annotations.get(name).and_then(Value::as_i64);
    let moment = |at: i64| Timestamp(u64::try_from(at).unwrap_or(0));
    let after = |ms: i64| now().plus_ms(u64::try_from(ms).unwrap_or(0));
    let at = number(SCHEDULED_TIME).or_else(|| number(DELIVERY_TIME)).map(moment);
    at.or_else(|| number(DELIVERY_DELAY).filter(|ms| *ms > 0).map(after))
}

/// Header fields that JMS selectors can use and rules cannot.
pub struct JmsFields {
    /// From the header; 4 by default.
    pub priority: u8,
    pub durable: bool,
    /// Creation time, or else the time of the enqueue.
    pub created_ms: i64,
}

pub fn jms_fields(stored: &Stored) -> JmsFields {
    let message = &stored.message;
    let parts = message.native.as_ref().and_then(decode_native);
    let parts = parts.as_ref();
    let kept = parts.and_then(|parts| Wire::parse(parts.annotations.clone()).ok());
    let header = kept.and_then(|wire| wire.header().ok());
    let head = parts.and_then(|parts| Wire::parse(parts.head.clone()).ok());
    let properties = head.and_then(|wire| wire.properties().ok());
    let created = properties.and_then(|properties| properties.creation_time);
    JmsFields {
        priority: if message.priority == 0 { PRIORITY_DEFAULT } else { message.priority },
        durable: header.is_some_and(|header| header.durable),
        created_ms: created.map_or_else(|| super::timestamp(stored.enqueued_at), |at| at.0),
    }
}

fn read_properties(properties: &Properties, message: &mut Message) -> Result<(), AmqpError> {
    let own = |text: &Option<Str>| text.as_ref().map(|text| text.as_str().to_owned());
    let symbol = |text: &Option<Symbol>| text.as_ref().map(|text| text.as_str().to_owned());
    let id = |value: &Option<Value>| value.as_ref().filter(|v| **v != Value::Null).map(text);
    message.message_id = id(&properties.message_id);
    message.correlation_id = id(&properties.correlation_id);
    message.to = own(&properties.to);
    message.subject = own(&properties.subject);
    message.reply_to = own(&properties.reply_to);
    message.reply_to_session = own(&properties.reply_to_group_id);
    message.content_type = symbol(&properties.content_type);
    message.content_encoding = symbol(&properties.content_encoding);
    message.user_id =
        properties.user_id.as_ref().map(|id| String::from_utf8_lossy(id).into_owned());
    message.session = match properties.group_id.as_deref() {
        None => None,
        Some(id) => Some(
            session_of(id)
                .map_err(|refusal| AmqpError::new(condition::INVALID_FIELD, refusal.to_string()))?,
        ),
    };
    Ok(())
}

/// State of a message that is ready or locked.
pub const ACTIVE: i32 = 0;
/// State of a deferred message.
pub const DEFERRED: i32 = 1;
/// State of a scheduled message.
pub const SCHEDULED: i32 = 2;

/// What a delivery says about a message, besides its content.
#[derive(Debug, Clone, Default)]
pub struct DeliveryInfo {
    pub seq: i64,
    /// The first sequence number, if the message was moved here.
    pub first_seq: Option<i64>,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When the lock expires.
    pub until: Option<Timestamp>,
    /// [`ACTIVE`], [`DEFERRED`] or [`SCHEDULED`], for peeked messages.
    pub state: Option<i32>,
    /// When a scheduled message will be enqueued.
    pub due: Option<Timestamp>,
    /// The queue that dead-lettered the message, if it is not in that queue's own dead letters.
    pub source: Option<String>,
    /// The lock token; the delivery tag contains it as well.
    pub lock: Option<LeaseToken>,
    /// Time-to-live of the queue. The shorter of this and the message's own counts.
    pub ttl_ms_max: Option<u64>,
    /// Omit the body.
    pub without_body: bool,
}

impl DeliveryInfo {
    /// For a message in this queue.
    pub fn of(queue: &QueueName, stored: &Stored, seq: Seq, failed: u32) -> DeliveryInfo {
        let (among_dead, dead) = (queue.is_dead_letters(), stored.dead.as_ref());
        // A topic has no sequence numbers, so a copy's first one is that in its subscription.
        let copy = queue.is_subscription().then_some(seq);
        DeliveryInfo {
            seq: client_seq(seq.0),
            first_seq: stored.first_seq.or(copy).map(|first| client_seq(first.0)),
            // Dead letters keep the count they were dead-lettered with.
            failed: dead.filter(|_| among_dead).map_or(failed, |dead| dead.failed),
            // Inside the dead-letter queue itself, the source is implied.
            source: dead.filter(|_| !among_dead).map(|dead| dead.from.to_string()),
            ..DeliveryInfo::default()
        }
    }
}

/// Encodes a stored message for a client.
pub fn write(stored: &Stored, info: &DeliveryInfo) -> Bytes {
    let mut out = BytesMut::new();
    put(&mut out, stored, info);
    out.freeze()
}

/// Appends the encoded message to `out`.
pub fn put(out: &mut BytesMut, stored: &Stored, info: &DeliveryInfo) {
    let message = &stored.message;
    let parts = message.native.as_ref().and_then(decode_native);
    let kept_bytes = message.native.as_ref().map_or(0, |native| native.bytes.len());
    out.reserve(OWN_BYTES + kept_bytes + message.body.bytes.len());
    let kept = parts.as_ref().filter(|parts| !parts.annotations.is_empty());
    let kept = kept.and_then(|parts| Wire::parse(parts.annotations.clone()).ok());
    let kept = kept.as_ref();
    let durable = kept.and_then(|wire| wire.header().ok()).is_some_and(|header| header.durable);
    put_header(out, message, info, durable);
    let mut section = SectionWriter::begin(out, DELIVERY_ANNOTATIONS);
    if let Some(kept) = kept.and_then(|wire| wire.delivery_annotations().ok()) {
        section.put_all(&kept);
    }
    if let Some(lock) = info.lock {
        section.put(LOCK_TOKEN, &Value::Uuid(lock.to_bytes()));
    }
    // The service writes this section even if it is empty, and clients notice the difference.
    section.end_whole();
    let kept = kept.and_then(|wire| wire.message_annotations().ok()).unwrap_or_default();
    put_annotations(out, stored, info, &kept);

    // The head is empty if another protocol wrote the message.
    let head = parts.as_ref().map(|parts| parts.head.clone()).unwrap_or_default();
    put_head(out, stored, &head);
    match &parts {
        // A message must have a body section.
        _ if info.without_body => put_body(out, &Body::default()),
        Some(parts) => parts.put_body_and_footer(out, &message.body),
        None => put_body(out, &message.body),
    }
}

fn put_header(out: &mut BytesMut, message: &Message, info: &DeliveryInfo, durable: bool) {
    let ttl_ms = [message.ttl_ms, info.ttl_ms_max].into_iter().flatten().min();
    let ttl = ttl_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX));
    let priority = if message.priority == 0 { PRIORITY_DEFAULT } else { message.priority };
    let delivery_count = info.failed;
    let header = Header { durable, priority, ttl, first_acquirer: false, delivery_count };
    header.encode_counted(out);
}

fn put_annotations(out: &mut BytesMut, stored: &Stored, info: &DeliveryInfo, kept: &Map) {
    let time = |at: Timestamp| Value::Timestamp(super::timestamp(at));
    let mut all = SectionWriter::begin(out, MESSAGE_ANNOTATIONS);
    all.put("x-opt-enqueued-time", &time(stored.enqueued_at));
    all.put("x-opt-sequence-number", &Value::Long(info.seq));
    if let Some(first_seq) = info.first_seq {
        all.put("x-opt-enqueue-sequence-number", &Value::Long(first_seq));
    }
    if let Some(until) = info.until {
        all.put("x-opt-locked-until", &time(until));
    }
    if let Some(state) = info.state {
        all.put("x-opt-message-state", &Value::Int(state));
    }
    // As in the service, the sender's own value stays. A delay set by another protocol is shown until it ends.
    if let Some(due) = info.due.filter(|_| kept.get(SCHEDULED_TIME).is_none()) {
        all.put(SCHEDULED_TIME, &time(due));
    }
    if let Some(key) = &stored.message.key {
        all.put(PARTITION_KEY, &string(key));
    }
    if let Some(source) = &info.source {
        all.put("x-opt-deadletter-source", &string(source));
    }
    all.put_all(kept);
    all.end();
}

/// A sequence number for clients.
pub fn client_seq(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Properties and application properties: each section as received, or encoded again if it has changed.
fn put_head(out: &mut BytesMut, stored: &Stored, head: &Bytes) {
    let message = &stored.message;
    let wire = Wire::parse(head.clone()).ok();
    let wire = wire.as_ref();
    let was = wire.and_then(|wire| wire.properties().ok()).unwrap_or_default();
    match wire.and_then(Wire::properties_encoded).filter(|_| is_unchanged(&was, message)) {
        Some(encoded) => out.extend_from_slice(encoded),
        None => {
            let mut first = Message::default();
            // The properties were valid when the message was received.
            let _ = read_properties(&was, &mut first);
            changed_properties(was, &first, message).encode(out);
        }
    }

    let was = wire.and_then(|wire| wire.application_properties().ok()).unwrap_or_default();
    let dead = stored.dead.as_ref();
    let same = dead.is_none()
        && was.0.len() == message.properties.len()
        && message.properties.iter().zip(&was.0).all(|((name, value), (key, kept))| {
            key.as_str() == Some(name) && to_model(kept) == *value
        });
    if same {
        if let Some(encoded) = wire.and_then(Wire::application_properties_encoded) {
            out.extend_from_slice(encoded);
        }
        return;
    }
    let mut map = Map::default();
    for (name, value) in message.properties.iter() {
        let kept = was.get(name).filter(|kept| to_model(kept) == *value).cloned();
        map = map.with_string(name, kept.unwrap_or_else(|| of_model(value)));
    }
    if let Some(dead) = dead {
        let text = dead_letter_text(dead).unwrap_or_else(|| dead.text.clone());
        let reasons = [("DeadLetterReason", &dead.reason), ("DeadLetterErrorDescription", &text)];
        map.0.retain(|(key, _)| reasons.iter().all(|(name, _)| key.as_str() != Some(name)));
        for (name, reason) in reasons.into_iter().filter(|(_, reason)| !reason.is_empty()) {
            map = map.with_string(name, string(reason));
        }
    }
    Draft { application_properties: map, ..Draft::default() }.encode(out);
}

/// The service's text for messages that the queue itself dead-lettered.
fn dead_letter_text(dead: &DeadLetter) -> Option<String> {
    let failed = dead.failed;
    let of = |reason: &DeadReason| reason.word() == dead.reason && reason.text() == dead.text;
    if of(&DeadReason::Expired) {
        return Some("The message expired and was dead lettered.".to_owned());
    }
    let count = of(&DeadReason::MaxFailed { failed, failed_max: failed });
    count.then(|| format!("Message could not be consumed after {failed} delivery attempts."))
}

/// Whether the received properties still match the message. Runs for every delivery, so it does not allocate.
fn is_unchanged(was: &Properties, message: &Message) -> bool {
    let bytes =
        |was: Option<&Bytes>, now: Option<&str>| was.map(|was| &was[..]) == now.map(str::as_bytes);
    let same = |was: &Option<Str>, now: &Option<String>| {
        bytes(was.as_ref().map(Str::as_bytes), now.as_deref())
    };
    let symbol = |was: &Option<Symbol>, now: &Option<String>| {
        bytes(was.as_ref().map(Symbol::as_bytes), now.as_deref())
    };
    let id = |was: &Option<Value>, now: &Option<String>| match (was, now) {
        (None | Some(Value::Null), now) => now.is_none(),
        (Some(_), None) => false,
        (Some(Value::String(was)), Some(now)) => was.as_bytes() == now.as_bytes(),
        (Some(was), Some(now)) => text(was) == *now,
    };
    let user = was.user_id.as_ref().map(|id| String::from_utf8_lossy(id));
    id(&was.message_id, &message.message_id)
        && id(&was.correlation_id, &message.correlation_id)
        && same(&was.to, &message.to)
        && same(&was.subject, &message.subject)
        && same(&was.reply_to, &message.reply_to)
        && same(&was.reply_to_group_id, &message.reply_to_session)
        && symbol(&was.content_type, &message.content_type)
        && symbol(&was.content_encoding, &message.content_encoding)
        && user.as_deref() == message.user_id.as_deref()
        && bytes(
            was.group_id.as_ref().map(Str::as_bytes),
            message.session.as_ref().map(session_text),
        )
}

/// The received properties with later changes applied.
fn changed_properties(mut is: Properties, first: &Message, message: &Message) -> Properties {
    let shown = |text: &Option<String>| text.as_deref().map(Str::from);
    let symbol = |text: &Option<String>| text.as_deref().map(Symbol::lossy);
    if first.message_id != message.message_id {
        is.message_id = message.message_id.as_deref().map(string);
    }
    if first.correlation_id != message.correlation_id {
        is.correlation_id = message.correlation_id.as_deref().map(string);
    }
    if first.user_id != message.user_id {
        is.user_id = message.user_id.clone().map(Bytes::from);
    }
    if first.session != message.session {
        is.group_id = message.session.as_ref().map(|session| Str::from(session_text(session)));
    }
    let texts = [
        (&mut is.to, &first.to, &message.to),
        (&mut is.subject, &first.subject, &message.subject),
        (&mut is.reply_to, &first.reply_to, &message.reply_to),
        (&mut is.reply_to_group_id, &first.reply_to_session, &message.reply_to_session),
    ];
    for (field, first, now) in texts {
        if first != now {
            *field = shown(now);
        }
    }
    let symbols = [
        (&mut is.content_type, &first.content_type, &message.content_type),
        (&mut is.content_encoding, &first.content_encoding, &message.content_encoding),
    ];
    for (field, first, now) in symbols {
        if first != now {
            *field = symbol(now);
        }
    }
    is
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
