//! Stalled publishing: sends wait within their bounds, then they are refused; settling still works.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::client::{Client, bodies, listen};
use common::{Broker, Q, receive, settle};
use malote_engine::{Engine, EngineError};
use malote_front_http::Limits;
use malote_model::{Body, BodyKind, Message, QueueName, Refusal};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

fn message(bytes: usize) -> Message {
    Message {
        body: Body { bytes: vec![b'x'; bytes].into(), kind: BodyKind::Bytes },
        ..Message::default()
    }
}

/// A disk that no longer syncs, with as many sends as the engine admits. The queue `orders` is relaxed, so its
/// operations need no sync.
async fn hold_up(broker: &Broker) -> Vec<JoinHandle<()>> {
    let large = 32 << 20;
    broker.put("/api/v1/queues/large", json!({"message_bytes_max": large})).await.expect(201);
    broker.disk().hold_up();
    let half = |engine: Engine| async move {
        let queue = QueueName::new("large").unwrap();
        engine.send(vec![(queue, message(large - 1024))]).await.unwrap();
    };
    let sending = (0..2).map(|_| tokio::spawn(half(broker.api.engine.clone()))).collect();
    let orders = QueueName::new("orders").unwrap();
    let busy = Err(EngineError::Refused(Refusal::Busy));
    loop {
        // Sends are refused as soon as there is no room.
        let probe = vec![(orders.clone(), message(1))];
        if broker.api.engine.send_unless(probe, async {}).await == busy {
            return sending;
        }
        tokio::task::yield_now().await;
    }
}

async fn relaxed(limits: Limits) -> Broker {
    let broker = Broker::on_disk(limits);
    broker.put(Q, json!({"durability": "relaxed"})).await.expect(201);
    broker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_behind_two_thousand_waiting_sends_is_answered() {
    const SENDS: u64 = 2000;
    let limits = Limits { publish_wait: Duration::from_secs(3600), ..Limits::default() };
    let broker = relaxed(limits.clone()).await;
    let to = listen(broker, limits.clone()).await;
    let mut client = Client::connect(&to).await;
    let first = json!({"messages": [{"queue": "orders", "body": "first"}]});
    Client::ok(client.ask("send", first).await);
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "orders", "credit": 1})).await);
    let got = client.messages(1).await;
    let sending = hold_up(&to.broker).await;

    for chunk in (0..SENDS).collect::<Vec<_>>().chunks(100) {
        let frame = |n: &u64| {
            let messages = json!([{"queue": "orders", "body": n.to_string()}]);
            json!({"send": {"id": n + 10_000, "messages": messages}})
        };
        client.say(Value::Array(chunk.iter().map(frame).collect())).await;
    }
    let items = json!([{"leases": [got[0]["lease"]], "outcome": "complete"}]);
    let settled =
        Client::ok(client.ask("settle", json!({"queue": "orders", "items": items})).await);
    assert_eq!(settled["results"][0]["ok"], true, "{settled}");

    // Sends with a slot wait in order. The others were refused at once and had no effect.
    let refused: Vec<u64> = client
        .heard
        .iter()
        .filter(|frame| frame["reply"]["problem"]["code"] == "busy")
        .map(|frame| frame["reply"]["id"].as_u64().unwrap() - 10_000)
        .collect();
    let places = limits.sends_max as u64;
    assert_eq!(refused, (places..SENDS).collect::<Vec<_>>());
    to.broker.disk().go_on();
    for sent in sending {
        sent.await.unwrap();
    }
    let mut seqs = Vec::new();
    for n in 0..places {
        let sent = Client::ok(client.reply(n + 10_000).await);
        seqs.push(sent["messages"][0]["seq"].as_u64().unwrap());
    }
    assert!(seqs.is_sorted(), "{seqs:?}");
    let page = format!("{Q}/messages?from={}&max=10", seqs[0]);
    let page = to.broker.get(&page).await.expect(200);
    let want: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(bodies(page["messages"].as_array().unwrap()), want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_waiting_sends_are_bounded_as_well() {
    let limits = Limits {
        publish_wait: Duration::from_secs(3600),
        send_bytes_max: 100_000,
        ..Limits::default()
    };
    let broker = relaxed(limits.clone()).await;
    let to = listen(broker, limits).await;
    let mut client = Client::connect(&to).await;
    let _sending = hold_up(&to.broker).await;
    let body = "x".repeat(30_000);
    for n in 0..10 {
        let messages = json!([{"queue": "orders", "body": body}]);
        client.say(json!({"send": {"id": n + 100, "messages": messages}})).await;
    }
    Client::ok(client.ask("ping", json!({})).await);
    assert_eq!(client.heard.len(), 7, "three of them wait: {:?}", client.heard);
    assert!(client.heard.iter().all(|frame| frame["reply"]["problem"]["code"] == "busy"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_without_room_in_time_is_refused_as_busy() {
    let limits = Limits { publish_wait: Duration::from_millis(1), ..Limits::default() };
    let broker = relaxed(limits.clone()).await;
    let messages = format!("{Q}/messages");
    broker.raw("POST", &messages, &[], "a").await.expect(201);
    let got = receive(&broker, json!({})).await;
    let sending = hold_up(&broker).await;
    let refused = broker.raw("POST", &messages, &[], "b").await;
    assert_eq!(refused.problem(429), "busy");
    assert_eq!(refused.headers["retry-after"], "1");
    let batch = json!({"messages": [{"body": "b"}]});
    assert_eq!(broker.post(&format!("{messages}/batch"), batch).await.problem(429), "busy");
    let settled =
        settle(&broker, json!({"leases": [got[0]["lease"]], "outcome": "complete"})).await;
    assert_eq!(settled[0]["ok"], true, "{settled:?}");

    let to = listen(broker, limits).await;
    let mut client = Client::connect(&to).await;
    let send = json!({"messages": [{"queue": "orders", "body": "b"}]});
    let reply = client.ask("send", send.clone()).await;
    assert_eq!(reply["problem"]["code"], "busy", "{reply}");
    to.broker.disk().go_on();
    for sent in sending {
        sent.await.unwrap();
    }
    Client::ok(client.ask("send", send).await);
}

#[tokio::test]
async fn bodies_of_sends_leave_room_for_settlements() {
    let broker = Broker::limited(Limits { bodies_bytes_max: 1024, ..Limits::default() }, |_| {});
    broker.put(Q, json!({})).await.expect(201);
    let messages = format!("{Q}/messages");
    broker.raw("POST", &messages, &[], "a").await.expect(201);
    assert_eq!(broker.raw("POST", &messages, &[], vec![0; 2000]).await.problem(429), "busy");
    let got = receive(&broker, json!({})).await;
    let many: Vec<&Value> = std::iter::repeat_n(&got[0]["lease"], 100).collect();
    let settled = settle(&broker, json!({"leases": many, "outcome": "complete"})).await;
    assert_eq!(settled[0]["ok"], true);
}
