//! What routing looks at.

use crate::ids::{SessionId, Timestamp};
use crate::message::Message;

/// A message on its way through a topic, as filters see it. Its body is never looked at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The message.
    pub message: &'a Message,
    /// Its routing key; none is the empty one.
    pub key: &'a str,
    /// When it was sent.
    pub at: Timestamp,
}

impl<'a> Facts<'a> {
    /// A message with the key that it has by itself: its own, else its session.
    pub fn new(message: &'a Message, at: Timestamp) -> Self {
        let session = || message.session.as_ref().map(SessionId::as_str);
        let key = message.key.as_deref().or_else(session).unwrap_or_default();
        Self { message, key, at }
    }
}
