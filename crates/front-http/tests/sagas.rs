//! Sagas over HTTP: the states that workers write into sessions.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::Broker;
use serde_json::{Value, json};

const Q: &str = "/api/v1/queues/saga.order";

async fn broker() -> Broker {
    let broker = Broker::start();
    broker.put(Q, json!({"sessions": "dynamic"})).await.expect(201);
    broker
}

/// Writes a state like a worker: together with the settlement of the message.
async fn write(broker: &Broker, id: &str, state: &str) {
    let held = broker.post(&format!("{Q}/sessions/accept"), json!({"session": id})).await;
    let token = held.expect(200)["token"].clone();
    let base64 = malote_wire_native::text::to_base64(state.as_bytes());
    let change = json!({"queue": "saga.order", "change": {"token": token, "state_base64": base64}});
    broker.post("/api/v1/transactions", json!({"state": [change]})).await.expect(200);
    let release = format!("{Q}/sessions/{id}/release");
    broker.post(&release, json!({"token": token})).await.expect(204);
}

fn state(status: &str, step: &str) -> String {
    json!({
        "malote_saga": 1, "version": 3, "status": status, "started_at": 5, "changed_at": 6,
        "steps": [
            {"name": "reserve", "status": "done", "undo": true, "at": 6},
            {"name": "charge", "status": step, "undo": true, "pivot": true, "attempts": 2, "error": "503", "deadline": 99},
        ],
        "data": {"cents": 900}, "receives": 4,
    })
    .to_string()
}

#[tokio::test]
async fn a_saga_is_shown_with_its_steps() {
    let broker = broker().await;
    write(&broker, "17", &state("running", "waiting")).await;
    let saga = broker.get("/api/v1/sagas/order/17").await.expect(200);
    assert_eq!((&saga["status"], &saga["step"]), (&json!("running"), &json!("charge")));
    assert_eq!((&saga["attempts"], &saga["error"]), (&json!(2), &json!("503")));
    assert_eq!(saga["data"], json!({"cents": 900}));
    assert_eq!(saga["steps"][0]["status"], "done");
    write(&broker, "17", &state("compensated", "failed")).await;
    let saga = broker.get("/api/v1/sagas/order/17").await.expect(200);
    assert_eq!((&saga["status"], &saga["step"]), (&json!("compensated"), &Value::Null));
}

#[tokio::test]
async fn sagas_are_listed_in_pages_without_other_sessions() {
    let broker = broker().await;
    for n in 0..70 {
        write(&broker, &format!("s{n}"), &state("running", "waiting")).await;
    }
    write(&broker, "not-a-saga", "hello").await;
    write(&broker, "tomorrows", &state("running", "waiting").replace(":1,", ":2,")).await;
    // Started, but not handled by a worker yet.
    broker.post(&format!("{Q}/messages?session=new"), json!({})).await.expect(201);
    let (mut seen, mut after) = (BTreeSet::new(), None::<String>);
    loop {
        let more = after.map_or_else(String::new, |after| format!("&after={after}"));
        let page = broker.get(&format!("/api/v1/sagas/order?max=40{more}")).await.expect(200);
        let sagas = page["sagas"].as_array().unwrap();
        assert!(sagas.len() <= 40);
        seen.extend(sagas.iter().map(|saga| saga["id"].as_str().unwrap().to_owned()));
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 71);
    let new = broker.get("/api/v1/sagas/order/new").await.expect(200);
    assert_eq!((&new["status"], &new["data"]), (&json!("waiting"), &Value::Null));
}

#[tokio::test]
async fn missing_sagas_are_reported() {
    let broker = broker().await;
    assert_eq!(broker.get("/api/v1/sagas/order/17").await.problem(404), "saga_not_found");
    assert_eq!(broker.get("/api/v1/sagas/other").await.problem(404), "queue_not_found");
    assert_eq!(broker.get("/api/v1/sagas/order?max=0").await.problem(400), "out_of_range");
    write(&broker, "bad", "\u{1}").await;
    assert_eq!(broker.get("/api/v1/sagas/order/bad").await.problem(404), "saga_not_found");
}
