//! Content headers, and the properties of a message.
//!
//! ```text
//!  0       2        4           12      14
//!  | class | weight | body size | flags | properties …
//! ```
//!
//! A server passes the properties on byte for byte. [`Properties::decode`] reads them in place, and
//! [`BasicProperties::encode`] makes changed ones:
//!
//! ```
//! # use malote_front_amqp091::wire::properties::{BasicProperties, Properties};
//! # let properties = BasicProperties { expiration: Some(b"5"), ..Default::default() }.encode();
//! let again = BasicProperties { expiration: None, ..properties.decode() }.encode();
//! # assert_eq!(again, Properties::default());
//! ```

use bytes::{BufMut as _, Bytes, BytesMut};

use super::error::{Exception, ReplyCode};
use super::frame::FrameKind;
use super::method::basic;
use super::method::{DecodeMethod as _, MethodId};
use super::table::TableRef;
use super::text::SHORT_STRING_BYTES_MAX;

/// Class, weight, body size.
const FIXED_BYTES: usize = 12;
const NO_FLAGS: [u8; 2] = [0, 0];

/// The header frame of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentHeader {
    pub body_size: u64,
    pub properties: Properties,
}

impl ContentHeader {
    /// Reads the payload of a header frame that follows `basic.publish`.
    pub fn decode(payload: &Bytes) -> Result<Self, Exception> {
        const CLASS: u16 = basic::Publish::ID.class;
        if payload.len() < FIXED_BYTES + NO_FLAGS.len() {
            let kind = FrameKind::Header as u8;
            return Err(Exception::bad_frame(kind, payload, "unknown_frame"));
        }
        let unexpected = |detail: String| {
            Exception::new(ReplyCode::UnexpectedFrame, detail).caused_by(basic::Publish::ID)
        };
        let (class, weight) = payload[..4].split_at(2);
        let class = u16::from_be_bytes([class[0], class[1]]);
        if class != CLASS {
            let detail =
                format!("expected content header for class 60, got one for class {class} instead");
            return Err(unexpected(detail));
        }
        if weight != [0, 0] {
            let detail =
                "expected content header for class 60, got non content header frame instead";
            return Err(unexpected(detail.into()));
        }
        let size = payload[4..FIXED_BYTES].try_into().expect("the range has eight bytes");
        let properties = Properties::parse(payload.slice(FIXED_BYTES..))
            .ok_or_else(|| Exception::new(ReplyCode::FrameError, "cannot decode properties"))
            .map_err(|exception| exception.caused_by(basic::Publish::ID))?;
        Ok(Self { body_size: u64::from_be_bytes(size), properties })
    }

    /// Appends the payload of a header frame.
    pub fn put(out: &mut BytesMut, body_size: u64, properties: &Properties) {
        let MethodId { class, .. } = basic::Publish::ID;
        out.put_u16(class);
        out.put_u16(0);
        out.put_u64(body_size);
        out.extend_from_slice(&properties.0);
    }
}

/// Flags and properties of a message, in shared bytes that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties(Bytes);

impl Default for Properties {
    fn default() -> Self {
        Self(Bytes::from_static(&NO_FLAGS))
    }
}

macro_rules! basic_properties {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $take:ident, $put:ident, $bit:literal;)*) => {
        /// The properties of a message. Strings are usually UTF-8, but nothing guarantees it.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct BasicProperties<'a> { $($(#[$doc])* pub $name: Option<$type>,)* }

        impl<'a> BasicProperties<'a> {
            /// None unless the bytes are flags and exactly the properties that they announce.
            fn read(bytes: &'a [u8]) -> Option<Self> {
                let (flags, mut rest) = bytes.split_first_chunk()?;
                let flags = u16::from_be_bytes(*flags);
                let mut properties = Self::default();
                $(if flags & (1 << $bit) != 0 {
                    properties.$name = Some($take(&mut rest)?);
                })*
                let known = $((1 << $bit))|*;
                (rest.is_empty() && flags & !known == 0).then_some(properties)
            }

            /// Strings of more than 255 bytes are cut.
            pub fn encode(&self) -> Properties {
                let mut out = BytesMut::from(&NO_FLAGS[..]);
                let mut flags: u16 = 0;
                $(if let Some(value) = self.$name {
                    flags |= 1 << $bit;
                    $put(&mut out, value);
                })*
                out[..NO_FLAGS.len()].copy_from_slice(&flags.to_be_bytes());
                Properties(out.freeze())
            }
        }
    };
}

basic_properties! {
    content_type: &'a [u8] = take_short, put_short, 15;
    content_encoding: &'a [u8] = take_short, put_short, 14;
    headers: TableRef<'a> = take_table, put_table, 13;
    /// 2 is persistent.
    delivery_mode: u8 = take_u8, put_u8, 12;
    priority: u8 = take_u8, put_u8, 11;
    correlation_id: &'a [u8] = take_short, put_short, 10;
    reply_to: &'a [u8] = take_short, put_short, 9;
    /// Milliseconds, as a decimal number.
    expiration: &'a [u8] = take_short, put_short, 8;
    message_id: &'a [u8] = take_short, put_short, 7;
    /// Seconds since 1970.
    timestamp: u64 = take_u64, put_u64, 6;
    kind: &'a [u8] = take_short, put_short, 5;
    user_id: &'a [u8] = take_short, put_short, 4;
    app_id: &'a [u8] = take_short, put_short, 3;
    /// Reserved by the specification, and not used.
    cluster_id: &'a [u8] = take_short, put_short, 2;
}

impl Properties {
    /// The same properties in bytes of their own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// None if the flags do not fit the properties, or the headers are not a table.
    pub fn parse(bytes: Bytes) -> Option<Self> {
        BasicProperties::read(&bytes)?;
        Some(Self(bytes))
    }

    /// All properties, in place.
    pub fn decode(&self) -> BasicProperties<'_> {
        BasicProperties::read(&self.0).expect("checked when created")
    }

    /// Flags and properties, encoded.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

fn take<'a, const N: usize>(input: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(taken)
}

fn take_slice<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

fn take_u8(input: &mut &[u8]) -> Option<u8> {
    take(input).map(|[octet]| *octet)
}

fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take(input).map(|octets| u64::from_be_bytes(*octets))
}

fn take_short<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_u8(input)?;
    take_slice(input, length.into())
}

fn take_table<'a>(input: &mut &'a [u8]) -> Option<TableRef<'a>> {
    let length = u32::from_be_bytes(*take(input)?);
    TableRef::parse(take_slice(input, length as usize)?).ok()
}

fn put_u8(out: &mut BytesMut, value: u8) {
    out.put_u8(value);
}

fn put_u64(out: &mut BytesMut, value: u64) {
    out.put_u64(value);
}

fn put_short(out: &mut BytesMut, text: &[u8]) {
    let text = &text[..text.len().min(SHORT_STRING_BYTES_MAX)];
    out.put_u8(u8::try_from(text.len()).expect("cut above"));
    out.extend_from_slice(text);
}

fn put_table(out: &mut BytesMut, table: TableRef<'_>) {
    let bytes = table.as_bytes();
    out.put_u32(u32::try_from(bytes.len()).expect("tables are smaller than 4 GiB"));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::table::FieldTable;

    fn header(class: u16, weight: u16, rest: &[u8]) -> Result<ContentHeader, String> {
        let mut payload = BytesMut::new();
        payload.put_u16(class);
        payload.put_u16(weight);
        payload.put_u64(5);
        payload.extend_from_slice(rest);
        ContentHeader::decode(&payload.freeze()).map_err(|error| error.to_string())
    }

    #[test]
    fn properties_are_kept_byte_for_byte() {
        let headers = FieldTable::builder().with("n", 1_i32).build();
        let all = BasicProperties {
            content_type: Some(b"text/plain"),
            content_encoding: Some(b"gzip"),
            headers: Some(headers.as_table()),
            delivery_mode: Some(2),
            priority: Some(9),
            correlation_id: Some(b"\xff"),
            reply_to: Some(b"r"),
            expiration: Some(b"1000"),
            message_id: Some(b"m"),
            timestamp: Some(u64::MAX),
            kind: Some(b"t"),
            user_id: Some(b"guest"),
            app_id: Some(b"a"),
            cluster_id: Some(b""),
        };
        let properties = all.encode();
        assert_eq!(properties.as_bytes()[..2], [0xff, 0xfc]);
        assert_eq!(properties.decode(), all);
        let decoded = header(60, 0, properties.as_bytes()).unwrap();
        assert_eq!(decoded, ContentHeader { body_size: 5, properties: properties.clone() });
        let mut out = BytesMut::new();
        ContentHeader::put(&mut out, 5, &properties);
        assert_eq!(out[FIXED_BYTES..], properties.as_bytes()[..]);
        // Every shorter piece announces more than it has.
        for end in 0..properties.as_bytes().len() {
            assert_eq!(Properties::parse(properties.as_bytes().slice(..end)), None);
        }
    }

    #[test]
    fn one_property_can_be_changed() {
        let properties = BasicProperties {
            expiration: Some(b"5"),
            message_id: Some(b"m"),
            ..BasicProperties::default()
        };
        let headers = FieldTable::builder().with("x", true).build();
        let properties = properties.encode();
        let changed = BasicProperties {
            expiration: None,
            headers: Some(headers.as_table()),
            ..properties.decode()
        };
        let text = b"\x20\x80\0\0\0\x04\x01xt\x01\x01m";
        assert_eq!(changed.encode().as_bytes()[..], text[..]);
        let long = BasicProperties { app_id: Some(&[b'a'; 300]), ..Default::default() }.encode();
        assert_eq!(long.decode().app_id.map(<[u8]>::len), Some(255));
    }

    #[test]
    fn bad_headers_are_refused() {
        let refused = |class, weight, rest: &[u8]| header(class, weight, rest).unwrap_err();
        let text =
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 61 instead";
        assert_eq!(refused(61, 0, &[0, 0]), text);
        let text = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead";
        assert_eq!(refused(60, 1, &[0, 0]), text);
        let text =
            "FRAME_ERROR - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,5,0>>: unknown_frame";
        assert_eq!(refused(60, 0, &[0]), text);
        let bad: [&[u8]; 5] = [
            b"\0\x01\0\0",             // a second word of flags
            b"\x80\0\x05ab",           // a string that is cut
            b"\x80\0\x02abcd",         // bytes behind the last property
            b"\x20\0\0\0\0\x03\x01aZ", // headers with an unknown type
            b"\x20\0\xff\xff\xff\xff", // headers that are longer than the frame
        ];
        for rest in bad {
            assert_eq!(refused(60, 0, rest), "FRAME_ERROR - cannot decode properties");
        }
    }
}
