//! Values of tables and arrays, with the type tags that RabbitMQ reads. They differ from the printed specification.

use std::fmt;

use bytes::{BufMut as _, BytesMut};

use super::{TableError, TableRef, check_table};
use crate::limits::TABLE_DEPTH_MAX;

/// A value that borrows its bytes.
#[derive(Clone, Copy, PartialEq)]
pub enum FieldValue<'a> {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// `value` divided by ten to the power of `scale`.
    Decimal {
        scale: u8,
        value: u32,
    },
    /// Usually UTF-8, but nothing guarantees it.
    String(&'a [u8]),
    Array(FieldValues<'a>),
    /// Seconds since 1970.
    Timestamp(u64),
    Table(TableRef<'a>),
    Void,
    Bytes(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    /// The value of an integer of any width.
    pub fn as_integer(self) -> Option<i64> {
        Some(match self {
            Self::I8(value) => value.into(),
            Self::U8(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I64(value) => value,
            _ => return None,
        })
    }

    /// The text of a string that is UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_table(self) -> Option<TableRef<'a>> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    pub fn as_array(self) -> Option<FieldValues<'a>> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The name of the type in RabbitMQ's error texts.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::String(_) => "longstr",
            Self::Array(_) => "array",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Void => "void",
            Self::Bytes(_) => "binary",
        }
    }

    /// Appends tag and value.
    pub(super) fn encode(self, out: &mut BytesMut) {
        match self {
            Self::Bool(value) => out.extend_from_slice(&[b't', value.into()]),
            Self::I8(value) => put(out, b'b', &value.to_be_bytes()),
            Self::U8(value) => put(out, b'B', &[value]),
            Self::I16(value) => put(out, b's', &value.to_be_bytes()),
            Self::U16(value) => put(out, b'u', &value.to_be_bytes()),
            Self::I32(value) => put(out, b'I', &value.to_be_bytes()),
            Self::U32(value) => put(out, b'i', &value.to_be_bytes()),
            Self::I64(value) => put(out, b'l', &value.to_be_bytes()),
            Self::F32(value) => put(out, b'f', &value.to_be_bytes()),
            Self::F64(value) => put(out, b'd', &value.to_be_bytes()),
            Self::Decimal { scale, value } => {
                put(out, b'D', &[scale]);
                out.put_u32(value);
            }
            Self::String(bytes) => put_long(out, b'S', bytes),
            Self::Array(values) => put_long(out, b'A', values.0),
            Self::Timestamp(seconds) => put(out, b'T', &seconds.to_be_bytes()),
            Self::Table(table) => put_long(out, b'F', table.0),
            Self::Void => out.put_u8(b'V'),
            Self::Bytes(bytes) => put_long(out, b'x', bytes),
        }
    }
}

fn put(out: &mut BytesMut, tag: u8, octets: &[u8]) {
    out.put_u8(tag);
    out.extend_from_slice(octets);
}

fn put_long(out: &mut BytesMut, tag: u8, octets: &[u8]) {
    let length = u32::try_from(octets.len()).expect("values are smaller than 4 GiB");
    put(out, tag, &length.to_be_bytes());
    out.extend_from_slice(octets);
}

/// The values of an array, read one by one.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct FieldValues<'a>(pub(super) &'a [u8]);

impl<'a> FieldValues<'a> {
    /// The encoded values.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for FieldValues<'a> {
    type Item = FieldValue<'a>;

    fn next(&mut self) -> Option<FieldValue<'a>> {
        take_value(&mut self.0).ok()
    }
}

pub(super) fn take<'a, const N: usize>(input: &mut &'a [u8]) -> Result<&'a [u8; N], TableError> {
    let (taken, rest) = input.split_first_chunk().ok_or(TableError::Truncated)?;
    *input = rest;
    Ok(taken)
}

pub(super) fn take_slice<'a>(input: &mut &'a [u8], length: usize) -> Result<&'a [u8], TableError> {
    let (taken, rest) = input.split_at_checked(length).ok_or(TableError::Truncated)?;
    *input = rest;
    Ok(taken)
}

fn take_long<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], TableError> {
    let length = u32::from_be_bytes(*take(input)?);
    take_slice(input, length as usize)
}

/// Removes a value from the front. What is inside a table or an array is not looked at.
pub(super) fn take_value<'a>(input: &mut &'a [u8]) -> Result<FieldValue<'a>, TableError> {
    let [tag] = *take(input)?;
    Ok(match tag {
        b't' => FieldValue::Bool(take::<1>(input)? != &[0]),
        b'b' => FieldValue::I8(i8::from_be_bytes(*take(input)?)),
        b'B' => FieldValue::U8(u8::from_be_bytes(*take(input)?)),
        b's' => FieldValue::I16(i16::from_be_bytes(*take(input)?)),
        b'u' => FieldValue::U16(u16::from_be_bytes(*take(input)?)),
        b'I' => FieldValue::I32(i32::from_be_bytes(*take(input)?)),
        b'i' => FieldValue::U32(u32::from_be_bytes(*take(input)?)),
        b'l' | b'L' => FieldValue::I64(i64::from_be_bytes(*take(input)?)),
        b'f' => FieldValue::F32(f32::from_be_bytes(*take(input)?)),
        b'd' => FieldValue::F64(f64::from_be_bytes(*take(input)?)),
        b'D' => {
            let [scale] = *take(input)?;
            FieldValue::Decimal { scale, value: u32::from_be_bytes(*take(input)?) }
        }
        b'S' => FieldValue::String(take_long(input)?),
        b'A' => FieldValue::Array(FieldValues(take_long(input)?)),
        b'T' => FieldValue::Timestamp(u64::from_be_bytes(*take(input)?)),
        b'F' => FieldValue::Table(TableRef(take_long(input)?)),
        b'V' => FieldValue::Void,
        b'x' => FieldValue::Bytes(take_long(input)?),
        other => return Err(TableError::UnknownType(other)),
    })
}

/// Checks what is inside a table or an array on this level.
pub(super) fn check_value(value: FieldValue<'_>, level: usize) -> Result<(), TableError> {
    match value {
        FieldValue::Table(table) => check_table(table.0, level + 1),
        FieldValue::Array(_) if level >= TABLE_DEPTH_MAX => Err(TableError::TooDeep),
        FieldValue::Array(FieldValues(mut bytes)) => {
            while !bytes.is_empty() {
                check_value(take_value(&mut bytes)?, level + 1)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

impl<'a> From<&'a str> for FieldValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::String(text.as_bytes())
    }
}

macro_rules! field_value_from {
    ($($type:ty => $variant:ident,)*) => {$(
        impl<'a> From<$type> for FieldValue<'a> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}
field_value_from! {
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, f32 => F32, f64 => F64,
    TableRef<'a> => Table, FieldValues<'a> => Array,
}

impl fmt::Debug for FieldValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

impl fmt::Debug for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "Bool({value})"),
            Self::I8(value) => write!(f, "I8({value})"),
            Self::U8(value) => write!(f, "U8({value})"),
            Self::I16(value) => write!(f, "I16({value})"),
            Self::U16(value) => write!(f, "U16({value})"),
            Self::I32(value) => write!(f, "I32({value})"),
            Self::U32(value) => write!(f, "U32({value})"),
            Self::I64(value) => write!(f, "I64({value})"),
            Self::F32(value) => write!(f, "F32({value:?})"),
            Self::F64(value) => write!(f, "F64({value:?})"),
            Self::Decimal { scale, value } => {
                write!(f, "Decimal {{ scale: {scale}, value: {value} }}")
            }
            Self::String(bytes) => write!(f, "String(\"{}\")", bytes.escape_ascii()),
            Self::Array(values) => write!(f, "Array({values:?})"),
            Self::Timestamp(seconds) => write!(f, "Timestamp({seconds})"),
            Self::Table(table) => write!(f, "Table({table:?})"),
            Self::Void => f.write_str("Void"),
            Self::Bytes(bytes) => write!(f, "Bytes(\"{}\")", bytes.escape_ascii()),
        }
    }
}
