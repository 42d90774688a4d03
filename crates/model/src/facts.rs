//! What filters can see of a message.

use crate::ids::{SessionId, Timestamp};
use crate::message::Message;

/// A message that a topic routes, as filters see it. Filters never look at the body.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The message.
    pub message: &'a Message,
    /// The routing key; empty if the message has none.
    pub key: &'a str,
    /// When the message was sent.
    pub at: Timestamp,
}

impl<'a> Facts<'a> {
    /// Uses the message's key, or else its session, as the routing key.
    pub fn new(message: &'a Message, at: Timestamp) -> Self {
        let session = || message.session.as_ref().map(SessionId::as_str);
        let key = message.key.as_deref().or_else(session).unwrap_or_default();
        Self { message, key, at }
    }
}
