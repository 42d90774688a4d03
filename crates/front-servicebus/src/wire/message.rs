//! An AMQP message made canonical (model.md, section 1), and the way back.
//!
//! The bare message stays what it was, byte for byte, but for a message-id that was absent, and for what was laid over
//! its properties since: a rule's action, properties changed by whoever settled it, the reason of a dead letter.

use bytes::{Bytes, BytesMut};
use malote_engine::{DeadLetter, Stored};
use malote_model::{Body, DeadReason, LeaseToken, Message, QueueName, Seq, Timestamp, When};
use malote_wire_amqp::message::{
    DELIVERY_ANNOTATIONS, Draft, Header, MESSAGE_ANNOTATIONS, Message as Wire, Properties,
};
use malote_wire_amqp::performative::{AmqpError, Composite, condition};
use malote_wire_amqp::types::{Map, SectionWriter, Str, Symbol, Value};

use crate::limits::HEADERS_BYTES_MAX;

use super::native::{body_of, head_bytes, keep, parts_of, put_body};
use super::session::{session_of, session_text};
use super::value::{of_model, string, text, to_model};

/// Annotations that the broker writes, or takes the meaning of: a sender's own are not kept.
const OURS: &[&str] = &[
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    PARTITION_KEY,
];
const SCHEDULED_TIME: &str = "x-opt-scheduled-enqueue-time";
/// When JMS clients want a message to be delivered, as a moment; others write a delay in milliseconds.
const DELIVERY_TIME: &str = "x-opt-delivery-time";
const DELIVERY_DELAY: &str = "x-opt-delivery-delay";
const PARTITION_KEY: &str = "x-opt-partition-key";
/// The broker's own among the annotations of a delivery.
const LOCK_TOKEN: &str = "x-opt-lock-token";
/// Header, annotations and a message id, if all of them are ours and none is unusually long.
const OWN_BYTES: usize = 320;
/// What a header says when it says nothing of priority.
const PRIORITY_DEFAULT: u8 = 4;

/// Makes a received message canonical.
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
    // Longer than a header can say: then the other tells.
    let ttl_ms = header.ttl.filter(|ms| *ms != u32::MAX || expires.is_none());
    message.ttl_ms = ttl_ms.map(u64::from).or(expires);

    let mut annotations = wire.message_annotations()?;
    if let Some(at) = due(&annotations, &now) {
        message.when = When::At(at);
    }
    let key = annotations.get(PARTITION_KEY).filter(|key| **key != Value::Null);
    message.key = key.map(|key| match key {
        // So Python's client sends one that it received: as the bytes of the text.
        Value::Binary(bytes) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| text(key)),
        _ => text(key),
    });
    annotations.0.retain(|(name, _)| name.as_str().is_none_or(|name| !OURS.contains(&name)));

    message.body = body_of(wire)?;
    // Those of a delivery end with their hop, says AMQP; the service hands them on.
    let mut of_delivery = wire.delivery_annotations()?;
    of_delivery.0.retain(|(name, _)| name.as_str() != Some(LOCK_TOKEN));
    // What is durable says nothing here; it is passed through.
    let header = header.durable.then(|| Header { durable: true, ..Header::default() });
    let kept = Draft {
        header,
        delivery_annotations: of_delivery,
        message_annotations: annotations,
        ..Draft::default()
    };
    message.native = Some(keep(wire, &kept.to_bytes(), &message.body));
    Ok(message)
}

/// When a message is to be delivered, if its sender says so.
fn due(annotations: &Map, now: impl Fn() -> Timestamp) -> Option<Timestamp> {
    let number = |name| annotations.get(name).and_then(Value::as_i64);
    let moment = |at: i64| Timestamp(u64::try_from(at).unwrap_or(0));
    let after = |ms: i64| now().plus_ms(u64::try_from(ms).unwrap_or(0));
    let at = number(SCHEDULED_TIME).or_else(|| number(DELIVERY_TIME)).map(moment);
    at.or_else(|| number(DELIVERY_DELAY).filter(|ms| *ms > 0).map(after))
}

/// Header fields that JMS selectors name and rules do not know.
pub struct JmsFields {
    /// As the header says; 4 if it says nothing.
    pub priority: u8,
    /// As the header says.
    pub durable: bool,
    /// When it was made, else when it was enqueued.
    pub created_ms: i64,
}

/// Those fields of a stored message.
pub fn jms_fields(stored: &Stored) -> JmsFields {
    let message = &stored.message;
    let parts = message.native.as_ref().and_then(parts_of);
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

/// The service's number for a message that waits or is out.
pub const ACTIVE: i32 = 0;
/// For one that was set aside.
pub const DEFERRED: i32 = 1;
/// For one that is yet to come.
pub const SCHEDULED: i32 = 2;

/// What is told of a message beside what it is.
#[derive(Debug, Clone, Default)]
pub struct Telling {
    /// Its place.
    pub seq: i64,
    /// Where it stood first, if it was brought here from elsewhere.
    pub first_seq: Option<i64>,
    /// Failed deliveries so far.
    pub failed: u32,
    /// When the lock ends.
    pub until: Option<Timestamp>,
    /// [`ACTIVE`], [`DEFERRED`] or [`SCHEDULED`], for those who look.
    pub state: Option<i32>,
    /// When it will be enqueued, if it is scheduled.
    pub due: Option<Timestamp>,
    /// It lies in another queue than the dead letters of its own.
    pub source: Option<String>,
    /// The proof of the lock, which a delivery's tag tells as well.
    pub lock: Option<LeaseToken>,
    /// How long its queue keeps messages: what it said itself counts only if that is less.
    pub ttl_ms_max: Option<u64>,
    /// Whoever looks does not want the body.
    pub without_body: bool,
}

impl Telling {
    /// Of a message that stands in this queue.
    pub fn of(queue: &QueueName, stored: &Stored, seq: Seq, failed: u32) -> Telling {
        let (among_dead, dead) = (queue.is_dead_letters(), stored.dead.as_ref());
        // A topic has no places: that of a copy is its first one in a subscription.
        let copy = queue.is_subscription().then_some(seq);
        Telling {
            seq: client_seq(seq.0),
            first_seq: stored.first_seq.or(copy).map(|first| client_seq(first.0)),
            // Among dead letters the count is the one that it died with, however often it is received there.
            failed: dead.filter(|_| among_dead).map_or(failed, |dead| dead.failed),
            // There it tells where it died; in any other queue, that it was moved there.
            source: dead.filter(|_| !among_dead).map(|dead| dead.from.to_string()),
            ..Telling::default()
        }
    }
}

/// A stored message as a client gets it.
pub fn write(stored: &Stored, telling: &Telling) -> Bytes {
    let mut out = BytesMut::new();
    put(&mut out, stored, telling);
    out.freeze()
}

/// The same, behind what stands there.
pub fn put(out: &mut BytesMut, stored: &Stored, telling: &Telling) {
    let message = &stored.message;
    let parts = message.native.as_ref().and_then(parts_of);
    let kept_bytes = message.native.as_ref().map_or(0, |native| native.bytes.len());
    out.reserve(OWN_BYTES + kept_bytes + message.body.bytes.len());
    let kept = parts.as_ref().filter(|parts| !parts.annotations.is_empty());
    let kept = kept.and_then(|parts| Wire::parse(parts.annotations.clone()).ok());
    let kept = kept.as_ref();
    let durable = kept.and_then(|wire| wire.header().ok()).is_some_and(|header| header.durable);
    put_header(out, message, telling, durable);
    let mut section = SectionWriter::begin(out, DELIVERY_ANNOTATIONS);
    if let Some(kept) = kept.and_then(|wire| wire.delivery_annotations().ok()) {
        section.put_all(&kept);
    }
    if let Some(lock) = telling.lock {
        section.put(LOCK_TOKEN, &Value::Uuid(lock.to_bytes()));
    }
    // The service writes it also when there is nothing in it, and clients tell that from none.
    section.end_whole();
    let kept = kept.and_then(|wire| wire.message_annotations().ok()).unwrap_or_default();
    put_annotations(out, stored, telling, &kept);

    // The head of a message that another protocol wrote is empty, and everything in it was laid over.
    let head = parts.as_ref().map(|parts| parts.head.clone()).unwrap_or_default();
    put_head(out, stored, &head);
    match &parts {
        // There must be one.
        _ if telling.without_body => put_body(out, &Body::default()),
        Some(parts) => parts.put_rest(out, &message.body),
        None => put_body(out, &message.body),
    }
}

fn put_header(out: &mut BytesMut, message: &Message, telling: &Telling, durable: bool) {
    let ttl_ms = [message.ttl_ms, telling.ttl_ms_max].into_iter().flatten().min();
    let ttl = ttl_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX));
    let priority = if message.priority == 0 { PRIORITY_DEFAULT } else { message.priority };
    let delivery_count = telling.failed;
    let header = Header { durable, priority, ttl, first_acquirer: false, delivery_count };
    header.encode_counted(out);
}

fn put_annotations(out: &mut BytesMut, stored: &Stored, telling: &Telling, kept: &Map) {
    let time = |at: Timestamp| Value::Timestamp(super::timestamp(at));
    let mut all = SectionWriter::begin(out, MESSAGE_ANNOTATIONS);
    all.put("x-opt-enqueued-time", &time(stored.enqueued_at));
    all.put("x-opt-sequence-number", &Value::Long(telling.seq));
    if let Some(first_seq) = telling.first_seq {
        all.put("x-opt-enqueue-sequence-number", &Value::Long(first_seq));
    }
    if let Some(until) = telling.until {
        all.put("x-opt-locked-until", &time(until));
    }
    if let Some(state) = telling.state {
        all.put("x-opt-message-state", &Value::Int(state));
    }
    // What the sender asked for stays, as in the service; a delay of another protocol is told while it lasts.
    if let Some(due) = telling.due.filter(|_| kept.get(SCHEDULED_TIME).is_none()) {
        all.put(SCHEDULED_TIME, &time(due));
    }
    if let Some(key) = &stored.message.key {
        all.put(PARTITION_KEY, &string(key));
    }
    if let Some(source) = &telling.source {
        all.put("x-opt-deadletter-source", &string(source));
    }
    all.put_all(kept);
    all.end();
}

/// A place in the queue as clients have it.
pub fn client_seq(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Properties and application properties: as received, or each anew where something in it has changed.
fn put_head(out: &mut BytesMut, stored: &Stored, head: &Bytes) {
    let message = &stored.message;
    let wire = Wire::parse(head.clone()).ok();
    let wire = wire.as_ref();
    let was = wire.and_then(|wire| wire.properties().ok()).unwrap_or_default();
    match wire.and_then(Wire::properties_encoded).filter(|_| is_unchanged(&was, message)) {
        Some(encoded) => out.extend_from_slice(encoded),
        None => {
            let mut first = Message::default();
            // What was refused when it came is not stored.
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
        let text = words_of(dead).unwrap_or_else(|| dead.text.clone());
        let reasons = [("DeadLetterReason", &dead.reason), ("DeadLetterErrorDescription", &text)];
        map.0.retain(|(key, _)| reasons.iter().all(|(name, _)| key.as_str() != Some(name)));
        for (name, reason) in reasons.into_iter().filter(|(_, reason)| !reason.is_empty()) {
            map = map.with_string(name, string(reason));
        }
    }
    Draft { application_properties: map, ..Draft::default() }.encode(out);
}

/// The service's words for what a queue itself let a message die of.
fn words_of(dead: &DeadLetter) -> Option<String> {
    let failed = dead.failed;
    let of = |reason: &DeadReason| reason.word() == dead.reason && reason.text() == dead.text;
    if of(&DeadReason::Expired) {
        return Some("The message expired and was dead lettered.".to_owned());
    }
    let count = of(&DeadReason::MaxFailed { failed, failed_max: failed });
    count.then(|| format!("Message could not be consumed after {failed} delivery attempts."))
}

/// Whether the properties, read again, would give the message that there is. Every delivery asks: so nothing is made.
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

/// The properties as received, with what has changed since.
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
