//! `ReceiveMessage`. A long poll is one waiting consumer in the engine and uses no CPU while it waits.

use malote_engine::{Delivery, Peek, Receive, Stored};
use malote_model::{Action, LeaseToken, Seq, Timestamp};

use super::send_message::{check_id, sequence_number};
use super::{SqsQueue, check_range, queue_spec};
use crate::Sqs;
use crate::listen::Call;
use crate::ops::receive_attempts::ReceiveAttempt;
use crate::refusal::{Code, SqsError};
use crate::wire::attribute::{self, Attribute, Attributes, BODY_ENCODING, TRACE_HEADER};
use crate::wire::body::{self, BodyText};
use crate::wire::clip;
use crate::wire::handle::ReceiptHandle;
use crate::wire::shapes::{MessageOut, MessagesOut, ReceiveIn, StringMap};

/// Messages of a queue that may be in flight at once.
const IN_FLIGHT_MAX: u64 = 120_000;

const SYSTEM: [&str; 10] = [
    "All",
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
];

/// The attributes that the caller asked for.
struct RequestedAttributes {
    system: Vec<String>,
    own: Vec<String>,
}

impl RequestedAttributes {
    fn of(request: &mut ReceiveIn) -> Result<Self, SqsError> {
        let mut system = request.attribute_names.take().unwrap_or_default();
        system.extend(request.message_system_attribute_names.take().unwrap_or_default());
        for name in &system {
            if !SYSTEM.contains(&name.as_str()) {
                let shown = clip(name, 64);
                let text = format!("Unknown Attribute {shown}.");
                return Err(SqsError::new(Code::InvalidAttributeName, text));
            }
        }
        Ok(Self { system, own: request.message_attribute_names.take().unwrap_or_default() })
    }

    fn system(&self, name: &str) -> bool {
        self.system.iter().any(|wanted| wanted == "All" || wanted == name)
    }

    fn own(&self, name: &str) -> bool {
        self.own.iter().any(|wanted| {
            matches!(wanted.as_str(), "All" | "*")
                || wanted == name
                || wanted.strip_suffix(".*").is_some_and(|prefix| name.starts_with(prefix))
        })
    }
}

struct ReceivedMessage<'a> {
    seq: Seq,
    lease: LeaseToken,
    at: Timestamp,
    receives: u32,
    first_at: Option<Timestamp>,
    stored: &'a Stored,
}

pub async fn receive_message(
    sqs: &Sqs,
    call: &Call,
    mut request: ReceiveIn,
) -> Result<MessagesOut, SqsError> {
    let queue = call.queue(sqs, request.queue_url.as_deref(), Action::Receive).await?;
    let wanted = RequestedAttributes::of(&mut request)?;
    let max = check_range(
        request.max_number_of_messages,
        "MaxNumberOfMessages",
        1..=10,
        "Must be between 1 and 10, if provided.",
    )?;
    let wait_s = check_range(
        request.wait_time_seconds,
        "WaitTimeSeconds",
        0..=20,
        "Must be >= 0 and <= 20, if provided.",
    )?;
    let visible_s = check_range(
        request.visibility_timeout,
        "VisibilityTimeout",
        0..=43_200,
        "Must be >= 0 and <= 43200, if provided.",
    )?;
    if let Some(attempt) = &request.receive_request_attempt_id {
        if !queue.fifo() {
            let reason = "The request include parameter that is not valid for this queue type.";
            return Err(SqsError::invalid(attempt, "ReceiveRequestAttemptId", reason));
        }
        check_id(attempt, "ReceiveRequestAttemptId")?;
    }
    let lock_ms = visible_s.map(|s| (s * 1000).max(1));
    if let Some(id) = &request.receive_request_attempt_id
        && let Some(again) = repeat_receive(sqs, call, &queue, id, lock_ms, &wanted).await?
    {
        return Ok(again);
    }
    if queue.facts.locked >= IN_FLIGHT_MAX {
        if queue.fifo() {
            return Ok(MessagesOut::default());
        }
        let text = "Too many messages are in flight: delete some of them, or let them become visible again.";
        return Err(SqsError::new(Code::OverLimit, text));
    }
    let max = u32::try_from(max.unwrap_or(1)).unwrap_or(1);
    let receive = Receive {
        queue: queue.name().clone(),
        max,
        wait_ms: wait_s.unwrap_or_else(|| queue_spec::wait_s(&queue.facts.spec)) * 1000,
        lock_ms,
        take: false,
        hold: None,
        per_session: max,
    };
    let waiting = sqs.0.engine.receive(receive);
    let waiting = call.wait_while_permitted(sqs, &queue, Action::Receive, waiting);
    let deliveries = tokio::select! {
        deliveries = waiting => deliveries??,
        // At shutdown, the wait ends with an empty reply; the client's next request reaches the restarted broker.
        () = sqs.0.shutdown.cancelled() => Vec::new(),
    };
    let now = sqs.0.engine.now();
    let mut out = Vec::with_capacity(deliveries.len());
    let mut given = Vec::with_capacity(deliveries.len());
    for Delivery { seq, lease, receives, first_at, stored, .. } in deliveries {
        let Some(lease) = lease else { continue };
        out.push((seq, lease));
        let message = ReceivedMessage { seq, lease, at: now, receives, first_at, stored: &stored };
        given.push(render(call, &queue, &message, &wanted));
    }
    let Some(id) = request.receive_request_attempt_id else {
        return Ok(MessagesOut { messages: given });
    };
    if given.is_empty() {
        // An earlier call with this id may have waited at the same time, and received the messages.
        let again = repeat_receive(sqs, call, &queue, &id, lock_ms, &wanted).await?;
        return Ok(again.unwrap_or_default());
    }
    sqs.0.attempts.put(queue.name(), id, ReceiveAttempt { at: now, out });
    Ok(MessagesOut { messages: given })
}

/// Repeats an earlier receive with the same id: the same receipt handles, with a new visibility timeout.
///
/// None if there was no such receive, or if one of its messages is no longer leased to it.
async fn repeat_receive(
    sqs: &Sqs,
    call: &Call,
    queue: &SqsQueue,
    id: &str,
    lock_ms: Option<u64>,
    wanted: &RequestedAttributes,
) -> Result<Option<MessagesOut>, SqsError> {
    let now = sqs.0.engine.now();
    let Some(ReceiveAttempt { at, out }) = sqs.0.attempts.get(queue.name(), id, now) else {
        return Ok(None);
    };
    let leases = out.iter().map(|(_, lease)| *lease).collect();
    let lock_ms = Some(lock_ms.unwrap_or(queue.facts.spec.lock_ms));
    let renewed = sqs.0.engine.renew(Some(queue.name()), leases, lock_ms).await?;
    if let Some(lost) = renewed.iter().position(Result::is_err) {
        sqs.0.attempts.forget(out[lost].1);
        return Ok(None);
    }
    let mut messages = Vec::with_capacity(out.len());
    for (seq, lease) in out {
        let peek =
            Peek { queue: queue.name().clone(), from: seq, max: 1, session: None, state: None };
        let (seen, _) = sqs.0.engine.peek(peek).await?;
        let Some(seen) = seen.into_iter().find(|seen| seen.seq == seq) else { continue };
        let Ok(stored) = seen.stored else { continue };
        let (receives, first_at) = (seen.receives, seen.first_at);
        let given = ReceivedMessage { seq, lease, at, receives, first_at, stored: &stored };
        messages.push(render(call, queue, &given, wanted));
    }
    Ok(Some(MessagesOut { messages }))
}

fn render(
    call: &Call,
    queue: &SqsQueue,
    given: &ReceivedMessage<'_>,
    wanted: &RequestedAttributes,
) -> MessageOut {
    let message = &given.stored.message;
    // Unknown for messages received from an older version of the broker.
    let first = given.first_at.unwrap_or(given.at);
    let mut own: Attributes = attribute::of_message(message);
    let BodyText { text: body, base64 } = body::body_text(&message.body);
    if base64 {
        let encoding = Attribute {
            data_type: "String".into(),
            string_value: Some("base64".into()),
            binary_value: None,
        };
        own.insert(BODY_ENCODING.into(), encoding);
    }
    own.retain(|name, _| wanted.own(name));
    let mut attributes = StringMap::new();
    let mut add = |name: &str, text: Option<String>| {
        if let Some(text) = text.filter(|_| wanted.system(name)) {
            attributes.insert(name.to_owned(), text);
        }
    };
    // For a dead letter of a standard queue, this is the time of the original send; otherwise, the time of the enqueue.
    let dead = given.stored.dead.as_ref();
    let sent_at = match dead {
        Some(_) if !queue.fifo() => given.stored.sent_at,
        _ => given.stored.enqueued_at,
    };
    let sender = message.user_id.clone().unwrap_or_else(|| call.addressing.account.clone());
    add("SenderId", Some(sender));
    add("SentTimestamp", Some(sent_at.to_string()));
    // Includes the receives before it was dead-lettered.
    let receives = given.receives.saturating_add(dead.map_or(0, |dead| dead.receives));
    add("ApproximateReceiveCount", Some(receives.to_string()));
    add("ApproximateFirstReceiveTimestamp", Some(first.to_string()));
    add("MessageGroupId", message.session.as_ref().map(|session| session.as_str().to_owned()));
    // The deduplication id of a dead letter is its message id, so that two messages with the same deduplication id stay
    // distinct in the dead-letter queue (developer guide, "Configure a dead-letter queue redrive"). The same applies to
    // messages without a deduplication id.
    let dedup_id = message.dedup_id.as_ref().filter(|_| dead.is_none());
    let dedup_id = dedup_id.or(message.message_id.as_ref());
    add("MessageDeduplicationId", dedup_id.cloned().filter(|_| queue.fifo()));
    add("SequenceNumber", queue.fifo().then(|| sequence_number(given.seq.0)));
    add("DeadLetterQueueSourceArn", dead.map(|dead| call.addressing.arn(dead.from.as_str())));
    let trace = match message.properties.get(TRACE_HEADER) {
        Some(malote_model::Value::String(text)) => Some(text.clone()),
        _ => None,
    };
    add("AWSTraceHeader", trace);
    let handle = ReceiptHandle { lease: given.lease, seq: given.seq, at: given.at };
    MessageOut {
        message_id: message.message_id.clone().unwrap_or_default(),
        receipt_handle: handle.text(queue.name()),
        md5_of_body: attribute::md5_of(&body),
        body,
        attributes,
        md5_of_attributes: attribute::md5_of_attributes(&own),
        message_attributes: own,
    }
}
