//! New tables and arrays.

use bytes::{BufMut as _, BytesMut};

use super::super::text::SHORT_STRING_BYTES_MAX;
use super::{FieldTable, FieldValue, FieldValues, TableRef};

/// Collects the fields of a table.
#[derive(Debug, Default)]
pub struct TableBuilder(BytesMut);

impl TableBuilder {
    pub fn with<'v>(mut self, name: &str, value: impl Into<FieldValue<'v>>) -> Self {
        self.put(name, value);
        self
    }

    /// Adds a field. A name of more than 255 bytes cannot be encoded, and its field is left out.
    pub fn put<'v>(&mut self, name: &str, value: impl Into<FieldValue<'v>>) {
        if name.len() > SHORT_STRING_BYTES_MAX {
            return;
        }
        self.0.put_u8(u8::try_from(name.len()).expect("checked above"));
        self.0.extend_from_slice(name.as_bytes());
        value.into().encode(&mut self.0);
    }

    /// Adds the fields of another table with these names, byte for byte.
    pub fn copy(&mut self, table: TableRef<'_>, mut keep: impl FnMut(&str) -> bool) {
        for field in table.fields().filter(|field| keep(field.name)) {
            self.0.extend_from_slice(field.encoded);
        }
    }

    pub fn build(self) -> FieldTable {
        FieldTable(self.0.freeze())
    }
}

/// Collects the values of an array.
#[derive(Debug, Default)]
pub struct ArrayBuilder(BytesMut);

impl ArrayBuilder {
    pub fn with<'v>(mut self, value: impl Into<FieldValue<'v>>) -> Self {
        self.put(value);
        self
    }

    pub fn put<'v>(&mut self, value: impl Into<FieldValue<'v>>) {
        value.into().encode(&mut self.0);
    }

    /// The values, to be put into a table.
    pub fn values(&self) -> FieldValues<'_> {
        FieldValues(&self.0)
    }
}

impl<'v> FromIterator<FieldValue<'v>> for ArrayBuilder {
    fn from_iter<I: IntoIterator<Item = FieldValue<'v>>>(values: I) -> Self {
        values.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_table_can_be_parsed() {
        let inner = FieldTable::builder().with("x", 1.5_f64).build();
        let keys = ArrayBuilder::default().with("a").with(FieldValue::Timestamp(7));
        let mut builder = FieldTable::builder().with("t", inner.as_table());
        builder.put("k", keys.values());
        builder.put(&"n".repeat(256), true);
        builder.copy(TableRef::parse(b"\x01uV\x01vt\x01\x03BCCV").unwrap(), |name| name != "BCC");
        let table = builder.build();
        assert_eq!(FieldTable::parse(table.as_bytes().clone()).as_ref(), Ok(&table));
        let text = r#"{"t": Table({"x": F64(1.5)}), "k": Array([String("a"), Timestamp(7)]), "u": Void, "v": Bool(true)}"#;
        assert_eq!(format!("{table:?}"), text);
    }
}
