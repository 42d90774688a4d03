//! Transactions, temporary queues and topics over the native connection.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::client::{Client, Listening, bodies, listening, start};
use malote_front_http::Limits;
use serde_json::{Value, json};

async fn totals(to: &Listening, queue: &str) -> Value {
    to.broker.get(&format!("/api/v1/queues/{queue}")).await.expect(200)["totals"].clone()
}

#[tokio::test]
async fn a_transaction_is_pipelined_and_atomic() {
    let to = start().await;
    to.broker.put("/api/v1/queues/next", json!({})).await.expect(201);
    to.broker.put("/api/v1/topics/t", json!({})).await.expect(201);
    to.broker.put("/api/v1/topics/t/subscriptions/s", json!({})).await.expect(201);
    for protocol in ["malote.v1.json", "malote.v1.msgpack"] {
        let mut client = Client::speaking(&to, protocol).await;
        client.send(&["a"]).await;
        Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1})).await);
        let lease = client.messages(1).await[0]["lease"].clone();
        client
            .say(json!([
                {"begin": {"id": 101, "transaction": 7}},
                {"send": {"id": 102, "transaction": 7, "messages": [
                    {"queue": "next", "body": "n"}, {"topic": "t", "body": "t"},
                ]}},
                {"settle": {"id": 103, "queue": "q", "transaction": 7, "items": [
                    {"leases": [lease], "outcome": "complete"},
                ]}},
                {"commit": {"id": 104, "transaction": 7}},
                // The number is free again at once.
                {"begin": {"id": 105, "transaction": 7}},
                {"send": {"id": 106, "transaction": 7, "messages": [{"queue": "next", "body": "no"}]}},
                {"rollback": {"id": 107, "transaction": 7}},
            ]))
            .await;
        for id in [101, 102, 103, 105, 106, 107] {
            assert_eq!(Client::ok(client.reply(id).await), json!({}), "{id}");
        }
        let sent = Client::ok(client.reply(104).await)["messages"].clone();
        assert_eq!((sent.as_array().unwrap().len(), &sent[1]["copies"]), (2, &json!(1)));
        client.socket.close(None).await.unwrap();
    }
    assert_eq!(totals(&to, "next").await["sent"], 2);
    assert_eq!(totals(&to, "q").await["completed"], 2);
}

#[tokio::test]
async fn session_states_change_with_the_transaction() {
    let to = start().await;
    to.broker.put("/api/v1/queues/s", json!({"sessions": "dynamic"})).await.expect(201);
    let mut client = Client::connect(&to).await;
    let held = client.ask("accept", json!({"queue": "s", "session": "x"})).await;
    let token = Client::ok(held)["held"]["token"].clone();
    Client::ok(client.ask("begin", json!({"transaction": 1})).await);
    let change = json!({"token": token, "state_base64": "aGk="});
    let set = json!({"queue": "s", "transaction": 1, "change": change});
    Client::ok(client.ask("set_state", set).await);
    let state =
        client.ask("get_state", json!({"queue": "s", "session": "x", "token": token})).await;
    assert_eq!(Client::ok(state), json!({}), "not yet");
    Client::ok(client.ask("commit", json!({"transaction": 1})).await);
    let state =
        client.ask("get_state", json!({"queue": "s", "session": "x", "token": token})).await;
    assert_eq!(Client::ok(state)["state_base64"], "aGk=");
}

#[tokio::test]
async fn one_failed_operation_fails_the_transaction() {
    let to = start().await;
    let mut client = Client::connect(&to).await;
    let fine = json!([{"queue": "q", "body": "x"}]);
    for (kind, bad, code) in [
        ("send", json!({"messages": [{"body": "x"}]}), "bad_field"),
        ("send", json!({"messages": []}), "bad_field"),
        (
            "settle",
            json!({"queue": "q", "items": [{"leases": ["junk"], "outcome": "complete"}]}),
            "bad_token",
        ),
        ("settle", json!({"queue": "$", "items": []}), "bad_name"),
        ("set_state", json!({"queue": "q", "change": {"token": "junk"}}), "bad_token"),
    ] {
        Client::ok(client.ask("begin", json!({"transaction": 1})).await);
        Client::ok(client.ask("send", json!({"transaction": 1, "messages": fine})).await);
        let mut frame = bad.clone();
        frame["transaction"] = 1.into();
        let reply = client.ask(kind, frame).await;
        assert_eq!(reply["problem"]["code"], code, "{kind} {bad}");
        let reply = client.ask("commit", json!({"transaction": 1})).await;
        assert_eq!(reply["problem"]["code"], code);
        assert!(
            reply["problem"]["detail"].as_str().unwrap().starts_with("nothing of transaction 1")
        );
    }
    // An error that only the commit detects.
    let stale = json!([{"leases": ["0".repeat(32)], "outcome": "complete"}]);
    for (kind, bad, code) in [
        ("send", json!({"messages": [{"queue": "missing"}]}), "queue_not_found"),
        ("settle", json!({"queue": "q", "items": stale}), "lease_lost"),
    ] {
        Client::ok(client.ask("begin", json!({"transaction": 1})).await);
        Client::ok(client.ask("send", json!({"transaction": 1, "messages": fine})).await);
        let mut frame = bad;
        frame["transaction"] = 1.into();
        Client::ok(client.ask(kind, frame).await);
        let reply = client.ask("commit", json!({"transaction": 1})).await;
        assert_eq!(reply["problem"]["code"], code);
    }
    for (kind, frame, code) in [
        ("commit", json!({"transaction": 1}), "transaction_over"),
        ("rollback", json!({"transaction": 1}), "transaction_over"),
        ("send", json!({"transaction": 9, "messages": fine}), "transaction_over"),
    ] {
        assert_eq!(client.ask(kind, frame).await["problem"]["code"], code);
    }
    Client::ok(client.ask("begin", json!({"transaction": 1})).await);
    let twice = client.ask("begin", json!({"transaction": 1})).await;
    assert_eq!(twice["problem"]["code"], "transaction_exists");
    assert_eq!(totals(&to, "q").await["sent"], 0);
}

#[tokio::test]
async fn staged_bytes_are_bounded_and_end_with_the_connection() {
    let limits = Limits {
        transactions_max: 2,
        staged_bytes_max: 4000,
        reconnect_grace: Duration::from_millis(1),
        ..Limits::default()
    };
    let to = listening(limits).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    let mut client = Client::connect(&to).await;
    assert_eq!(client.welcome["limits"]["transactions_max"], 2);
    Client::ok(client.ask("begin", json!({"transaction": 1})).await);
    Client::ok(client.ask("begin", json!({"transaction": 2})).await);
    let third = client.ask("begin", json!({"transaction": 3})).await;
    assert_eq!(third["problem"]["code"], "too_many");
    let large = json!([{"queue": "q", "body": "x".repeat(2500)}]);
    let staged = |number: u64| json!({"transaction": number, "messages": large});
    Client::ok(client.ask("send", staged(1)).await);
    let refused = client.ask("send", staged(2)).await;
    assert_eq!(refused["problem"]["code"], "busy");
    // A frame refused for lack of room also fails the transaction.
    let spoilt = client.ask("commit", json!({"transaction": 2})).await;
    assert_eq!(spoilt["problem"]["code"], "busy");
    // The end of a transaction frees its bytes.
    Client::ok(client.ask("rollback", json!({"transaction": 1})).await);
    Client::ok(client.ask("begin", json!({"transaction": 2})).await);
    Client::ok(client.ask("send", staged(2)).await);
    Client::ok(client.ask("commit", json!({"transaction": 2})).await);
    Client::ok(client.ask("begin", json!({"transaction": 4})).await);
    Client::ok(client.ask("send", staged(4)).await);
    drop(client);
    let mut other = Client::connect(&to).await;
    let none = other.ask("commit", json!({"transaction": 4})).await;
    assert_eq!(none["problem"]["code"], "transaction_over");
    assert_eq!(totals(&to, "q").await["sent"], 1);
}

#[tokio::test]
async fn a_client_can_declare_its_own_reply_queue() {
    let to = start().await;
    let mut client = Client::connect(&to).await;
    let mut other = Client::connect(&to).await;
    let made = Client::ok(client.ask("declare", json!({})).await);
    let queue = made["queue"].as_str().unwrap().to_owned();
    assert!(queue.starts_with("reply-") && made["created"] == true, "{made}");
    // Declare and attach in one message.
    client
        .say(json!([
            {"declare": {"id": 100, "queue": "mine", "spec": {"exclusive": true}}},
            {"attach": {"id": 101, "consumer": 2, "queue": "mine", "credit": 1}},
            {"attach": {"id": 102, "consumer": 1, "queue": queue, "credit": 10, "mode": "delete"}},
        ]))
        .await;
    for id in [100, 101, 102] {
        Client::ok(client.reply(id).await);
    }
    let request = json!([{"queue": "q", "body": "2+2", "reply_to": queue, "correlation_id": "c"}]);
    Client::ok(client.ask("send", json!({"messages": request})).await);
    Client::ok(other.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1})).await);
    let got = other.messages(1).await[0].clone();
    let answer =
        json!([{"queue": got["reply_to"], "correlation_id": got["correlation_id"], "body": "4"}]);
    Client::ok(other.ask("send", json!({"messages": answer})).await);
    let answers = client.messages(1).await;
    assert_eq!((bodies(&answers), &answers[0]["correlation_id"]), (vec!["4"], &json!("c")));
    let stolen = other.ask("attach", json!({"consumer": 2, "queue": queue, "credit": 1})).await;
    assert_eq!(stolen["problem"]["code"], "queue_exclusive");
    let bad = client.ask("declare", json!({"queue": "$x"})).await;
    assert_eq!(bad["problem"]["code"], "bad_name");
    let differs = client.ask("declare", json!({"queue": "q", "spec": {"lock_ms": 5}})).await;
    assert_eq!(differs["problem"]["code"], "queue_differs");
    client.socket.close(None).await.unwrap();
    let path = format!("/api/v1/queues/{queue}");
    while to.broker.get(&path).await.status.as_u16() != 404 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
