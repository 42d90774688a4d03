//! The bytes of events and messages in journal records. Nothing else knows them, so no refactoring can change a format.
//!
//! Every record body begins with a version byte. Integers are LEB128 varints, texts and bytes carry their length,
//! positions and times are varints too. Decoders take bytes that a disk may have changed: they never panic and never
//! allocate from a length they have not checked.

mod digest;
mod event;
mod message;
mod read;
mod rule;
mod spec;
mod stored;
mod window;

pub(crate) use event::{encode_event, get_way, kind_of, put_way, understand_event};
pub use message::Outgoing;
pub(crate) use message::put_properties;
pub(crate) use read::{Put, Reader, Truncated};
pub use rule::{decode_rule, decode_topic_spec, encode_rule, encode_topic_spec};
pub(crate) use rule::{get_rule, get_topic_spec, put_rule, put_topic_spec};
pub(crate) use spec::{get_spec, put_spec};
pub use stored::{DeadLetter, Stored, Unreadable, read_state};
pub(crate) use stored::{read_whole, state_of};
pub(crate) use window::Window;
