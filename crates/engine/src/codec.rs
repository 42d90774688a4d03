//! The encoding of events and messages in journal records. No other module knows it, so refactoring cannot change the
//! format.
//!
//! Every record body begins with a version byte. Integers, positions and times are LEB128 varints; texts and bytes are
//! prefixed with their length. Decoders must accept any bytes: they never panic, and never allocate memory for an
//! unchecked length.

mod digest;
mod event;
mod leased;
mod message;
mod moved;
mod read;
mod rule;
mod sent;
mod spec;
mod stored;
mod window;

pub(crate) use event::{encode_event, get_history, kind_of, put_history, understand_event};
pub use message::EncodedMessage;
pub(crate) use message::put_properties;
pub(crate) use read::{EncodeExt, Malformed, Reader};
pub use rule::{decode_rule, decode_topic_spec, encode_rule, encode_topic_spec};
pub(crate) use rule::{get_rule, get_topic_spec, put_rule, put_topic_spec};
pub(crate) use spec::{get_spec, put_spec};
pub use stored::{DeadLetter, Stored, Unreadable, read_state};
pub(crate) use stored::{read_whole, state_of};
pub(crate) use window::StreamReader;
