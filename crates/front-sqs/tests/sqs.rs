//! Both protocols over the real router, without a network: the official clients are in `testing/conformance/sqs`.
#![allow(clippy::unwrap_used)]

mod common;

use axum::http::Request;
use common::{Broker, element};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_can_be_exchanged_between_json_and_query() {
    let broker = Broker::start();
    let (_, made) = broker.json("CreateQueue", json!({ "QueueName": "orders" })).await;
    let url = "http://localhost:9324/000000000000/orders";
    assert_eq!(made, json!({ "QueueUrl": url }));

    let attributes = json!({ "n": { "DataType": "Number", "StringValue": "007" } });
    let message =
        json!({ "QueueUrl": url, "MessageBody": "a<b\r\n", "MessageAttributes": attributes });
    let (status, sent) = broker.json("SendMessage", message).await;
    assert_eq!(
        (status, &sent["MD5OfMessageBody"]),
        (200, &json!("462f56711a85a3ba0c0de6e88aa34d52"))
    );
    // The queue is the path's when no URL is given.
    let form = "Action=ReceiveMessage&MessageAttributeName.1=All&AttributeName.1=SentTimestamp";
    let (status, got) = broker.form("/000000000000/orders", form).await;
    assert_eq!((status, element(&got, "Body")), (200, "a&lt;b&#xD;\n"));
    assert_eq!(element(&got, "StringValue"), "007");
    assert_eq!(element(&got, "MessageId"), sent["MessageId"].as_str().unwrap());
    let handle = element(&got, "ReceiptHandle");
    let (status, _) =
        broker.json("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": handle })).await;
    assert_eq!(status, 200);

    let form = "Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a\
        &SendMessageBatchRequestEntry.1.MessageBody=x%20y&SendMessageBatchRequestEntry.1.DelaySeconds=0";
    let (_, sent) = broker.form("/000000000000/orders", form).await;
    let (_, got) = broker.json("ReceiveMessage", json!({ "QueueUrl": url })).await;
    assert_eq!(got["Messages"][0]["Body"], "x y");
    assert_eq!(got["Messages"][0]["MessageId"], element(&sent, "MessageId"));
    assert_eq!(got["Messages"][0].get("Attributes"), None, "attributes that were not requested");
    let (_, none) = broker.json("ReceiveMessage", json!({ "QueueUrl": url })).await;
    assert_eq!(none, json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_the_codes_of_their_protocol() {
    let broker = Broker::start();
    let (status, error) = broker.json("GetQueueUrl", json!({ "QueueName": "never" })).await;
    assert_eq!(status, 400);
    assert_eq!(error["__type"], "com.amazonaws.sqs#QueueDoesNotExist");
    assert_eq!(error["message"], "The specified queue does not exist.");
    let (_, error) = broker.form("/", "Action=GetQueueUrl&QueueName=never").await;
    assert_eq!(element(&error, "Code"), "AWS.SimpleQueueService.NonExistentQueue");
    assert_eq!(
        element(&error, "Message"),
        "The specified queue does not exist for this wsdl version."
    );
    let (_, error) = broker.json("CreateQueue", json!({})).await;
    assert_eq!(error["message"], "The request must contain the parameter QueueName.");
    let (_, error) = broker.json("CreateQueue", json!({ "QueueName": 7 })).await;
    assert_eq!(error["__type"], "com.amazonaws.sqs#SerializationException");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_and_foreign_names_are_refused() {
    let broker = Broker::start();
    for (host, origin, status) in [
        ("localhost:9324", None, 200),
        ("127.0.0.1:9324", None, 200),
        ("localhost:9324", Some("http://localhost:9324"), 200),
        ("localhost:9324", Some("http://evil.example"), 403),
        ("evil.example", None, 403),
    ] {
        let mut request = Request::post("/").header("host", host);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let request = request.body("Action=ListQueues".into()).unwrap();
        assert_eq!(broker.ask(request).await.0, status, "{host} {origin:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_not_read() {
    let broker = Broker::start();
    let request = Request::post("/").header("content-length", (5 << 20).to_string());
    let (status, _, text) = broker.ask(request.body("Action=ListQueues".into()).unwrap()).await;
    assert_eq!((status, element(&text, "Code")), (413, "RequestEntityTooLarge"));
    let (status, _, _) =
        broker.ask(Request::post("/").body(vec![b'a'; 5 << 20].into()).unwrap()).await;
    assert_eq!(status, 413);
}
