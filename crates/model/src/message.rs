//! The canonical message: made at ingress, stored, and translated at every egress.

use bytes::Bytes;

use crate::ids::{SessionId, Timestamp};
use crate::limits;

/// What a value that nests too deep counts as: no limit on values is as large.
const TOO_DEEP_BYTES: usize = 1 << 30;

/// What a sender hands in. The engine adds sequence, times and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The sender's id; a UUID v7 is given at ingress when it is absent.
    pub message_id: Option<String>,
    /// The first `message_id`, kept through routing, dead-lettering and redrive. Given at ingress when absent.
    pub origin_id: Option<String>,
    /// The FIFO session it belongs to.
    pub session: Option<SessionId>,
    /// Partition or routing key; absent means the session.
    pub key: Option<String>,
    /// What it is about: the label, or its type.
    pub subject: Option<String>,
    /// Where the sender meant it to go.
    pub to: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// The session that answers belong to.
    pub reply_to_session: Option<String>,
    /// The request that this answers.
    pub correlation_id: Option<String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The encoding of the body.
    pub content_encoding: Option<String>,
    /// Who sent it, by the sender's word.
    pub user_id: Option<String>,
    /// Which application sent it.
    pub app_id: Option<String>,
    /// The user's own names and values, in order.
    pub properties: Properties,
    /// Higher first.
    pub priority: u8,
    /// When it may be delivered.
    pub when: When,
    /// Expires so long after it was enqueued.
    pub ttl_ms: Option<u64>,
    /// The sender's key for de-duplication.
    pub dedup_id: Option<String>,
    /// The payload.
    pub body: Body,
    /// Header sections as received, where the canonical form cannot rebuild them exactly.
    pub native: Option<Native>,
}

/// When a message may first be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// After so many milliseconds, in the place where it was sent: within a session later ones wait for it.
    Delay(u64),
    /// Appended at that time as if it were sent then, with a new sequence. It holds no place before.
    At(Timestamp),
}

/// The payload and what it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The bytes, shared and never copied on the way through.
    pub bytes: Bytes,
    /// What they mean.
    pub kind: BodyKind,
}

/// What the bytes of a body mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum BodyKind {
    /// Opaque.
    #[default]
    Bytes = 0,
    /// UTF-8 text.
    Text = 1,
    /// One encoded AMQP 1.0 value.
    AmqpValue = 2,
    /// Encoded AMQP 1.0 sequence sections.
    AmqpSequence = 3,
}

/// A protocol's own header bytes, used for egress in the same protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Native {
    /// Which protocol wrote them.
    pub protocol: u8,
    /// As received.
    pub bytes: Bytes,
}

impl Native {
    /// AMQP 1.0, as Service Bus clients write it.
    pub const AMQP_10: u8 = 1;
}

/// Ordered names and typed values. A name occurs once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties(Vec<(String, Value)>);

impl Properties {
    /// No properties.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets or, in its place, replaces.
    pub fn set(&mut self, name: impl Into<String>, value: Value) {
        let name = name.into();
        match self.0.iter_mut().find(|(have, _)| *have == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value under a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    /// Takes one out; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(have, _)| have == name)?;
        Some(self.0.remove(at).1)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lays `over` on top: set, or replaced where the name exists.
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

/// A typed property value: every protocol's types, with their widths.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
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
    /// 8 bits.
    U8(u8),
    /// 16 bits.
    U16(u16),
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// Text.
    String(String),
    /// Opaque bytes.
    Bytes(Bytes),
    /// Milliseconds since 1970, signed: users have birthdays before that.
    Time(i64),
    /// 128 bits.
    Uuid([u8; 16]),
    /// Values in order.
    List(Vec<Value>),
    /// Names and values in order.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Bytes that it takes, roughly as encoded; what nests too deep is larger than anything may be.
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

    /// As an integer, whatever its width.
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

    /// As a floating-point number, whatever its width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Whether both stand for the same, which is what filters ask.
    ///
    /// Clients choose the width of a number by habit, so widths do not count: integers equal integers and floats
    /// equal floats. An integer never equals a float, nor a text a number. A NaN is the same as any other.
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
