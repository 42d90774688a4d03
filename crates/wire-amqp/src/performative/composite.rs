//! Composite types: described lists whose fields have a position, a name and a type.
//!
//! [`composite!`] turns the specification's table of a type into a struct, its decoder and its encoder.

use bytes::BytesMut;

use crate::types::code::{DESCRIBED, NULL, SYMBOL_8, SYMBOL_32};
use crate::types::{DecodeFault, Decoded, ListWriter, Reader, put_descriptor};

use super::field::Field;

/// Names of a type and one of its fields, for error messages.
pub(crate) type FieldName = (&'static str, &'static str);

/// A described list.
pub trait Composite: Sized {
    /// The symbolic descriptor.
    const NAME: &'static str;
    /// The numeric descriptor.
    const CODE: u64;

    #[doc(hidden)]
    fn read_fields(fields: &mut Fields<'_, '_>) -> Decoded<Self>;

    #[doc(hidden)]
    fn write_fields(&self, out: &mut BytesMut);

    /// Writes the value with its descriptor.
    fn encode(&self, out: &mut BytesMut) {
        put_descriptor(out, Self::CODE);
        self.write_fields(out);
    }

    /// Reads the value with its descriptor.
    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let code = reader.u8()?;
        read_described(code, reader)
    }
}

/// The fields of a list being read.
#[doc(hidden)]
pub struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: u32,
}

impl Fields<'_, '_> {
    pub(crate) fn optional<T: Field>(&mut self, field: FieldName) -> Decoded<Option<T>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let read = |reader: &mut Reader<'_>| match reader.u8()? {
            NULL => Ok(None),
            code => T::read(code, reader).map(Some),
        };
        read(self.reader).map_err(|error| error.within(field))
    }

    pub(crate) fn required<T: Field>(&mut self, field: FieldName) -> Decoded<T> {
        match self.optional(field)? {
            Some(value) => Ok(value),
            None => {
                Err(crate::types::DecodeError { fault: DecodeFault::Missing, field: Some(field) })
            }
        }
    }
}

/// Reads a composite whose descriptor was read.
pub(crate) fn read_list<T: Composite>(reader: &mut Reader<'_>) -> Decoded<T> {
    let code = reader.u8()?;
    let (count, entered) = reader.enter_list(code)?;
    let mut fields = Fields { reader, left: count };
    let composite = T::read_fields(&mut fields)?;
    // Fields of later versions of the type.
    for _ in 0..fields.left {
        fields.reader.skip()?;
    }
    reader.leave(entered)?;
    Ok(composite)
}

/// Reads a composite of the type `T`, whose first format code was read.
pub(crate) fn read_described<T: Composite>(code: u8, reader: &mut Reader<'_>) -> Decoded<T> {
    if read_descriptor(code, reader)? != T::CODE {
        return Err(DecodeFault::UnknownDescriptor.into());
    }
    read_list(reader)
}

/// The numeric descriptor of a described value, whether written as a number or as a symbol.
pub(crate) fn read_descriptor(code: u8, reader: &mut Reader<'_>) -> Decoded<u64> {
    if code != DESCRIBED {
        return Err(DecodeFault::WrongType { expected: "a described value", found: code }.into());
    }
    let code = reader.u8()?;
    if code == SYMBOL_8 || code == SYMBOL_32 {
        let name = reader.symbol(code)?;
        return super::code_of(&name).ok_or(DecodeFault::UnknownDescriptor.into());
    }
    reader.ulong(code)
}

pub(crate) fn write_list(
    out: &mut BytesMut,
    fields_min: u32,
    write: impl FnOnce(&mut ListWriter<'_>),
) {
    let mut list = ListWriter::begin(out);
    write(&mut list);
    list.end(fields_min);
}

/// The specification's table of a composite type.
///
/// Each field is `required`, `optional` or has a `default`. A value that equals its default is written as null.
/// Trailing nulls are dropped down to `fields_min`: some clients read fields by position without checking their number,
/// so everything except message sections is written in full.
macro_rules! composite {
    (
        $(#[$meta:meta])*
        $name:ident = $symbol:literal, $code:literal, fields_min $fields_min:literal {
            $( $(#[$doc:meta])* $mode:ident $field:ident : $type:ty $(= $default:expr)? ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[$doc])* pub $field: composite!(@type $mode $type), )*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $( $field: composite!(@default $mode $($default)?), )* }
            }
        }

        impl $crate::performative::Composite for $name {
            const NAME: &'static str = $symbol;
            const CODE: u64 = $code;

            #[allow(unused_variables, reason = "some have no fields")]
            fn read_fields(fields: &mut $crate::performative::Fields<'_, '_>) -> $crate::types::Decoded<$name> {
                Ok($name {
                    $( $field: composite!(@read fields ($symbol, stringify!($field)) $mode $($default)?), )*
                })
            }

            fn write_fields(&self, out: &mut bytes::BytesMut) {
                #[allow(unused_variables, reason = "some have no fields")]
                $crate::performative::write_list(out, $fields_min, |list| {
                    $( composite!(@write list (self.$field) $mode $($default)?); )*
                });
            }
        }

        impl $crate::performative::Field for $name {
            fn read(code: u8, reader: &mut $crate::types::Reader<'_>) -> $crate::types::Decoded<$name> {
                $crate::performative::read_described(code, reader)
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                $crate::performative::Composite::encode(self, out);
            }
        }
    };

    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@type default $type:ty) => { $type };

    (@default required) => { Default::default() };
    (@default optional) => { None };
    (@default default $default:expr) => { $default };

    (@read $fields:ident $field:tt required) => { $fields.required($field)? };
    (@read $fields:ident $field:tt optional) => { $fields.optional($field)? };
    (@read $fields:ident $field:tt default $default:expr) => {
        $fields.optional($field)?.unwrap_or_else(|| $default)
    };

    (@write $list:ident ($value:expr) required) => {
        $list.field(|out| $crate::performative::Field::write(&$value, out))
    };
    (@write $list:ident ($value:expr) optional) => {
        match &$value {
            Some(value) => $list.field(|out| $crate::performative::Field::write(value, out)),
            None => $list.null(),
        }
    };
    (@write $list:ident ($value:expr) default $default:expr) => {
        if $value == $default {
            $list.null();
        } else {
            $list.field(|out| $crate::performative::Field::write(&$value, out));
        }
    };
}
pub(crate) use composite;
