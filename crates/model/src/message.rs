//! The canonical message: built when a message comes in, stored, and translated for each protocol when it goes out.

use bytes::Bytes;

use crate::ids::{SessionId, Timestamp};
use crate::limits;

/// The size that a value nested too deeply counts as. It exceeds every limit on values.
const TOO_DEEP_BYTES: usize = 1 << 30;

/// A message as a sender passes it in. The engine adds the sequence number, times and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The sender's id. The engine generates a UUID v7 if it is absent.
    pub message_id: Option<String>,
    /// The first `message_id`, kept through routing, dead-lettering and redrive. Defaults to `message_id`.
    pub origin_id: Option<String>,
    /// The FIFO session that the message belongs to.
    pub session: Option<SessionId>,
    /// The partition or routing key. Defaults to the session.
    pub key: Option<String>,
    /// Further routing keys. A topic routes the message by each of its keys; a queue gets one copy.
    pub more_keys: Vec<String>,
    /// Routing keys that are used once, when the message is sent. They are not stored.
    pub blind_keys: Vec<String>,
    /// The sender does not wait for the disk, whatever the durability of the queue. Not stored.
    pub relaxed: bool,
    /// The subject: a label or a message type.
    pub subject: Option<String>,
    /// The destination that the sender had in mind. The engine does not use it.
    pub to: Option<String>,
    /// Where replies go.
    pub reply_to: Option<String>,
    /// The session that replies belong to.
    pub reply_to_session: Option<String>,
    /// The id of the request that this message answers.
    pub correlation_id: Option<String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The encoding of the body.
    pub content_encoding: Option<String>,
    /// The sending user, as claimed by the sender.
    pub user_id: Option<String>,
    /// The sending application.
    pub app_id: Option<String>,
    /// Application properties, in order.
    pub properties: Properties,
    /// Messages with a higher priority are delivered first.
    pub priority: u8,
    /// The earliest time of delivery.
    pub when: When,
    /// The message expires this long after it was enqueued.
    pub ttl_ms: Option<u64>,
    /// The sender's de-duplication key.
    pub dedup_id: Option<String>,
    /// The payload, and how protocols show it.
    pub body: Body,
    /// Header sections as received, where the canonical form cannot rebuild them exactly.
    pub native: Option<Native>,
}

/// The earliest time of delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// The message can be delivered immediately.
    #[default]
    Now,
    /// After this many milliseconds. The message keeps its position: within a session, later messages wait for it.
    Delay(u64),
    /// At this time. The message is then appended as if it were sent at that time, with a new sequence number.
    At(Timestamp),
}

/// The payload and its type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The bytes. They are shared, never copied on the way through.
    pub bytes: Bytes,
    /// How to interpret them.
    pub kind: BodyKind,
}

/// How to interpret the bytes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum BodyKind {
    /// Bytes without further meaning.
    #[default]
    Bytes = 0,
    /// Text in UTF-8.
    Text = 1,
    /// One encoded AMQP 1.0 value.
    AmqpValue = 2,
    /// Encoded AMQP 1.0 sequence sections.
    AmqpSequence = 3,
}

/// Header bytes of one protocol, used when the message leaves through the same protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Native {
    /// The protocol that wrote them.
    pub protocol: u8,
    /// The bytes as received.
    pub bytes: Bytes,
}

impl Native {
    /// AMQP 1.0, as Service Bus clients write it.
    pub const AMQP_10: u8 = 1;
    /// AMQP 0-9-1: the exchange and the property section of the content header.
    pub const AMQP_091: u8 = 2;
}

/// Application properties: ordered names with typed values. Names are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties(Vec<(String, Value)>);

impl Properties {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets a property. An existing one keeps its position.
    pub fn set(&mut self, name: impl Into<String>, value: Value) {
        let name = name.into();
        match self.0.iter_mut().find(|(have, _)| *have == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns the value of a property.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    /// Removes a property. The others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(have, _)| have == name)?;
        Some(self.0.remove(at).1)
    }

    /// Iterates over the properties in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of properties.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no properties.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets all properties of `over`, replacing those that exist.
    pub fn lay_over(&mut self, over: Self) {
        for (name, value) in over.0 {
            self.set(name, value);
        }
    }
}

impl FromIterator<(String, Value)> for Properties {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(items: I) -> Self {
        let mut all = Self::new();
        for (name, value) in items {
            all.set(name, value);
        }
        all
    }
}

/// A typed property value. It covers the types of all protocols, with their widths.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A property without a value.
    Null,
    /// True or false.
    Bool(bool),
    /// 8 bits, signed.
    I8(i8),
    /// 16 bits, signed.
    I16(i16),
    /// 32 bits, signed.
    I32(i32),
    /// 64 bits, signed.
    I64(i64),
    /// An unsigned integer of 8 bits.
    U8(u8),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// A floating-point number in single precision.
    F32(f32),
    /// A floating-point number in double precision.
    F64(f64),
    /// A string in UTF-8.
    String(String),
    /// Bytes without further meaning.
    Bytes(Bytes),
    /// Milliseconds since 1970; negative values are dates before that.
    Time(i64),
    /// A UUID in network byte order.
    Uuid([u8; 16]),
    /// Values in order.
    List(Vec<Value>),
    /// Names and values in order.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// The approximate encoded size in bytes. Values nested too deeply count as larger than every limit.
    pub fn size(&self) -> usize {
        self.size_at(0)
    }

    fn size_at(&self, depth: usize) -> usize {
        if depth > limits::VALUE_DEPTH_MAX {
            return TOO_DEEP_BYTES;
        }
        let small = 16_usize;
        match self {
            Self::String(text) => small + text.len(),
            Self::Bytes(bytes) => small + bytes.len(),
            Self::List(items) => {
                items.iter().fold(small, |sum, v| sum.saturating_add(v.size_at(depth + 1)))
            }
            Self::Map(entries) => entries.iter().fold(small, |sum, (name, v)| {
                sum.saturating_add(name.len()).saturating_add(v.size_at(depth + 1))
            }),
            _ => small,
        }
    }

    /// The value as an integer, whatever its width.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::I8(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::I64(v) => v.into(),
            Self::U8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::U64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value as a floating-point number, whatever its width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Whether both values are equal for a filter.
    ///
    /// Widths do not matter, because clients choose them by habit: integers equal integers and floats equal floats. An
    /// integer never equals a float, and text never equals a number. All NaNs are equal.
    pub fn same(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (self.as_int(), other.as_int()) {
            return a == b;
        }
        if let (Some(a), Some(b)) = (self.as_float(), other.as_float()) {
            return a == b || (a.is_nan() && b.is_nan());
        }
        self == other
    }
}
