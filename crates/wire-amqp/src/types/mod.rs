//! The type system (part 1): values that keep their type, their encoding in the most compact form, and a reader that
//! takes nothing on trust.
//!
//! Strings and binaries share the bytes they were read from. A reader allocates nothing for a length before it has seen
//! that many bytes; [`DEPTH_MAX`] and [`VALUES_MAX`] bound what a few bytes can unfold into.

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
pub use error::{DecodeError, Decoded, Fault};
pub use text::{Str, Symbol};
pub use value::{Array, Described, Kind, Map, Value};
