//! AMQP 0-9-1 as plain data, for either end of a connection.
//!
//! Read in this order:
//! - [`frame`]: frames, cut from the bytes of a connection and written to them;
//! - [`method`]: every method as a struct, and [`Method`](method::Method) for all of them;
//! - [`table`]: field tables, checked once and then read in place;
//! - [`properties`]: content headers and properties, kept as they came;
//! - [`oversize`]: headers that do not fit into a frame;
//! - [`content`]: methods with a header and a body, in several frames;
//! - [`death`]: the headers that record why a message was dead-lettered;
//! - [`error`]: reply codes, their scope and their text.
//!
//! Strings, tables and bodies share the bytes of the frame that they came in. Publishing, delivering and acknowledging
//! allocate nothing. Untrusted input cannot cause a panic, and no length is trusted before its bytes have arrived.

pub mod arguments;
pub mod content;
pub mod death;
pub mod error;
pub mod frame;
pub mod method;
pub mod oversize;
pub mod properties;
pub mod table;
pub mod text;
