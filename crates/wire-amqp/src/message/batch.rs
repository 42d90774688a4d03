//! Batches of Service Bus: a message whose data sections are encoded messages.

use bytes::{Bytes, BytesMut};

use crate::types::{Decoded, put_binary, put_descriptor};

use super::Message;
use super::section::DATA;

/// The message format of a transfer that carries a batch.
pub const BATCH_FORMAT: u32 = 0x8001_3700;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the batch has more than {messages_max} messages")]
pub struct BatchTooLong {
    pub messages_max: usize,
}

/// Writes messages as the body of a batch. The caller writes the other sections before.
pub fn encode_batch<'a>(messages: impl IntoIterator<Item = &'a Bytes>, out: &mut BytesMut) {
    for message in messages {
        put_descriptor(out, DATA);
        put_binary(out, message);
    }
}

/// The messages of a batch.
pub fn decode_batch(
    envelope: &Message,
    messages_max: usize,
) -> Decoded<Result<Vec<Message>, BatchTooLong>> {
    let parts = envelope.data()?;
    if parts.len() > messages_max {
        return Ok(Err(BatchTooLong { messages_max }));
    }
    parts.into_iter().map(Message::parse_any_order).collect::<Decoded<Vec<_>>>().map(Ok)
}
