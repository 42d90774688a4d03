//! Messages: headers first, body last, so that a body is copied once and a header can be read without it.

use std::ops::Range;

use bytes::Bytes;
use malote_model::{
    Body, BodyKind, Message, Native, Properties, Refusal, SessionId, Value, When, limits,
};

use sha2::{Digest, Sha256};

use super::read::{Put, Reader, Truncated, slice_of};

/// Room for what a head has when little is said in it: two ids, and some numbers.
const HEAD_BYTES: usize = 128;

/// A message on its way into the core, encoded in its sender's task.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(crate) session: Option<SessionId>,
    pub(crate) when: When,
    pub(crate) priority: u8,
    pub(crate) ttl_ms: Option<u64>,
    /// Where in the head the message's id stands, if that is not what it is known by; else empty.
    name: Range<usize>,
    /// Where in the head the sender's key for de-duplication stands; empty if there is none.
    key: Range<usize>,
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
    /// The message itself, for a topic to look at.
    pub(crate) facts: Option<Box<Message>>,
}

impl Outgoing {
    /// Checks and encodes. `id_given` tells that the message's id is not the sender's: nothing is known by it.
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
        let Head { id, key, properties_bytes } = put_head(&mut head, message, id_given)?;
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
            facts: None,
        })
    }

    /// Checks and encodes a message for a topic.
    pub fn to_topic(message: Message, id_given: bool) -> Result<Self, Refusal> {
        let outgoing = Self::new(&message, id_given)?;
        Ok(Self { facts: Some(Box::new(message)), ..outgoing })
    }

    /// What de-duplication knows the message by: 128 bits of SHA-256, so that nobody can make two alike. Without a
    /// key of the sender's it is the content's, if that counts.
    pub(crate) fn dedup_key(&self, content: bool) -> Option<u128> {
        let what = match (&self.head[self.key.clone()], content) {
            (&[], true) => &self.body[..],
            (&[], false) => return None,
            (key, _) => key,
        };
        let digest = Sha256::digest(what);
        digest.first_chunk().map(|half| u128::from_le_bytes(*half))
    }

    /// Its id as a number, if it is a UUID as the engine writes them. One that is what the message is known by needs no
    /// keeping: whoever sends the message again says the same.
    pub(crate) fn known_as(&self) -> Option<u128> {
        let id = &self.head[self.name.clone()];
        let uuid = uuid::Uuid::try_parse_ascii(id).ok()?;
        let written =
            uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).as_bytes() == id;
        written.then(|| uuid.as_u128())
    }

    /// Bytes that the record of one place may have.
    pub(crate) fn room(&self) -> usize {
        self.size() + self.session.as_ref().map_or(0, |session| session.as_str().len()) + 176
    }

    /// Bytes of headers and body.
    pub fn size(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// What stands where in an encoded head.
pub(super) struct Head {
    /// The message's id.
    pub id: Range<usize>,
    /// The sender's key for de-duplication; empty if there is none.
    pub key: Range<usize>,
    pub properties_bytes: usize,
}

/// Writes everything but the body. Where a message comes from is, unless it says otherwise, itself.
pub(super) fn put_head(
    head: &mut Vec<u8>,
    message: &Message,
    id_given: bool,
) -> Result<Head, Refusal> {
    let mut texts = texts_of(message);
    texts[ORIGIN_ID] = texts[ORIGIN_ID].or(texts[MESSAGE_ID]);
    let present = texts.iter().enumerate().filter(|(_, text)| text.is_some());
    head.put_var(present.fold(0, |mask, (i, _)| mask | 1 << i));
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
    Ok(Head { id, key, properties_bytes })
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

/// Headers and body as `Outgoing` wrote them, one after the other.
pub(super) fn get_message(whole: &Bytes, at: &[u8]) -> Result<Message, Truncated> {
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
    if mask >> texts.len() != 0 {
        return Err(Truncated);
    }
    for (i, text) in texts.into_iter().enumerate() {
        if mask & 1 << i != 0 {
            *text = Some(r.str()?.to_owned());
        }
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
        _ => return Err(Truncated),
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

pub(crate) fn get_properties(r: &mut Reader<'_>) -> Result<Properties, Truncated> {
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

pub(super) fn get_value(r: &mut Reader<'_>, depth: usize) -> Result<Value, Truncated> {
    if depth > limits::VALUE_DEPTH_MAX {
        return Err(Truncated);
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
        _ => return Err(Truncated),
    })
}
