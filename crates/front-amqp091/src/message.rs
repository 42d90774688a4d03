//! Publications → messages of the engine, and deliveries → content.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use malote_engine::{DeadLetter, Delivery};
use malote_model::{
    Body, Message, Native, Properties as ModelProperties, QueueName, SessionId, Timestamp, Value,
    When,
};

use crate::limits;
use crate::names::VirtualHost;
use crate::ops::publish::asks_reply;
use crate::ops::settle::REJECTED;
use crate::refusal::precondition;
use crate::wire::content::Publication;
use crate::wire::death::Death;
use crate::wire::error::Exception;
use crate::wire::properties::{BasicProperties, Properties};
use crate::wire::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};

/// Headers with a meaning for Malote.
const SESSION: &str = "x-session";
const DELAY: &str = "x-delay";
const DEDUP: &str = "x-deduplication-header";
const DELIVERY_COUNT: &str = "x-delivery-count";
const CC: &str = "CC";
const BCC: &str = "BCC";
const PERSISTENT: u8 = 2;

/// A checked publication.
pub(crate) struct Incoming {
    pub message: Message,
    /// As the client sent it, without `BCC` and with the name for direct replies.
    pub publication: Publication,
    /// It asks for a direct reply.
    pub asks_reply: bool,
}

/// What a delivery looks like to the client.
pub(crate) struct Outgoing<'d> {
    pub exchange: Cow<'d, str>,
    pub routing_key: Cow<'d, str>,
    pub properties: Properties,
}

/// Checks a publication of `user`, who may be allowed to use the names of others. `replies` is the name for direct replies of its channel.
pub(crate) fn incoming(
    mut publication: Publication,
    (user, impersonates): (&str, bool),
    replies: Option<&str>,
    now: impl Fn() -> Timestamp,
) -> Result<Incoming, Exception> {
    let mut given = publication.properties.decode();
    let asks_reply = asks_reply(given.reply_to);
    let headers = given.headers.unwrap_or_default();
    let blind_keys = keys(headers, BCC)?;
    if let Some(claimed) = given.user_id
        && claimed != user.as_bytes()
        && !impersonates
    {
        let claimed = String::from_utf8_lossy(claimed);
        return Err(precondition(format!(
            "user_id property set to '{claimed}' but authenticated user was '{user}'"
        )));
    }
    if asks_reply && replies.is_some() || headers.get(BCC).is_some() {
        let mut kept = FieldTable::builder();
        kept.copy(headers, |name| name != BCC);
        let kept = kept.build();
        let reply_to = replies.filter(|_| asks_reply).map(str::as_bytes).or(given.reply_to);
        let headers = given.headers.map(|_| kept.as_table());
        let changed = BasicProperties { headers, reply_to, ..given }.encode();
        publication.properties = changed;
        given = publication.properties.decode();
    }
    let headers = given.headers.unwrap_or_default();
    let (mut session, mut when, mut dedup_id) = (None, When::Now, None);
    if !headers.is_empty() {
        let text = |name: &str| headers.get(name).and_then(FieldValue::as_str);
        session = text(SESSION)
            .map(SessionId::new)
            .transpose()
            .map_err(|refusal| precondition(format!("invalid header '{SESSION}': {refusal}")))?;
        dedup_id = text(DEDUP).map(str::to_owned);
        let delay = headers.get(DELAY).and_then(FieldValue::as_integer);
        if let Some(ms) = delay.and_then(|ms| u64::try_from(ms).ok()).filter(|&ms| ms > 0) {
            when = When::At(now().plus_ms(ms));
        }
    }
    let exchange = publication.publish.exchange.as_str();
    let mut native =
        BytesMut::with_capacity(1 + exchange.len() + publication.properties.as_bytes().len());
    native.put_u8(exchange.len() as u8);
    native.extend_from_slice(exchange.as_bytes());
    native.extend_from_slice(publication.properties.as_bytes());
    let text = |text: Option<&[u8]>| {
        text.and_then(|text| std::str::from_utf8(text).ok()).map(str::to_owned)
    };
    let message = Message {
        message_id: text(given.message_id).filter(|id| !id.is_empty()),
        session,
        key: Some(publication.publish.routing_key.as_str().to_owned()),
        more_keys: keys(headers, CC)?,
        blind_keys,
        relaxed: given.delivery_mode != Some(PERSISTENT),
        subject: text(given.kind),
        reply_to: text(given.reply_to),
        correlation_id: text(given.correlation_id),
        content_type: text(given.content_type),
        content_encoding: text(given.content_encoding),
        user_id: text(given.user_id),
        app_id: text(given.app_id),
        properties: model_properties(headers),
        priority: given.priority.unwrap_or(0),
        when,
        ttl_ms: given.expiration.map(expiration).transpose()?,
        dedup_id,
        body: Body { bytes: publication.body.clone(), ..Body::default() },
        native: Some(Native { protocol: Native::AMQP_091, bytes: native.freeze() }),
        ..Message::default()
    };
    Ok(Incoming { message, publication, asks_reply })
}

/// Whether a publication is accepted. Decodes everything that the server decodes; for fuzzing.
pub fn is_acceptable(publication: Publication) -> bool {
    incoming(publication, ("guest", false), Some("amq.rabbitmq.reply-to.x"), || Timestamp(0))
        .is_ok()
}

fn expiration(text: &[u8]) -> Result<u64, Exception> {
    let shown = String::from_utf8_lossy(text);
    let bad = |why: String| precondition(format!("invalid expiration '{shown}': {why}"));
    let end = shown.find(|c: char| !c.is_ascii_digit()).unwrap_or(shown.len());
    if end == 0 {
        return Err(bad("no_integer".to_owned()));
    }
    if end < shown.len() {
        return Err(bad(format!("{{leftover_string,\"{}\"}}", &shown[end..])));
    }
    let number = shown.parse::<u64>().ok().filter(|&ms| ms <= limits::DURATION_MS_MAX as u64);
    let number = number.ok_or_else(|| bad(format!("{{value_too_large,{shown}}}")))?;
    // The engine has no time to live of zero: such a message is gone with the next tick.
    Ok(number.max(1))
}

/// The routing keys in an array of a header.
fn keys(headers: TableRef<'_>, name: &str) -> Result<Vec<String>, Exception> {
    let Some(value) = headers.get(name) else { return Ok(Vec::new()) };
    let bad = || precondition(format!("invalid header '{name}': expected an array of strings"));
    let keys = value.as_array().ok_or_else(bad)?;
    keys.map(|key| key.as_str().map(str::to_owned).ok_or_else(bad)).collect()
}

pub(crate) fn model_properties(headers: TableRef<'_>) -> ModelProperties {
    headers.fields().map(|field| (field.name.to_owned(), model_value(field.value))).collect()
}

/// A value of a table in the types of the engine.
pub(crate) fn model_value(value: FieldValue<'_>) -> Value {
    match value {
        FieldValue::Bool(value) => Value::Bool(value),
        FieldValue::I8(value) => Value::I8(value),
        FieldValue::U8(value) => Value::U8(value),
        FieldValue::I16(value) => Value::I16(value),
        FieldValue::U16(value) => Value::U16(value),
        FieldValue::I32(value) => Value::I32(value),
        FieldValue::U32(value) => Value::U32(value),
        FieldValue::I64(value) => Value::I64(value),
        FieldValue::F32(value) => Value::F32(value),
        FieldValue::F64(value) => Value::F64(value),
        FieldValue::Decimal { scale, value } => {
            Value::F64(f64::from(value) / 10_f64.powi(scale.into()))
        }
        FieldValue::String(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => Value::Bytes(Bytes::copy_from_slice(bytes)),
        },
        FieldValue::Array(values) => Value::List(values.map(model_value).collect()),
        FieldValue::Timestamp(seconds) => {
            Value::Time(i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX))
        }
        FieldValue::Table(table) => {
            let fields = table.fields();
            Value::Map(fields.map(|f| (f.name.to_owned(), model_value(f.value))).collect())
        }
        FieldValue::Void => Value::Null,
        FieldValue::Bytes(bytes) => Value::Bytes(Bytes::copy_from_slice(bytes)),
    }
}

/// Headers of a message that came through another protocol.
fn table_of(properties: &ModelProperties) -> FieldTable {
    let mut table = FieldTable::builder();
    for (name, value) in properties.iter() {
        with_field_value(value, &mut |value| table.put(name, value));
    }
    table.build()
}

/// Calls `put` with the value in the types of the protocol.
pub(crate) fn with_field_value(value: &Value, put: &mut dyn FnMut(FieldValue<'_>)) {
    match value {
        Value::Null => put(FieldValue::Void),
        Value::Bool(value) => put(FieldValue::Bool(*value)),
        Value::I8(value) => put(FieldValue::I8(*value)),
        Value::I16(value) => put(FieldValue::I16(*value)),
        Value::I32(value) => put(FieldValue::I32(*value)),
        Value::I64(value) => put(FieldValue::I64(*value)),
        Value::U8(value) => put(FieldValue::U8(*value)),
        Value::U16(value) => put(FieldValue::U16(*value)),
        Value::U32(value) => put(FieldValue::U32(*value)),
        Value::U64(value) => put(FieldValue::I64(i64::try_from(*value).unwrap_or(i64::MAX))),
        Value::F32(value) => put(FieldValue::F32(*value)),
        Value::F64(value) => put(FieldValue::F64(*value)),
        Value::String(text) => put(FieldValue::String(text.as_bytes())),
        Value::Bytes(bytes) => put(FieldValue::Bytes(bytes)),
        Value::Time(ms) => put(FieldValue::Timestamp(u64::try_from(ms / 1000).unwrap_or(0))),
        Value::Uuid(bytes) => {
            let hex = data_encoding::HEXLOWER.encode(bytes);
            let text = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
            put(FieldValue::String(text.as_bytes()));
        }
        Value::List(items) => {
            let mut array = ArrayBuilder::default();
            items.iter().for_each(|item| with_field_value(item, &mut |value| array.put(value)));
            put(FieldValue::Array(array.values()));
        }
        Value::Map(fields) => {
            let mut table = FieldTable::builder();
            for (name, item) in fields {
                with_field_value(item, &mut |value| table.put(name, value));
            }
            put(FieldValue::Table(table.build().as_table()));
        }
    }
}

/// The exchange and the property section of a message that came through this protocol.
fn native(message: &Message) -> Option<(&str, Properties)> {
    let native = message.native.as_ref().filter(|native| native.protocol == Native::AMQP_091)?;
    let length = usize::from(*native.bytes.first()?);
    let exchange = std::str::from_utf8(native.bytes.get(1..1 + length)?).ok()?;
    Some((exchange, Properties::parse(native.bytes.slice(1 + length..))?))
}

/// The content of a delivery from `queue`.
pub(crate) fn outgoing<'d>(
    host: &VirtualHost,
    queue: &QueueName,
    delivery: &'d Delivery,
    counts_deliveries: bool,
) -> Outgoing<'d> {
    let stored = &delivery.stored;
    let message = &stored.message;
    let (sent_to, mut properties) = match native(message) {
        Some((exchange, properties)) => (Cow::Borrowed(exchange), properties),
        None => (Cow::Borrowed(""), foreign(message, stored.sent_at)),
    };
    // A property that a receiver of another protocol changed is in the message only.
    if stored.depth > 1 && message.native.is_some() {
        let headers = properties.decode().headers.unwrap_or_default();
        if model_properties(headers) != message.properties {
            let table = table_of(&message.properties);
            let headers = Some(table.as_table());
            properties = BasicProperties { headers, ..properties.decode() }.encode();
        }
    }
    if !stored.deaths.is_empty() {
        properties = with_deaths(host, &properties, &sent_to, message, &stored.deaths);
    }
    if counts_deliveries && delivery.receives > 1 {
        let given = properties.decode();
        let mut table = FieldTable::builder();
        table.copy(given.headers.unwrap_or_default(), |name| name != DELIVERY_COUNT);
        let table = table.with(DELIVERY_COUNT, i64::from(delivery.receives - 1)).build();
        properties = BasicProperties { headers: Some(table.as_table()), ..given }.encode();
    }
    let exchange = match &stored.routed_by {
        Some(topic) => Cow::Owned(host.shown_exchange(topic.as_str()).into_owned()),
        None => sent_to,
    };
    let routing_key = match &message.key {
        Some(key) => Cow::Borrowed(key.as_str()),
        None => Cow::Owned(host.shown(queue.as_str()).into_owned()),
    };
    Outgoing { exchange, routing_key, properties }
}

/// Properties of a message that came through another protocol.
fn foreign(message: &Message, sent_at: Timestamp) -> Properties {
    fn bytes(text: &Option<String>) -> Option<&[u8]> {
        text.as_deref().map(str::as_bytes)
    }
    let mut headers = message.properties.clone();
    if let Some(session) = &message.session {
        headers.set(SESSION, Value::String(session.as_str().to_owned()));
    }
    let table = table_of(&headers);
    BasicProperties {
        content_type: bytes(&message.content_type),
        content_encoding: bytes(&message.content_encoding),
        headers: (!table.is_empty()).then(|| table.as_table()),
        delivery_mode: Some(PERSISTENT),
        priority: (message.priority > 0).then_some(message.priority),
        correlation_id: bytes(&message.correlation_id),
        reply_to: bytes(&message.reply_to),
        message_id: bytes(&message.message_id),
        timestamp: Some(sent_at.0 / 1000),
        kind: bytes(&message.subject),
        app_id: bytes(&message.app_id),
        ..BasicProperties::default()
    }
    .encode()
}

/// The properties of a dead letter: `x-death` and its companions, and no expiration.
fn with_deaths(
    host: &VirtualHost,
    properties: &Properties,
    sent_to: &str,
    message: &Message,
    deaths: &[DeadLetter],
) -> Properties {
    let given = properties.decode();
    let mut headers = FieldTable::builder();
    // A new routing key replaces all keys.
    let rerouted = message.more_keys.is_empty();
    headers.copy(given.headers.unwrap_or_default(), |name| name != CC || !rerouted);
    let mut headers = headers.build();
    let mut expiration = given.expiration.and_then(|text| std::str::from_utf8(text).ok());
    for death in deaths.iter().rev() {
        let Some(reason) = reason(&death.reason) else { continue };
        let queue = host.shown(death.from.as_str());
        let exchange = match &death.topic {
            Some(topic) => host.shown_exchange(topic.as_str()),
            None => Cow::Borrowed(sent_to),
        };
        let keys: Vec<&str> = death.keys.iter().map(String::as_str).collect();
        let event = Death {
            reason,
            queue: &queue,
            exchange: &exchange,
            routing_keys: &keys,
            time: death.first_at.0 / 1000,
            original_expiration: expiration.take(),
            count: death.count.max(1),
        };
        headers = event.record(headers.as_table());
    }
    BasicProperties { headers: Some(headers.as_table()), expiration: None, ..given }.encode()
}

/// RabbitMQ's word for why a message was dead-lettered; `None` for reasons that it does not have.
fn reason(word: &str) -> Option<&'static str> {
    Some(match word {
        "TTLExpiredException" => "expired",
        "MaxLengthExceeded" => "maxlen",
        "MaxDeliveryCountExceeded" => "delivery_limit",
        "DeadLetterCycle" | "DeadLetterUnroutable" | "Damaged" => return None,
        _ => REJECTED,
    })
}
