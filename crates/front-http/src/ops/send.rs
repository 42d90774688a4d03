//! Sending: one raw body, a batch, or a batch over several queues. All or nothing.

use axum::Json as Answer;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use malote_engine::{EngineError, Sent};
use malote_model::{
    Action, Body, BodyKind, Message, Principal, QueueName, QueueSpec, Refusal, SessionId, Sessions,
    Value, limits, partition,
};

use crate::Api;
use crate::extract::{Caller, JsonMessages, Queue, Raw};
use crate::nearest::nearest;
use crate::problem::{Code, Problem};
use crate::wire::message::{Batch, Moment, NewMessage, SentAll, SentOne, queue_of};
use crate::wire::text;

/// What a query or a `malote-…` header may say about a raw message.
pub(crate) const NAMES: [&str; 17] = [
    "session",
    "session_from_key",
    "id",
    "dedup_id",
    "key",
    "subject",
    "to",
    "reply_to",
    "reply_to_session",
    "correlation_id",
    "user_id",
    "app_id",
    "delay_ms",
    "at",
    "ttl_ms",
    "priority",
    "create",
];

const HEADER_PREFIX: &str = "malote-";
const PROPERTY_PREFIX: &str = "property-";
/// What `curl -d` says when nobody said anything: text of some kind, and no media type. A form that is meant as one
/// can say so with a parameter, or come in a batch.
const CURL_DEFAULT: &str = "application/x-www-form-urlencoded";

/// One message: the body is the body.
pub async fn send(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Raw,
) -> Result<(StatusCode, Answer<SentOne>), Problem> {
    api.allow(&caller, Action::Send, &queue)?;
    let (mut new, create) = read_metadata(query.as_deref().unwrap_or(""), &headers)?;
    let content_type = new.content_type.take();
    let mut message = prepare(&api, &queue, new).await?;
    message.body = body_of(content_type.as_deref(), body.bytes.clone());
    message.content_type = content_type.filter(|kind| kind != CURL_DEFAULT);
    let sessions = message.session.is_some() || create == Create::Sessions;
    let sent = match publish(&api, vec![(queue.clone(), message.clone())]).await {
        Err(EngineError::Refused(Refusal::QueueNotFound { .. })) if create != Create::No => {
            create_queue(&api, &caller, &queue, sessions).await?;
            publish(&api, vec![(queue, message)]).await
        }
        other => other,
    };
    let mut sent = sent?;
    let one = sent.pop().ok_or_else(|| Problem::new(Code::Internal, "one sent, none answered"))?;
    Ok((StatusCode::CREATED, Answer(one.into())))
}

/// Several messages for one queue.
pub async fn send_batch(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    JsonMessages(batch, _share): JsonMessages<Batch>,
) -> Result<(StatusCode, Answer<SentAll>), Problem> {
    let mut items = Vec::with_capacity(batch.messages.len());
    for (at, message) in batch.messages.into_iter().enumerate() {
        if message.queue.is_some() {
            let why =
                format!("message {at}: the path names the queue; POST /api/v1/send takes several");
            return Err(Problem::new(Code::BadField, why));
        }
        items.push((queue.clone(), message));
    }
    api.allow(&caller, Action::Send, &queue)?;
    let sent = send_all(&api, &caller, items).await?;
    Ok((StatusCode::CREATED, Answer(all(sent))))
}

/// Several messages for several queues.
pub async fn send_many(
    State(api): State<Api>,
    Caller(caller): Caller,
    JsonMessages(batch, _share): JsonMessages<Batch>,
) -> Result<(StatusCode, Answer<SentAll>), Problem> {
    let items = addressed(batch.messages)?;
    let sent = send_all(&api, &caller, items).await?;
    Ok((StatusCode::CREATED, Answer(all(sent))))
}

/// Sends, and does not wait for ever for room: a caller that is told to come back later can still settle.
pub(crate) async fn publish(
    api: &Api,
    messages: Vec<(QueueName, Message)>,
) -> Result<Vec<Sent>, EngineError> {
    api.engine.send_unless(messages, tokio::time::sleep(api.limits.publish_wait)).await
}

/// Each message with the queue that it names.
pub(crate) fn addressed(
    messages: Vec<NewMessage>,
) -> Result<Vec<(QueueName, NewMessage)>, Problem> {
    let with_queue = |mut message: NewMessage| Ok((queue_of(&mut message)?, message));
    messages.into_iter().map(with_queue).collect()
}

pub(crate) fn all(sent: Vec<Sent>) -> SentAll {
    SentAll { messages: sent.into_iter().map(SentOne::from).collect() }
}

async fn send_all(
    api: &Api,
    caller: &Principal,
    items: Vec<(QueueName, NewMessage)>,
) -> Result<Vec<Sent>, Problem> {
    Ok(publish(api, prepare_all(api, caller, items).await?).await?)
}

/// Checks and translates a batch; nothing is sent yet.
pub(crate) async fn prepare_all(
    api: &Api,
    caller: &Principal,
    items: Vec<(QueueName, NewMessage)>,
) -> Result<Vec<(QueueName, Message)>, Problem> {
    if items.is_empty() {
        return Err(Problem::new(Code::BadField, "`messages` is empty: send at least one"));
    }
    if items.len() > limits::SEND_BATCH_MAX {
        let why =
            format!("{} messages in one request; at most {}", items.len(), limits::SEND_BATCH_MAX);
        return Err(Problem::new(Code::BatchTooLarge, why));
    }
    let mut ready = Vec::with_capacity(items.len());
    let mut checked: Option<QueueName> = None;
    for (at, (queue, message)) in items.into_iter().enumerate() {
        if checked.as_ref() != Some(&queue) {
            api.allow(caller, Action::Send, &queue)?;
            checked = Some(queue.clone());
        }
        let message = prepare(api, &queue, message).await.map_err(|problem| {
            let why = format!("message {at}: {}", problem.detail());
            Problem::new(problem.code(), why)
        })?;
        ready.push((queue, message));
    }
    Ok(ready)
}

/// The message that is meant, its session taken from its key if so asked.
pub(crate) async fn prepare(
    api: &Api,
    queue: &QueueName,
    new: NewMessage,
) -> Result<Message, Problem> {
    let from_key = new.session_from_key;
    let mut message = new.into_message()?;
    if from_key {
        let spec = api.engine.describe(queue.clone()).await?.spec;
        let key = message.key.as_deref().unwrap_or_default();
        message.session = Some(place(queue, &spec, key)?.0);
    }
    Ok(message)
}

/// Where a key belongs on the queue's fixed list: the session, its place, and how long the list is.
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

/// Whether a missing queue is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Create {
    No,
    Yes,
    Sessions,
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
    // A racing creator with other settings wins or loses as a whole; the loser is told which field.
    if api.engine.declare(queue.clone(), QueueSpec { sessions, ..QueueSpec::default() }).await? {
        tracing::info!(%queue, front = "http", "queue created by its first message");
    }
    Ok(())
}

/// Text where the media type says so and the bytes agree.
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

fn read_metadata(query: &str, headers: &HeaderMap) -> Result<(NewMessage, Create), Problem> {
    let mut new = NewMessage::default();
    let mut create = Create::No;
    let mut given: Vec<String> = Vec::new();
    let mut give = |name: &str, value: String, new: &mut NewMessage, code: Code| {
        if given.iter().any(|have| have == name) {
            return Err(Problem::new(code, format!("`{name}` is given twice")));
        }
        given.push(name.to_owned());
        set(new, &mut create, name, value, code)
    };
    let pairs: Vec<(String, String)> = match axum::extract::Query::try_from_uri(&query_uri(query)?)
    {
        Ok(axum::extract::Query(pairs)) => pairs,
        Err(rejection) => return Err(Problem::new(Code::BadQuery, rejection.body_text())),
    };
    for (name, value) in pairs {
        give(&name.replace('-', "_"), value, &mut new, Code::BadQuery)?;
    }
    let mut properties = malote_model::Properties::new();
    let text_of = |name: &str, value: &header::HeaderValue| {
        let wrong = || Problem::new(Code::BadHeader, format!("header {name} is not UTF-8 text"));
        std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| wrong())
    };
    for (header, value) in headers {
        let header = header.as_str();
        if let Some(name) = header.strip_prefix(HEADER_PREFIX) {
            let value = text_of(header, value)?;
            match name.strip_prefix(PROPERTY_PREFIX) {
                Some(property) if properties.get(property).is_some() => {
                    return Err(Problem::new(
                        Code::BadHeader,
                        format!("header {header} stands twice"),
                    ));
                }
                Some(property) => properties.set(property, Value::String(value)),
                None => give(&name.replace('-', "_"), value, &mut new, Code::BadHeader)?,
            }
        } else if matches!(header, "traceparent" | "tracestate") && properties.get(header).is_none()
        {
            properties.set(header, Value::String(text_of(header, value)?));
        }
    }
    let text_header = |name: header::HeaderName| {
        headers.get(&name).map(|value| text_of(name.as_str(), value)).transpose()
    };
    new.content_type = text_header(header::CONTENT_TYPE)?;
    new.content_encoding = text_header(header::CONTENT_ENCODING)?;
    new.properties = Some(crate::wire::value::PropertyMap(properties));
    Ok((new, create))
}

/// The query alone as an address, which is what the query reader takes.
fn query_uri(query: &str) -> Result<axum::http::Uri, Problem> {
    let wrong = |_| Problem::new(Code::BadQuery, "the query of the address is malformed");
    format!("/?{query}").parse().map_err(wrong)
}

fn set(
    new: &mut NewMessage,
    create: &mut Create,
    name: &str,
    value: String,
    code: Code,
) -> Result<(), Problem> {
    fn number<T: std::str::FromStr>(
        name: &str,
        value: &str,
        code: Code,
    ) -> Result<Option<T>, Problem> {
        let why = || format!("`{name}` must be a whole number in its range, not `{value}`");
        value.parse().map(Some).map_err(|_| Problem::new(code, why()))
    }
    let wrong =
        |rule: &str| Err(Problem::new(code, format!("`{name}` must be {rule}, not `{value}`")));
    match name {
        "session" => new.session = Some(value),
        "id" => new.id = Some(value),
        "dedup_id" => new.dedup_id = Some(value),
        "key" => new.key = Some(value),
        "subject" => new.subject = Some(value),
        "to" => new.to = Some(value),
        "reply_to" => new.reply_to = Some(value),
        "reply_to_session" => new.reply_to_session = Some(value),
        "correlation_id" => new.correlation_id = Some(value),
        "user_id" => new.user_id = Some(value),
        "app_id" => new.app_id = Some(value),
        "delay_ms" => new.delay_ms = number(name, &value, code)?,
        "ttl_ms" => new.ttl_ms = number(name, &value, code)?,
        "priority" => new.priority = number(name, &value, code)?,
        "at" => match text::moment_of(&value) {
            Some(at) => new.at = Some(Moment(at)),
            None => return wrong("milliseconds since 1970 or an RFC 3339 time"),
        },
        "session_from_key" => match value.as_str() {
            "true" => new.session_from_key = true,
            "false" => new.session_from_key = false,
            _ => return wrong("true or false"),
        },
        "create" => match value.as_str() {
            "true" => *create = Create::Yes,
            "sessions" => *create = Create::Sessions,
            "false" => *create = Create::No,
            _ => return wrong("true, sessions or false"),
        },
        unknown => {
            let hint = nearest(unknown, NAMES)
                .map(|n| format!("; did you mean `{n}`?"))
                .unwrap_or_default();
            let why =
                format!("there is no `{unknown}` here: use one of {}{hint}", NAMES.join(", "));
            return Err(Problem::new(code, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use malote_model::When;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()));
        HeaderMap::<header::HeaderValue>::from_iter::<Vec<(header::HeaderName, _)>>(pairs.collect())
    }

    #[test]
    fn metadata_comes_by_query_or_header() {
        let pairs =
            [("malote-session", "a b"), ("malote-property-x-y", "1"), ("traceparent", "00-1")];
        let (new, create) =
            read_metadata("id=1%2F2&delay-ms=5&priority=3&create=true", &headers(&pairs)).unwrap();
        assert_eq!(create, Create::Yes);
        let message = new.into_message().unwrap();
        assert_eq!(message.message_id.as_deref(), Some("1/2"));
        assert_eq!(message.session.as_ref().map(SessionId::as_str), Some("a b"));
        assert_eq!((message.when, message.priority), (When::Delay(5), 3));
        assert_eq!(message.properties.get("x-y"), Some(&Value::String("1".into())));
        assert_eq!(message.properties.get("traceparent"), Some(&Value::String("00-1".into())));
    }

    #[test]
    fn unknown_and_wrong_metadata_is_refused_with_a_hint() {
        for (query, says) in [
            ("sesion=a", "did you mean `session`?"),
            ("delay_ms=-1", "must be a whole number"),
            ("priority=256", "must be a whole number"),
            ("at=soon", "RFC 3339"),
            ("create=1", "true, sessions or false"),
            ("id=1&id=2", "given twice"),
        ] {
            let problem = read_metadata(query, &HeaderMap::new()).unwrap_err();
            assert!(problem.detail().contains(says), "{query}: {}", problem.detail());
        }
        let problem = read_metadata("", &headers(&[("malote-sesion", "a")])).unwrap_err();
        assert_eq!(problem.code(), Code::BadHeader);
        let problem = read_metadata("id=1", &headers(&[("malote-id", "a")])).unwrap_err();
        assert!(problem.detail().contains("given twice"));
    }

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
