//! A message in an outbox: its headers as JSON, its body as it is.

use std::time::Duration;

use bytes::Bytes;
use malote_model::{Address, Body, BodyKind, Message, QueueName, SessionId, Value, When, limits};
use malote_wire_native::PropertyMap;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A message to be sent with a transaction.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(crate) queue: String,
    pub(crate) message: Message,
    delay: Option<Duration>,
}

impl Outgoing {
    /// A value as JSON.
    pub fn json<T: Serialize>(queue: &str, value: &T) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(value).map_err(|error| Error::Encode(error.to_string()))?;
        let body = Body { bytes: bytes.into(), kind: BodyKind::Text };
        let content_type = Some("application/json".to_owned());
        let message = Message { body, content_type, ..Message::default() };
        Ok(Self { queue: queue.to_owned(), message, delay: None })
    }

    /// A text.
    pub fn text(queue: &str, text: impl Into<String>) -> Self {
        let body = Body { bytes: text.into().into(), kind: BodyKind::Text };
        let message = Message { body, ..Message::default() };
        Self { queue: queue.to_owned(), message, delay: None }
    }

    /// Starts a saga when the transaction is committed, as [`crate::Malote::start_saga`] does.
    pub fn saga<T: Serialize>(saga: &str, id: &str, data: &T) -> Result<Self, Error> {
        let message = crate::saga::start(id, data)?;
        Ok(Self { queue: crate::saga::prefixed(saga), message, delay: None })
    }

    /// Its session.
    #[must_use]
    pub fn session(mut self, session: SessionId) -> Self {
        self.message.session = Some(session);
        self
    }

    /// Its type.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.message.subject = Some(subject.into());
        self
    }

    /// Its id; made from the message that is handled unless it is given, so that a repeat has the same.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.message.message_id = Some(id.into());
        self
    }

    /// A property.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: Value) -> Self {
        self.message.properties.set(name, value);
        self
    }

    /// Not before so long from now, by the clock of the database. It leaves when it is due, and holds nothing back
    /// until then.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// As it is written to an outbox.
    pub(crate) fn row(self) -> Result<NewRow, Error> {
        let headers = serde_json::to_string(&Headers::of(&self.message))
            .map_err(|error| Error::Encode(error.to_string()))?;
        let delay_ms = self.delay.map(|delay| {
            let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            i64::try_from(ms.min(limits::DELAY_MS_MAX)).unwrap_or(i64::MAX)
        });
        let key = self.key();
        let Message { message_id, body, .. } = self.message;
        Ok(NewRow { key, target: self.queue, message_id, headers, body: body.bytes, delay_ms })
    }

    /// What is kept in order: messages of one key leave in the order of their transactions.
    fn key(&self) -> String {
        let message = &self.message;
        let key = message.session.as_ref().map(SessionId::as_str).or(message.key.as_deref());
        format!("{}/{}", self.queue, key.unwrap_or_default())
    }
}

/// A row that is to be written.
pub(crate) struct NewRow {
    pub(crate) key: String,
    pub(crate) target: String,
    pub(crate) message_id: Option<String>,
    pub(crate) headers: String,
    pub(crate) body: Bytes,
    pub(crate) delay_ms: Option<i64>,
}

/// Headers as they stand in a row.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Headers {
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

impl Headers {
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

    /// The message of a row, and where it goes; what is wrong with the row otherwise.
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
    fn a_message_survives_its_row() {
        let outgoing = Outgoing::text("receipts", "x")
            .session(SessionId::new("ana").unwrap())
            .subject("paid")
            .property("n", Value::I32(7));
        let headers = serde_json::to_string(&Headers::of(&outgoing.message)).unwrap();
        let headers: Headers = serde_json::from_str(&headers).unwrap();
        let (to, message) = headers.message(&outgoing.queue, "m".into(), b"x".to_vec()).unwrap();
        assert_eq!(to, Address::Queue(QueueName::new("receipts").unwrap()));
        assert_eq!(message, Message { message_id: Some("m".into()), ..outgoing.message.clone() });
        assert_eq!(outgoing.key(), "receipts/ana");
    }
}
