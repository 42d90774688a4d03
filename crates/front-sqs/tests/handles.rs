//! Replies to receipt handles whose message was deleted, or whose visibility time-out has passed.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Broker, element};
use serde_json::json;

const GONE: &str = "Message does not exist or is not available for visibility timeout change";

/// Sends and receives one message; returns its receipt handle.
async fn received(broker: &Broker, url: &str) -> String {
    let group = url.ends_with(".fifo").then_some("g");
    let sent = json!({ "QueueUrl": url, "MessageBody": "x", "MessageGroupId": group });
    broker.done("SendMessage", sent).await;
    let got = broker.done("ReceiveMessage", json!({ "QueueUrl": url })).await;
    got["Messages"][0]["ReceiptHandle"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_the_visibility_of_a_deleted_message() {
    let broker = Broker::with_manual_clock();
    let fifo = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true" });
    for (name, attributes) in [("plain", json!({})), ("ordered.fifo", fifo)] {
        let url = broker.queue(name, attributes).await;
        let handle = received(&broker, &url).await;
        let of_handle = json!({ "QueueUrl": url, "ReceiptHandle": handle });
        for _ in 0..2 {
            broker.done("DeleteMessage", of_handle.clone()).await;
        }
        for seconds in [0, 30] {
            // As Go Cloud recorded it from the service.
            let entry = json!({ "Id": "1", "ReceiptHandle": handle, "VisibilityTimeout": seconds });
            let batch = json!({ "QueueUrl": url, "Entries": [entry] });
            let answer = broker.done("ChangeMessageVisibilityBatch", batch).await;
            let failed = json!({
                "Id": "1", "Code": "ReceiptHandleIsInvalid", "Message": GONE, "SenderFault": true,
            });
            assert_eq!(answer["Failed"], json!([failed]), "{name}");
            // As LocalStack recorded it from the service; the shape is the one that SDKs have a type for.
            let mut single = of_handle.clone();
            single["VisibilityTimeout"] = json!(seconds);
            let (status, head, error) =
                broker.json_with_head("ChangeMessageVisibility", single).await;
            assert_eq!(
                (status, &error["__type"]),
                (400, &json!("com.amazonaws.sqs#ReceiptHandleIsInvalid"))
            );
            assert_eq!(head["x-amzn-query-error"], "InvalidParameterValue;Sender");
            let text =
                format!("Value {handle} for parameter ReceiptHandle is invalid. Reason: {GONE}.");
            assert_eq!(error["message"], text);
        }
        let encoded = handle.replace('+', "%2B").replace('=', "%3D");
        let form =
            format!("Action=ChangeMessageVisibility&VisibilityTimeout=5&ReceiptHandle={encoded}");
        let (status, xml) = broker.form(&format!("/000000000000/{name}"), &form).await;
        assert_eq!((status, element(&xml, "Code")), (400, "InvalidParameterValue"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_receipt_handles() {
    let broker = Broker::with_manual_clock();
    // A standard queue: nothing is refused, and MessageNotInflight is never answered.
    let url = broker.queue("plain", json!({})).await;
    let handle = received(&broker, &url).await;
    broker.advance_ms(30_000);
    let change = json!({ "QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 5 });
    broker.done("ChangeMessageVisibility", change).await;
    broker.done("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": handle })).await;
    let got = broker.done("ReceiveMessage", json!({ "QueueUrl": url })).await;
    assert_eq!(got, json!({}), "deleted by the old handle");

    // A FIFO queue: both are refused as expired.
    let fifo = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true" });
    let url = broker.queue("ordered.fifo", fifo).await;
    let handle = received(&broker, &url).await;
    broker.advance_ms(30_000);
    for action in ["ChangeMessageVisibility", "DeleteMessage"] {
        let asked = json!({ "QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 5 });
        let (status, head, error) = broker.json_with_head(action, asked).await;
        assert_eq!(
            (status, &head["x-amzn-query-error"]),
            (400, &"InvalidParameterValue;Sender".parse().unwrap())
        );
        let text = error["message"].as_str().unwrap();
        assert!(text.ends_with("Reason: The receipt handle has expired."), "{text}");
    }
}
