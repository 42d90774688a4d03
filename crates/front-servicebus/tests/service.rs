//! Behaviour that is specific to Service Bus; the upstream tests of the SDKs check it.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use bytes::Bytes;
use common::{Client, World};
use malote_model::{QueueName, QueueSpec};
use malote_wire_amqp::connection::{DeliveryId, Event, LinkId, SessionId};
use malote_wire_amqp::message::{Draft, Header, Message, Properties};
use malote_wire_amqp::performative::{
    Attach, DeliveryState, Modified, Rejected, Role, SenderSettleMode, Source, Target, Timestamp,
};
use malote_wire_amqp::types::{Array, Map, Str, Value};

fn operation(name: &str) -> Map {
    Map::default().with_string("operation", format!("com.microsoft:{name}").as_str())
}

/// A queue `orders` and a client that may send to it.
async fn orders(sessions: bool) -> (World, Client, SessionId, LinkId) {
    let world = World::new().await;
    world.queue("orders", sessions).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let sender = client.sender(channel, "s", "orders");
    client.attached(sender).await;
    client.credit(sender).await;
    (world, client, channel, sender)
}

/// The next message of a receiver.
async fn receive(client: &mut Client, link: LinkId) -> (DeliveryId, Message) {
    client.amqp.grant(link, 1).unwrap();
    let fits = |event: &Event| match event {
        Event::Delivery(incoming) if incoming.link == link => {
            Some((incoming.delivery, incoming.payload.clone()))
        }
        _ => None,
    };
    let (delivery, payload) = client.until(fits).await;
    (delivery, Message::parse(payload).unwrap())
}

/// Settles a delivery and waits for the confirmation.
async fn settle(client: &mut Client, link: LinkId, delivery: DeliveryId, state: DeliveryState) {
    client.amqp.dispose(link, delivery, false, Some(state)).unwrap();
    let fits = |event: &Event| match event {
        Event::Disposition(disposed) if disposed.link == link => Some(disposed.state.clone()),
        _ => None,
    };
    let echo = client.until(fits).await;
    let failed = |rejected: &Rejected| rejected.error.is_some();
    assert!(!matches!(&echo, Some(DeliveryState::Rejected(r)) if failed(r)), "{echo:?}");
}

fn abandoned() -> DeliveryState {
    DeliveryState::Modified(Modified {
        delivery_failed: Some(true),
        undeliverable_here: Some(false),
        message_annotations: None,
    })
}

fn deferred() -> DeliveryState {
    DeliveryState::Modified(Modified {
        delivery_failed: Some(true),
        undeliverable_here: Some(true),
        message_annotations: None,
    })
}

fn seq_of(message: &Message) -> i64 {
    let annotations = message.message_annotations().unwrap();
    annotations.get("x-opt-sequence-number").and_then(Value::as_i64).unwrap()
}

/// Peeks at messages.
async fn peek(client: &mut Client, node: (LinkId, LinkId)) -> Vec<Message> {
    peek_with(client, node, Map::default()).await
}

async fn peek_with(client: &mut Client, node: (LinkId, LinkId), body: Map) -> Vec<Message> {
    let body = body.with_string("from-sequence-number", 0_i64).with_string("message-count", 10);
    let (_, body) = client.ask(node, operation("peek-message"), body.into()).await;
    let items = body.get("messages").and_then(Value::as_items).unwrap_or_default();
    let message = |item: &Value| match item.as_map().and_then(|map| map.get("message")) {
        Some(Value::Binary(bytes)) => Message::parse(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    };
    items.iter().map(message).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_may_have_an_empty_name() {
    let (_world, mut client, channel, sender) = orders(true).await;
    let draft = |id: Option<&str>| {
        let group_id = id.map(Str::from);
        Draft {
            properties: Some(Properties { group_id, ..Properties::default() }),
            ..Draft::data("hello")
        }
    };
    assert_eq!(client.send(sender, draft(Some(""))).await, Some(DeliveryState::Accepted));
    let refused = client.send(sender, draft(None)).await;
    assert!(matches!(refused, Some(DeliveryState::Rejected(_))), "{refused:?}");

    let link = client.receiver(channel, "r", "orders", Some(Value::String(Str::from(""))));
    let attach = client.attached(link).await;
    let filter = attach.source.unwrap().filter.unwrap();
    assert_eq!(filter.get("com.microsoft:session-filter"), Some(&Value::String(Str::from(""))));
    let (delivery, message) = receive(&mut client, link).await;
    assert_eq!(message.properties().unwrap().group_id, Some(Str::from("")));

    // Its state is found by its id, and it is listed.
    let node = client.node(channel, "orders/$management").await;
    let named = Map::default().with_string("session-id", "");
    let state = named.clone().with_string("session-state", Bytes::from_static(b"state"));
    assert_eq!(client.ask(node, operation("set-session-state"), state.into()).await.0, 200);
    let (status, body) = client.ask(node, operation("get-session-state"), named.into()).await;
    let state = Value::Binary(Bytes::from_static(b"state"));
    assert_eq!((status, body.get("session-state")), (200, Some(&state)));
    let page = Map::default().with_string("skip", 0).with_string("top", 10);
    let (_, body) = client.ask(node, operation("get-message-sessions"), page.into()).await;
    let ids = body.get("sessions-ids").and_then(Value::as_items).unwrap();
    assert_eq!(ids, [Value::String(Str::from(""))]);
    settle(&mut client, link, delivery, DeliveryState::Accepted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_keep_their_delivery_count() {
    let world = World::new().await;
    let queue = QueueName::new("orders").unwrap();
    let spec = QueueSpec { failed_max: Some(3), ..QueueSpec::default() };
    world.engine.declare(queue.clone(), spec).await.unwrap();
    world.put(&queue, &[("", "by hand"), ("", "by count")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let count = |message: &Message| message.header().unwrap().delivery_count;

    let (delivery, _) = receive(&mut client, link).await;
    settle(&mut client, link, delivery, abandoned()).await;
    let (delivery, message) = receive(&mut client, link).await;
    assert_eq!(count(&message), 1);
    settle(&mut client, link, delivery, DeliveryState::Rejected(Rejected { error: None })).await;
    for n in 0..3 {
        let (delivery, message) = receive(&mut client, link).await;
        assert_eq!(count(&message), n);
        settle(&mut client, link, delivery, abandoned()).await;
    }

    let node = client.node(channel, "orders/$deadletterqueue/$management").await;
    let counts: Vec<u32> = peek(&mut client, node).await.iter().map(count).collect();
    assert_eq!(counts, [1, 3]);
    let dead = client.receiver(channel, "dead", "orders/$deadletterqueue", None);
    client.attached(dead).await;
    // The reasons are in the wording of the service.
    let names = peek(&mut client, node).await[1].application_properties().unwrap();
    let name = |name: &str| names.get(name).and_then(Value::as_str).unwrap();
    assert_eq!(name("DeadLetterReason"), "MaxDeliveryCountExceeded");
    let why = "Message could not be consumed after 3 delivery attempts.";
    assert_eq!(name("DeadLetterErrorDescription"), why);
    // The count does not change when they are received again.
    for _ in 0..2 {
        let (delivery, message) = receive(&mut client, dead).await;
        assert_eq!(count(&message), 1);
        settle(&mut client, dead, delivery, abandoned()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_may_omit_bodies() {
    let (_world, mut client, channel, sender) = orders(false).await;
    let properties = Properties { subject: Some("s".into()), ..Properties::default() };
    client.send(sender, Draft { properties: Some(properties), ..Draft::data("body") }).await;
    let node = client.node(channel, "orders/$management").await;
    for (omit, body) in [(false, "body"), (true, "")] {
        let asked = Map::default().with_string("omit-message-body", omit);
        let message = peek_with(&mut client, node, asked).await.remove(0);
        assert_eq!(message.properties().unwrap().subject.as_deref(), Some("s"));
        assert_eq!(message.data().unwrap(), [body]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_deferred_message_is_still_reported_as_deferred() {
    let world = World::new().await;
    let queue = world.queue("orders", false).await;
    world.put(&queue, &[("", "aside"), ("", "here")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let (delivery, message) = receive(&mut client, link).await;
    settle(&mut client, link, delivery, deferred()).await;
    let (_, _locked) = receive(&mut client, link).await;

    let node = client.node(channel, "orders/$management").await;
    let states = async |client: &mut Client| -> Vec<i64> {
        let state = |message: &Message| {
            let annotations = message.message_annotations().unwrap();
            annotations.get("x-opt-message-state").and_then(Value::as_i64).unwrap()
        };
        peek(client, node).await.iter().map(state).collect()
    };
    assert_eq!(states(&mut client).await, [1, 0]);
    let seqs: Array = [seq_of(&message)].into_iter().collect();
    let body = Map::default()
        .with_string("sequence-numbers", seqs)
        .with_string("receiver-settle-mode", 1_u32);
    let received = client.ask(node, operation("receive-by-sequence-number"), body.into()).await;
    assert_eq!(received.0, 200);
    assert_eq!(states(&mut client).await, [1, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_of_the_sender_are_passed_on() {
    let (_world, mut client, channel, sender) = orders(false).await;
    let draft = Draft {
        delivery_annotations: Map::default()
            .with("x-opt-mine", "delivery")
            .with("x-opt-lock-token", "not yours to say"),
        message_annotations: Map::default().with("x-opt-mine", "message"),
        ..Draft::data("hello")
    };
    assert_eq!(client.send(sender, draft).await, Some(DeliveryState::Accepted));
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let (_, message) = receive(&mut client, link).await;
    let names = |map: &Map| {
        let mut names: Vec<_> = map.0.iter().map(|(k, _)| k.as_str().unwrap().to_owned()).collect();
        names.sort();
        names.join(" ")
    };
    let annotations = message.message_annotations().unwrap();
    assert_eq!(annotations.get("x-opt-mine"), Some(&Value::String(Str::from("message"))));
    let of_delivery = message.delivery_annotations().unwrap();
    assert_eq!(names(&of_delivery), "x-opt-lock-token x-opt-mine");
    assert!(matches!(of_delivery.get("x-opt-lock-token"), Some(Value::Uuid(_))));
    assert_eq!(of_delivery.get("x-opt-mine"), Some(&Value::String(Str::from("delivery"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_has_one_pair_of_links_to_cbs() {
    let world = World::new().await;
    let mut client = world.client().await;
    let (one, other) = (client.amqp.begin().unwrap(), client.amqp.begin().unwrap());
    let node = client.node(one, "$cbs").await;
    let second = client.sender(other, "second", "$cbs");
    client.attached(second).await;
    assert_eq!(client.detached(second).await, "amqp:not-allowed");
    let second = client.receiver(other, "second too", "$cbs", None);
    client.attached(second).await;
    assert_eq!(client.detached(second).await, "amqp:not-allowed");
    // Once they are closed, others can be attached.
    for link in [node.0, node.1] {
        client.amqp.detach(link, true, None).unwrap();
        client
            .until(|event| {
                matches!(event, Event::Detached { link: id, .. } if *id == link).then_some(())
            })
            .await;
    }
    let third = client.node(other, "$cbs").await;
    let names = Map::default()
        .with_string("operation", "put-token")
        .with_string("type", "servicebus.windows.net:sastoken")
        .with_string("name", "sb://localhost/");
    let token = Value::String(Str::from("SharedAccessSignature sr=x&sig=x&se=1&skn=x"));
    assert_eq!(client.ask(third, names, token).await.0, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_transfer_dead_letter_queue_is_always_empty() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    world.put(&queue, &[("s", "x")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let at = "orders/$Transfer/$DeadLetterQueue";
    let link = client.receiver(channel, "r", at, None);
    client.attached(link).await;
    client.amqp.grant(link, 5).unwrap();
    client.amqp.drain(link).unwrap();
    client
        .until(|event| match event {
            Event::Flow(flow) if flow.link == link && flow.credit == 0 => Some(()),
            _ => None,
        })
        .await;
    let node = client.node(channel, &format!("{at}/$management")).await;
    let (status, _) = client
        .ask(node, operation("peek-message"), Map::default().with_string("message-count", 1).into())
        .await;
    assert_eq!(status, 204);
    let body = Map::default()
        .with_string("sequence-numbers", Array::from_iter([1_i64]))
        .with_string("receiver-settle-mode", 1_u32);
    let (status, _) = client.ask(node, operation("receive-by-sequence-number"), body.into()).await;
    assert_eq!(status, 404);
    // Not for missing entities, and not for senders.
    let missing = client.receiver(channel, "m", "nowhere/$Transfer/$DeadLetterQueue", None);
    client.attached(missing).await;
    assert_eq!(client.detached(missing).await, "amqp:not-found");
    let sender = client.sender(channel, "s", at);
    client.attached(sender).await;
    assert_eq!(client.detached(sender).await, "amqp:not-allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_a_message_was_scheduled_for_stays_in_it() {
    let (world, mut client, channel, sender) = orders(false).await;
    let at = Value::Timestamp(i64::try_from(world.engine.now().0).unwrap() + 300);
    let draft = Draft {
        message_annotations: Map::default().with("x-opt-scheduled-enqueue-time", at.clone()),
        ..Draft::data("later")
    };
    assert_eq!(client.send(sender, draft).await, Some(DeliveryState::Accepted));
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let (_, message) = receive(&mut client, link).await;
    let annotations = message.message_annotations().unwrap();
    let times: Vec<&Value> = annotations
        .0
        .iter()
        .filter(|(key, _)| key.as_str() == Some("x-opt-scheduled-enqueue-time"))
        .map(|(_, at)| at)
        .collect();
    assert_eq!(times, [&at]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_sections_in_another_order_are_accepted() {
    let (_world, mut client, channel, sender) = orders(false).await;
    // As the Python client writes them: delivery annotations at the end.
    let mine = Map::default().with("x-opt-mine", "delivery");
    let last = Draft { delivery_annotations: mine.clone(), ..Draft::default() }.to_bytes();
    let bare = Draft::data("hello").to_bytes();
    let payload = [&bare[..], &last[..]].concat().into();
    assert_eq!(client.send_bytes(sender, payload, None).await, Some(DeliveryState::Accepted));
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let (_, message) = receive(&mut client, link).await;
    assert_eq!(message.data().unwrap(), [Bytes::from_static(b"hello")]);
    let of_delivery = message.delivery_annotations().unwrap();
    assert_eq!(of_delivery.get("x-opt-mine"), mine.get("x-opt-mine"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receive_and_delete_deliveries_have_an_empty_tag() {
    let (_world, mut client, channel, sender) = orders(false).await;
    let payload = Draft::data("hello").to_bytes();
    assert_eq!(client.send_bytes(sender, payload, None).await, Some(DeliveryState::Accepted));
    let attach = Attach {
        name: Str::from_static("r"),
        role: Role::Receiver,
        snd_settle_mode: SenderSettleMode::Settled,
        source: Some(Source::at("orders")),
        target: Some(Target::at("here").into()),
        ..Attach::default()
    };
    let link = client.amqp.attach(channel, attach).unwrap();
    client.attached(link).await;
    client.amqp.grant(link, 1).unwrap();
    let taken = |event: &Event| match event {
        Event::Delivery(incoming) => Some((incoming.settled, incoming.tag.clone())),
        _ => None,
    };
    assert_eq!(client.until(taken).await, (true, Bytes::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiving_from_a_forwarding_queue_is_refused() {
    let world = World::new().await;
    let last = world.queue("last", false).await;
    let first = QueueName::new("first").unwrap();
    let spec = QueueSpec { forward_to: Some(last.into()), ..QueueSpec::default() };
    world.engine.declare(first, spec).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "first", None);
    client.attached(link).await;
    assert_eq!(client.detached(link).await, "amqp:not-allowed");
    // A message that cannot be forwarded is dead-lettered.
    let dead = client.receiver(channel, "dead", "first/$deadletterqueue", None);
    assert!(client.attached(dead).await.source.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_messages_have_the_reason_of_the_service() {
    let world = World::new().await;
    let on_expiry = malote_model::OnExpiry::DeadLetter;
    let spec = QueueSpec { on_expiry, ..QueueSpec::default() };
    world.engine.declare(QueueName::new("orders").unwrap(), spec).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let sender = client.sender(channel, "s", "orders");
    client.attached(sender).await;
    client.credit(sender).await;
    let header = Header { ttl: Some(1), ..Header::default() };
    client.send(sender, Draft { header: Some(header), ..Draft::data("late") }).await;
    // Longer than a header can express, so the properties contain the expiry. About a month and a half.
    let until = world.engine.now().plus_ms(50 * 86_400_000);
    let header = Header { ttl: Some(u32::MAX), ..Header::default() };
    let expiry = Some(Timestamp(i64::try_from(until.0).unwrap()));
    let properties = Properties { absolute_expiry_time: expiry, ..Properties::default() };
    let long = Draft { header: Some(header), properties: Some(properties), ..Draft::data("long") };
    client.send(sender, long).await;

    let dead = client.receiver(channel, "dead", "orders/$deadletterqueue", None);
    client.attached(dead).await;
    let (_, message) = receive(&mut client, dead).await;
    assert_eq!(message.data().unwrap(), ["late"]);
    let names = message.application_properties().unwrap();
    let name = |name: &str| names.get(name).and_then(Value::as_str).unwrap();
    assert_eq!(name("DeadLetterReason"), "TTLExpiredException");
    let why = "The message expired and was dead lettered.";
    assert_eq!(name("DeadLetterErrorDescription"), why);

    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    let (_, message) = receive(&mut client, link).await;
    assert_eq!(message.data().unwrap(), ["long"]);
    assert_eq!(message.header().unwrap().ttl, Some(u32::MAX));
    assert_eq!(message.properties().unwrap().absolute_expiry_time, expiry);
}
