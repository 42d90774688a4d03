//! What filters can see of a message.

use std::borrow::Cow;

use crate::ids::{SessionId, Timestamp};
use crate::message::{Message, Value};
use crate::topic::HashOn;

/// A message that a topic routes, as filters see it. Filters never look at the body.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The message that a rule is applied to.
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

    /// All routing keys: the main one, and the further ones of the message.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        let more = self.message.more_keys.iter().chain(&self.message.blind_keys);
        std::iter::once(self.key).chain(more.map(String::as_str))
    }

    /// The text that a hash topic hashes.
    pub fn hashed(&self, on: &HashOn) -> Cow<'a, str> {
        let text = match on {
            HashOn::Key => Some(self.key),
            HashOn::MessageId => self.message.message_id.as_deref(),
            HashOn::CorrelationId => self.message.correlation_id.as_deref(),
            HashOn::Property(name) => match self.message.properties.get(name) {
                Some(Value::String(text)) => Some(text.as_str()),
                Some(other) => return Cow::Owned(format!("{other:?}")),
                None => None,
            },
        };
        Cow::Borrowed(text.unwrap_or_default())
    }
}
