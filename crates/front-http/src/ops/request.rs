//! A request and its reply in one call.

use std::time::Duration;

use axum::Json as Answer;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use malote_model::{Action, Address, limits};
use malote_wire_native::frame::Encoding;
use malote_wire_native::received::ReceivedMessage;

use super::metadata::{TIMEOUT, read_metadata};
use super::send::{only, publish, raw_message};
use crate::extract::{Caller, Queue, RawMessage};
use crate::problem::{Code, Problem};
use crate::requests::check_range;
use crate::{Api, convert};

/// Default time limit for the reply.
const TIMEOUT_MS_DEFAULT: u64 = 30_000;

/// Sends a message and waits for its reply. The request expires at the time limit, also if the caller
/// disconnects.
pub async fn request(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: RawMessage,
) -> Result<Answer<ReceivedMessage>, Problem> {
    api.allow(&caller, Action::Send, &queue)?;
    let said = read_metadata(query.as_deref().unwrap_or(""), &headers, Some(TIMEOUT))?;
    let timeout_ms = said.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT);
    check_range(TIMEOUT, timeout_ms, 1, limits::ACCEPT_WAIT_MS_MAX)?;
    let new = &said.new;
    if new.reply_to.is_some() || new.reply_to_session.is_some() || new.correlation_id.is_some() {
        let why =
            "reply_to, reply_to_session and correlation_id are set by the server: leave them out";
        return Err(Problem::new(Code::BadQuery, why));
    }
    let to = Address::from(queue.clone());
    let mut message = raw_message(&api, &to, said.new, &body).await?;
    let waiting = api.replies.wait(&api).await?;
    message.reply_to = Some(waiting.queue().as_str().to_owned());
    message.correlation_id = Some(waiting.correlation_id().to_owned());
    message.ttl_ms.get_or_insert(timeout_ms);
    let no_reply = |why: &str| Err(Problem::new(Code::NoReply, format!("queue `{queue}`: {why}")));
    let sent = only(publish(&api, vec![(to, message)]).await?)?;
    drop(body);
    if sent.duplicate {
        return no_reply("the request is a duplicate, and the reply went to its first sender");
    }
    let answer = tokio::time::timeout(Duration::from_millis(timeout_ms), waiting.reply());
    match api.while_allowed(&caller, Action::Send, &queue, answer).await? {
        Ok(Some(answer)) => Ok(Answer(convert::delivered_message(answer, Encoding::Json))),
        Ok(None) if api.shutdown.is_cancelled() => {
            Err(Problem::new(Code::Stopping, "the broker is stopping"))
        }
        Ok(None) => no_reply("the reply queue was deleted"),
        Err(_) => no_reply(&format!("no reply within {timeout_ms} ms")),
    }
}
