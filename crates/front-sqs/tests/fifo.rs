//! FIFO queues: repeated receives, and the ids of dead letters.
#![allow(clippy::unwrap_used)]

mod common;

use common::Broker;
use serde_json::{Value, json};

const FIFO: &str = "orders.fifo";

async fn fifo_with(broker: &Broker, bodies: &[&str]) -> String {
    let attributes = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true" });
    let url = broker.queue(FIFO, attributes).await;
    for body in bodies {
        let sent = json!({ "QueueUrl": url, "MessageBody": body, "MessageGroupId": "g" });
        broker.done("SendMessage", sent).await;
    }
    url
}

/// One receive with an attempt id, as (body, handle).
async fn attempt(broker: &Broker, url: &str, id: &str, timeout_s: u64) -> Vec<(String, String)> {
    let asked = json!({
        "QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": timeout_s,
        "ReceiveRequestAttemptId": id,
    });
    let got = broker.done("ReceiveMessage", asked).await;
    let messages = got["Messages"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    messages.iter().map(|m| (text(&m["Body"]), text(&m["ReceiptHandle"]))).collect()
}

fn bodies(got: &[(String, String)]) -> Vec<&str> {
    got.iter().map(|(body, _)| body.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_attempt_gets_the_same_messages_handles_and_a_new_time_out() {
    let broker = Broker::with_manual_clock();
    let url = fifo_with(&broker, &["1", "2"]).await;
    let first = attempt(&broker, &url, "try", 30).await;
    assert_eq!(bodies(&first), ["1", "2"]);
    broker.advance_ms(20_000);
    assert_eq!(attempt(&broker, &url, "try", 30).await, first, "messages and handles");
    broker.advance_ms(20_000);
    // Without the restart they would have been visible since second 30.
    assert_eq!(attempt(&broker, &url, "another", 30).await, []);
    broker.advance_ms(20_000);
    let later = attempt(&broker, &url, "another", 30).await;
    assert_eq!(bodies(&later), ["1", "2"], "visible again");
    assert_ne!(later, first);
    assert_eq!(attempt(&broker, &url, "try", 30).await, [], "the first attempt is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_ends_when_one_of_its_messages_is_deleted_or_changed() {
    let broker = Broker::with_manual_clock();
    let url = fifo_with(&broker, &["1", "2"]).await;
    for (action, more) in [
        ("ChangeMessageVisibility", json!({ "VisibilityTimeout": 30 })),
        ("DeleteMessage", json!({})),
    ] {
        let first = attempt(&broker, &url, action, 30).await;
        assert_eq!(bodies(&first), ["1", "2"]);
        broker.advance_ms(10_000);
        let mut change = json!({ "QueueUrl": url, "ReceiptHandle": first[0].1 });
        change.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        broker.done(action, change).await;
        assert_eq!(attempt(&broker, &url, action, 60).await, [], "{action}: a new receive");
        // The refused repetition must not have prolonged the others: they end 30 s after the first receive.
        broker.advance_ms(20_000);
        let hidden = broker.done(
            "GetQueueAttributes",
            json!({ "QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessagesNotVisible"] }),
        );
        let hidden = hidden.await["Attributes"]["ApproximateNumberOfMessagesNotVisible"].clone();
        let expected = if action == "DeleteMessage" { "0" } else { "1" };
        assert_eq!(hidden, expected, "{action}");
        broker.advance_ms(60_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_id_is_new_after_five_minutes_and_after_a_restart() {
    let broker = Broker::with_manual_clock();
    let url = fifo_with(&broker, &["1"]).await;
    let first = attempt(&broker, &url, "try", 3600).await;
    broker.advance_ms(299_000);
    assert_eq!(attempt(&broker, &url, "try", 3600).await, first);
    broker.advance_ms(1_000);
    assert_eq!(attempt(&broker, &url, "try", 3600).await, [], "counted from the first receive");
    // Leases survive a restart, attempts do not: the messages stay hidden until their time is over.
    let second = {
        broker.advance_ms(3_600_000);
        attempt(&broker, &url, "second", 3600).await
    };
    assert_eq!(bodies(&second), ["1"]);
    let broker = broker.restart();
    assert_eq!(attempt(&broker, &url, "second", 3600).await, []);
    let delete = json!({ "QueueUrl": url, "ReceiptHandle": second[0].1 });
    broker.done("DeleteMessage", delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_that_shared_a_deduplication_id_stay_apart_under_their_message_ids() {
    let broker = Broker::with_manual_clock();
    let dead = broker.queue("dead.fifo", json!({ "FifoQueue": "true" })).await;
    let policy = json!({
        "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead.fifo", "maxReceiveCount": 1,
    });
    // The same id in two groups: two messages, since de-duplication is by group.
    let attributes = json!({
        "FifoQueue": "true", "DeduplicationScope": "messageGroup", "RedrivePolicy": policy.to_string(),
    });
    let url = broker.queue(FIFO, attributes).await;
    let mut ids = Vec::new();
    for group in ["a", "b"] {
        let message = json!({
            "QueueUrl": url, "MessageBody": group, "MessageGroupId": group, "MessageDeduplicationId": "same",
        });
        let sent = broker.done("SendMessage", message).await;
        ids.push(sent["MessageId"].as_str().unwrap().to_owned());
    }
    let all = |url: &str| json!({ "QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["All"] });
    let alive = broker.done("ReceiveMessage", all(&url)).await;
    for message in alive["Messages"].as_array().unwrap() {
        assert_eq!(message["Attributes"]["MessageDeduplicationId"], "same");
    }
    broker.advance_ms(30_000);
    let got = broker.done("ReceiveMessage", all(&dead)).await;
    let messages = got["Messages"].as_array().unwrap();
    let of = |message: &Value, name: &str| message["Attributes"][name].as_str().unwrap().to_owned();
    let dedup_ids: Vec<String> = messages.iter().map(|m| of(m, "MessageDeduplicationId")).collect();
    assert_eq!(dedup_ids, ids, "{got}");
    for message in messages {
        assert_eq!(message["MessageId"], message["Attributes"]["MessageDeduplicationId"]);
        let from = "arn:aws:sqs:us-east-1:000000000000:orders.fifo";
        assert_eq!(of(message, "DeadLetterQueueSourceArn"), from);
    }
    let numbers: Vec<String> = messages.iter().map(|m| of(m, "SequenceNumber")).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}
