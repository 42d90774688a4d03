//! Links as clients other than Python's use them: many per connection, drains, waits, refusals.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::World;
use malote_wire_amqp::connection::{Event, Outgoing};
use malote_wire_amqp::message::{Draft, Message, Properties};
use malote_wire_amqp::performative::DeliveryState;
use malote_wire_amqp::types::{Described, Str, Value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_on_one_connection() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    let ids: Vec<String> = (0..200).map(|n| format!("s{n:03}")).collect();
    for body in ["first", "second", "third"] {
        let all: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), body)).collect();
        world.put(&queue, &all).await;
    }
    let mut client = world.client().await;
    let mut links = Vec::new();
    // Some clients begin a session for every link.
    for n in 0..200 {
        let channel = client.amqp.begin().unwrap();
        links.push(client.receiver(channel, &format!("r{n}"), "orders", Some(Value::Null)));
    }
    let mut held = BTreeMap::new();
    for link in &links {
        let answer = client.attached(*link).await;
        let filter = answer.source.unwrap().filter.unwrap();
        let id =
            filter.get("com.microsoft:session-filter").and_then(Value::as_str).unwrap().to_owned();
        assert!(answer.properties.unwrap().get("com.microsoft:locked-until-utc").is_some());
        assert!(held.insert(id, *link).is_none(), "a session has one holder");
        client.amqp.grant(*link, 10).unwrap();
    }
    assert_eq!(held.len(), 200);
    let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut settled = 0;
    while settled < 600 {
        match client.next().await {
            Event::Delivery(incoming) => {
                assert_eq!(incoming.tag.len(), 16, "a lock token");
                let message = Message::parse(incoming.payload).unwrap();
                let id = message.properties().unwrap().group_id.unwrap().to_string();
                assert_eq!(held[&id], incoming.link, "it comes to its holder");
                let body = String::from_utf8(message.data().unwrap()[0].to_vec()).unwrap();
                got.entry(id).or_default().push(body);
                let done = Some(DeliveryState::Accepted);
                client.amqp.dispose(incoming.link, incoming.delivery, false, done).unwrap();
            }
            Event::Disposition(disposed) => {
                assert_eq!(
                    (disposed.settled, disposed.state),
                    (true, Some(DeliveryState::Accepted))
                );
                settled += 1;
            }
            _ => {}
        }
    }
    assert!(got.values().all(|bodies| bodies == &["first", "second", "third"]), "in order");
    assert_eq!(world.engine.describe(queue).await.unwrap().ready, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_sends_available_messages_and_reports_its_end() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let bodies: Vec<String> = (0..1500).map(|n| n.to_string()).collect();
    let messages: Vec<(&str, &str)> = bodies.iter().map(|body| ("", body.as_str())).collect();
    world.put(&queue, &messages).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "q", None);
    client.attached(link).await;
    client.amqp.grant(link, 2000).unwrap();
    client.amqp.drain(link).unwrap();
    let mut count = 0;
    loop {
        match client.next().await {
            Event::Delivery(_) => count += 1,
            Event::Flow(flow) if flow.drain => {
                assert_eq!(flow.credit, 0);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(count, 1500, "all of them, before the end of the drain");
    // Later messages stay in the queue, because there is no credit.
    world.put(&queue, &[("", "late")]).await;
    client.amqp.grant(link, 0).unwrap();
    client.amqp.drain(link).unwrap();
    client.until(|event| matches!(event, Event::Flow(flow) if flow.drain).then_some(())).await;
    assert_eq!(world.engine.describe(queue).await.unwrap().ready, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_session_does_not_block_the_connection() {
    let world = World::new().await;
    world.queue("orders", true).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    // The filter as Go writes it: described. The reply has the same form.
    let descriptor = Value::Ulong(0x0013_7000_000c);
    let filter = Described { descriptor: descriptor.clone(), value: Value::Null };
    let waiting = client.receiver(channel, "waits", "orders", Some(filter.into()));
    let given_up = client.receiver(channel, "gives up", "orders", Some(Value::Null));
    let sender = client.sender(channel, "s", "orders");
    client.attached(sender).await;
    client.credit(sender).await;
    client.amqp.detach(given_up, true, None).unwrap();
    let properties = Some(Properties { group_id: Some(Str::from("a")), ..Properties::default() });
    let sent = client.send(sender, Draft { properties, ..Draft::data("x") }).await;
    assert_eq!(sent, Some(DeliveryState::Accepted));
    let filter = client.attached(waiting).await.source.unwrap().filter.unwrap();
    let value = Value::String(Str::from("a"));
    let session_filter = filter.get("com.microsoft:session-filter").unwrap();
    assert_eq!(*session_filter, Value::from(Described { descriptor, value }));
    // Once the link is closed, another connection can accept the session.
    client.amqp.detach(waiting, true, None).unwrap();
    let mut other = world.client().await;
    while !matches!(client.next().await, Event::Detached { link, .. } if link == waiting) {}
    let channel = other.amqp.begin().unwrap();
    let link = other.receiver(channel, "r", "orders", Some(Value::String(Str::from("a"))));
    assert!(other.attached(link).await.source.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sends_stay_in_order() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.sender(channel, "s", "q");
    client.attached(link).await;
    let (mut sent, mut taken) = (0, 0);
    // More than the runtime lets a task do in one turn, and more as soon as there is credit.
    while taken < 600 {
        while sent < 600 && client.amqp.credit(link) > 0 {
            let payload = Draft::data(sent.to_string()).to_bytes();
            let tag = Bytes::copy_from_slice(&u32::to_be_bytes(sent));
            let outgoing = Outgoing { tag, payload, ..Outgoing::default() };
            client.amqp.send(link, outgoing).unwrap();
            sent += 1;
        }
        if let Event::Disposition(disposed) = client.next().await {
            assert_eq!(disposed.state, Some(DeliveryState::Accepted));
            taken += 1;
        }
    }
    let from = malote_model::Seq(0);
    let peek = malote_engine::Peek { queue, from, max: 1000, session: None, state: None };
    let (seen, _) = world.engine.peek(peek).await.unwrap();
    let body = |seen: &malote_engine::PeekedMessage| {
        String::from_utf8(seen.stored.as_ref().unwrap().message.body.bytes.to_vec()).unwrap()
    };
    let bodies: Vec<String> = seen.iter().map(body).collect();
    assert!(bodies.iter().enumerate().all(|(n, body)| *body == n.to_string()), "{bodies:?}");
    assert_eq!(bodies.len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_has_no_source_and_says_why() {
    let world = World::new().await;
    world.queue("plain", false).await;
    world.queue("orders", true).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    for (name, at, filter, condition) in [
        ("a", "nobody", None, "amqp:not-found"),
        ("b", "orders", None, "amqp:not-allowed"),
        ("c", "plain", Some(Value::Null), "amqp:not-allowed"),
        ("d", "plain", Some(Value::Int(1)), "amqp:invalid-field"),
        ("e", "", None, "amqp:not-found"),
        ("f", "plain/$Transfer/$DeadLetterQueue", Some(Value::Null), "amqp:not-allowed"),
    ] {
        let link = client.receiver(channel, name, at, filter);
        assert!(client.attached(link).await.source.is_none(), "{name}");
        assert_eq!(client.detached(link).await, condition, "{name}");
        client.amqp.detach(link, true, None).unwrap();
    }
    let link = client.sender(channel, "dead", "plain/$deadletterqueue");
    assert!(client.attached(link).await.target.is_none());
    assert_eq!(client.detached(link).await, "amqp:not-allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_counts_as_a_failed_attempt_and_a_closed_one_does_not() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    world.put(&queue, &[("a", "x")]).await;
    let mut failed = Vec::new();
    for lost in [true, false, false] {
        let mut client = world.client().await;
        let channel = client.amqp.begin().unwrap();
        // The server waits until the session is free.
        let link = client.receiver(channel, "r", "orders", Some(Value::Null));
        client.attached(link).await;
        client.amqp.grant(link, 1).unwrap();
        let payload = client
            .until(|event| match event {
                Event::Delivery(incoming) => Some(incoming.payload.clone()),
                _ => None,
            })
            .await;
        failed.push(Message::parse(payload).unwrap().header().unwrap().delivery_count);
        if !lost {
            client.amqp.close(None).unwrap();
            while !matches!(client.next().await, Event::Closed { .. }) {}
        }
    }
    assert_eq!(failed, [0, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_broker_closes_connections() {
    let world = World::new().await;
    world.queue("orders", true).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    client.receiver(channel, "waits", "orders", Some(Value::Null));
    let sender = client.sender(channel, "s", "orders");
    client.attached(sender).await;
    world.shutdown.cancel();
    let why = client
        .until(|event| match event {
            Event::Close { error } => Some(error.clone()),
            _ => None,
        })
        .await;
    assert_eq!(why.unwrap().condition.as_str(), "amqp:connection:forced");
}
