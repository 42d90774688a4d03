//! The arguments of methods: integers, bits, strings and tables.
//!
//! Consecutive bits share an octet, lowest bit first. Any other argument begins a new octet.

use std::marker::PhantomData;

use bytes::{BufMut as _, Bytes, BytesMut};

use super::table::{FieldTable, TableError};
use super::text::{ShortString, truncate};

/// Why arguments cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentError {
    /// They end too early.
    Truncated,
    /// A short string is not UTF-8.
    NotUtf8,
    Table(TableError),
}

/// A type of argument.
pub trait Argument: Sized {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError>;
    fn write(&self, writer: &mut ArgumentWriter<'_>);
}

/// Reads arguments from a payload, whose bytes strings and tables share.
pub struct ArgumentReader<'a> {
    payload: &'a Bytes,
    at: usize,
    /// The octet of the bits that are being read.
    bits: u8,
    /// The next bit in it; zero if the next bit begins an octet.
    bit: u8,
}

impl<'a> ArgumentReader<'a> {
    /// Starts behind the first `at` bytes.
    pub fn new(payload: &'a Bytes, at: usize) -> Self {
        Self { payload, at, bits: 0, bit: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.payload.len()
    }

    fn take(&mut self, count: usize) -> Result<std::ops::Range<usize>, ArgumentError> {
        self.bit = 0;
        let end = self.at.checked_add(count).filter(|end| *end <= self.payload.len());
        let end = end.ok_or(ArgumentError::Truncated)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn octets<const N: usize>(&mut self) -> Result<[u8; N], ArgumentError> {
        let range = self.take(N)?;
        Ok(self.payload[range].try_into().expect("the range has N bytes"))
    }

    fn shared(&mut self, count: usize) -> Result<Bytes, ArgumentError> {
        let range = self.take(count)?;
        Ok(self.payload.slice(range))
    }

    fn next_bit(&mut self) -> Result<bool, ArgumentError> {
        if self.bit == 0 {
            [self.bits] = self.octets()?;
            self.bit = 1;
        }
        let set = self.bits & self.bit != 0;
        self.bit <<= 1;
        Ok(set)
    }
}

/// Appends arguments to a buffer.
pub struct ArgumentWriter<'a> {
    out: &'a mut BytesMut,
    /// The next bit of the last octet; zero if the next bit begins an octet.
    bit: u8,
}

impl<'a> ArgumentWriter<'a> {
    pub fn new(out: &'a mut BytesMut) -> Self {
        Self { out, bit: 0 }
    }

    fn put(&mut self, octets: &[u8]) {
        self.bit = 0;
        self.out.extend_from_slice(octets);
    }

    fn put_bit(&mut self, set: bool) {
        if self.bit == 0 {
            self.out.put_u8(0);
            self.bit = 1;
        }
        if set && let Some(last) = self.out.last_mut() {
            *last |= self.bit;
        }
        self.bit <<= 1;
    }

    /// A text longer than 255 bytes is cut.
    pub fn put_short(&mut self, text: &str) {
        let text = truncate(text);
        self.put(&[u8::try_from(text.len()).expect("truncated")]);
        self.put(text.as_bytes());
    }

    fn put_long(&mut self, octets: &[u8]) {
        let length = u32::try_from(octets.len()).expect("arguments are smaller than 4 GiB");
        self.put(&length.to_be_bytes());
        self.put(octets);
    }
}

macro_rules! integer_arguments {
    ($($type:ty)*) => {$(
        impl Argument for $type {
            fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
                reader.octets().map(Self::from_be_bytes)
            }

            fn write(&self, writer: &mut ArgumentWriter<'_>) {
                writer.put(&self.to_be_bytes());
            }
        }
    )*};
}
integer_arguments!(u8 u16 u32 u64);

impl Argument for bool {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
        reader.next_bit()
    }

    fn write(&self, writer: &mut ArgumentWriter<'_>) {
        writer.put_bit(*self);
    }
}

impl Argument for ShortString {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
        let length = u8::read(reader)?;
        let bytes = reader.shared(length.into())?;
        Self::from_bytes(bytes).ok_or(ArgumentError::NotUtf8)
    }

    fn write(&self, writer: &mut ArgumentWriter<'_>) {
        writer.put_short(self);
    }
}

/// A long string: any bytes.
impl Argument for Bytes {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
        let length = u32::read(reader)?;
        reader.shared(length as usize)
    }

    fn write(&self, writer: &mut ArgumentWriter<'_>) {
        writer.put_long(self);
    }
}

impl Argument for FieldTable {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
        Self::parse(Bytes::read(reader)?).map_err(ArgumentError::Table)
    }

    fn write(&self, writer: &mut ArgumentWriter<'_>) {
        writer.put_long(self.as_bytes());
    }
}

/// An argument without meaning: ignored when read, the default value when written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved<T>(PhantomData<T>);

impl<T: Argument + Default> Argument for Reserved<T> {
    fn read(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError> {
        T::read(reader).map(|_| Self(PhantomData))
    }

    fn write(&self, writer: &mut ArgumentWriter<'_>) {
        T::default().write(writer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_share_octets_until_another_argument_follows() {
        let mut out = BytesMut::new();
        let mut writer = ArgumentWriter::new(&mut out);
        for index in 0..10 {
            (index % 3 == 0).write(&mut writer);
        }
        7_u8.write(&mut writer);
        true.write(&mut writer);
        let payload = out.freeze();
        assert_eq!(payload[..], [0b0100_1001, 0b10, 7, 1]);
        let mut reader = ArgumentReader::new(&payload, 0);
        for index in 0..10 {
            assert_eq!(bool::read(&mut reader), Ok(index % 3 == 0));
        }
        assert_eq!(u8::read(&mut reader), Ok(7));
        assert_eq!(bool::read(&mut reader), Ok(true));
        assert!(reader.is_at_end());
        assert_eq!(u8::read(&mut reader), Err(ArgumentError::Truncated));
    }

    #[test]
    fn a_length_is_not_trusted() {
        let payload = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]);
        let mut reader = ArgumentReader::new(&payload, 0);
        assert_eq!(Bytes::read(&mut reader), Err(ArgumentError::Truncated));
    }
}
