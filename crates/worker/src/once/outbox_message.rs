//! A message in an outbox: headers as JSON, and the body.

use std::time::Duration;

use bytes::Bytes;
use malote_model::{Address, Body, BodyKind, Message, QueueName, SessionId, Value, When};
use malote_wire_native::PropertyMap;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::client::json_message;
use crate::clock::{delay_millis, signed};

/// A message to send in a transaction.
#[derive(Clone, Debug)]
pub struct OutboxMessage {
    pub(crate) queue: String,
    pub(crate) message: Message,
    delay: Option<Duration>,
}

impl OutboxMessage {
    /// A value as JSON.
    pub fn json<T: Serialize>(queue: &str, value: &T) -> Result<Self, Error> {
        Ok(Self { queue: queue.to_owned(), message: json_message(value)?, delay: None })
    }

    /// A message with a text as its body.
    pub fn text(queue: &str, text: impl Into<String>) -> Self {
        let body = Body { bytes: text.into().into(), kind: BodyKind::Text };
        let message = Message { body, ..Message::default() };
        Self { queue: queue.to_owned(), message, delay: None }
    }

    /// Starts a saga when the transaction is committed, like [`crate::Malote::start_saga`].
    pub fn saga<T: Serialize>(saga: &str, id: &str, data: &T) -> Result<Self, Error> {
        let message = crate::saga::start(id, data)?;
        Ok(Self { queue: crate::saga::queue_of(saga), message, delay: None })
    }

    /// The session of the message.
    #[must_use]
    pub fn session(mut self, session: SessionId) -> Self {
        self.message.session = Some(session);
        self
    }

    /// The subject. A worker selects the handler by it.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.message.subject = Some(subject.into());
        self
    }

    /// The message id. By default it is derived from the handled message, so that it is the same on every attempt.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.message.message_id = Some(id.into());
        self
    }

    /// Sets a property.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: Value) -> Self {
        self.message.properties.set(name, value);
        self
    }

    /// Publishes the message after this delay, by the clock of the database. It does not hold back other messages.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// The row to write to the outbox.
    pub(crate) fn row(self) -> Result<NewOutboxRow, Error> {
        let headers = serde_json::to_string(&OutboxHeaders::of(&self.message))
            .map_err(|error| Error::Encode(error.to_string()))?;
        let delay_ms = self.delay.map(|delay| signed(delay_millis(delay)));
        let key = self.key();
        let Message { message_id, body, .. } = self.message;
        Ok(NewOutboxRow {
            key,
            target: self.queue,
            message_id,
            headers,
            body: body.bytes,
            delay_ms,
        })
    }

    /// The ordering key. Messages with the same key are published in commit order.
    fn key(&self) -> String {
        let message = &self.message;
        let key = message.session.as_ref().map(SessionId::as_str).or(message.key.as_deref());
        format!("{}/{}", self.queue, key.unwrap_or_default())
    }
}

/// A row to write to the outbox.
pub(crate) struct NewOutboxRow {
    pub(crate) key: String,
    pub(crate) target: String,
    pub(crate) message_id: Option<String>,
    pub(crate) headers: String,
    pub(crate) body: Bytes,
    pub(crate) delay_ms: Option<i64>,
}

/// The column `headers`.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct OutboxHeaders {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    properties: Option<PropertyMap>,
    #[serde(default)]
    text: bool,
}

impl OutboxHeaders {
    pub(crate) fn of(message: &Message) -> Self {
        Self {
            session: message.session.as_ref().map(|session| session.as_str().to_owned()),
            key: message.key.clone(),
            subject: message.subject.clone(),
            correlation_id: message.correlation_id.clone(),
            content_type: message.content_type.clone(),
            properties: (!message.properties.is_empty())
                .then(|| PropertyMap(message.properties.clone())),
            text: message.body.kind == BodyKind::Text,
        }
    }

    /// The message of a row and its address, or an error text if the row is invalid.
    pub(crate) fn message(
        self,
        queue: &str,
        id: String,
        body: Vec<u8>,
    ) -> Result<(Address, Message), String> {
        let to = QueueName::new(queue).map_err(|refusal| refusal.to_string())?;
        let session = self.session.as_deref().map(SessionId::new).transpose();
        let kind = if self.text { BodyKind::Text } else { BodyKind::Bytes };
        let message = Message {
            message_id: Some(id),
            session: session.map_err(|refusal| refusal.to_string())?,
            key: self.key,
            subject: self.subject,
            correlation_id: self.correlation_id,
            content_type: self.content_type,
            properties: self.properties.unwrap_or_default().0,
            when: When::Now,
            body: Body { bytes: body.into(), kind },
            ..Message::default()
        };
        Ok((Address::Queue(to), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_same_after_writing_and_reading_its_row() {
        let sent = OutboxMessage::text("receipts", "x")
            .session(SessionId::new("ana").unwrap())
            .subject("paid")
            .property("n", Value::I32(7));
        let headers = serde_json::to_string(&OutboxHeaders::of(&sent.message)).unwrap();
        let headers: OutboxHeaders = serde_json::from_str(&headers).unwrap();
        let (to, message) = headers.message(&sent.queue, "m".into(), b"x".to_vec()).unwrap();
        assert_eq!(to, Address::Queue(QueueName::new("receipts").unwrap()));
        assert_eq!(message, Message { message_id: Some("m".into()), ..sent.message.clone() });
        assert_eq!(sent.key(), "receipts/ana");
    }
}
