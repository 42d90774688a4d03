//! Requests to `$management` and `$cbs` as clients other than Python's send them.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use bytes::Bytes;
use common::{Client, World};
use malote_wire_amqp::connection::{Event, LinkId, SessionId as Channel};
use malote_wire_amqp::message::{Draft, Message, Properties};
use malote_wire_amqp::performative::DeliveryState;
use malote_wire_amqp::types::{Array, Map, Str, Value};

/// A pair of links to one node.
struct NodeLinks {
    to: LinkId,
}

impl NodeLinks {
    async fn open(client: &mut Client, channel: Channel, at: &str) -> NodeLinks {
        let to = client.sender(channel, &format!("ask {at}"), at);
        client.attached(to).await;
        client.credit(to).await;
        let from = client.receiver(channel, &format!("hear {at}"), at, None);
        client.attached(from).await;
        client.amqp.grant(from, 100).unwrap();
        NodeLinks { to }
    }

    /// Sends a request; returns the status, under either of its names, and the body.
    async fn ask(&self, client: &mut Client, names: Map, body: Value) -> (i64, Map) {
        let properties =
            Properties { message_id: Some(Value::String(Str::from("1"))), ..Properties::default() };
        let draft = Draft {
            properties: Some(properties),
            application_properties: names,
            ..Draft::value(body)
        };
        assert_eq!(client.send(self.to, draft).await, Some(DeliveryState::Accepted));
        let payload: Bytes = client
            .until(|event| match event {
                Event::Delivery(incoming) => Some(incoming.payload.clone()),
                _ => None,
            })
            .await;
        let message = Message::parse(payload).unwrap();
        let properties = message.application_properties().unwrap();
        let status =
            properties.get("statusCode").or(properties.get("status-code")).and_then(Value::as_i64);
        let body = message.value().unwrap().and_then(|value| value.as_map().cloned());
        (status.unwrap(), body.unwrap_or_default())
    }

    /// A request that names only a link and no session.
    async fn about(
        &self,
        client: &mut Client,
        link: &'static str,
        operation: &str,
        body: Map,
    ) -> (i64, Map) {
        let names = Map::default()
            .with_string("operation", Value::String(Str::from(operation)))
            .with_string("associated-link-name", Value::String(Str::from(link)));
        self.ask(client, names, Value::Map(body)).await
    }
}

fn bodies(answer: &Map) -> Vec<String> {
    let messages = answer.get("messages").and_then(Value::as_items).unwrap_or_default();
    let body = |entry: &Value| {
        let Some(Value::Binary(bytes)) = entry.as_map().unwrap().get("message") else {
            panic!("{entry:?} holds no message")
        };
        let message = Message::parse(bytes.clone()).unwrap();
        String::from_utf8(message.data().unwrap()[0].to_vec()).unwrap()
    };
    messages.iter().map(body).collect()
}

fn text(text: &str) -> Value {
    Value::String(Str::from(text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_can_name_a_session_by_its_link() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    world.put(&queue, &[("a", "a0"), ("b", "b0"), ("a", "a1")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "of a", "orders", Some(text("a")));
    client.attached(link).await;
    let node = NodeLinks::open(&mut client, channel, "orders/$management").await;

    let peek = || {
        let from = Map::default().with_string("from-sequence-number", 0_i64);
        from.with_string("message-count", 10)
    };
    let operation = "com.microsoft:peek-message";
    let (status, seen) = node.about(&mut client, "of a", operation, peek()).await;
    assert_eq!((status, bodies(&seen)), (200, vec!["a0".to_owned(), "a1".to_owned()]));
    let (status, seen) = node.about(&mut client, "nobody's", operation, peek()).await;
    assert_eq!((status, bodies(&seen).len()), (200, 3), "another name tells nothing");

    // One message is deferred, and found again by the link that holds its session.
    client.amqp.grant(link, 1).unwrap();
    let (delivery, number) = client
        .until(|event| match event {
            Event::Delivery(incoming) if incoming.link == link => {
                let message = Message::parse(incoming.payload.clone()).unwrap();
                let annotations = message.message_annotations().unwrap();
                let number = annotations.get("x-opt-sequence-number").and_then(Value::as_i64);
                Some((incoming.delivery, number.unwrap()))
            }
            _ => None,
        })
        .await;
    let deferred = malote_wire_amqp::performative::Modified {
        undeliverable_here: Some(true),
        ..Default::default()
    };
    client.amqp.dispose(link, delivery, false, Some(DeliveryState::Modified(deferred))).unwrap();
    client.until(|event| matches!(event, Event::Disposition(_)).then_some(())).await;
    let numbers: Array = [number].into_iter().collect();
    let receive = Map::default()
        .with_string("sequence-numbers", numbers)
        .with_string("receiver-settle-mode", Value::Uint(1));
    let operation = "com.microsoft:receive-by-sequence-number";
    let (status, found) = node.about(&mut client, "of a", operation, receive).await;
    assert_eq!((status, bodies(&found)), (200, vec!["a0".to_owned()]));

    // The lock token is in the entry and in the message, because clients read either.
    let entry = found.get("messages").and_then(Value::as_items).unwrap()[0].as_map().unwrap();
    let Some(Value::Binary(bytes)) = entry.get("message") else { panic!("{entry:?}") };
    let within = Message::parse(bytes.clone()).unwrap().delivery_annotations().unwrap();
    let lock = entry.get("lock-token").unwrap();
    assert_eq!(within.get("x-opt-lock-token"), Some(lock));
    let settle = Map::default()
        .with_string("disposition-status", text("completed"))
        .with_string("lock-tokens", vec![lock.clone()]);
    let operation = "com.microsoft:update-disposition";
    assert_eq!(node.about(&mut client, "of a", operation, settle).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_session_state_clears_it() {
    let world = World::new().await;
    world.queue("orders", true).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "of a", "orders", Some(text("a")));
    client.attached(link).await;
    let node = NodeLinks::open(&mut client, channel, "orders/$management").await;
    for (state, expected) in [
        (Value::Binary(Bytes::from_static(b"x")), Value::Binary(Bytes::from_static(b"x"))),
        (Value::Binary(Bytes::new()), Value::Null),
    ] {
        let set =
            Map::default().with_string("session-id", text("a")).with_string("session-state", state);
        let operation = "com.microsoft:set-session-state";
        assert_eq!(node.about(&mut client, "of a", operation, set).await.0, 200);
        let get = Map::default().with_string("session-id", text("a"));
        let operation = "com.microsoft:get-session-state";
        let (status, answer) = node.about(&mut client, "of a", operation, get).await;
        assert_eq!((status, answer.get("session-state")), (200, Some(&expected)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_for_a_missing_entity_is_not_found() {
    let world = World::new().await;
    world.queue("orders", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = NodeLinks::open(&mut client, channel, "$cbs").await;
    let signature = "SharedAccessSignature sr=x&sig=eA%3D%3D&se=1&skn=k";
    const SAS: &str = "servicebus.windows.net:sastoken";
    for (kind, token, name, status) in [
        (SAS, signature, "amqp://localhost/orders", 202),
        (SAS, signature, "amqp://localhost/ORDERS/$management", 202),
        (SAS, signature, "amqp://localhost/nobody", 404),
        (SAS, signature, "sb://localhost/nobody/Subscriptions/s", 404),
        (SAS, signature, "sb://localhost/", 202),
        ("jwt", "a.b.c", "amqp://localhost/nobody", 404),
        // A client that labels a signature as JWT would take this for a wrong signature.
        ("jwt", signature, "sb://localhost/nobody", 202),
    ] {
        let names = Map::default()
            .with_string("operation", text("put-token"))
            .with_string("type", text(kind))
            .with_string("name", text(name));
        assert_eq!(node.ask(&mut client, names, text(token)).await.0, status, "{kind} {name}");
    }
}
