//! Writes values, each in its shortest form.

use bytes::BytesMut;

use super::code::*;
use super::{Array, Kind, Map, Value};

/// A few bytes. Unlike the methods of `BufMut`, this is inlined with a length known at compile time; most output is a
/// code and a number.
#[inline]
fn put<const N: usize>(out: &mut BytesMut, bytes: [u8; N]) {
    out.extend_from_slice(&bytes);
}

pub fn put_null(out: &mut BytesMut) {
    put(out, [NULL]);
}

pub fn put_bool(out: &mut BytesMut, value: bool) {
    put(out, [if value { TRUE } else { FALSE }]);
}

pub fn put_ubyte(out: &mut BytesMut, value: u8) {
    put(out, [UBYTE, value]);
}

pub fn put_ushort(out: &mut BytesMut, value: u16) {
    put(out, [USHORT]);
    put(out, value.to_be_bytes());
}

pub fn put_uint(out: &mut BytesMut, value: u32) {
    match value {
        0 => put(out, [UINT_0]),
        1..=0xff => put(out, [UINT_8, value as u8]),
        _ => {
            put(out, [UINT]);
            put(out, value.to_be_bytes());
        }
    }
}

pub fn put_ulong(out: &mut BytesMut, value: u64) {
    match value {
        0 => put(out, [ULONG_0]),
        1..=0xff => put(out, [ULONG_8, value as u8]),
        _ => {
            put(out, [ULONG]);
            put(out, value.to_be_bytes());
        }
    }
}

fn put_run(out: &mut BytesMut, code_8: u8, bytes: &[u8]) {
    put_run_start(out, code_8, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_run_start(out: &mut BytesMut, code_8: u8, len: usize) {
    // The wide code of each such type is the narrow one plus 0x10.
    if let Ok(len) = u8::try_from(len) {
        put(out, [code_8, len]);
    } else {
        put(out, [code_8 + 0x10]);
        put(out, len_u32(len).to_be_bytes());
    }
}

/// Cannot overflow: messages and frames are limited to far less than 4 GiB.
fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("encoded values are smaller than 4 GiB")
}

pub fn put_binary(out: &mut BytesMut, bytes: &[u8]) {
    put_run(out, BINARY_8, bytes);
}

/// The head of a binary with `len` bytes.
pub fn put_binary_start(out: &mut BytesMut, len: usize) {
    put_run_start(out, BINARY_8, len);
}

pub fn put_string(out: &mut BytesMut, text: &str) {
    put_run(out, STRING_8, text.as_bytes());
}

/// The caller ensures that the text is ASCII.
pub fn put_symbol(out: &mut BytesMut, text: &str) {
    put_run(out, SYMBOL_8, text.as_bytes());
}

/// The head of a described value with a numeric descriptor.
pub fn put_descriptor(out: &mut BytesMut, code: u64) {
    put(out, [DESCRIBED]);
    put_ulong(out, code);
}

pub fn put_map(out: &mut BytesMut, map: &Map) {
    let compound = Compound::begin(out, MAP_8);
    for (key, value) in &map.0 {
        put_value(out, key);
        put_value(out, value);
    }
    compound.end(out, len_u32(map.0.len() * 2));
}

pub fn put_value(out: &mut BytesMut, value: &Value) {
    match value {
        Value::Null => put_null(out),
        Value::Bool(value) => put_bool(out, *value),
        Value::Ubyte(value) => put_ubyte(out, *value),
        Value::Ushort(value) => put_ushort(out, *value),
        Value::Uint(value) => put_uint(out, *value),
        Value::Ulong(value) => put_ulong(out, *value),
        Value::Int(value) => match i8::try_from(*value) {
            Ok(small) => put(out, [INT_8, small as u8]),
            Err(_) => put_wide(out, INT, &value.to_be_bytes()),
        },
        Value::Long(value) => match i8::try_from(*value) {
            Ok(small) => put(out, [LONG_8, small as u8]),
            Err(_) => put_wide(out, LONG, &value.to_be_bytes()),
        },
        Value::Byte(value) => put(out, [BYTE, *value as u8]),
        Value::Short(value) => put_wide(out, SHORT, &value.to_be_bytes()),
        Value::Float(value) => put_wide(out, FLOAT, &value.to_be_bytes()),
        Value::Double(value) => put_wide(out, DOUBLE, &value.to_be_bytes()),
        Value::Decimal32(bytes) => put_wide(out, DECIMAL_32, bytes),
        Value::Decimal64(bytes) => put_wide(out, DECIMAL_64, bytes),
        Value::Decimal128(bytes) => put_wide(out, DECIMAL_128, bytes),
        Value::Char(value) => put_wide(out, CHAR, &u32::from(*value).to_be_bytes()),
        Value::Timestamp(value) => put_wide(out, TIMESTAMP, &value.to_be_bytes()),
        Value::Uuid(bytes) => put_wide(out, UUID, bytes),
        Value::Binary(bytes) => put_binary(out, bytes),
        Value::String(text) => put_run(out, STRING_8, text.as_bytes()),
        Value::Symbol(text) => put_run(out, SYMBOL_8, text.as_bytes()),
        Value::List(items) => {
            if items.is_empty() {
                put(out, [LIST_0]);
                return;
            }
            let compound = Compound::begin(out, LIST_8);
            for item in items {
                put_value(out, item);
            }
            compound.end(out, len_u32(items.len()));
        }
        Value::Map(map) => put_map(out, map),
        Value::Array(array) => put_array(out, array),
        Value::Described(described) => {
            put(out, [DESCRIBED]);
            put_value(out, &described.descriptor);
            put_value(out, &described.value);
        }
    }
}

fn put_wide(out: &mut BytesMut, code: u8, bytes: &[u8]) {
    put(out, [code]);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_array(out: &mut BytesMut, array: &Array) {
    let compound = Compound::begin(out, ARRAY_8);
    if let Some(descriptor) = array.descriptor() {
        put(out, [DESCRIBED]);
        put_value(out, descriptor);
    }
    let items = array.items();
    let long = |len: usize| len > 0xff;
    let (code, wide) = match array.kind() {
        Kind::Null => (NULL, false),
        Kind::Bool => (BOOL, false),
        Kind::Ubyte => (UBYTE, false),
        Kind::Ushort => (USHORT, false),
        Kind::Uint => (UINT, false),
        Kind::Ulong => (ULONG, false),
        Kind::Byte => (BYTE, false),
        Kind::Short => (SHORT, false),
        Kind::Int => (INT, false),
        Kind::Long => (LONG, false),
        Kind::Float => (FLOAT, false),
        Kind::Double => (DOUBLE, false),
        Kind::Decimal32 => (DECIMAL_32, false),
        Kind::Decimal64 => (DECIMAL_64, false),
        Kind::Decimal128 => (DECIMAL_128, false),
        Kind::Char => (CHAR, false),
        Kind::Timestamp => (TIMESTAMP, false),
        Kind::Uuid => (UUID, false),
        Kind::Binary => (BINARY_8, items.iter().any(|item| long(run_of(item).len()))),
        Kind::String => (STRING_8, items.iter().any(|item| long(run_of(item).len()))),
        Kind::Symbol => (SYMBOL_8, items.iter().any(|item| long(run_of(item).len()))),
        Kind::List => (LIST_8, true),
        Kind::Map => (MAP_8, true),
        // An array never contains described items; it has a descriptor instead.
        Kind::Array | Kind::Described => (ARRAY_8, true),
    };
    put(out, [if wide { code + 0x10 } else { code }]);
    for item in items {
        put_item(out, item, wide);
    }
    compound.end(out, len_u32(items.len()));
}

fn run_of(item: &Value) -> &[u8] {
    match item {
        Value::Binary(bytes) => bytes,
        Value::String(text) => text.as_bytes(),
        Value::Symbol(text) => text.as_bytes(),
        _ => &[],
    }
}

/// One item of an array, without the common format code.
fn put_item(out: &mut BytesMut, item: &Value, wide: bool) {
    match item {
        Value::Null | Value::Described(_) => {}
        Value::Bool(value) => put(out, [u8::from(*value)]),
        Value::Ubyte(value) => put(out, [*value]),
        Value::Ushort(value) => put(out, value.to_be_bytes()),
        Value::Uint(value) => put(out, value.to_be_bytes()),
        Value::Ulong(value) => put(out, value.to_be_bytes()),
        Value::Byte(value) => put(out, [*value as u8]),
        Value::Short(value) => put(out, value.to_be_bytes()),
        Value::Int(value) => put(out, value.to_be_bytes()),
        Value::Long(value) | Value::Timestamp(value) => put(out, value.to_be_bytes()),
        Value::Float(value) => put(out, value.to_be_bytes()),
        Value::Double(value) => put(out, value.to_be_bytes()),
        Value::Decimal32(bytes) => out.extend_from_slice(bytes),
        Value::Decimal64(bytes) => out.extend_from_slice(bytes),
        Value::Decimal128(bytes) | Value::Uuid(bytes) => out.extend_from_slice(bytes),
        Value::Char(value) => put(out, u32::from(*value).to_be_bytes()),
        Value::Binary(_) | Value::String(_) | Value::Symbol(_) => {
            let run = run_of(item);
            if wide {
                put(out, len_u32(run.len()).to_be_bytes());
            } else {
                put(out, [run.len() as u8]);
            }
            out.extend_from_slice(run);
        }
        Value::List(_) | Value::Map(_) | Value::Array(_) => put_wide_compound(out, item),
    }
}

/// A compound without its format code, always in the wide form.
fn put_wide_compound(out: &mut BytesMut, item: &Value) {
    let start = out.len();
    out.resize(out.len() + 8, 0);
    let count = match item {
        Value::List(items) => {
            items.iter().for_each(|item| put_value(out, item));
            items.len()
        }
        Value::Map(map) => {
            for (key, value) in &map.0 {
                put_value(out, key);
                put_value(out, value);
            }
            map.0.len() * 2
        }
        Value::Array(array) => {
            // The inner array writes its own head, which is replaced by a wide one.
            let mut whole = BytesMut::new();
            put_array(&mut whole, array);
            let head = if whole.first() == Some(&ARRAY_8) { 3 } else { 9 };
            out.extend_from_slice(whole.get(head..).unwrap_or_default());
            array.items().len()
        }
        _ => 0,
    };
    let size = len_u32(out.len() - start - 4);
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&len_u32(count).to_be_bytes());
}

/// A compound value being written. Assumes the short head, and widens it if the content is too long.
struct Compound {
    start: usize,
}

impl Compound {
    fn begin(out: &mut BytesMut, code_8: u8) -> Compound {
        let start = out.len();
        put(out, [code_8, 0, 0]);
        Compound { start }
    }

    fn end(self, out: &mut BytesMut, count: u32) {
        let start = self.start;
        let len = out.len() - start - 3;
        if len < 0xff && count <= 0xff {
            out[start + 1] = len as u8 + 1;
            out[start + 2] = count as u8;
            return;
        }
        put(out, [0; 6]);
        out.copy_within(start + 3..start + 3 + len, start + 9);
        out[start] += 0x10;
        out[start + 1..start + 5].copy_from_slice(&len_u32(len + 4).to_be_bytes());
        out[start + 5..start + 9].copy_from_slice(&count.to_be_bytes());
    }
}

/// A section that is a map with symbol keys, written entry by entry.
pub struct SectionWriter<'a> {
    out: &'a mut BytesMut,
    start: usize,
    compound: Compound,
    entries: u32,
}

impl<'a> SectionWriter<'a> {
    /// Begins a section with this descriptor.
    pub fn begin(out: &'a mut BytesMut, code: u64) -> SectionWriter<'a> {
        let start = out.len();
        put_descriptor(out, code);
        let compound = Compound::begin(out, MAP_8);
        SectionWriter { out, start, compound, entries: 0 }
    }

    /// Adds an entry. The caller ensures that the name is ASCII.
    pub fn put(&mut self, name: &str, value: &Value) {
        put_symbol(self.out, name);
        put_value(self.out, value);
        self.entries += 1;
    }

    /// Adds all entries of a map.
    pub fn put_all(&mut self, map: &Map) {
        for (key, value) in &map.0 {
            put_value(self.out, key);
            put_value(self.out, value);
            self.entries += 1;
        }
    }

    /// Ends the section, and removes it if it has no entries.
    pub fn end(self) {
        match self.entries {
            0 => self.out.truncate(self.start),
            _ => self.end_whole(),
        }
    }

    /// Ends the section, and keeps it even if it has no entries.
    pub fn end_whole(self) {
        self.compound.end(self.out, self.entries * 2);
    }
}

/// A list whose trailing nulls are removed.
pub(crate) struct ListWriter<'a> {
    out: &'a mut BytesMut,
    compound: Compound,
    count: u32,
    /// Number of fields up to the last one that is not null, and where it ends.
    kept: u32,
    kept_end: usize,
}

impl<'a> ListWriter<'a> {
    pub(crate) fn begin(out: &'a mut BytesMut) -> ListWriter<'a> {
        let compound = Compound::begin(out, LIST_8);
        let kept_end = out.len();
        ListWriter { out, compound, count: 0, kept: 0, kept_end }
    }

    pub(crate) fn null(&mut self) {
        put_null(self.out);
        self.count += 1;
    }

    pub(crate) fn field(&mut self, write: impl FnOnce(&mut BytesMut)) {
        write(self.out);
        self.count += 1;
        self.kept = self.count;
        self.kept_end = self.out.len();
    }

    /// Removes trailing nulls, but keeps at least `fields_min` fields.
    pub(crate) fn end(self, fields_min: u32) {
        // Everything after the last kept field is nulls of one byte each.
        let nulls = fields_min.min(self.count).saturating_sub(self.kept);
        let kept = self.kept + nulls;
        self.out.truncate(self.kept_end + nulls as usize);
        if kept == 0 {
            self.out.truncate(self.compound.start);
            put(self.out, [LIST_0]);
        } else {
            self.compound.end(self.out, kept);
        }
    }
}
