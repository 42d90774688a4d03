//! `Malote`: the way to a broker for programs that send.

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
use crate::request::Replies;

/// A broker. Clones are the same connection.
#[derive(Clone)]
pub struct Malote {
    broker: Arc<dyn Broker>,
    /// Where answers to requests come in.
    pub(crate) replies: Arc<Replies>,
}

impl Malote {
    /// Reaches the broker that a URL names: `embedded:DIR`, `malote://HOST:PORT`, `malote+tls://HOST:PORT`,
    /// `amqp://HOST:PORT` (RabbitMQ), `postgres://HOST/DATABASE`, `servicebus://CONNECTION-STRING`.
    ///
    /// `http://HOST:PORT` is the same as `malote://HOST:PORT`, and `https://` the same as `malote+tls://`: one
    /// `MALOTE_URL` serves the command line and your programs.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let native = native_url(url);
        Ok(Self::over(malote_connectors::connect(native.as_deref().unwrap_or(url)).await?))
    }

    #[cfg(feature = "embedded")]
    /// The engine in this process, with its data in a directory. One process at a time can.
    pub async fn open(data: &str) -> Result<Self, Error> {
        Self::connect(&format!("embedded:{data}")).await
    }

    /// Any broker that there is a connector for.
    pub fn over(broker: Arc<dyn Broker>) -> Self {
        Self { broker, replies: Arc::default() }
    }

    /// The broker itself.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// Makes a queue, or finds it just as asked.
    pub async fn declare(&self, queue: &str, spec: QueueSpec) -> Result<(), Error> {
        Ok(self.broker.declare(&name(queue)?, spec).await?)
    }

    /// Sends a value as JSON: `malote.send("orders", &order).session("ana").await?`.
    pub fn send<T: Serialize>(&self, queue: &str, value: &T) -> Sending {
        Sending::new(self, queue, json_message(value))
    }

    /// Sends a text as it is.
    pub fn send_text(&self, queue: &str, text: impl Into<String>) -> Sending {
        let body = Body { bytes: text.into().into(), kind: BodyKind::Text };
        Sending::new(self, queue, Ok(Message { body, ..Message::default() }))
    }

    /// Sends all or none.
    pub async fn send_all(&self, messages: Vec<(Address, Message)>) -> Result<Vec<Sent>, Error> {
        Ok(self.broker.send(messages).await?)
    }

    /// An orderly end.
    pub async fn close(&self) -> Result<(), Error> {
        self.replies.end().await;
        Ok(self.broker.close().await?)
    }
}

/// The native connection to the server at an HTTP address. The default ports are those of HTTP.
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

pub(crate) fn name(queue: &str) -> Result<QueueName, Error> {
    QueueName::new(queue).map_err(|refusal| Error::Broker(refused("bad_name", refusal)))
}

pub(crate) fn refused(code: &str, refusal: impl std::fmt::Display) -> BrokerError {
    BrokerError::Refused { code: code.into(), text: refusal.to_string() }
}

/// A message about to be sent: say more about it, then `.await` it.
#[must_use = "a message is sent by `.await`"]
pub struct Sending {
    broker: Arc<dyn Broker>,
    to: Result<QueueName, Error>,
    message: Result<Message, Error>,
}

impl Sending {
    fn new(malote: &Malote, queue: &str, message: Result<Message, Error>) -> Self {
        Self { broker: malote.broker.clone(), to: name(queue), message }
    }

    fn with(mut self, change: impl FnOnce(&mut Message)) -> Self {
        if let Ok(message) = &mut self.message {
            change(message);
        }
        self
    }

    /// Its session: messages of one are handled in order, one at a time.
    pub fn session(mut self, session: impl AsRef<str>) -> Self {
        match SessionId::new(session.as_ref()) {
            Ok(session) => self.with(|message| message.session = Some(session)),
            Err(refusal) => {
                self.message = Err(Error::Broker(refused("bad_session_id", refusal)));
                self
            }
        }
    }

    /// Its id, by which a repeat is known.
    pub fn id(self, id: impl Into<String>) -> Self {
        self.with(|message| message.message_id = Some(id.into()))
    }

    /// What it is about: the type that a worker finds its handler by.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.with(|message| message.subject = Some(subject.into()))
    }

    /// A property.
    pub fn property(self, name: impl Into<String>, value: Value) -> Self {
        self.with(|message| message.properties.set(name, value))
    }

    /// Not before so long from now.
    pub fn delay(self, delay: Duration) -> Self {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.with(|message| message.when = When::Delay(ms))
    }
}

impl IntoFuture for Sending {
    type Output = Result<Sent, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let item = (Address::Queue(self.to?), self.message?);
            one_sent(self.broker.send(vec![item]).await?)
        })
    }
}

/// What became of the one message that was sent.
pub(crate) fn one_sent(mut sent: Vec<Sent>) -> Result<Sent, Error> {
    sent.pop().ok_or_else(|| {
        let text = "the broker did not say what became of a message".to_owned();
        Error::Broker(BrokerError::Unreachable { text })
    })
}

#[cfg(test)]
mod tests {
    use super::native_url;

    #[test]
    fn http_addresses_lead_to_the_native_connection() {
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
