//! Reads values from shared bytes.

use std::ops::Range;

use bytes::Bytes;

use super::code::*;
use super::{Array, DecodeFault, Decoded, Described, Kind, Map, Str, Symbol, Value};

/// Nesting depth of values.
pub const DEPTH_MAX: u32 = 32;
/// Values that one reader decodes. A few bytes can announce four billion empty values.
pub const VALUES_MAX: u32 = 65_536;
/// Capacity reserved for a list that announces many items; it grows as they are read.
const ALLOCATE_MAX: usize = 64;

/// Reads values from the front of shared bytes. After an error, the reader must not be used any more.
pub struct Reader<'a> {
    source: &'a Bytes,
    at: usize,
    end: usize,
    depth: u32,
    values_left: u32,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a Bytes) -> Reader<'a> {
        Reader { source, at: 0, end: source.len(), depth: 0, values_left: VALUES_MAX }
    }

    /// Reads a part of the source.
    pub(crate) fn within(source: &'a Bytes, part: Range<usize>) -> Reader<'a> {
        Reader { at: part.start, end: part.end, ..Reader::new(source) }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Whether everything was read.
    pub fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    /// Fails unless everything was read.
    pub fn expect_end(&self) -> Decoded<()> {
        if self.is_at_end() { Ok(()) } else { Err(DecodeFault::LeftOver.into()) }
    }

    fn advance(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let start = self.at;
        match start.checked_add(len) {
            Some(stop) if stop <= self.end => {
                self.at = stop;
                Ok(&self.source[start..stop])
            }
            _ => Err(DecodeFault::Truncated.into()),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let bytes = self.advance(N)?;
        bytes.try_into().map_err(|_| DecodeFault::Truncated.into())
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.fixed::<1>()?[0])
    }

    fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    fn shared(&mut self, len: usize) -> Decoded<Bytes> {
        let start = self.at;
        self.advance(len)?;
        Ok(self.source.slice(start..self.at))
    }

    /// The bytes of a value of variable width.
    fn run(&mut self, code: u8) -> Decoded<Bytes> {
        let len = if code >> 4 == 0xa { self.u8()?.into() } else { self.u32()? };
        self.shared(len as usize)
    }

    /// Reads size and count of a compound. Returns the number of items and the position of their end.
    fn compound(&mut self, wide: bool) -> Decoded<(u32, usize)> {
        let (size, width) = if wide { (self.u32()?, 4) } else { (self.u8()?.into(), 1) };
        let stop = self.at.checked_add(size as usize).filter(|&stop| stop <= self.end);
        let stop = stop.ok_or(DecodeFault::Truncated)?;
        if (size as usize) < width {
            return Err(DecodeFault::WrongSize.into());
        }
        let count = if wide { self.u32()? } else { self.u8()?.into() };
        Ok((count, stop))
    }

    /// Enters a list whose format code was just read. Returns the number of items; [`Reader::leave`] ends it.
    pub(crate) fn enter_list(&mut self, code: u8) -> Decoded<(u32, EnclosingEnd)> {
        let (count, stop) = match code {
            LIST_0 => (0, self.at),
            LIST_8 | LIST_32 => self.compound(code == LIST_32)?,
            found => return Err(DecodeFault::WrongType { expected: "list", found }.into()),
        };
        // An item has at least one byte.
        if count as usize > stop - self.at {
            return Err(DecodeFault::TooMany.into());
        }
        Ok((count, self.enter(stop)?))
    }

    fn enter(&mut self, stop: usize) -> Decoded<EnclosingEnd> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(DecodeFault::TooDeep.into());
        }
        Ok(EnclosingEnd { outer: std::mem::replace(&mut self.end, stop) })
    }

    /// Leaves a list; its content must have been read completely.
    pub(crate) fn leave(&mut self, entered: EnclosingEnd) -> Decoded<()> {
        if self.at != self.end {
            return Err(DecodeFault::WrongSize.into());
        }
        self.depth -= 1;
        self.end = entered.outer;
        Ok(())
    }

    /// Skips one value without decoding it.
    pub fn skip(&mut self) -> Decoded<()> {
        let mut code = self.u8()?;
        let mut layers = 0;
        // A described value is a descriptor and a value, each of which may be described again.
        let mut open = 0_u32;
        loop {
            if code == DESCRIBED {
                open += 1;
                layers += 1;
                if layers > DEPTH_MAX {
                    return Err(DecodeFault::TooDeep.into());
                }
            } else {
                let len = match code >> 4 {
                    0x4 => 0,
                    0x5 => 1,
                    0x6 => 2,
                    0x7 => 4,
                    0x8 => 8,
                    0x9 => 16,
                    0xa | 0xc | 0xe => self.u8()?.into(),
                    0xb | 0xd | 0xf => self.u32()?,
                    _ => return Err(DecodeFault::UnknownCode(code).into()),
                };
                self.advance(len as usize)?;
                match open.checked_sub(1) {
                    None => return Ok(()),
                    Some(left) => open = left,
                }
            }
            code = self.u8()?;
        }
    }

    /// Reads one value.
    pub fn value(&mut self) -> Decoded<Value> {
        let code = self.u8()?;
        self.value_of(code)
    }

    /// Reads the value whose format code was just read.
    pub(crate) fn value_of(&mut self, code: u8) -> Decoded<Value> {
        self.values_left = self.values_left.checked_sub(1).ok_or(DecodeFault::TooMany)?;
        Ok(match code {
            DESCRIBED => {
                let end = self.end;
                let entered = self.enter(end)?;
                let described = Described { descriptor: self.value()?, value: self.value()? };
                self.depth -= 1;
                self.end = entered.outer;
                Value::Described(Box::new(described))
            }
            NULL => Value::Null,
            TRUE => Value::Bool(true),
            FALSE => Value::Bool(false),
            BOOL => match self.u8()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(DecodeFault::OutOfRange.into()),
            },
            UBYTE => Value::Ubyte(self.u8()?),
            USHORT => Value::Ushort(u16::from_be_bytes(self.fixed()?)),
            UINT | UINT_8 | UINT_0 => Value::Uint(self.uint(code)?),
            ULONG | ULONG_8 | ULONG_0 => Value::Ulong(self.ulong(code)?),
            BYTE => Value::Byte(i8::from_be_bytes(self.fixed()?)),
            SHORT => Value::Short(i16::from_be_bytes(self.fixed()?)),
            INT => Value::Int(i32::from_be_bytes(self.fixed()?)),
            INT_8 => Value::Int(i8::from_be_bytes(self.fixed()?).into()),
            LONG => Value::Long(i64::from_be_bytes(self.fixed()?)),
            LONG_8 => Value::Long(i8::from_be_bytes(self.fixed()?).into()),
            FLOAT => Value::Float(f32::from_be_bytes(self.fixed()?)),
            DOUBLE => Value::Double(f64::from_be_bytes(self.fixed()?)),
            DECIMAL_32 => Value::Decimal32(self.fixed()?),
            DECIMAL_64 => Value::Decimal64(self.fixed()?),
            DECIMAL_128 => Value::Decimal128(self.fixed()?),
            CHAR => Value::Char(char::from_u32(self.u32()?).ok_or(DecodeFault::OutOfRange)?),
            TIMESTAMP => Value::Timestamp(i64::from_be_bytes(self.fixed()?)),
            UUID => Value::Uuid(self.fixed()?),
            BINARY_8 | BINARY_32 => Value::Binary(self.run(code)?),
            STRING_8 | STRING_32 => Value::String(Str::checked(self.run(code)?)?),
            SYMBOL_8 | SYMBOL_32 => Value::Symbol(Symbol::checked(self.run(code)?)?),
            LIST_0 | LIST_8 | LIST_32 => {
                let (count, entered) = self.enter_list(code)?;
                let mut items = Vec::with_capacity((count as usize).min(ALLOCATE_MAX));
                for _ in 0..count {
                    items.push(self.value()?);
                }
                self.leave(entered)?;
                Value::List(items)
            }
            MAP_8 | MAP_32 => Value::Map(self.map(code)?),
            ARRAY_8 | ARRAY_32 => Value::Array(self.array(code)?),
            code => return Err(DecodeFault::UnknownCode(code).into()),
        })
    }

    pub(crate) fn uint(&mut self, code: u8) -> Decoded<u32> {
        match code {
            UINT_0 => Ok(0),
            UINT_8 => Ok(self.u8()?.into()),
            UINT => self.u32(),
            found => Err(DecodeFault::WrongType { expected: "uint", found }.into()),
        }
    }

    pub(crate) fn ulong(&mut self, code: u8) -> Decoded<u64> {
        match code {
            ULONG_0 => Ok(0),
            ULONG_8 => Ok(self.u8()?.into()),
            ULONG => Ok(u64::from_be_bytes(self.fixed()?)),
            found => Err(DecodeFault::WrongType { expected: "ulong", found }.into()),
        }
    }

    pub(crate) fn binary(&mut self, code: u8) -> Decoded<Bytes> {
        match code {
            BINARY_8 | BINARY_32 => self.run(code),
            found => Err(DecodeFault::WrongType { expected: "binary", found }.into()),
        }
    }

    pub(crate) fn string(&mut self, code: u8) -> Decoded<Str> {
        match code {
            STRING_8 | STRING_32 => Str::checked(self.run(code)?),
            found => Err(DecodeFault::WrongType { expected: "string", found }.into()),
        }
    }

    pub(crate) fn symbol(&mut self, code: u8) -> Decoded<Symbol> {
        match code {
            SYMBOL_8 | SYMBOL_32 => Symbol::checked(self.run(code)?),
            found => Err(DecodeFault::WrongType { expected: "symbol", found }.into()),
        }
    }

    pub(crate) fn bool(&mut self, code: u8) -> Decoded<bool> {
        match code {
            TRUE => Ok(true),
            FALSE => Ok(false),
            BOOL => match self.u8()? {
                0 => Ok(false),
                1 => Ok(true),
                _ => Err(DecodeFault::OutOfRange.into()),
            },
            found => Err(DecodeFault::WrongType { expected: "boolean", found }.into()),
        }
    }

    pub(crate) fn map(&mut self, code: u8) -> Decoded<Map> {
        let (count, stop) = match code {
            MAP_8 | MAP_32 => self.compound(code == MAP_32)?,
            found => return Err(DecodeFault::WrongType { expected: "map", found }.into()),
        };
        if count as usize > stop - self.at {
            return Err(DecodeFault::TooMany.into());
        }
        if !count.is_multiple_of(2) {
            return Err(DecodeFault::OddMap.into());
        }
        let entered = self.enter(stop)?;
        let mut pairs = Vec::with_capacity((count as usize / 2).min(ALLOCATE_MAX));
        for _ in 0..count / 2 {
            pairs.push((self.value()?, self.value()?));
        }
        self.leave(entered)?;
        Ok(Map(pairs))
    }

    pub(crate) fn array(&mut self, code: u8) -> Decoded<Array> {
        let (count, stop) = match code {
            ARRAY_8 | ARRAY_32 => self.compound(code == ARRAY_32)?,
            found => return Err(DecodeFault::WrongType { expected: "array", found }.into()),
        };
        let entered = self.enter(stop)?;
        let mut constructor = self.u8()?;
        let mut descriptor = None;
        if constructor == DESCRIBED {
            descriptor = Some(self.value()?);
            constructor = self.u8()?;
        }
        let kind = kind_of(constructor)?;
        // Items without bytes are limited only by the number of values.
        let mut items = Vec::with_capacity((count as usize).min(ALLOCATE_MAX).min(stop - self.at));
        for _ in 0..count {
            items.push(self.value_of(constructor)?);
        }
        self.leave(entered)?;
        let array = Array::new(kind, items).ok_or(DecodeFault::UnknownCode(constructor))?;
        Ok(match descriptor {
            Some(descriptor) => array.described(descriptor),
            None => array,
        })
    }
}

/// A compound value being read; stores the end of the enclosing one.
#[must_use]
pub(crate) struct EnclosingEnd {
    outer: usize,
}

fn kind_of(code: u8) -> Decoded<Kind> {
    Ok(match code {
        NULL => Kind::Null,
        TRUE | FALSE | BOOL => Kind::Bool,
        UBYTE => Kind::Ubyte,
        USHORT => Kind::Ushort,
        UINT | UINT_8 | UINT_0 => Kind::Uint,
        ULONG | ULONG_8 | ULONG_0 => Kind::Ulong,
        BYTE => Kind::Byte,
        SHORT => Kind::Short,
        INT | INT_8 => Kind::Int,
        LONG | LONG_8 => Kind::Long,
        FLOAT => Kind::Float,
        DOUBLE => Kind::Double,
        DECIMAL_32 => Kind::Decimal32,
        DECIMAL_64 => Kind::Decimal64,
        DECIMAL_128 => Kind::Decimal128,
        CHAR => Kind::Char,
        TIMESTAMP => Kind::Timestamp,
        UUID => Kind::Uuid,
        BINARY_8 | BINARY_32 => Kind::Binary,
        STRING_8 | STRING_32 => Kind::String,
        SYMBOL_8 | SYMBOL_32 => Kind::Symbol,
        LIST_0 | LIST_8 | LIST_32 => Kind::List,
        MAP_8 | MAP_32 => Kind::Map,
        ARRAY_8 | ARRAY_32 => Kind::Array,
        code => return Err(DecodeFault::UnknownCode(code).into()),
    })
}
