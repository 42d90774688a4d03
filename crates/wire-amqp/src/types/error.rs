//! Errors of the decoder.

use crate::performative::condition;

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFault {
    #[error("unexpected end of bytes inside a value")]
    Truncated,
    /// No type has this format code.
    #[error("unknown format code {0:#04x}")]
    UnknownCode(u8),
    #[error("values are nested too deeply")]
    TooDeep,
    /// More values than are allowed, or than the bytes can contain.
    #[error("too many values")]
    TooMany,
    #[error("a string is not valid UTF-8")]
    NotUtf8,
    #[error("a symbol is not ASCII")]
    NotAscii,
    /// A char that is not a Unicode scalar value, or a boolean byte other than 0 and 1.
    #[error("a value is out of range for its type")]
    OutOfRange,
    /// The size of a compound value does not match its content.
    #[error("the size of a compound value does not match its content")]
    WrongSize,
    #[error("a map has a key without a value")]
    OddMap,
    /// A value has another type than expected.
    #[error("expected {expected}, found format code {found:#04x}")]
    WrongType {
        /// The type, as named in the specification.
        expected: &'static str,
        /// The format code.
        found: u8,
    },
    #[error("a mandatory field is missing")]
    Missing,
    #[error("unexpected descriptor of a described value")]
    UnknownDescriptor,
    /// An undefined value of a restricted type.
    #[error("undefined value {0}")]
    UnknownChoice(u64),
    #[error("unexpected bytes after the end")]
    LeftOver,
    /// The sections of a message are out of order or duplicate.
    #[error("the sections of the message are out of order")]
    SectionOrder,
}

/// A decoding error, and the field that it occurred in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    pub fault: DecodeFault,
    /// The innermost type and field.
    pub field: Option<(&'static str, &'static str)>,
}

impl DecodeError {
    /// Sets the field, unless an inner one is set.
    pub(crate) fn within(mut self, field: (&'static str, &'static str)) -> DecodeError {
        self.field.get_or_insert(field);
        self
    }

    /// The AMQP condition to report to the peer.
    pub fn condition(&self) -> &'static str {
        match self.fault {
            DecodeFault::Missing
            | DecodeFault::WrongType { .. }
            | DecodeFault::UnknownChoice(_)
            | DecodeFault::UnknownDescriptor => condition::INVALID_FIELD,
            _ => condition::DECODE_ERROR,
        }
    }
}

impl From<DecodeFault> for DecodeError {
    fn from(fault: DecodeFault) -> DecodeError {
        DecodeError { fault, field: None }
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((composite, field)) = self.field {
            // Uses the spelling of the specification.
            write!(f, "{composite}.{}: ", field.replace('_', "-"))?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for DecodeError {}

pub type Decoded<T> = Result<T, DecodeError>;
