//! The type system (part 1): values that keep their type, their shortest encoding, and a reader for untrusted bytes.
//!
//! Strings and binaries share the bytes they were read from. The reader allocates nothing for a length before it has
//! that many bytes. [`DEPTH_MAX`] and [`VALUES_MAX`] limit what a few bytes can expand to.

pub(crate) mod code;
mod decode;
mod encode;
mod error;
mod text;
mod value;

pub use decode::{DEPTH_MAX, Reader, VALUES_MAX};
pub(crate) use encode::ListWriter;
pub use encode::{
    SectionWriter, put_binary, put_binary_start, put_bool, put_descriptor, put_map, put_null,
    put_string, put_symbol, put_ubyte, put_uint, put_ulong, put_ushort, put_value,
};
pub use error::{DecodeError, DecodeFault, Decoded};
pub use text::{Str, Symbol};
pub use value::{Array, Described, Kind, Map, Value};
