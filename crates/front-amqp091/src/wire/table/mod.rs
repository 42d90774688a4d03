//! Field tables: names and typed values.
//!
//! A table is checked as a whole when it is parsed. After that it is read in place, value by value, without copies, and
//! written again byte for byte. `value.rs` has the types of values, `build.rs` makes new tables.

mod build;
mod value;

use std::fmt;

use bytes::Bytes;

pub use build::{ArrayBuilder, TableBuilder};
pub use value::{FieldValue, FieldValues};

use crate::limits::TABLE_DEPTH_MAX;
use value::{check_value, take, take_value};

/// Why bytes are not a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("a field table ends inside a value")]
    Truncated,
    #[error("a field table has a value of unknown type '{}'", .0.escape_ascii())]
    UnknownType(u8),
    #[error("a field table has a name that is not UTF-8")]
    NameNotUtf8,
    #[error("a field table has more than {TABLE_DEPTH_MAX} levels")]
    TooDeep,
}

/// A table, without its length, in shared bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldTable(Bytes);

/// A table in borrowed bytes.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct TableRef<'a>(&'a [u8]);

/// A name and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field<'a> {
    pub name: &'a str,
    pub value: FieldValue<'a>,
    /// Both, as they are encoded.
    encoded: &'a [u8],
}

impl FieldTable {
    /// Checks all of the table.
    pub fn parse(bytes: Bytes) -> Result<Self, TableError> {
        TableRef::parse(&bytes)?;
        Ok(Self(bytes))
    }

    pub fn builder() -> TableBuilder {
        TableBuilder::default()
    }

    pub fn as_table(&self) -> TableRef<'_> {
        TableRef(&self.0)
    }

    /// The encoded fields.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn fields(&self) -> Fields<'_> {
        self.as_table().fields()
    }

    /// The value of a name; of several fields with that name, the last.
    pub fn get(&self, name: &str) -> Option<FieldValue<'_>> {
        self.as_table().get(name)
    }
}

impl<'a> TableRef<'a> {
    /// Checks all of the table.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TableError> {
        check_table(bytes, 1)?;
        Ok(Self(bytes))
    }

    /// The encoded fields.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn fields(self) -> Fields<'a> {
        Fields(self.0)
    }

    /// The value of a name; of several fields with that name, the last.
    pub fn get(self, name: &str) -> Option<FieldValue<'a>> {
        self.fields().filter(|field| field.name == name).last().map(|field| field.value)
    }

    pub fn to_owned(self) -> FieldTable {
        FieldTable(Bytes::copy_from_slice(self.0))
    }
}

impl Field<'_> {
    /// The bytes of name and value together.
    pub fn encoded_bytes(&self) -> usize {
        self.encoded.len()
    }
}

/// The fields of a table in their order.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        take_field(&mut self.0).ok()
    }
}

/// Removes a field from the front. Tables inside it are not looked at.
fn take_field<'a>(input: &mut &'a [u8]) -> Result<Field<'a>, TableError> {
    let start = *input;
    let [length] = *take(input)?;
    let name = value::take_slice(input, length.into())?;
    let name = std::str::from_utf8(name).map_err(|_| TableError::NameNotUtf8)?;
    let value = take_value(input)?;
    Ok(Field { name, value, encoded: &start[..start.len() - input.len()] })
}

/// Checks a table on this level, and what is inside it.
fn check_table(mut bytes: &[u8], level: usize) -> Result<(), TableError> {
    if level > TABLE_DEPTH_MAX {
        return Err(TableError::TooDeep);
    }
    while !bytes.is_empty() {
        check_value(take_field(&mut bytes)?.value, level)?;
    }
    Ok(())
}

impl fmt::Debug for TableRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.fields().map(|field| (field.name, field.value))).finish()
    }
}

impl fmt::Debug for FieldTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_table().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// One field of every type, with the tags that RabbitMQ reads.
    const EVERY_TYPE: &[u8] = b"\x01at\x01\x01bb\xff\x01cB\xff\x01ds\xff\xff\x01eu\xff\xff\x01fI\xff\xff\xff\xff\
        \x01gi\xff\xff\xff\xff\x01hl\xff\xff\xff\xff\xff\xff\xff\xff\x01iL\xff\xff\xff\xff\xff\xff\xff\xfe\
        \x01jf\x3f\x80\x00\x00\x01kd\x3f\xf0\x00\x00\x00\x00\x00\x00\x01lD\x02\x00\x00\x01\x00\
        \x01mS\x00\x00\x00\x02hi\x01nA\x00\x00\x00\x03t\x00V\x01oT\x00\x00\x00\x00\x00\x00\x00\x05\
        \x01pF\x00\x00\x00\x03\x01xV\x01qV\x01rx\x00\x00\x00\x01\xff";

    #[test]
    fn every_type_is_read() {
        let table = FieldTable::parse(Bytes::from_static(EVERY_TYPE)).unwrap();
        expect![[r#"
            {"a": Bool(true), "b": I8(-1), "c": U8(255), "d": I16(-1), "e": U16(65535), "f": I32(-1), "g": U32(4294967295), "h": I64(-1), "i": I64(-2), "j": F32(1.0), "k": F64(1.0), "l": Decimal { scale: 2, value: 256 }, "m": String("hi"), "n": Array([Bool(false), Void]), "o": Timestamp(5), "p": Table({"x": Void}), "q": Void, "r": Bytes("\xff")}"#]]
        .assert_eq(&format!("{table:?}"));
        let types: Vec<_> = table.fields().map(|field| field.value.type_name()).collect();
        expect![[r#"["bool", "byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long", "long", "float", "double", "decimal", "longstr", "array", "timestamp", "table", "void", "binary"]"#]]
        .assert_eq(&format!("{types:?}"));
        let integers: Vec<_> =
            table.fields().filter_map(|field| field.value.as_integer()).collect();
        assert_eq!(integers, [-1, 255, -1, 65_535, -1, 4_294_967_295, -1, -2]);
    }

    #[test]
    fn a_table_cut_anywhere_is_refused() {
        let mut boundaries = 0;
        for end in 0..EVERY_TYPE.len() {
            match TableRef::parse(&EVERY_TYPE[..end]) {
                Ok(table) => {
                    assert_eq!(table.fields().count(), boundaries);
                    boundaries += 1;
                }
                Err(error) => assert_eq!(error, TableError::Truncated),
            }
        }
        assert_eq!(boundaries, 18);
    }

    #[test]
    fn bad_tables_are_refused() {
        let refused = |bytes: &[u8]| TableRef::parse(bytes).expect_err("malformed");
        assert_eq!(refused(b"\x01aZ"), TableError::UnknownType(b'Z'));
        assert_eq!(refused(b"\x01\xfft\x01"), TableError::NameNotUtf8);
        assert_eq!(refused(b"\x01aF\xff\xff\xff\xff"), TableError::Truncated);
        // Inside an array and a table.
        assert_eq!(refused(b"\x01aA\0\0\0\x01Z"), TableError::UnknownType(b'Z'));
        assert_eq!(refused(b"\x01aF\0\0\0\x03\x01bI"), TableError::Truncated);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| {
            let mut table = FieldTable::default();
            for _ in 1..levels {
                table = FieldTable::builder().with("t", table.as_table()).build();
            }
            table.as_bytes().clone()
        };
        assert!(FieldTable::parse(nested(TABLE_DEPTH_MAX)).is_ok());
        let deeper = FieldTable::parse(nested(TABLE_DEPTH_MAX + 1));
        assert_eq!(deeper, Err(TableError::TooDeep));
        // Five bytes a level: arrays count too.
        let mut bomb = Vec::new();
        for _ in 0..10_000 {
            let mut outer = vec![b'A'];
            outer.extend((bomb.len() as u32).to_be_bytes());
            outer.append(&mut bomb);
            bomb = outer;
        }
        let table = [b"\x01a".as_slice(), &bomb].concat();
        assert_eq!(TableRef::parse(&table), Err(TableError::TooDeep));
    }

    #[test]
    fn the_last_of_equal_names_wins() {
        let table = FieldTable::builder().with("a", 1_i32).with("b", true).with("a", "x").build();
        assert_eq!(table.get("a"), Some(FieldValue::String(b"x")));
        assert_eq!(table.get("b"), Some(FieldValue::Bool(true)));
        assert_eq!(table.get("c"), None);
    }
}
