//! `POST …/publish` and `POST …/get`.

use axum::http::Method as HttpMethod;
use data_encoding::BASE64;
use serde_json::{Map, Value, json};

use super::answer::{Answer, json};
use super::error::ApiError;
use super::exchanges::wire_name;
use super::json::{integer, properties, properties_object, require, short};
use super::local::{CallError, Content, LocalClient};
use super::request::Call;
use super::scan::find_host;
use super::state::ManagementState;
use crate::limits;
use crate::wire::error::ReplyCode;
use crate::wire::method::{Method, basic, confirm};

const POST_ONLY: &str = "POST, OPTIONS";

/// Publishes a message; says whether it reached a queue.
pub(super) async fn publish(
    state: &ManagementState,
    call: &Call,
    host: &str,
    exchange: &str,
) -> Result<Answer, ApiError> {
    if call.method != HttpMethod::POST {
        return Err(ApiError::no_method(POST_ONLY));
    }
    let host = find_host(state, &call.caller, host).await?;
    let body = call.object()?;
    let names = ["routing_key", "properties", "payload", "payload_encoding"];
    let [key, given, payload, encoding] = require(&body, names)?;
    let properties = properties(given)?;
    let (Some(key), Some(payload)) = (key.as_str(), payload.as_str()) else {
        return Err(ApiError::bad_request("routing_key and payload must be texts"));
    };
    let payload = match encoding.as_str() {
        Some("string") => payload.as_bytes().to_vec(),
        Some("base64") => BASE64
            .decode(payload.as_bytes())
            .map_err(|_| ApiError::bad_request("the payload is not base64"))?,
        _ => return Err(ApiError::bad_request(json!(["unsupported_encoding", encoding]))),
    };
    let publish = basic::Publish {
        exchange: short("exchange", wire_name(exchange))?,
        routing_key: short("routing_key", key)?,
        mandatory: true,
        ..basic::Publish::default()
    };
    let mut client = LocalClient::open(state, &call.caller, &host).await?;
    let routed = async {
        client.call(&confirm::Select::default()).await?;
        client.publish(&publish, &properties, &payload).await?;
        let mut routed = true;
        loop {
            match client.reply().await? {
                method @ Method::BasicReturn(_) => {
                    client.content(method).await?;
                    routed = false;
                }
                Method::BasicAck(_) => return Ok(Some(routed)),
                Method::BasicNack(_) => return Ok(None),
                _ => {}
            }
        }
    };
    let routed: Result<_, CallError> = routed.await;
    client.close().await;
    match routed? {
        Some(routed) => Ok(json(&json!({ "routed": routed }))),
        None => Err(ApiError::bad_request(
            "the broker rejected the message: a queue is full, or the disk is",
        )),
    }
}

/// What happens to messages that a request got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AckMode {
    /// Back to the queue, uncounted.
    Return,
    /// Back to the queue, as a failed delivery.
    RejectRequeue,
    Acknowledge,
    Reject,
}

#[derive(Clone, Copy)]
enum Encoding {
    /// Text if it is one, otherwise base64.
    Auto,
    Base64,
}

/// Gets messages of a queue.
pub(super) async fn get(
    state: &ManagementState,
    call: &Call,
    host: &str,
    queue: &str,
) -> Result<Answer, ApiError> {
    if call.method != HttpMethod::POST {
        return Err(ApiError::no_method(POST_ONLY));
    }
    let host = find_host(state, &call.caller, host).await?;
    let body = call.object()?;
    let (count, mode, encoding, truncate) = parameters(&body)?;
    let no_ack = mode == AckMode::Acknowledge;
    let get = basic::Get { queue: short("name", queue)?, no_ack, ..basic::Get::default() };
    let mut client = LocalClient::open(state, &call.caller, &host).await?;
    let got = get_messages(&mut client, &get, count, |content| {
        message_object(&content, encoding, truncate)
    });
    let got = got.await;
    let settled = match (&got, mode) {
        (Ok((_, last)), AckMode::Reject | AckMode::RejectRequeue) if *last > 0 => {
            let requeue = mode == AckMode::RejectRequeue;
            client.send(&basic::Nack { delivery_tag: *last, multiple: true, requeue }).await
        }
        _ => Ok(()),
    };
    client.close().await;
    settled?;
    match got {
        Ok((messages, _)) => Ok(json(&Value::Array(messages))),
        // With the name of the code, as in RabbitMQ.
        Err(CallError::Refused { code, text }) if code == ReplyCode::NotFound.code() => {
            Err(ApiError::missing(text))
        }
        Err(error) => Err(error.into()),
    }
}

/// The messages, and the tag of the last one.
async fn get_messages(
    client: &mut LocalClient,
    get: &basic::Get,
    count: u64,
    show: impl Fn(Content) -> Value,
) -> Result<(Vec<Value>, u64), CallError> {
    let (mut messages, mut last, mut bytes) = (Vec::new(), 0, 0);
    let most = limits::MANAGEMENT_GET_MAX.min(usize::try_from(count).unwrap_or(usize::MAX));
    while messages.len() < most && bytes < limits::MANAGEMENT_GET_BYTES_MAX {
        let method = client.call(get).await?;
        let Method::BasicGetOk(get_ok) = &method else { break };
        last = get_ok.delivery_tag;
        let content = client.content(method).await?;
        bytes += content.body.len() + content.properties.as_bytes().len();
        messages.push(show(content));
    }
    Ok((messages, last))
}

type GetParameters = (u64, AckMode, Encoding, Option<usize>);

fn parameters(body: &Map<String, Value>) -> Result<GetParameters, ApiError> {
    let [count, mode, encoding] = require(body, ["count", "ackmode", "encoding"])?;
    let mode = match mode.as_str() {
        Some("ack_requeue_true") => AckMode::Return,
        Some("ack_requeue_false") => AckMode::Acknowledge,
        Some("reject_requeue_true") => AckMode::RejectRequeue,
        Some("reject_requeue_false") => AckMode::Reject,
        _ => {
            return Err(ApiError::bad_request(
                "ackmode must be ack_requeue_true, ack_requeue_false, reject_requeue_true or reject_requeue_false",
            ));
        }
    };
    let encoding = match encoding.as_str() {
        Some("auto") => Encoding::Auto,
        Some("base64") => Encoding::Base64,
        _ => {
            let reason = "Unsupported encoding. Please use auto or base64.";
            return Err(ApiError::bad_request(reason));
        }
    };
    let truncate = body.get("truncate").map(integer).transpose()?;
    let truncate = truncate.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok((integer(count)?, mode, encoding, truncate))
}

fn message_object(content: &Content, encoding: Encoding, truncate: Option<usize>) -> Value {
    let Method::BasicGetOk(get_ok) = &content.method else { return Value::Null };
    let whole = &content.body[..];
    let shown = &whole[..truncate.unwrap_or(whole.len()).min(whole.len())];
    let (payload, word) = match (encoding, std::str::from_utf8(shown)) {
        (Encoding::Auto, Ok(text)) => (text.to_owned(), "string"),
        _ => (BASE64.encode(shown), "base64"),
    };
    json!({
        "payload_bytes": whole.len(),
        "redelivered": get_ok.redelivered,
        "exchange": get_ok.exchange.as_str(),
        "routing_key": get_ok.routing_key.as_str(),
        "message_count": get_ok.message_count,
        "properties": properties_object(&content.properties),
        "payload": payload,
        "payload_encoding": word,
    })
}
