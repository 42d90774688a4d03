//! Encoding of messages: headers first, body last, so that a body is copied once and headers can be read without it.

use std::ops::Range;

use bytes::Bytes;
use malote_model::{
    Body, BodyKind, Message, Native, Properties, Refusal, SessionFrom, SessionId, Value, When,
    limits,
};

use sha2::{Digest, Sha256};

use super::read::{EncodeExt, Malformed, Reader, slice_of};

/// Capacity for a small head: two ids and some numbers.
const HEAD_BYTES: usize = 128;

/// A message that was encoded in its sender's task, on its way into the core.
#[derive(Clone, Debug)]
pub struct EncodedMessage {
    pub(crate) session: Option<SessionId>,
    pub(crate) when: When,
    pub(crate) priority: u8,
    pub(crate) ttl_ms: Option<u64>,
    /// The range of the message id in the head, if it is not the de-duplication key; otherwise empty.
    name: Range<usize>,
    /// The range of the sender's de-duplication key in the head; empty if there is none.
    key: Range<usize>,
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
    /// The sender does not wait for the disk.
    pub(crate) relaxed: bool,
    /// The message itself, for routing by a topic.
    pub(crate) facts: Option<Box<Message>>,
}

impl EncodedMessage {
    /// Validates and encodes a message. With `id_given`, its id was generated, and is not a de-duplication key.
    pub fn new(message: &Message, id_given: bool) -> Result<Self, Refusal> {
        let texts = texts_of(message);
        for (name, text) in TEXT_NAMES.iter().zip(texts) {
            if text.is_some_and(|text| text.len() > limits::MESSAGE_ID_BYTES_MAX) {
                return Err(Refusal::OutOfRange {
                    what: name,
                    rule: format!("at most {} bytes long", limits::MESSAGE_ID_BYTES_MAX),
                });
            }
        }
        let keys = message.more_keys.iter().chain(&message.blind_keys);
        if keys.clone().count() > limits::MORE_KEYS_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "routing keys of a message",
                limit: limits::MORE_KEYS_MAX as u64,
            });
        }
        if keys.clone().any(|key| key.len() > limits::MESSAGE_ID_BYTES_MAX) {
            return Err(Refusal::OutOfRange {
                what: "more_keys",
                rule: format!("at most {} bytes long each", limits::MESSAGE_ID_BYTES_MAX),
            });
        }
        let delay = match message.when {
            When::Delay(ms) => ms,
            When::Now | When::At(_) => 0,
        };
        if delay > limits::DELAY_MS_MAX
            || message.ttl_ms.is_some_and(|ms| ms > limits::DELAY_MS_MAX)
        {
            return Err(Refusal::OutOfRange {
                what: "a delay or time to live",
                rule: "at most ten years".into(),
            });
        }
        let native_bytes = message.native.as_ref().map_or(0, |native| native.bytes.len());
        let mut head = Vec::with_capacity(HEAD_BYTES + native_bytes);
        let HeadLayout { id, key, properties_bytes } = put_head(&mut head, message, id_given)?;
        if properties_bytes > limits::PROPERTIES_BYTES_MAX {
            let rule = format!("at most {} bytes together", limits::PROPERTIES_BYTES_MAX);
            return Err(Refusal::OutOfRange { what: "properties", rule });
        }
        Ok(Self {
            session: message.session.clone(),
            when: message.when,
            priority: message.priority,
            ttl_ms: message.ttl_ms,
            name: if id == key { 0..0 } else { id },
            key,
            head: head.into(),
            body: message.body.bytes.clone(),
            relaxed: message.relaxed,
            facts: None,
        })
    }

    /// Validates and encodes a message for a topic.
    pub fn to_topic(message: Message, id_given: bool) -> Result<Self, Refusal> {
        let outgoing = Self::new(&message, id_given)?;
        Ok(Self { facts: Some(Box::new(message)), ..outgoing })
    }

    /// The de-duplication key: 128 bits of SHA-256, so that collisions cannot be constructed. Without a key of the
    /// sender, the content is hashed, if `content` is set.
    pub(crate) fn dedup_key(&self, content: bool) -> Option<u128> {
        let what = match (&self.head[self.key.clone()], content) {
            (&[], true) => &self.body[..],
            (&[], false) => return None,
            (key, _) => key,
        };
        let digest = Sha256::digest(what);
        digest.first_chunk().map(|half| u128::from_le_bytes(*half))
    }

    /// The session id that a queue takes from a field of the message.
    pub(crate) fn session_by(&self, from: &SessionFrom) -> Option<SessionId> {
        match &self.facts {
            Some(message) => from.session_of(message),
            None => from.session_of(&get_message(&self.head, &self.head).ok()?),
        }
    }

    /// The message id as a number, if it is a UUID in the engine's format and not the de-duplication key. A key need
    /// not be stored: the sender of a duplicate uses the same one.
    pub(crate) fn known_as(&self) -> Option<u128> {
        let id = &self.head[self.name.clone()];
        let uuid = uuid::Uuid::try_parse_ascii(id).ok()?;
        let written =
            uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).as_bytes() == id;
        written.then(|| uuid.as_u128())
    }

    /// An upper bound of the record size for one queue.
    pub(crate) fn room(&self) -> usize {
        self.size() + self.session.as_ref().map_or(0, |session| session.as_str().len()) + 176
    }

    /// Bytes of headers and body.
    pub fn size(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Whether an encoded head has further routing keys.
pub(super) fn has_more_keys(head: &[u8]) -> bool {
    Reader::new(head).var().is_ok_and(|mask| mask >> TEXT_NAMES.len() != 0)
}

/// The layout of an encoded head.
pub(super) struct HeadLayout {
    /// The message id.
    pub id: Range<usize>,
    /// The sender's de-duplication key; empty if there is none.
    pub key: Range<usize>,
    pub properties_bytes: usize,
}

/// Encodes everything except the body. The origin id defaults to the message id.
pub(super) fn put_head(
    head: &mut Vec<u8>,
    message: &Message,
    id_given: bool,
) -> Result<HeadLayout, Refusal> {
    let mut texts = texts_of(message);
    texts[ORIGIN_ID] = texts[ORIGIN_ID].or(texts[MESSAGE_ID]);
    let present = texts.iter().enumerate().filter(|(_, text)| text.is_some());
    let more_keys = u64::from(!message.more_keys.is_empty()) << texts.len();
    head.put_var(present.fold(more_keys, |mask, (i, _)| mask | 1 << i));
    let (mut id, mut key) = (0..0, 0..0);
    for (i, text) in texts.iter().enumerate() {
        let Some(text) = text else { continue };
        head.put_str(text);
        let at = head.len() - text.len()..head.len();
        if i == MESSAGE_ID {
            id = at.clone();
        }
        if i == DEDUP_ID || i == MESSAGE_ID && !id_given {
            key = at;
        }
    }
    if more_keys != 0 {
        head.put_var(message.more_keys.len() as u64);
        message.more_keys.iter().for_each(|key| head.put_str(key));
    }
    head.put_session(message.session.as_ref());
    head.put_u8(message.priority);
    head.put_var(message.ttl_ms.map_or(0, |ms| ms + 1));
    let before = head.len();
    put_properties(head, &message.properties)?;
    let properties_bytes = head.len() - before;
    match &message.native {
        None => head.put_u8(0),
        Some(native) => {
            head.put_u8(native.protocol.max(1));
            head.put_bytes(&native.bytes);
        }
    }
    head.put_u8(message.body.kind as u8);
    Ok(HeadLayout { id, key, properties_bytes })
}

const MESSAGE_ID: usize = 0;
const ORIGIN_ID: usize = 1;
const DEDUP_ID: usize = 12;
const TEXT_NAMES: [&str; 13] = [
    "message_id",
    "origin_id",
    "key",
    "subject",
    "to",
    "reply_to",
    "reply_to_session",
    "correlation_id",
    "content_type",
    "content_encoding",
    "user_id",
    "app_id",
    "dedup_id",
];

fn texts_of(m: &Message) -> [Option<&str>; 13] {
    let texts = [
        &m.message_id,
        &m.origin_id,
        &m.key,
        &m.subject,
        &m.to,
        &m.reply_to,
        &m.reply_to_session,
        &m.correlation_id,
        &m.content_type,
        &m.content_encoding,
        &m.user_id,
        &m.app_id,
        &m.dedup_id,
    ];
    texts.map(|text| text.as_deref())
}

/// Decodes headers and body of an `EncodedMessage`.
pub(super) fn get_message(whole: &Bytes, at: &[u8]) -> Result<Message, Malformed> {
    let mut r = Reader::new(at);
    let mask = r.var()?;
    let mut m = Message::default();
    let texts = [
        &mut m.message_id,
        &mut m.origin_id,
        &mut m.key,
        &mut m.subject,
        &mut m.to,
        &mut m.reply_to,
        &mut m.reply_to_session,
        &mut m.correlation_id,
        &mut m.content_type,
        &mut m.content_encoding,
        &mut m.user_id,
        &mut m.app_id,
        &mut m.dedup_id,
    ];
    let more_keys = mask >> texts.len();
    if more_keys > 1 {
        return Err(Malformed);
    }
    for (i, text) in texts.into_iter().enumerate() {
        if mask & 1 << i != 0 {
            *text = Some(r.str()?.to_owned());
        }
    }
    if more_keys == 1 {
        let n = r.count()?;
        m.more_keys = (0..n).map(|_| Ok(r.str()?.to_owned())).collect::<Result<_, Malformed>>()?;
    }
    m.session = r.session()?;
    m.priority = r.u8()?;
    m.ttl_ms = r.var()?.checked_sub(1);
    m.properties = get_properties(&mut r)?;
    m.native = match r.u8()? {
        0 => None,
        protocol => Some(Native { protocol, bytes: slice_of(whole, r.bytes()?) }),
    };
    let kind = match r.u8()? {
        0 => BodyKind::Bytes,
        1 => BodyKind::Text,
        2 => BodyKind::AmqpValue,
        3 => BodyKind::AmqpSequence,
        _ => return Err(Malformed),
    };
    m.body = Body { bytes: slice_of(whole, r.rest()), kind };
    Ok(m)
}

pub(crate) fn put_properties(out: &mut Vec<u8>, properties: &Properties) -> Result<(), Refusal> {
    out.put_var(properties.len() as u64);
    for (name, value) in properties.iter() {
        out.put_str(name);
        put_value(out, value, 0)?;
    }
    Ok(())
}

pub(crate) fn get_properties(r: &mut Reader<'_>) -> Result<Properties, Malformed> {
    let n = r.count()?;
    (0..n).map(|_| Ok((r.str()?.to_owned(), get_value(r, 0)?))).collect()
}

pub(super) fn put_value(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), Refusal> {
    if depth > limits::VALUE_DEPTH_MAX {
        let rule = format!("nested at most {} deep", limits::VALUE_DEPTH_MAX);
        return Err(Refusal::OutOfRange { what: "a property value", rule });
    }
    let mut fixed = |tag: u8, bytes: &[u8]| {
        out.put_u8(tag);
        out.extend_from_slice(bytes);
    };
    match value {
        Value::Null => fixed(0, &[]),
        Value::Bool(false) => fixed(1, &[]),
        Value::Bool(true) => fixed(2, &[]),
        Value::I8(v) => fixed(3, &v.to_le_bytes()),
        Value::I16(v) => fixed(4, &v.to_le_bytes()),
        Value::I32(v) => fixed(5, &v.to_le_bytes()),
        Value::I64(v) => fixed(6, &v.to_le_bytes()),
        Value::U8(v) => fixed(7, &v.to_le_bytes()),
        Value::U16(v) => fixed(8, &v.to_le_bytes()),
        Value::U32(v) => fixed(9, &v.to_le_bytes()),
        Value::U64(v) => fixed(10, &v.to_le_bytes()),
        Value::F32(v) => fixed(11, &v.to_le_bytes()),
        Value::F64(v) => fixed(12, &v.to_le_bytes()),
        Value::Time(v) => fixed(13, &v.to_le_bytes()),
        Value::Uuid(v) => fixed(14, v),
        Value::String(v) => {
            out.put_u8(15);
            out.put_str(v);
        }
        Value::Bytes(v) => {
            out.put_u8(16);
            out.put_bytes(v);
        }
        Value::List(items) => {
            out.put_u8(17);
            out.put_var(items.len() as u64);
            for item in items {
                put_value(out, item, depth + 1)?;
            }
        }
        Value::Map(entries) => {
            out.put_u8(18);
            out.put_var(entries.len() as u64);
            for (name, item) in entries {
                out.put_str(name);
                put_value(out, item, depth + 1)?;
            }
        }
    }
    Ok(())
}

pub(super) fn get_value(r: &mut Reader<'_>, depth: usize) -> Result<Value, Malformed> {
    if depth > limits::VALUE_DEPTH_MAX {
        return Err(Malformed);
    }
    Ok(match r.u8()? {
        0 => Value::Null,
        1 => Value::Bool(false),
        2 => Value::Bool(true),
        3 => Value::I8(i8::from_le_bytes(r.fixed()?)),
        4 => Value::I16(i16::from_le_bytes(r.fixed()?)),
        5 => Value::I32(i32::from_le_bytes(r.fixed()?)),
        6 => Value::I64(i64::from_le_bytes(r.fixed()?)),
        7 => Value::U8(u8::from_le_bytes(r.fixed()?)),
        8 => Value::U16(u16::from_le_bytes(r.fixed()?)),
        9 => Value::U32(u32::from_le_bytes(r.fixed()?)),
        10 => Value::U64(u64::from_le_bytes(r.fixed()?)),
        11 => Value::F32(f32::from_le_bytes(r.fixed()?)),
        12 => Value::F64(f64::from_le_bytes(r.fixed()?)),
        13 => Value::Time(i64::from_le_bytes(r.fixed()?)),
        14 => Value::Uuid(r.fixed()?),
        15 => Value::String(r.str()?.to_owned()),
        16 => Value::Bytes(Bytes::copy_from_slice(r.bytes()?)),
        17 => {
            let n = r.count()?;
            Value::List((0..n).map(|_| get_value(r, depth + 1)).collect::<Result<_, _>>()?)
        }
        18 => {
            let n = r.count()?;
            let entries = (0..n).map(|_| Ok((r.str()?.to_owned(), get_value(r, depth + 1)?)));
            Value::Map(entries.collect::<Result<_, _>>()?)
        }
        _ => return Err(Malformed),
    })
}
