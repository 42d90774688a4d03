//! What a decoder says about bytes that it cannot read.

use crate::performative::condition;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end inside a value.
    #[error("the bytes end inside a value")]
    Truncated,
    /// No type has this format code.
    #[error("no type has the format code {0:#04x}")]
    UnknownCode(u8),
    /// Values lie deeper inside each other than is allowed.
    #[error("values are nested too deeply")]
    TooDeep,
    /// More values than are allowed, or than the bytes can hold.
    #[error("too many values")]
    TooMany,
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// A symbol is not ASCII.
    #[error("a symbol is not ASCII")]
    NotAscii,
    /// A char is no Unicode scalar value, or a boolean byte neither 0 nor 1.
    #[error("a value is outside of its type")]
    OutOfRange,
    /// The size of a compound value does not fit what is in it.
    #[error("the size of a compound value is not the size of its content")]
    WrongSize,
    /// A map with a key and no value.
    #[error("a map has a key without a value")]
    OddMap,
    /// Another type stands where one is expected.
    #[error("the format code {found:#04x} stands where {expected} is expected")]
    WrongType {
        /// The type, as the specification calls it.
        expected: &'static str,
        /// The format code that was found.
        found: u8,
    },
    /// A mandatory field is absent.
    #[error("a mandatory field is absent")]
    Missing,
    /// A described value of a kind that does not belong here.
    #[error("a described value of an unexpected kind")]
    UnknownDescriptor,
    /// A number that its restricted type does not have.
    #[error("the value {0} has no meaning")]
    UnknownChoice(u64),
    /// Bytes after the end.
    #[error("bytes are left over")]
    LeftOver,
    /// A message's sections are out of order, or one stands twice.
    #[error("the sections of the message are out of order")]
    SectionOrder,
}

/// Bytes that cannot be read, and the field in which this was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// What is wrong.
    pub fault: Fault,
    /// The type and the field, innermost first.
    pub place: Option<(&'static str, &'static str)>,
}

impl DecodeError {
    /// Names the field, unless an inner one is named already.
    pub(crate) fn within(mut self, place: (&'static str, &'static str)) -> DecodeError {
        self.place.get_or_insert(place);
        self
    }

    /// The condition with which this is told to the peer.
    pub fn condition(&self) -> &'static str {
        match self.fault {
            Fault::Missing
            | Fault::WrongType { .. }
            | Fault::UnknownChoice(_)
            | Fault::UnknownDescriptor => condition::INVALID_FIELD,
            _ => condition::DECODE_ERROR,
        }
    }
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> DecodeError {
        DecodeError { fault, place: None }
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((composite, field)) = self.place {
            // Fields are spelt as the specification spells them.
            write!(f, "{composite}.{}: ", field.replace('_', "-"))?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for DecodeError {}

/// The result of decoding.
pub type Decoded<T> = Result<T, DecodeError>;
