//! Types of the fields of composites.

use bytes::{BufMut, Bytes, BytesMut};

use crate::types::code::{ARRAY_8, ARRAY_32, TIMESTAMP, UBYTE, USHORT};
use crate::types::{
    Array, DecodeFault, Decoded, Map, Reader, Str, Symbol, Value, put_binary, put_bool, put_map,
    put_string, put_symbol, put_ubyte, put_uint, put_ulong, put_ushort, put_value,
};

#[doc(hidden)]
pub trait Field: Sized {
    /// Reads what follows the format code, which is not null.
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<Self>;
    /// Writes the value with its format code.
    fn write(&self, out: &mut BytesMut);
}

macro_rules! field {
    ($type:ty, |$code:ident, $reader:ident| $read:expr, |$value:ident, $out:ident| $write:expr) => {
        impl Field for $type {
            fn read($code: u8, $reader: &mut Reader<'_>) -> Decoded<Self> {
                $read
            }

            fn write(&self, $out: &mut BytesMut) {
                let $value = self;
                $write
            }
        }
    };
}

field!(bool, |code, reader| reader.bool(code), |value, out| put_bool(out, *value));
field!(u32, |code, reader| reader.uint(code), |value, out| put_uint(out, *value));
field!(u64, |code, reader| reader.ulong(code), |value, out| put_ulong(out, *value));
field!(Bytes, |code, reader| reader.binary(code), |value, out| put_binary(out, value));
field!(Str, |code, reader| reader.string(code), |value, out| put_string(out, value));
field!(Symbol, |code, reader| reader.symbol(code), |value, out| put_symbol(out, value));
field!(Map, |code, reader| reader.map(code), |value, out| put_map(out, value));
field!(Value, |code, reader| reader.value_of(code), |value, out| put_value(out, value));

impl Field for u8 {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<u8> {
        match code {
            UBYTE => reader.u8(),
            found => Err(DecodeFault::WrongType { expected: "ubyte", found }.into()),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        put_ubyte(out, *self);
    }
}

impl Field for u16 {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<u16> {
        match (code, reader.value_of(code)?) {
            (USHORT, Value::Ushort(value)) => Ok(value),
            (found, _) => Err(DecodeFault::WrongType { expected: "ushort", found }.into()),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        put_ushort(out, *self);
    }
}

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Field for Timestamp {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<Timestamp> {
        match (code, reader.value_of(code)?) {
            (TIMESTAMP, Value::Timestamp(ms)) => Ok(Timestamp(ms)),
            (found, _) => Err(DecodeFault::WrongType { expected: "timestamp", found }.into()),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8(TIMESTAMP);
        out.put_i64(self.0);
    }
}

/// Symbols of a field with `multiple="true"`: absent, a single one, or an array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols(pub Vec<Symbol>);

impl Symbols {
    /// Whether one of them has this text.
    pub fn contains(&self, text: &str) -> bool {
        self.0.iter().any(|symbol| symbol == text)
    }
}

impl FromIterator<Symbol> for Symbols {
    fn from_iter<I: IntoIterator<Item = Symbol>>(symbols: I) -> Symbols {
        Symbols(symbols.into_iter().collect())
    }
}

impl Field for Symbols {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<Symbols> {
        if code != ARRAY_8 && code != ARRAY_32 {
            return Ok(Symbols(vec![reader.symbol(code)?]));
        }
        let symbol = |item: &Value| match item {
            Value::Symbol(symbol) => Ok(symbol.clone()),
            _ => {
                Err(DecodeFault::WrongType { expected: "an array of symbols", found: code }.into())
            }
        };
        reader.array(code)?.items().iter().map(symbol).collect::<Decoded<_>>().map(Symbols)
    }

    fn write(&self, out: &mut BytesMut) {
        // Always an array: clients that search it as a list would search a single symbol letter by letter.
        put_value(out, &Value::Array(self.0.iter().cloned().collect::<Array>()));
    }
}

/// A restricted type: a number with named values.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident: $base:ty { $( $(#[$doc:meta])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $( $(#[$doc])* $variant, )* }

        impl Field for $name {
            fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<$name> {
                match <$base>::read(code, reader)? {
                    $( $number => Ok($name::$variant), )*
                    #[allow(unreachable_patterns, reason = "a boolean has no other")]
                    other => Err(DecodeFault::UnknownChoice(other.into()).into()),
                }
            }

            fn write(&self, out: &mut BytesMut) {
                let number: $base = match self { $( $name::$variant => $number, )* };
                number.write(out);
            }
        }
    };
}

choice! {
    /// The end of a link.
    #[derive(Default)]
    Role: bool {
        #[default]
        Sender = false,
        Receiver = true,
    }
}

impl Role {
    pub fn opposite(self) -> Role {
        match self {
            Role::Sender => Role::Receiver,
            Role::Receiver => Role::Sender,
        }
    }
}

choice! {
    SenderSettleMode: u8 {
        /// All deliveries are sent unsettled.
        Unsettled = 0,
        /// All deliveries are sent settled.
        Settled = 1,
        Mixed = 2,
    }
}

choice! {
    /// When a receiver settles.
    ReceiverSettleMode: u8 {
        /// The receiver settles as soon as a message arrives.
        First = 0,
        /// After the sender has settled.
        Second = 1,
    }
}

choice! {
    /// Result of a SASL exchange.
    #[derive(Default)]
    SaslCode: u8 {
        #[default]
        Ok = 0,
        /// The credentials are wrong.
        Auth = 1,
        /// A system error.
        Sys = 2,
        /// A permanent system error.
        SysPerm = 3,
        /// A temporary system error.
        SysTemp = 4,
    }
}
