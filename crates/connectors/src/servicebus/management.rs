//! `$management` of an entity: peek, schedule, deferred messages, locks, sessions.

use std::sync::Arc;

use bytes::Bytes;
use malote_wire_amqp::types::{Array, Kind as AmqpType, Map, Value};

use super::connection::ClientConnection;
use super::error::{Error, ErrorKind, Result};
use super::message::{LockToken, Message, Received, SequenceNumber, SettleVia};
use super::settle::Settlement;

/// Requests to the management node of an entity.
#[derive(Clone)]
pub struct Management {
    connection: Arc<ClientConnection>,
    address: String,
    /// The link that the requests belong to. The service keeps it alive while there are requests.
    link: Option<String>,
    session: Option<String>,
}

/// The body of a response, if it has one.
type ResponseBody = Option<Map>;

impl Management {
    pub(super) fn for_entity(connection: Arc<ClientConnection>, address: &str) -> Management {
        Management { connection, address: address.to_owned(), link: None, session: None }
    }

    pub(super) fn for_link(
        connection: Arc<ClientConnection>,
        address: &str,
        link: &str,
    ) -> Management {
        let link = Some(link.to_owned());
        Management { connection, address: address.to_owned(), link, session: None }
    }

    pub(super) fn set_session(&mut self, id: &str) {
        self.session = Some(id.to_owned());
    }

    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Reads messages from a sequence number on, without locking them.
    pub async fn peek(&self, from: SequenceNumber, max: u32) -> Result<Vec<Received>> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let body = Map::default()
            .with_string("from-sequence-number", from.0)
            .with_string("message-count", max);
        let response = self.request("peek-message", self.with_session(body)).await;
        match response {
            Ok(response) => messages(response, |_| Ok((SettleVia::NotLocked, None))),
            // Some servers answer with an empty list, others with an error.
            Err(error) if error.kind() == Some(ErrorKind::MessageNotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Schedules messages for their `scheduled_ms`. [`Management::cancel`] needs the returned sequence numbers.
    pub async fn schedule(&self, messages: &[Message]) -> Result<Vec<SequenceNumber>> {
        let mut items = Vec::with_capacity(messages.len());
        for message in messages {
            if message.scheduled_ms.is_none() {
                return Err(bad_argument("set `scheduled_ms` of the message to schedule it"));
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
        let response = self.request("schedule-message", body).await?.unwrap_or_default();
        let numbers = response.get("sequence-numbers").and_then(Value::as_items).unwrap_or(&[]);
        let numbers: Vec<_> =
            numbers.iter().filter_map(Value::as_i64).map(SequenceNumber).collect();
        if numbers.len() != messages.len() {
            return Err(Error::Unreadable(
                "the response lacks sequence numbers of scheduled messages".into(),
            ));
        }
        Ok(numbers)
    }

    /// Cancels scheduled messages.
    pub async fn cancel(&self, numbers: &[SequenceNumber]) -> Result<()> {
        self.request("cancel-scheduled-message", with_numbers(numbers)).await.map(drop)
    }

    /// Locks deferred messages. They are settled like other messages.
    pub async fn receive_deferred(&self, numbers: &[SequenceNumber]) -> Result<Vec<Received>> {
        const LOCK: u32 = 1;
        let body = with_numbers(numbers).with_string("receiver-settle-mode", LOCK);
        let response = self.request("receive-by-sequence-number", self.with_session(body)).await?;
        messages(response, |entry| match entry.get("lock-token") {
            Some(Value::Uuid(token)) => Ok((SettleVia::Management, Some(LockToken(*token)))),
            _ => Err(Error::Unreadable("a deferred message has no lock token".to_owned())),
        })
    }

    /// Settles locked messages by their tokens. Deferred messages can only be settled this way.
    pub async fn settle(&self, tokens: &[LockToken], settlement: &Settlement) -> Result<()> {
        let status = match settlement {
            Settlement::Complete => "completed",
            Settlement::Abandon { .. } => "abandoned",
            // The protocol spells it like this.
            Settlement::Defer { .. } => "defered",
            Settlement::DeadLetter { .. } => "suspended",
            Settlement::Release => {
                return Err(bad_argument(
                    "a message cannot be released by its lock token: abandon it instead",
                ));
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
        self.request("update-disposition", self.with_session(body)).await.map(drop)
    }

    /// Renews locks. Returns when each ends, in milliseconds since 1970.
    pub async fn renew_locks(&self, tokens: &[LockToken]) -> Result<Vec<i64>> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let response = self.request("renew-lock", with_tokens(tokens)).await?.unwrap_or_default();
        let until = response.get("expirations").and_then(Value::as_items).unwrap_or(&[]);
        Ok(until.iter().filter_map(Value::as_i64).collect())
    }

    /// Renews the session's lock. Returns when it ends, in milliseconds since 1970.
    pub(super) async fn renew_session(&self) -> Result<i64> {
        let response =
            self.request("renew-session-lock", self.with_session(Map::default())).await?;
        let until = response.as_ref().and_then(|body| body.get("expiration")?.as_i64());
        until.ok_or_else(|| {
            Error::Unreadable("the response lacks the end of the renewed lock".to_owned())
        })
    }

    pub(super) async fn state(&self) -> Result<Option<Bytes>> {
        let response = self.request("get-session-state", self.with_session(Map::default())).await?;
        match response.as_ref().and_then(|body| body.get("session-state")) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Binary(state)) => Ok(Some(state.clone())),
            Some(_) => Err(Error::Unreadable("the session state is not binary".to_owned())),
        }
    }

    /// Sets or clears the session state.
    pub(super) async fn set_state(&self, state: Option<Bytes>) -> Result<()> {
        let state = state.map_or(Value::Null, Value::Binary);
        let body = Map::default().with_string("session-state", state);
        self.request("set-session-state", self.with_session(body)).await.map(drop)
    }

    /// Lists sessions with messages or state: at most `max`, after the first `skip`.
    pub async fn sessions(&self, skip: u32, max: u32) -> Result<Vec<String>> {
        // The largest time selects all sessions.
        const EVER: i64 = 253_402_300_799_999;
        let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let body = Map::default()
            .with_string("last-updated-time", Value::Timestamp(EVER))
            .with_string("skip", number(skip))
            .with_string("top", number(max));
        let response = match self.request("get-message-sessions", body).await {
            Ok(response) => response.unwrap_or_default(),
            Err(error) if error.kind() == Some(ErrorKind::MessageNotFound) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let ids = response.get("sessions-ids").and_then(Value::as_items).unwrap_or(&[]);
        Ok(ids.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    fn with_session(&self, body: Map) -> Map {
        match &self.session {
            Some(id) => body.with_string("session-id", id.as_str()),
            None => body,
        }
    }

    async fn request(&self, operation: &str, body: Map) -> Result<ResponseBody> {
        let wait = self.connection.config.timeout;
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let operation = format!("com.microsoft:{operation}");
        let mut properties = Map::default()
            .with_string("operation", operation.as_str())
            .with_string("com.microsoft:server-timeout", wait_ms);
        if let Some(link) = &self.link {
            properties = properties.with_string("associated-link-name", link.as_str());
        }
        let request_links =
            self.connection.request_links(&format!("{}/$management", self.address)).await?;
        let response =
            request_links.request(&self.connection, properties, Value::Map(body), wait).await?;
        let properties = response.application_properties()?;
        let find = |names: [&str; 2]| names.iter().find_map(|name| properties.get(name));
        let status = find(["statusCode", "status-code"]).and_then(Value::as_i64).unwrap_or(0);
        match status {
            204 => Ok(None),
            200..300 => match response.value()? {
                Some(Value::Map(body)) => Ok(Some(body)),
                _ => Ok(None),
            },
            _ => {
                let named = find(["errorCondition", "error-condition"]).and_then(Value::as_str);
                let text = find(["statusDescription", "status-description"]);
                let text = text.and_then(Value::as_str).unwrap_or("the server gave no reason");
                Err(Error::from_status(status, named, text))
            }
        }
    }
}

fn bad_argument(text: &str) -> Error {
    Error::new(ErrorKind::BadArgument, "com.microsoft:argument-error", text)
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
    response: ResponseBody,
    settle_via: impl Fn(&Map) -> Result<(SettleVia, Option<LockToken>)>,
) -> Result<Vec<Received>> {
    let response = response.unwrap_or_default();
    let items = response.get("messages").and_then(Value::as_items).unwrap_or(&[]);
    let read = |item: &Value| {
        let entry = item.as_map().filter(|entry| entry.get("message").is_some());
        let Some((entry, Some(Value::Binary(encoded)))) =
            entry.map(|entry| (entry, entry.get("message")))
        else {
            return Err(Error::Unreadable("the response lacks a message".to_owned()));
        };
        let (settle_via, token) = settle_via(entry)?;
        Received::new(settle_via, token, encoded.clone())
    };
    items.iter().map(read).collect()
}
