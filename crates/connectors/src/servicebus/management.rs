//! `$management` of an entity: peek, schedule, deferred messages, locks, sessions.

use std::sync::Arc;

use bytes::Bytes;
use malote_wire_amqp::types::{Array, Kind as AmqpType, Map, Value};

use super::connection::Connection;
use super::error::{Error, Kind, Result};
use super::message::{LockToken, Message, Place, Received, SequenceNumber};
use super::settle::Settlement;

/// Requests about an entity.
#[derive(Clone)]
pub struct Management {
    connection: Arc<Connection>,
    address: String,
    /// The link that the requests are about; the service keeps it alive for them.
    link: Option<String>,
    session: Option<String>,
}

/// What an answer brings: its body, or nothing to tell.
type Answer = Option<Map>;

impl Management {
    pub(super) fn of_entity(connection: Arc<Connection>, address: &str) -> Management {
        Management { connection, address: address.to_owned(), link: None, session: None }
    }

    pub(super) fn of_link(connection: Arc<Connection>, address: &str, link: &str) -> Management {
        let link = Some(link.to_owned());
        Management { connection, address: address.to_owned(), link, session: None }
    }

    pub(super) fn of_session(&mut self, id: &str) {
        self.session = Some(id.to_owned());
    }

    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Messages from a place on, as they are, without touching them.
    pub async fn peek(&self, from: SequenceNumber, max: u32) -> Result<Vec<Received>> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let body = Map::default()
            .with_string("from-sequence-number", from.0)
            .with_string("message-count", max);
        let answer = self.ask("peek-message", self.with_session(body)).await;
        match answer {
            Ok(answer) => messages(answer, |_| Ok((Place::Nowhere, None))),
            // Some servers say that there is none, others that none was found.
            Err(error) if error.kind() == Some(Kind::MessageNotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Lets messages be enqueued at their `scheduled_ms`. The numbers are for [`Management::cancel`].
    pub async fn schedule(&self, messages: &[Message]) -> Result<Vec<SequenceNumber>> {
        let mut items = Vec::with_capacity(messages.len());
        for message in messages {
            if message.scheduled_ms.is_none() {
                return Err(bad("a scheduled message has a time"));
            }
            let mut item = Map::default();
            let texts = [
                ("message-id", &message.message_id),
                ("session-id", &message.session_id),
                ("partition-key", &message.partition_key),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    item = item.with_string(name, text.as_str());
                }
            }
            items.push(Value::Map(item.with_string("message", message.encode())));
        }
        let body = Map::default().with_string("messages", items);
        let answer = self.ask("schedule-message", body).await?.unwrap_or_default();
        let numbers = answer.get("sequence-numbers").and_then(Value::as_items).unwrap_or(&[]);
        let numbers: Vec<_> =
            numbers.iter().filter_map(Value::as_i64).map(SequenceNumber).collect();
        if numbers.len() != messages.len() {
            return Err(Error::Unreadable("not every scheduled message has a number".into()));
        }
        Ok(numbers)
    }

    /// Takes scheduled messages back.
    pub async fn cancel(&self, numbers: &[SequenceNumber]) -> Result<()> {
        self.ask("cancel-scheduled-message", with_numbers(numbers)).await.map(drop)
    }

    /// Locks deferred messages; they are settled as others are.
    pub async fn receive_deferred(&self, numbers: &[SequenceNumber]) -> Result<Vec<Received>> {
        const LOCK: u32 = 1;
        let body = with_numbers(numbers).with_string("receiver-settle-mode", LOCK);
        let answer = self.ask("receive-by-sequence-number", self.with_session(body)).await?;
        messages(answer, |entry| match entry.get("lock-token") {
            Some(Value::Uuid(token)) => Ok((Place::Management, Some(LockToken(*token)))),
            _ => Err(Error::Unreadable("a deferred message without a lock token".to_owned())),
        })
    }

    /// Settles locked messages by their tokens: the only way for deferred ones.
    pub async fn settle(&self, tokens: &[LockToken], settlement: &Settlement) -> Result<()> {
        let status = match settlement {
            Settlement::Complete => "completed",
            Settlement::Abandon { .. } => "abandoned",
            // The protocol's own spelling.
            Settlement::Defer { .. } => "defered",
            Settlement::DeadLetter { .. } => "suspended",
            Settlement::Release => {
                return Err(bad("a message is not released by its lock token"));
            }
        };
        let mut body = with_tokens(tokens).with_string("disposition-status", status);
        match settlement {
            Settlement::Abandon { properties } | Settlement::Defer { properties } => {
                body = with_properties(body, properties);
            }
            Settlement::DeadLetter { reason, description, properties } => {
                body = with_properties(body, properties)
                    .with_string("deadletter-reason", reason.as_str())
                    .with_string("deadletter-description", description.as_str());
            }
            Settlement::Complete | Settlement::Release => {}
        }
        self.ask("update-disposition", self.with_session(body)).await.map(drop)
    }

    /// Renews locks; tells until when each holds, in milliseconds since 1970.
    pub async fn renew_locks(&self, tokens: &[LockToken]) -> Result<Vec<i64>> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.ask("renew-lock", with_tokens(tokens)).await?.unwrap_or_default();
        let until = answer.get("expirations").and_then(Value::as_items).unwrap_or(&[]);
        Ok(until.iter().filter_map(Value::as_i64).collect())
    }

    /// Renews the lock of this session; tells until when it holds, in milliseconds since 1970.
    pub(super) async fn renew_session(&self) -> Result<i64> {
        let answer = self.ask("renew-session-lock", self.with_session(Map::default())).await?;
        let until = answer.as_ref().and_then(|body| body.get("expiration")?.as_i64());
        until.ok_or_else(|| Error::Unreadable("a renewed lock without an end".to_owned()))
    }

    /// The state of this session.
    pub(super) async fn state(&self) -> Result<Option<Bytes>> {
        let answer = self.ask("get-session-state", self.with_session(Map::default())).await?;
        match answer.as_ref().and_then(|body| body.get("session-state")) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Binary(state)) => Ok(Some(state.clone())),
            Some(_) => Err(Error::Unreadable("a session's state is no bytes".to_owned())),
        }
    }

    /// Sets or clears the state of this session.
    pub(super) async fn set_state(&self, state: Option<Bytes>) -> Result<()> {
        let state = state.map_or(Value::Null, Value::Binary);
        let body = Map::default().with_string("session-state", state);
        self.ask("set-session-state", self.with_session(body)).await.map(drop)
    }

    /// Sessions with messages or state: one page, from the `skip`th on.
    pub async fn sessions(&self, skip: u32, max: u32) -> Result<Vec<String>> {
        // The end of time means all of them.
        const EVER: i64 = 253_402_300_799_999;
        let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let body = Map::default()
            .with_string("last-updated-time", Value::Timestamp(EVER))
            .with_string("skip", number(skip))
            .with_string("top", number(max));
        let answer = match self.ask("get-message-sessions", body).await {
            Ok(answer) => answer.unwrap_or_default(),
            Err(error) if error.kind() == Some(Kind::MessageNotFound) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let ids = answer.get("sessions-ids").and_then(Value::as_items).unwrap_or(&[]);
        Ok(ids.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    fn with_session(&self, body: Map) -> Map {
        match &self.session {
            Some(id) => body.with_string("session-id", id.as_str()),
            None => body,
        }
    }

    async fn ask(&self, operation: &str, body: Map) -> Result<Answer> {
        let wait = self.connection.config.timeout;
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let operation = format!("com.microsoft:{operation}");
        let mut properties = Map::default()
            .with_string("operation", operation.as_str())
            .with_string("com.microsoft:server-timeout", wait_ms);
        if let Some(link) = &self.link {
            properties = properties.with_string("associated-link-name", link.as_str());
        }
        let desk = self.connection.desk(&format!("{}/$management", self.address)).await?;
        let answer = desk.ask(&self.connection, properties, Value::Map(body), wait).await?;
        let properties = answer.application_properties()?;
        let find = |names: [&str; 2]| names.iter().find_map(|name| properties.get(name));
        let status = find(["statusCode", "status-code"]).and_then(Value::as_i64).unwrap_or(0);
        match status {
            204 => Ok(None),
            200..300 => match answer.value()? {
                Some(Value::Map(body)) => Ok(Some(body)),
                _ => Ok(None),
            },
            _ => {
                let named = find(["errorCondition", "error-condition"]).and_then(Value::as_str);
                let text = find(["statusDescription", "status-description"]);
                let text = text.and_then(Value::as_str).unwrap_or("refused without a reason");
                Err(Error::of_status(status, named, text))
            }
        }
    }
}

fn bad(text: &str) -> Error {
    Error::of(Kind::BadArgument, "com.microsoft:argument-error", text)
}

fn with_numbers(numbers: &[SequenceNumber]) -> Map {
    let numbers: Array = numbers.iter().map(|number| number.0).collect();
    Map::default().with_string("sequence-numbers", numbers)
}

fn with_tokens(tokens: &[LockToken]) -> Map {
    let tokens = tokens.iter().map(|token| Value::Uuid(token.0)).collect();
    let tokens = Array::new(AmqpType::Uuid, tokens).map_or(Value::Null, Value::Array);
    Map::default().with_string("lock-tokens", tokens)
}

fn with_properties(body: Map, properties: &Map) -> Map {
    match properties.is_empty() {
        true => body,
        false => body.with_string("properties-to-modify", properties.clone()),
    }
}

fn messages(
    answer: Answer,
    place: impl Fn(&Map) -> Result<(Place, Option<LockToken>)>,
) -> Result<Vec<Received>> {
    let answer = answer.unwrap_or_default();
    let items = answer.get("messages").and_then(Value::as_items).unwrap_or(&[]);
    let read = |item: &Value| {
        let entry = item.as_map().filter(|entry| entry.get("message").is_some());
        let Some((entry, Some(Value::Binary(encoded)))) =
            entry.map(|entry| (entry, entry.get("message")))
        else {
            return Err(Error::Unreadable("an answer without its message".to_owned()));
        };
        let (place, token) = place(entry)?;
        Received::new(place, token, encoded.clone())
    };
    items.iter().map(read).collect()
}
