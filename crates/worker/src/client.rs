//! `Malote`, the connection to a broker: it creates queues and sends messages.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Sent};
use malote_model::{
    Address, Body, BodyKind, Message, QueueName, QueueSpec, SessionId, Value, When,
};
use serde::Serialize;

use crate::Error;
use crate::clock::millis;
use crate::request::ReplyQueues;

/// A connection to a broker. Clones share the connection.
#[derive(Clone)]
pub struct Malote {
    broker: Arc<dyn Broker>,
    pub(crate) replies: Arc<ReplyQueues>,
}

impl Malote {
    /// Connects to a broker.
    ///
    /// | URL | broker | cargo feature |
    /// |---|---|---|
    /// | `embedded:DIR` | the engine in this process, with its data in a directory | `embedded` |
    /// | `malote://HOST:PORT`, `malote+tls://HOST:PORT` | a Malote server | `native` |
    /// | `amqp://HOST:PORT`, `amqps://HOST:PORT` | RabbitMQ | `rabbitmq` |
    /// | `postgres://HOST/DATABASE` | a PostgreSQL database | `postgres` |
    /// | `servicebus://CONNECTION-STRING` | Azure Service Bus | `servicebus` |
    ///
    /// `http://` is the same as `malote://`, and `https://` the same as `malote+tls://`. So the command line and your
    /// programs can use the same `MALOTE_URL`.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let native = native_url(url);
        Ok(Self::with_broker(malote_connectors::connect(native.as_deref().unwrap_or(url)).await?))
    }

    #[cfg(feature = "embedded")]
    /// Opens the engine in this process, with its data in a directory. Only one process at a time can open a directory.
    pub async fn open(data: &str) -> Result<Self, Error> {
        Self::connect(&format!("embedded:{data}")).await
    }

    /// Uses a broker that implements [`Broker`].
    pub fn with_broker(broker: Arc<dyn Broker>) -> Self {
        Self { broker, replies: Arc::default() }
    }

    /// The broker of this connection.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// Creates a queue. It is an error if the queue exists with other settings.
    pub async fn declare(&self, queue: &str, spec: QueueSpec) -> Result<(), Error> {
        Ok(self.broker.declare(&queue_name(queue)?, spec).await?)
    }

    /// Sends a value as JSON: `malote.send("orders", &order).session("ana").await?`.
    pub fn send<T: Serialize>(&self, queue: &str, value: &T) -> SendBuilder {
        SendBuilder::new(self, queue, json_message(value))
    }

    /// Sends a text.
    pub fn send_text(&self, queue: &str, text: impl Into<String>) -> SendBuilder {
        let body = Body { bytes: text.into().into(), kind: BodyKind::Text };
        SendBuilder::new(self, queue, Ok(Message { body, ..Message::default() }))
    }

    /// Sends several messages, all or none where the broker can. Otherwise they are sent in order, and after an error
    /// an unknown number of them may have been sent.
    pub async fn send_all(&self, messages: Vec<(Address, Message)>) -> Result<Vec<Sent>, Error> {
        Ok(self.broker.send(messages).await?)
    }

    /// Closes the connection. Unsettled messages return to their queues.
    pub async fn close(&self) -> Result<(), Error> {
        self.replies.close().await;
        Ok(self.broker.close().await?)
    }
}

/// The URL of the native connection for an HTTP URL. The default ports are those of HTTP.
fn native_url(url: &str) -> Option<String> {
    let (scheme, rest, port) = match url.split_once("://")? {
        ("http", rest) => ("malote", rest, 80),
        ("https", rest) => ("malote+tls", rest, 443),
        _ => return None,
    };
    let (address, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let address = address.trim_end_matches('/');
    let host = address.rsplit('@').next().unwrap_or(address);
    match host.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => Some(format!("{scheme}://{address}{query}")),
        _ => Some(format!("{scheme}://{address}:{port}{query}")),
    }
}

/// A message whose body is the value as JSON.
pub(crate) fn json_message<T: Serialize>(value: &T) -> Result<Message, Error> {
    let bytes = serde_json::to_vec(value).map_err(|error| Error::Encode(error.to_string()))?;
    let body = Body { bytes: bytes.into(), kind: BodyKind::Text };
    let content_type = Some("application/json".to_owned());
    Ok(Message { body, content_type, ..Message::default() })
}

pub(crate) fn queue_name(queue: &str) -> Result<QueueName, Error> {
    QueueName::new(queue).map_err(|refusal| Error::Broker(refused("bad_name", refusal)))
}

pub(crate) fn refused(code: &str, refusal: impl std::fmt::Display) -> BrokerError {
    BrokerError::Refused { code: code.into(), text: refusal.to_string() }
}

/// A message to send. Set its fields, then `.await` it.
#[must_use = "the message is sent when this is awaited"]
pub struct SendBuilder {
    broker: Arc<dyn Broker>,
    to: Result<QueueName, Error>,
    message: Result<Message, Error>,
}

impl SendBuilder {
    fn new(malote: &Malote, queue: &str, message: Result<Message, Error>) -> Self {
        Self { broker: malote.broker.clone(), to: queue_name(queue), message }
    }

    fn with(mut self, change: impl FnOnce(&mut Message)) -> Self {
        if let Ok(message) = &mut self.message {
            change(message);
        }
        self
    }

    /// The session of the message. Messages of a session are handled in order, one at a time.
    pub fn session(mut self, session: impl AsRef<str>) -> Self {
        match SessionId::new(session.as_ref()) {
            Ok(session) => self.with(|message| message.session = Some(session)),
            Err(refusal) => {
                self.message = Err(Error::Broker(refused("bad_session_id", refusal)));
                self
            }
        }
    }

    /// The message id, which identifies duplicates.
    pub fn id(self, id: impl Into<String>) -> Self {
        self.with(|message| message.message_id = Some(id.into()))
    }

    /// The subject. A worker selects the handler by it.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.with(|message| message.subject = Some(subject.into()))
    }

    /// Sets a property.
    pub fn property(self, name: impl Into<String>, value: Value) -> Self {
        self.with(|message| message.properties.set(name, value))
    }

    /// Delivers the message after this delay.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|message| message.when = When::Delay(millis(delay)))
    }
}

impl IntoFuture for SendBuilder {
    type Output = Result<Sent, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let item = (Address::Queue(self.to?), self.message?);
            one_sent(self.broker.send(vec![item]).await?)
        })
    }
}

/// The result of sending one message.
pub(crate) fn one_sent(mut sent: Vec<Sent>) -> Result<Sent, Error> {
    sent.pop().ok_or_else(|| {
        let text = "the broker did not report the result of a send".to_owned();
        Error::Broker(BrokerError::Unreachable { text })
    })
}

#[cfg(test)]
mod tests {
    use super::native_url;

    #[test]
    fn http_urls_become_urls_of_the_native_connection() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", Some("malote://127.0.0.1:8080")),
            ("http://h/", Some("malote://h:80")),
            ("https://u:p@h?ca=/x", Some("malote+tls://u:p@h:443?ca=/x")),
            ("https://[::1]", Some("malote+tls://[::1]:443")),
            ("malote://h", None),
            ("embedded:./data", None),
        ] {
            assert_eq!(native_url(url).as_deref(), expected, "{url}");
        }
    }
}
