//! Typed requests and answers. No engine types in what serde sees; every request refuses fields it does not know.
//!
//! The same structs are JSON over HTTP and JSON or MessagePack over the native connection. Two things differ by
//! encoding, and only in [`value`] and [`message`]: bytes are base64 in JSON and `bin` in MessagePack.

pub mod message;
pub mod peek;
pub mod queue;
pub mod receive;
pub mod session;
pub mod settle;
pub mod text;
pub mod value;

/// How a native connection writes its frames; HTTP is always JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Text.
    #[default]
    Json,
    /// Binary.
    MessagePack,
}
