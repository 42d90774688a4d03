//! Requests to `$management` that the Python client does not send.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use bytes::Bytes;
use common::World;
use malote_engine::StateChange;
use malote_model::{Address, QueueSpec, SessionId};
use malote_wire_amqp::connection::Event;
use malote_wire_amqp::message::Message;
use malote_wire_amqp::types::{Map, Value};

fn operation(name: &str) -> Map {
    Map::default().with_string("operation", format!("com.microsoft:{name}").as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_messages_are_deleted_in_batches() {
    let world = World::new().await;
    let queue = world.queue("orders", false).await;
    world.put(&queue, &[("", "a"), ("", "b"), ("", "c"), ("", "d"), ("", "e")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "orders/$management").await;
    let later = i64::try_from(world.engine.now().0).unwrap() + 3_600_000;
    let request = |count: i32, before: Option<i64>| {
        let body = Map::default().with_string("message-count", count);
        match before {
            Some(ms) => body.with_string("enqueued-time-utc", Value::Timestamp(ms)),
            None => body,
        }
    };
    let count = |body: &Map| body.get("message-count").and_then(Value::as_i64);
    let delete = operation("batch-delete-messages");
    // No message is that old.
    let (status, _) = client.ask(node, delete.clone(), request(3, Some(1000)).into()).await;
    assert_eq!(status, 204);
    let (status, body) = client.ask(node, delete.clone(), request(3, Some(later)).into()).await;
    assert_eq!((status, count(&body)), (200, Some(3)));
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    assert_eq!(facts.ready, 2);
    let (status, body) = client.ask(node, delete.clone(), request(4000, Some(later)).into()).await;
    assert_eq!((status, count(&body)), (200, Some(2)));
    for count in [0, 4001, -1] {
        let (status, _) = client.ask(node, delete.clone(), request(count, None).into()).await;
        assert_eq!(status, 400, "{count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_deletion_can_be_limited_to_a_session() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    world.put(&queue, &[("a", "1"), ("b", "2"), ("a", "3")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "orders/$management").await;
    let later = i64::try_from(world.engine.now().0).unwrap() + 3_600_000;
    let body = Map::default()
        .with_string("message-count", 10)
        .with_string("session-id", "a")
        .with_string("enqueued-time-utc", Value::Timestamp(later));
    let (status, body) = client.ask(node, operation("batch-delete-messages"), body.into()).await;
    let count = body.get("message-count").and_then(Value::as_i64);
    assert_eq!((status, count), (200, Some(2)));
    let facts = world.engine.describe(queue).await.unwrap();
    assert_eq!((facts.ready, facts.sessions, facts.sessions_ready), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_listed_by_when_their_state_was_set() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    world.put(&queue, &[("plain", "x"), ("old", "x"), ("new", "x")]).await;
    let mut moments = Vec::new();
    for id in ["old", "new"] {
        let session = SessionId::new(id).unwrap();
        let held = world.engine.accept(queue.clone(), Some(session), 0, None).await.unwrap();
        let (hold, state) = (held.unwrap().hold, Some(Bytes::from_static(b"s")));
        world.engine.set_state(Some(&queue), StateChange { hold, state }).await.unwrap();
        let session = SessionId::new(id).unwrap();
        let facts = world.engine.session(queue.clone(), session).await.unwrap().unwrap();
        moments.push(facts.state_at);
        // The next state is set in another millisecond.
        while world.engine.now() <= facts.state_at {
            tokio::task::yield_now().await;
        }
    }
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "orders/$management").await;
    let listed = |body: &Map| {
        let ids = body.get("sessions-ids").and_then(Value::as_items).unwrap_or_default();
        let mut ids: Vec<String> =
            ids.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        ids.sort();
        ids
    };
    let old = i64::try_from(moments[0].0).unwrap();
    for (since, expected) in [
        (253_402_300_799_999, vec!["new", "old", "plain"]),
        (1000, vec!["new", "old"]),
        (old, vec!["new"]),
        (old + 86_400_000, vec![]),
    ] {
        let body = Map::default()
            .with_string("last-updated-time", Value::Timestamp(since))
            .with_string("skip", 0)
            .with_string("top", 100);
        let (_, body) = client.ask(node, operation("get-message-sessions"), body.into()).await;
        assert_eq!(listed(&body), expected, "{since}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_message_has_its_first_sequence_number() {
    let world = World::new().await;
    let last = world.queue("last", false).await;
    world.put(&last, &[("", "before"), ("", "before")]).await;
    let first = malote_model::QueueName::new("first").unwrap();
    let spec = QueueSpec { forward_to: Some(Address::Queue(last)), ..QueueSpec::default() };
    world.engine.declare(first.clone(), spec).await.unwrap();
    world.put(&first, &[("", "x")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "last", None);
    client.attached(link).await;
    client.amqp.grant(link, 3).unwrap();
    let mut places = Vec::new();
    while places.len() < 3 {
        let payload = client
            .until(|event| match event {
                Event::Delivery(incoming) => Some(incoming.payload.clone()),
                _ => None,
            })
            .await;
        let annotations = Message::parse(payload).unwrap().message_annotations().unwrap();
        let number = |name: &str| annotations.get(name).and_then(Value::as_i64);
        places.push((number("x-opt-sequence-number"), number("x-opt-enqueue-sequence-number")));
    }
    assert_eq!(places, [(Some(1), None), (Some(2), None), (Some(3), Some(1))]);
}
