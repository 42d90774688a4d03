//! `SendMessage` and `SendMessageBatch`.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use malote_model::message::{Body, BodyKind, Message, Value, When};
use malote_model::{Action, SessionId};
use sha2::{Digest, Sha256};

use super::{SqsQueue, batch, check_range, queue_spec};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::attribute::{self, TRACE_HEADER};
use crate::wire::shapes::{BatchOut, SendBatchIn, SendIn, SentOut};

/// Offset of sequence numbers, so that they have twenty digits and never look like an account.
const SEQUENCE_BASE: u64 = 11_849_496_460_467_696_128;

/// The sequence number that FIFO queues return.
pub fn sequence_number(seq: u64) -> String {
    SEQUENCE_BASE.saturating_add(seq).to_string()
}

/// Checks a group, deduplication or attempt id.
pub fn check_id(text: &str, parameter: &str) -> Result<(), SqsError> {
    let good = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if good {
        return Ok(());
    }
    let reason = format!(
        "{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    );
    Err(SqsError::invalid(text, parameter, &reason))
}

/// A validated message, and its reply.
struct PreparedMessage {
    message: Message,
    out: SentOut,
}

fn body_of(request: &mut SendIn) -> Result<String, SqsError> {
    request
        .message_body
        .take()
        .filter(|body| !body.is_empty())
        .ok_or_else(|| SqsError::missing("MessageBody"))
}

/// Bytes of body and attributes, as the limits count them.
fn size(request: &SendIn) -> usize {
    let body = request.message_body.as_ref().map_or(0, String::len);
    body + request.message_attributes.as_ref().map_or(0, attribute::size)
}

/// Checks the parameters that depend on the type of the queue.
fn check_kind(request: &SendIn, queue: &SqsQueue) -> Result<(), SqsError> {
    let group = request.message_group_id.as_deref();
    let dedup = request.message_deduplication_id.as_deref();
    group.map_or(Ok(()), |id| check_id(id, "MessageGroupId"))?;
    if queue.fifo() {
        if group.is_none() {
            return Err(SqsError::missing("MessageGroupId"));
        }
        let by_content = queue.facts.spec.dedup.is_some_and(|dedup| dedup.content);
        if dedup.is_none() && queue.facts.spec.dedup.is_some() && !by_content {
            let text = "The queue should either have ContentBasedDeduplication enabled or \
                        MessageDeduplicationId provided explicitly";
            return Err(SqsError::new(Code::InvalidParameterValue, text));
        }
        dedup.map_or(Ok(()), |id| check_id(id, "MessageDeduplicationId"))?;
    }
    let other_kind = "The request include parameter that is not valid for this queue type.";
    if let Some(delay) = request.delay_seconds.filter(|&delay| queue.fifo() && delay != 0) {
        return Err(SqsError::invalid(delay, "DelaySeconds", other_kind));
    }
    if let Some(id) = dedup.filter(|_| !queue.fifo()) {
        return Err(SqsError::invalid(id, "MessageDeduplicationId", other_kind));
    }
    Ok(())
}

/// Validates and builds one message. The error for an oversized message has another text in a batch.
fn prepare(
    call: &Call,
    queue: &SqsQueue,
    mut request: SendIn,
    whole: bool,
) -> Result<PreparedMessage, SqsError> {
    let bytes = size(&request);
    let body = body_of(&mut request)?;
    let max = queue_spec::message_bytes_max(&queue.facts.spec);
    if bytes as u64 > max {
        let how = if whole { "are invalid" } else { "cannot be validated" };
        let text = format!(
            "One or more parameters {how}. Reason: Message must be shorter than {max} bytes."
        );
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    if let Some(bad) = body.chars().find(|&c| !attribute::is_allowed(c)) {
        let text = format!(
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF \
                            | #xE000 to #xFFFD | #x10000 to #x10FFFF; found #x{:X}.",
            u32::from(bad)
        );
        return Err(SqsError::new(Code::InvalidMessageContents, text));
    }
    check_kind(&request, queue)?;
    let rule = "DelaySeconds must be >= 0 and <= 900.";
    let delay_s = check_range(request.delay_seconds, "DelaySeconds", 0..=900, rule)?;
    let attributes = request.message_attributes.unwrap_or_default();
    attribute::check(&attributes)?;
    let system = request.message_system_attributes.unwrap_or_default();
    let mut message = Message {
        session: request.message_group_id.as_deref().map(SessionId::new).transpose()?,
        // In a FIFO queue, only the delay of the queue applies.
        when: delay_s.filter(|_| !queue.fifo()).map_or(When::Now, |s| When::Delay(s * 1000)),
        user_id: (!call.caller.is_anonymous()).then(|| call.caller.name().to_owned()),
        ..Message::default()
    };
    for (name, attribute) in &system {
        let text = attribute.string_value.as_deref().filter(|text| !text.is_empty());
        match (name.as_str(), attribute.data_type.as_str(), text) {
            ("AWSTraceHeader", "String", Some(text)) => {
                message.properties.set(TRACE_HEADER, Value::String(text.to_owned()));
            }
            _ => {
                let text = format!(
                    "Message system attribute name '{name}' is invalid, or its value is not a String."
                );
                return Err(SqsError::new(Code::InvalidParameterValue, text));
            }
        }
    }
    if let Some(trace) = call.trace.as_deref().filter(|_| system.is_empty()) {
        message.properties.set(TRACE_HEADER, Value::String(trace.to_owned()));
    }
    attribute::into_message(&attributes, &mut message);
    if queue.fifo() {
        let by_content = || HEXLOWER.encode(&Sha256::digest(body.as_bytes()));
        let wanted = queue.facts.spec.dedup.is_some();
        message.dedup_id = request.message_deduplication_id.or_else(|| wanted.then(by_content));
    }
    let out = SentOut {
        id: None,
        message_id: String::new(),
        md5_of_body: attribute::md5_of(&body),
        md5_of_attributes: attribute::md5_of_attributes(&attributes),
        md5_of_system_attributes: attribute::md5_of_attributes(&system),
        sequence_number: None,
    };
    message.body = Body { bytes: Bytes::from(body), kind: BodyKind::Text };
    Ok(PreparedMessage { message, out })
}

/// Sends the messages in one commit.
async fn send_all(
    sqs: &Sqs,
    queue: &SqsQueue,
    all: Vec<PreparedMessage>,
) -> Result<Vec<SentOut>, SqsError> {
    let (messages, mut outs): (Vec<_>, Vec<_>) =
        all.into_iter().map(|ready| ((queue.name().clone(), ready.message), ready.out)).unzip();
    let sent = sqs.0.engine.send_unless(messages, tokio::time::sleep(PUBLISH_WAIT)).await?;
    for (out, sent) in outs.iter_mut().zip(sent) {
        out.sequence_number = queue.fifo().then(|| sequence_number(sent.seq.0));
        // For a duplicate, the id of the original message.
        out.message_id = sent.message_id;
    }
    Ok(outs)
}

/// How long a send waits for earlier sends to reach the disk. Afterwards, it is throttled.
const PUBLISH_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

pub async fn send_message(sqs: &Sqs, call: &Call, request: SendIn) -> Result<SentOut, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Send).await?;
    let ready = prepare(call, &queue, request, true)?;
    let mut sent = send_all(sqs, &queue, vec![ready]).await?;
    sent.pop().ok_or_else(|| {
        SqsError::new(Code::InternalFailure, "the engine returned no result for the message")
    })
}

/// Each entry has its own outcome, except for errors of the whole request.
pub async fn send_message_batch(
    sqs: &Sqs,
    call: &Call,
    request: SendBatchIn,
) -> Result<BatchOut<SentOut>, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Send).await?;
    let entries = request.entries.unwrap_or_default();
    let ids = batch::check(
        "SendMessageBatchRequestEntry",
        entries.iter().map(|entry| entry.id.as_deref()),
    )?;
    let bytes: usize = entries.iter().map(size).sum();
    if bytes as u64 > queue_spec::MESSAGE_BYTES_MAX {
        let max = queue_spec::MESSAGE_BYTES_MAX;
        let text = format!(
            "Batch requests cannot be longer than {max} bytes. You have sent {bytes} bytes."
        );
        return Err(SqsError::new(Code::BatchRequestTooLong, text));
    }
    if queue.fifo() {
        // A missing parameter of an entry is reported as an invalid value of the batch.
        let of_batch = |error: SqsError| match error.code {
            Code::MissingParameter => SqsError { code: Code::InvalidParameterValue, ..error },
            _ => error,
        };
        entries.iter().try_for_each(|entry| check_kind(entry, &queue)).map_err(of_batch)?;
    }
    let (mut good, mut good_ids, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (id, entry) in ids.into_iter().zip(entries) {
        match prepare(call, &queue, entry, false) {
            Ok(ready) => {
                good.push(ready);
                good_ids.push(id);
            }
            Err(error) => failed.push(batch::failed(id, error)),
        }
    }
    let mut successful = send_all(sqs, &queue, good).await?;
    for (out, id) in successful.iter_mut().zip(good_ids) {
        out.id = Some(id);
    }
    Ok(BatchOut { successful, failed })
}
