//! Converts messages between Malote's model and Service Bus.

use bytes::Bytes;
use malote_model::{
    Body as ModelBody, BodyKind, LeaseToken, Message as ModelMessage, Properties, Seq, SessionId,
    Timestamp, Value as ModelValue, When,
};
use malote_wire_amqp::types::{Map, Str, Value};

use super::error::Result;
use super::settle::{DESCRIPTION, REASON};
use super::{Message, Received};
use crate::broker::Delivery;

/// The message for the service. Fields that the service does not have are dropped.
pub(super) fn to_service_bus(message: &ModelMessage, id: String, now: Timestamp) -> Message {
    let scheduled_ms = match message.when {
        When::Now => None,
        When::Delay(ms) => Some(now.plus_ms(ms)),
        When::At(at) => Some(at),
    };
    let properties = message.properties.iter();
    let properties =
        properties.map(|(name, value)| (Value::String(Str::from(name)), from_model(value)));
    Message {
        message_id: Some(id),
        session_id: message.session.as_ref().map(|session| session.as_str().to_owned()),
        correlation_id: message.correlation_id.clone(),
        subject: message.subject.clone(),
        to: message.to.clone(),
        reply_to: message.reply_to.clone(),
        reply_to_session_id: message.reply_to_session.clone(),
        content_type: message.content_type.clone(),
        ttl_ms: message.ttl_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
        scheduled_ms: scheduled_ms.map(|at| i64::try_from(at.0).unwrap_or(i64::MAX)),
        properties: Map(properties.collect()),
        ..Message::new(message.body.bytes.clone())
    }
}

/// The delivery of a received message. The service counts failed deliveries only.
pub(super) fn delivery(received: &Received, lease: LeaseToken) -> Result<Delivery> {
    let of = received.properties()?;
    let text = |text: Option<Str>| text.map(|text| text.as_str().to_owned());
    let mut properties = Properties::new();
    for (name, value) in &received.application_properties()?.0 {
        if let Some(name) = name.as_str() {
            properties.set(name, to_model(value));
        }
    }
    let text_property = |name: &str| match properties.get(name) {
        Some(ModelValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let dead = text_property(REASON)
        .map(|reason| (reason, text_property(DESCRIPTION).unwrap_or_default()));
    let correlation_id = of.correlation_id.as_ref().and_then(Value::as_str).map(str::to_owned);
    let message = ModelMessage {
        message_id: received.message_id()?,
        session: received.session_id()?.and_then(|id| SessionId::new(&id).ok()),
        subject: text(of.subject),
        to: text(of.to),
        reply_to: text(of.reply_to),
        reply_to_session: text(of.reply_to_group_id),
        correlation_id,
        content_type: of.content_type.map(|kind| kind.as_str().to_owned()),
        ttl_ms: received.wire().header()?.ttl.map(u64::from),
        properties,
        body: ModelBody { bytes: received.body()?, kind: BodyKind::Bytes },
        ..ModelMessage::default()
    };
    let positive = |number: Option<i64>| number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    Ok(Delivery {
        seq: Seq(positive(received.sequence_number().map(|number| number.0))),
        lease,
        receives: received.delivery_count().saturating_add(1),
        failed: received.delivery_count(),
        enqueued_at: Timestamp(positive(received.enqueued_ms())),
        last: false,
        dead,
        message,
    })
}

/// The closest value of the model.
fn to_model(value: &Value) -> ModelValue {
    match value {
        Value::Null => ModelValue::Null,
        Value::Bool(v) => ModelValue::Bool(*v),
        Value::Ubyte(v) => ModelValue::U8(*v),
        Value::Ushort(v) => ModelValue::U16(*v),
        Value::Uint(v) => ModelValue::U32(*v),
        Value::Ulong(v) => ModelValue::U64(*v),
        Value::Byte(v) => ModelValue::I8(*v),
        Value::Short(v) => ModelValue::I16(*v),
        Value::Int(v) => ModelValue::I32(*v),
        Value::Long(v) => ModelValue::I64(*v),
        Value::Float(v) => ModelValue::F32(*v),
        Value::Double(v) => ModelValue::F64(*v),
        Value::Decimal32(v) => ModelValue::Bytes(Bytes::copy_from_slice(v)),
        Value::Decimal64(v) => ModelValue::Bytes(Bytes::copy_from_slice(v)),
        Value::Decimal128(v) => ModelValue::Bytes(Bytes::copy_from_slice(v)),
        Value::Char(v) => ModelValue::String(v.to_string()),
        Value::Timestamp(v) => ModelValue::Time(*v),
        Value::Uuid(v) => ModelValue::Uuid(*v),
        Value::Binary(v) => ModelValue::Bytes(v.clone()),
        Value::String(v) => ModelValue::String(v.as_str().to_owned()),
        Value::Symbol(v) => ModelValue::String(v.as_str().to_owned()),
        Value::List(items) => ModelValue::List(items.iter().map(to_model).collect()),
        Value::Array(array) => ModelValue::List(array.items().iter().map(to_model).collect()),
        Value::Map(map) => ModelValue::Map(
            map.0
                .iter()
                .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), to_model(value))))
                .collect(),
        ),
        Value::Described(described) => to_model(&described.value),
    }
}

/// The AMQP value.
fn from_model(value: &ModelValue) -> Value {
    match value {
        ModelValue::Null => Value::Null,
        ModelValue::Bool(v) => Value::Bool(*v),
        ModelValue::I8(v) => Value::Byte(*v),
        ModelValue::I16(v) => Value::Short(*v),
        ModelValue::I32(v) => Value::Int(*v),
        ModelValue::I64(v) => Value::Long(*v),
        ModelValue::U8(v) => Value::Ubyte(*v),
        ModelValue::U16(v) => Value::Ushort(*v),
        ModelValue::U32(v) => Value::Uint(*v),
        ModelValue::U64(v) => Value::Ulong(*v),
        ModelValue::F32(v) => Value::Float(*v),
        ModelValue::F64(v) => Value::Double(*v),
        ModelValue::String(v) => Value::String(v.as_str().into()),
        ModelValue::Bytes(v) => Value::Binary(v.clone()),
        ModelValue::Time(v) => Value::Timestamp(*v),
        ModelValue::Uuid(v) => Value::Uuid(*v),
        ModelValue::List(items) => Value::List(items.iter().map(from_model).collect()),
        ModelValue::Map(entries) => Value::Map(Map(entries
            .iter()
            .map(|(key, value)| (Value::String(key.as_str().into()), from_model(value)))
            .collect())),
    }
}
