//! A failed disk: no answer claims an outcome that may be wrong.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::client::{Client, listen};
use common::{Broker, Q, receive};
use malote_front_http::Limits;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_every_outcome_is_unknown_and_health_fails() {
    let to = listen(Broker::on_disk(Limits::default()), Limits::default()).await;
    let broker = &to.broker;
    broker.put(Q, json!({})).await.expect(201);
    let messages = format!("{Q}/messages");
    broker.raw("POST", &messages, &[], "a").await.expect(201);
    let got = receive(broker, json!({})).await;
    let mut client = Client::connect(&to).await;
    assert_eq!(broker.get("/livez").await.text(), "ok\n");

    // Pending requests: two that write, one that waits.
    broker.disk().hold_up();
    let sending = broker.raw("POST", &messages, &[], "b");
    let settle = json!({"leases": [got[0]["lease"]], "outcome": "complete"});
    let settle_path = format!("{Q}/settle");
    let settling = broker.post(&settle_path, settle);
    let receive_path = format!("{Q}/receive");
    let waiting = broker.post(&receive_path, json!({"wait_ms": 20_000}));
    let send = json!({"messages": [{"queue": "orders", "body": "c"}]});
    let native = client.ask("send", send.clone());
    let fail = async {
        // The others were polled first, so the engine has them. Its journal waits for the disk.
        let journal = broker.api.engine.journal();
        while journal.written() <= journal.durable() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        broker.disk().fail();
    };
    let (sent, settled, received, native, ()) =
        tokio::join!(sending, settling, waiting, native, fail);
    for (what, answer) in [("send", sent), ("settle", settled), ("receive", received)] {
        assert_eq!(answer.problem(503), "poisoned", "{what}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("the outcome is unknown"));
        assert!(answer.headers.contains_key("retry-after"), "{what}");
    }
    assert_eq!(native["problem"]["code"], "poisoned", "{native}");

    // Later requests fail as well.
    assert_eq!(broker.raw("POST", &messages, &[], "d").await.problem(503), "poisoned");
    assert_eq!(broker.get(Q).await.problem(503), "poisoned");
    assert_eq!(client.ask("send", send).await["problem"]["code"], "poisoned");
    let lives = broker.get("/livez").await;
    assert_eq!((lives.status.as_u16(), lives.text()), (503, "the broker failed: restart it\n"));
    let ready = broker.get("/readyz").await;
    assert_eq!((ready.status.as_u16(), ready.text()), (503, "[-]engine failed\nnot ready\n"));
    let health = broker.get("/health/queue").await.expect(503);
    assert_eq!(health["status"], "Error");
    assert!(broker.running.is_poisoned());
}
