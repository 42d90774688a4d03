//! Sends to queues and topics: one raw body, or a batch. A batch is atomic.

use axum::Json as Answer;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use malote_engine::{EngineError, Sent};
use malote_model::{
    Action, Address, AuditAction, AuditProtocol, Body, BodyKind, Message, Principal, QueueName,
    QueueSpec, Refusal, SessionId, Sessions, limits, partition,
};
use malote_wire_native::message::{MessageBatch, NewMessage, SentBatch, SentMessage};

use super::metadata::{CREATE, Create, read_metadata};
use crate::audit::outcome;
use crate::extract::{Caller, JsonMessages, PeerAddress, Queue, RawMessage, Topic};
use crate::problem::{Code, Problem};
use crate::{Api, convert};

/// The default content type of `curl -d`. It says nothing about the body, so it is ignored. To send a form, add a
/// parameter to the content type, or use a batch.
const CURL_DEFAULT: &str = "application/x-www-form-urlencoded";

/// Sends one message. The body of the request is the body of the message.
pub async fn send(
    State(api): State<Api>,
    Caller(caller): Caller,
    PeerAddress(peer): PeerAddress,
    Queue(queue): Queue,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: RawMessage,
) -> Result<(StatusCode, Answer<SentMessage>), Problem> {
    api.allow(&caller, Action::Send, &queue)?;
    let said = read_metadata(query.as_deref().unwrap_or(""), &headers, Some(CREATE))?;
    let to = Address::from(queue.clone());
    let message = raw_message(&api, &to, said.new, &body).await?;
    let sessions = message.session.is_some() || said.create == Create::Sessions;
    let sent = match publish(&api, vec![(to.clone(), message.clone())]).await {
        Err(EngineError::Refused(Refusal::QueueNotFound { .. })) if said.create != Create::No => {
            let (who, protocol) = ((&caller, peer), AuditProtocol::Http);
            let about = (queue.as_str(), "send");
            let pending = api.begin_audit(who, protocol, AuditAction::Declare, about);
            let created = create_queue(&api, &caller, &queue, sessions).await;
            pending.end(outcome(&created));
            created?;
            publish(&api, vec![(to, message)]).await
        }
        other => other,
    };
    Ok((StatusCode::CREATED, Answer(convert::sent_message(only(sent?)?))))
}

/// Sends one message to a topic. The body of the request is the body of the message.
pub async fn send_to_topic(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: RawMessage,
) -> Result<(StatusCode, Answer<SentMessage>), Problem> {
    api.allow_topic(&caller, Action::Send, &topic)?;
    let said = read_metadata(query.as_deref().unwrap_or(""), &headers, None)?;
    let to = Address::from(topic);
    let message = raw_message(&api, &to, said.new, &body).await?;
    let sent = publish(&api, vec![(to, message)]).await?;
    Ok((StatusCode::CREATED, Answer(convert::sent_message(only(sent)?))))
}

/// The message of a raw body and its metadata.
pub(super) async fn raw_message(
    api: &Api,
    to: &Address,
    mut new: NewMessage,
    body: &RawMessage,
) -> Result<Message, Problem> {
    let content_type = new.content_type.take();
    let mut message = prepare(api, to, new).await?;
    message.body = body_of(content_type.as_deref(), body.bytes.clone());
    message.content_type = content_type.filter(|kind| kind != CURL_DEFAULT);
    Ok(message)
}

/// The result for a single message.
pub(super) fn only(mut sent: Vec<Sent>) -> Result<Sent, Problem> {
    sent.pop().ok_or_else(|| Problem::new(Code::Internal, "the engine gave no result"))
}

/// Sends several messages to one queue.
pub async fn send_batch(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    JsonMessages(batch, _share): JsonMessages<MessageBatch>,
) -> Result<(StatusCode, Answer<SentBatch>), Problem> {
    api.allow(&caller, Action::Send, &queue)?;
    send_to_one(&api, &caller, queue.into(), batch).await
}

/// Sends several messages to one topic.
pub async fn send_batch_to_topic(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    JsonMessages(batch, _share): JsonMessages<MessageBatch>,
) -> Result<(StatusCode, Answer<SentBatch>), Problem> {
    api.allow_topic(&caller, Action::Send, &topic)?;
    send_to_one(&api, &caller, topic.into(), batch).await
}

async fn send_to_one(
    api: &Api,
    caller: &Principal,
    to: Address,
    batch: MessageBatch,
) -> Result<(StatusCode, Answer<SentBatch>), Problem> {
    let mut items = Vec::with_capacity(batch.messages.len());
    for (at, message) in batch.messages.into_iter().enumerate() {
        if message.queue.is_some() || message.topic.is_some() {
            let why = format!(
                "message {at}: the destination is in the path; POST /api/v1/send accepts several destinations"
            );
            return Err(Problem::new(Code::BadField, why));
        }
        items.push((to.clone(), message));
    }
    let sent = send_all(api, caller, items).await?;
    Ok((StatusCode::CREATED, Answer(convert::sent_batch(sent))))
}

/// Sends several messages to several queues and topics.
pub async fn send_many(
    State(api): State<Api>,
    Caller(caller): Caller,
    JsonMessages(batch, _share): JsonMessages<MessageBatch>,
) -> Result<(StatusCode, Answer<SentBatch>), Problem> {
    let items = addressed(batch.messages)?;
    let sent = send_all(&api, &caller, items).await?;
    Ok((StatusCode::CREATED, Answer(convert::sent_batch(sent))))
}

/// Sends. If there is no room within `publish_wait`, the send is refused as busy, so that the caller can settle.
pub(crate) async fn publish(
    api: &Api,
    messages: Vec<(Address, Message)>,
) -> Result<Vec<Sent>, EngineError> {
    api.engine.send_unless(messages, tokio::time::sleep(api.limits.publish_wait)).await
}

/// Each message with the queue or topic that it names.
pub(crate) fn addressed(messages: Vec<NewMessage>) -> Result<Vec<(Address, NewMessage)>, Problem> {
    let with_address = |mut message: NewMessage| Ok((message.take_address()?, message));
    messages.into_iter().map(with_address).collect()
}

async fn send_all(
    api: &Api,
    caller: &Principal,
    items: Vec<(Address, NewMessage)>,
) -> Result<Vec<Sent>, Problem> {
    Ok(publish(api, prepare_all(api, caller, items).await?).await?)
}

/// Checks and converts a batch without sending it.
pub(crate) async fn prepare_all(
    api: &Api,
    caller: &Principal,
    items: Vec<(Address, NewMessage)>,
) -> Result<Vec<(Address, Message)>, Problem> {
    if items.is_empty() {
        return Err(Problem::new(Code::BadField, "`messages` is empty: send at least one"));
    }
    if items.len() > limits::SEND_BATCH_MAX {
        let why =
            format!("{} messages in one request; at most {}", items.len(), limits::SEND_BATCH_MAX);
        return Err(Problem::new(Code::BatchTooLarge, why));
    }
    let mut ready = Vec::with_capacity(items.len());
    let mut checked: Option<Address> = None;
    for (at, (to, message)) in items.into_iter().enumerate() {
        if checked.as_ref() != Some(&to) {
            api.allow_at(caller, Action::Send, &to)?;
            checked = Some(to.clone());
        }
        let message = prepare(api, &to, message).await.map_err(|problem| {
            let why = format!("message {at}: {}", problem.detail());
            Problem::new(problem.code(), why)
        })?;
        ready.push((to, message));
    }
    Ok(ready)
}

/// Converts a message, and derives its session from its key on request.
pub(crate) async fn prepare(api: &Api, to: &Address, new: NewMessage) -> Result<Message, Problem> {
    let from_key = new.session_from_key;
    let mut message = new.into_message()?;
    if from_key {
        let Address::Queue(queue) = to else {
            let why = "session_from_key is not allowed here: a topic has no list of sessions";
            return Err(Problem::new(Code::BadField, why));
        };
        let spec = api.engine.describe(queue.clone()).await?.spec;
        let key = message.key.as_deref().unwrap_or_default();
        message.session = Some(place(queue, &spec, key)?.0);
    }
    Ok(message)
}

/// Maps a key to a session of the queue's fixed list. Returns the session, its index and the length of the list.
pub(crate) fn place(
    queue: &QueueName,
    spec: &QueueSpec,
    key: &str,
) -> Result<(SessionId, u32, u32), Problem> {
    let Sessions::Fixed(list) = &spec.sessions else {
        let why = format!("queue `{queue}` has no fixed list of sessions to map keys onto");
        return Err(Problem::new(Code::NoSessions, why)
            .fix("Give `session` itself, or declare a queue with a list of sessions."));
    };
    let of = list.len() as u32;
    let index = partition::partition_of(key, of);
    Ok((list[index as usize].clone(), index, of))
}

async fn create_queue(
    api: &Api,
    caller: &Principal,
    queue: &QueueName,
    sessions: bool,
) -> Result<(), Problem> {
    if !api.create_on_send {
        let why = format!("queue `{queue}` does not exist, and creating on send is switched off");
        return Err(Problem::new(Code::QueueNotFound, why));
    }
    api.allow(caller, Action::Manage, queue)?;
    let sessions = if sessions { Sessions::Dynamic } else { Sessions::None };
    // If another caller creates the queue with other settings first, the error names the field.
    if api.engine.declare(queue.clone(), QueueSpec { sessions, ..QueueSpec::default() }).await? {
        tracing::info!(%queue, front = "http", "queue created by its first message");
    }
    Ok(())
}

/// Text, if the media type is a text type and the bytes are UTF-8.
fn body_of(content_type: Option<&str>, bytes: Bytes) -> Body {
    let essence = content_type.unwrap_or("").split(';').next().unwrap_or("").trim();
    let essence = essence.to_ascii_lowercase();
    let textual = essence.starts_with("text/")
        || ["json", "xml", "x-www-form-urlencoded"].iter().any(|end| {
            let rest = essence.strip_suffix(end);
            rest.is_some_and(|rest| rest == "application/" || rest.ends_with('+'))
        });
    let kind = if textual && std::str::from_utf8(&bytes).is_ok() {
        BodyKind::Text
    } else {
        BodyKind::Bytes
    };
    Body { bytes, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_the_media_type_and_the_bytes_say() {
        let kind = |content_type: Option<&str>, bytes: &'static [u8]| {
            body_of(content_type, Bytes::from_static(bytes)).kind
        };
        for text in [
            "text/plain",
            "Application/JSON; charset=utf-8",
            "application/x-www-form-urlencoded",
            "image/svg+xml",
        ] {
            assert_eq!(kind(Some(text), b"x"), BodyKind::Text, "{text}");
            assert_eq!(kind(Some(text), b"\xff"), BodyKind::Bytes, "{text}");
        }
        for bytes in [None, Some("application/octet-stream"), Some("image/png"), Some("bogusjson")]
        {
            assert_eq!(kind(bytes, b"x"), BodyKind::Bytes, "{bytes:?}");
        }
    }
}
