//! AMQP 1.0 clients other than those of Service Bus: JMS, Proton, rhea. Whatever a reply confirms is implemented.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use common::{Client, NoKeys, World};
use malote_model::{Access, Action, Denied, Principal, QueueName, Resource, TopicName, TopicSpec};
use malote_wire_amqp::connection::{DeliveryId, Event, LinkId, SessionId as Channel};
use malote_wire_amqp::message::{AMQP_VALUE, Draft, Message, Properties};
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::{Described, Map, Str, Symbol, Value, put_descriptor};

/// An attach of a receiver as Qpid JMS sends it.
fn jms(name: &str, at: &str) -> Attach {
    let outcomes =
        ["amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"];
    let source = Source {
        expiry_policy: Symbol::from_static("link-detach"),
        default_outcome: Some(DeliveryState::Modified(Modified {
            delivery_failed: Some(true),
            ..Modified::default()
        })),
        outcomes: outcomes.map(Symbol::from_static).into_iter().collect(),
        capabilities: [Symbol::from_static("queue")].into_iter().collect(),
        ..Source::at(at)
    };
    Attach {
        name: Str::from(name),
        role: Role::Receiver,
        snd_settle_mode: SenderSettleMode::Unsettled,
        source: Some(source),
        target: Some(Target::default().into()),
        ..Attach::default()
    }
}

fn browser(name: &str, at: &str) -> Attach {
    let mut attach = jms(name, at);
    attach.snd_settle_mode = SenderSettleMode::Settled;
    source(&mut attach).distribution_mode = Some(Symbol::from_static("copy"));
    attach
}

fn source(attach: &mut Attach) -> &mut Source {
    attach.source.as_mut().unwrap()
}

fn selector(text: &str) -> Map {
    let descriptor = Value::Ulong(0x0000_468c_0000_0004);
    Map::default().with("jms-selector", Described { descriptor, value: Value::String(text.into()) })
}

fn body(payload: &Bytes) -> String {
    let message = Message::parse(payload.clone()).unwrap();
    String::from_utf8(message.data().unwrap()[0].to_vec()).unwrap()
}

/// All messages until a drain ends, as delivery and body.
async fn drained(client: &mut Client, link: LinkId, credit: u32) -> Vec<(DeliveryId, String)> {
    client.amqp.grant(link, credit).unwrap();
    client.amqp.drain(link).unwrap();
    let mut all = Vec::new();
    loop {
        match client.next().await {
            Event::Delivery(incoming) if incoming.link == link => {
                all.push((incoming.delivery, body(&incoming.payload)));
            }
            Event::Flow(flow) if flow.link == link && flow.drain => return all,
            _ => {}
        }
    }
}

async fn bodies(client: &mut Client, link: LinkId, credit: u32) -> Vec<String> {
    drained(client, link, credit).await.into_iter().map(|(_, body)| body).collect()
}

async fn refused(client: &mut Client, channel: Channel, attach: Attach) -> String {
    let role = attach.role;
    let link = client.amqp.attach(channel, attach).unwrap();
    let answer = client.attached(link).await;
    match role {
        Role::Receiver => assert!(answer.source.is_none(), "{answer:?}"),
        Role::Sender => assert!(answer.target.is_none(), "{answer:?}"),
    }
    let why = client.detached(link).await;
    client.amqp.detach(link, true, None).unwrap();
    why
}

async fn counts(world: &World, queue: &QueueName) -> (u64, u64) {
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    (facts.ready, facts.locked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsing_does_not_remove_messages() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let sessions = world.queue("s", true).await;
    let texts: Vec<String> = (0..150).map(|n| n.to_string()).collect();
    let messages: Vec<(&str, &str)> = texts.iter().map(|text| ("", text.as_str())).collect();
    world.put(&queue, &messages).await;
    world.put(&sessions, &[("a", "1"), ("b", "2"), ("a", "3")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.amqp.attach(channel, browser("b", "q")).unwrap();
    let answer = client.attached(link).await;
    assert_eq!(answer.snd_settle_mode, SenderSettleMode::Settled);
    let granted = answer.source.unwrap();
    assert!(granted.distribution_mode.is_some_and(|mode| mode == "copy"));
    assert!(granted.default_outcome.is_none(), "there is nothing to settle");
    assert_eq!(bodies(&mut client, link, 1000).await, texts, "all of them, from the head");
    assert_eq!(counts(&world, &queue).await, (150, 0));
    // It continues after the messages it has seen.
    world.put(&queue, &[("", "late")]).await;
    assert_eq!(bodies(&mut client, link, 10).await, ["late"]);

    // It does not lock sessions: it reads all of them, or one.
    let link = client.amqp.attach(channel, browser("all", "s")).unwrap();
    assert!(client.attached(link).await.source.is_some());
    assert_eq!(bodies(&mut client, link, 10).await, ["1", "2", "3"]);
    let mut one = browser("one", "s");
    source(&mut one).filter = Some(Map::default().with("com.microsoft:session-filter", "a"));
    let link = client.amqp.attach(channel, one.clone()).unwrap();
    assert!(client.attached(link).await.source.is_some());
    assert_eq!(bodies(&mut client, link, 10).await, ["1", "3"]);
    source(&mut one).filter =
        Some(Map::default().with("com.microsoft:session-filter", Value::Null));
    one.name = Str::from("next");
    assert_eq!(refused(&mut client, channel, one).await, "amqp:not-implemented");
    let facts = world.engine.describe(sessions).await.unwrap();
    assert_eq!((facts.ready, facts.locked, facts.sessions_held), (3, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_is_applied_or_refused() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let topic = TopicName::new("news").unwrap();
    world.engine.declare_topic(topic, TopicSpec::default()).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();

    let mut consumer = jms("consumer", "q");
    source(&mut consumer).filter = Some(selector("color = 'blue'"));
    assert_eq!(refused(&mut client, channel, consumer).await, "amqp:not-implemented");
    let mut bad = browser("bad", "q");
    source(&mut bad).filter = Some(selector("color ="));
    assert_eq!(refused(&mut client, channel, bad).await, "amqp:invalid-field");

    let mut subscriber = jms("subscriber", "news");
    source(&mut subscriber).capabilities = [Symbol::from_static("topic")].into_iter().collect();
    source(&mut subscriber).filter =
        Some(selector("color = 'blue' AND n BETWEEN 1 AND 2 AND JMSCorrelationID = 'c'"));
    let subscriber = client.amqp.attach(channel, subscriber).unwrap();
    let granted = client.attached(subscriber).await.source.unwrap();
    assert!(granted.filter.unwrap().get("jms-selector").is_some());
    assert!(granted.capabilities.contains("topic"));

    for at in ["q", "news"] {
        let sender = client.sender(channel, at, at);
        client.attached(sender).await;
        client.credit(sender).await;
        for (text, color, n) in [("1", "red", 1), ("2", "blue", 2), ("3", "blue", 3)] {
            let properties = Properties {
                correlation_id: Some(Value::String(Str::from("c"))),
                ..Properties::default()
            };
            let names = Map::default().with_string("color", color).with_string("n", n);
            let draft = Draft {
                properties: Some(properties),
                application_properties: names,
                ..Draft::data(text)
            };
            assert_eq!(client.send(sender, draft).await, Some(DeliveryState::Accepted));
        }
    }
    assert_eq!(bodies(&mut client, subscriber, 10).await, ["2"]);
    let mut blue = browser("blue", "q");
    source(&mut blue).filter = Some(selector("color = 'blue' AND JMSPriority = 4"));
    let blue = client.amqp.attach(channel, blue).unwrap();
    assert!(client.attached(blue).await.source.unwrap().filter.is_some());
    assert_eq!(bodies(&mut client, blue, 10).await, ["2", "3"]);
    assert_eq!(counts(&world, &queue).await, (3, 0));

    // The subscription is deleted with its link.
    client.amqp.detach(subscriber, true, None).unwrap();
    while !matches!(client.next().await, Event::Detached { link, .. } if link == subscriber) {}
    while world.engine.list().await.unwrap().len() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_reply_confirms_only_what_is_implemented() {
    let world = World::new().await;
    world.queue("q", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let mut asked = jms("r", "q");
    let unknown = Described { descriptor: Value::Ulong(7), value: Value::Null };
    *source(&mut asked) = Source {
        durable: 2,
        expiry_policy: Symbol::from_static("never"),
        timeout: 60,
        distribution_mode: Some(Symbol::from_static("move")),
        filter: Some(Map::default().with("mine", unknown)),
        dynamic_node_properties: Some(Map::default().with("x", 1)),
        capabilities: ["queue", "temporary-queue", "mine"]
            .map(Symbol::from_static)
            .into_iter()
            .collect(),
        ..source(&mut asked).clone()
    };
    asked.desired_capabilities = ["mine"].map(Symbol::from_static).into_iter().collect();
    let link = client.amqp.attach(channel, asked).unwrap();
    let answer = client.attached(link).await;
    assert!(answer.offered_capabilities.0.is_empty());
    let granted = answer.source.unwrap();
    assert_eq!(granted.address, Some(Value::String(Str::from("q"))));
    assert_eq!((granted.durable, granted.timeout, granted.dynamic), (0, 0, false));
    assert_eq!(granted.expiry_policy.as_str(), "link-detach");
    assert_eq!(granted.filter, None);
    assert_eq!(granted.dynamic_node_properties, None);
    assert_eq!(granted.default_outcome, Some(DeliveryState::Released));
    assert_eq!(granted.outcomes.0.len(), 4);
    assert_eq!(granted.capabilities.0, [Symbol::from_static("queue")]);

    let mut no_local = jms("no-local", "q");
    let descriptor = Value::Symbol(Symbol::from_static("apache.org:no-local-filter:list"));
    let filter = Described { descriptor, value: Value::List(Vec::new()) };
    source(&mut no_local).filter = Some(Map::default().with("no-local", filter));
    assert_eq!(refused(&mut client, channel, no_local).await, "amqp:not-implemented");

    // Only the implemented capabilities of a coordinator are confirmed.
    let all = ["amqp:local-transactions", "amqp:distributed-transactions"];
    let capabilities = all.map(Symbol::from_static).into_iter().collect();
    let attach = Attach {
        name: Str::from("c"),
        role: Role::Sender,
        source: Some(Source::default()),
        target: Some(AnyTarget::Coordinator(Coordinator { capabilities })),
        ..Attach::default()
    };
    let link = client.amqp.attach(channel, attach).unwrap();
    let Some(AnyTarget::Coordinator(granted)) = client.attached(link).await.target else {
        panic!()
    };
    assert_eq!(granted.capabilities.0, [Symbol::from_static("amqp:local-transactions")]);
}

fn value(of: &impl Composite) -> Bytes {
    let mut out = BytesMut::new();
    put_descriptor(&mut out, AMQP_VALUE);
    of.encode(&mut out);
    out.freeze()
}

async fn declare(client: &mut Client, coordinator: LinkId) -> Bytes {
    let body = value(&Declare::default());
    match client.send_bytes(coordinator, body, None).await {
        Some(DeliveryState::Declared(declared)) => declared.txn_id,
        other => panic!("{other:?}"),
    }
}

fn accepted_in(txn_id: &Bytes) -> Option<DeliveryState> {
    let outcome = Some(Box::new(DeliveryState::Accepted));
    Some(DeliveryState::Transactional(TransactionalState { txn_id: txn_id.clone(), outcome }))
}

/// Receives `count` deliveries on a link, with the failed attempts of each.
async fn take(client: &mut Client, link: LinkId, count: u32) -> Vec<(DeliveryId, String, u32)> {
    client.amqp.grant(link, count).unwrap();
    let mut all = Vec::new();
    while all.len() < count as usize {
        if let Event::Delivery(incoming) = client.next().await
            && incoming.link == link
        {
            let message = Message::parse(incoming.payload.clone()).unwrap();
            let failed = message.header().unwrap().delivery_count;
            all.push((incoming.delivery, body(&incoming.payload), failed));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_returns_settled_messages_in_order() {
    let world = World::new().await;
    for sessions in [false, true] {
        let name = if sessions { "orders" } else { "q" };
        let queue = world.queue(name, sessions).await;
        world.put(&queue, &[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]).await;
        let mut client = world.client().await;
        let channel = client.amqp.begin().unwrap();
        let coordinator = client.coordinator(channel);
        client.attached(coordinator).await;
        client.credit(coordinator).await;
        let mut attach = jms("r", name);
        if sessions {
            source(&mut attach).filter =
                Some(Map::default().with("com.microsoft:session-filter", "a"));
        }
        let link = client.amqp.attach(channel, attach).unwrap();
        client.attached(link).await;
        let txn_id = declare(&mut client, coordinator).await;
        // Three are accepted in the transaction and settled; the fourth is not touched, and released afterwards.
        let got = take(&mut client, link, 4).await;
        for (delivery, ..) in &got[..3] {
            client.amqp.dispose(link, *delivery, true, accepted_in(&txn_id)).unwrap();
        }
        let body = value(&Discharge { txn_id, fail: Some(true) });
        let answer = client.send_bytes(coordinator, body, None).await;
        assert_eq!(answer, Some(DeliveryState::Accepted));
        client.amqp.dispose(link, got[3].0, true, Some(DeliveryState::Released)).unwrap();
        let again = take(&mut client, link, 4).await;
        let again: Vec<_> =
            again.iter().map(|(_, body, failed)| (body.as_str(), *failed)).collect();
        assert_eq!(again, [("1", 1), ("2", 1), ("3", 1), ("4", 0)], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_ends_without_a_discharge_is_rolled_back() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    world.put(&queue, &[("", "1"), ("", "2")]).await;
    for how in ["coordinator", "commit refused", "connection"] {
        let mut client = world.client().await;
        let channel = client.amqp.begin().unwrap();
        let coordinator = client.coordinator(channel);
        client.attached(coordinator).await;
        client.credit(coordinator).await;
        // As clients of Service Bus attach: locks outlive the link.
        let link = client.receiver(channel, "r", "q", None);
        client.attached(link).await;
        let txn_id = declare(&mut client, coordinator).await;
        let got = take(&mut client, link, 2).await;
        assert_eq!((got[0].1.as_str(), got[1].1.as_str()), ("1", "2"), "{how}");
        for (delivery, ..) in &got {
            client.amqp.dispose(link, *delivery, true, accepted_in(&txn_id)).unwrap();
        }
        match how {
            "coordinator" => {
                client.amqp.detach(coordinator, true, None).unwrap();
                while !matches!(client.next().await, Event::Detached { .. }) {}
            }
            "commit refused" => {
                let sender = client.sender(channel, "s", "orders");
                world.queue("orders", true).await;
                client.attached(sender).await;
                let sender = client.sender(channel, "s2", "orders");
                client.attached(sender).await;
                client.credit(sender).await;
                let part = TransactionalState { txn_id: txn_id.clone(), outcome: None };
                let part = Some(DeliveryState::Transactional(part));
                client.send_bytes(sender, Draft::data("no session").to_bytes(), part).await;
                let body = value(&Discharge { txn_id, fail: Some(false) });
                let answer = client.send_bytes(coordinator, body, None).await;
                assert!(matches!(answer, Some(DeliveryState::Rejected(_))), "{answer:?}");
            }
            _ => client.write().await,
        }
        drop(client);
        // When the connection is lost, as soon as the broker notices.
        while counts(&world, &queue).await != (2, 0) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsettled_messages_are_released_with_the_link_if_the_client_asks_for_it() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    world.put(&queue, &[("", "1"), ("", "2")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    for (name, bound) in [("bound", true), ("servicebus", false)] {
        let link = match bound {
            true => client.amqp.attach(channel, jms(name, "q")).unwrap(),
            false => client.receiver(channel, name, "q", None),
        };
        client.attached(link).await;
        let got = take(&mut client, link, 2).await;
        assert!(got.iter().all(|(_, _, failed)| *failed == 0));
        client.amqp.detach(link, true, None).unwrap();
        while !matches!(client.next().await, Event::Detached { .. }) {}
        let expected = if bound { (2, 0) } else { (0, 2) };
        assert_eq!(counts(&world, &queue).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_link_with_the_same_name_steals_it() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    world.put(&queue, &[("", "1")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    for at_once in [true, false] {
        let name = format!("same {at_once}");
        let first = client.receiver(channel, &name, "q", None);
        if !at_once {
            assert!(client.attached(first).await.source.is_some());
        }
        let second = client.receiver(channel, &name, "q", None);
        if at_once {
            client.attached(first).await;
        }
        assert_eq!(client.detached(first).await, "amqp:link:stolen");
        client.amqp.detach(first, true, None).unwrap();
        assert!(client.attached(second).await.source.is_some());
        let (delivery, text, _) = take(&mut client, second, 1).await.remove(0);
        assert_eq!(text, "1");
        client.amqp.dispose(second, delivery, true, Some(DeliveryState::Released)).unwrap();
        let sender = client.sender(channel, &name, "q");
        assert!(client.attached(sender).await.target.is_some(), "the other direction is free");
        client.amqp.detach(second, true, None).unwrap();
        while !matches!(client.next().await, Event::Detached { link, .. } if link == second) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_queue_lasts_as_long_as_its_link() {
    let world = World::new().await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    // JMS: a sender that never sends.
    let target = Target {
        dynamic: true,
        capabilities: [Symbol::from_static("temporary-queue")].into_iter().collect(),
        ..Target::default()
    };
    let creator = Attach {
        name: Str::from("creator"),
        role: Role::Sender,
        source: Some(Source::default()),
        target: Some(target.into()),
        ..Attach::default()
    };
    let mut topic = creator.clone();
    let creator = client.amqp.attach(channel, creator).unwrap();
    let Some(AnyTarget::Target(granted)) = client.attached(creator).await.target else { panic!() };
    assert!(granted.dynamic && granted.dynamic_node_properties.is_some());
    assert!(granted.capabilities.contains("temporary-queue"));
    let address = granted.address.unwrap().as_str().unwrap().to_owned();
    // Proton and rhea: the receiver itself.
    let source = Source { dynamic: true, ..Source::default() };
    let receiver = Attach {
        name: Str::from("r"),
        role: Role::Receiver,
        source: Some(source),
        ..Attach::default()
    };
    let receiver = client.amqp.attach(channel, receiver).unwrap();
    let granted = client.attached(receiver).await.source.unwrap();
    let other = granted.address.unwrap().as_str().unwrap().to_owned();
    assert_ne!(address, other);

    // Others may send to it; only this connection receives.
    let mut server = world.client().await;
    let session = server.amqp.begin().unwrap();
    assert_eq!(refused(&mut server, session, jms("thief", &address)).await, "amqp:resource-locked");
    for to in [&address, &other] {
        let sender = server.sender(session, to, to);
        server.attached(sender).await;
        server.credit(sender).await;
        assert_eq!(server.send(sender, Draft::data("re")).await, Some(DeliveryState::Accepted));
    }
    assert_eq!(take(&mut client, receiver, 1).await[0].1, "re");
    let link = client.amqp.attach(channel, jms("replies", &address)).unwrap();
    client.attached(link).await;
    assert_eq!(take(&mut client, link, 1).await[0].1, "re");

    client.amqp.detach(creator, true, None).unwrap();
    while !matches!(client.next().await, Event::Detached { .. }) {}
    loop {
        let left = world.engine.list().await.unwrap();
        assert!(left.iter().any(|facts| facts.name.as_str() == other));
        if left.len() == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let topics = [Symbol::from_static("temporary-topic")].into_iter().collect();
    topic.target = Some(Target { dynamic: true, capabilities: topics, ..Target::default() }.into());
    assert_eq!(refused(&mut client, channel, topic).await, "amqp:not-implemented");
    // With the connection, whatever the state of its links.
    drop(client);
    while !world.engine.list().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Every permission except manage.
struct NoManaging;

impl Access for NoManaging {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let denied = || Denied::new(who, action, on);
        if action == Action::Manage { Err(denied()) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_creates_entities_only_with_permission() {
    let world = World::with(Arc::new(NoManaging), Arc::new(NoKeys));
    let topic = TopicName::new("news").unwrap();
    world.engine.declare_topic(topic, TopicSpec::default()).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let mut dynamic = jms("dynamic", "");
    *source(&mut dynamic) = Source { dynamic: true, ..Source::default() };
    let mut subscriber = jms("subscriber", "news");
    source(&mut subscriber).capabilities = [Symbol::from_static("topic")].into_iter().collect();
    for attach in [dynamic, subscriber] {
        assert_eq!(refused(&mut client, channel, attach).await, "amqp:unauthorized-access");
    }
    assert!(world.engine.list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_can_create_temporary_but_no_durable_subscriptions() {
    let world = World::new().await;
    let topic = TopicName::new("news").unwrap();
    world.engine.declare_topic(topic, TopicSpec::default()).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let subscriber = |name: &str, capabilities: &[&'static str]| {
        let mut attach = jms(name, "news");
        source(&mut attach).capabilities =
            capabilities.iter().copied().map(Symbol::from_static).collect();
        attach
    };
    let mut durable = subscriber("durable", &["topic"]);
    source(&mut durable).durable = 2;
    assert_eq!(refused(&mut client, channel, durable).await, "amqp:not-implemented");
    let shared = subscriber("shared|global", &["topic", "shared", "global"]);
    assert_eq!(refused(&mut client, channel, shared).await, "amqp:not-implemented");
    // Attached by its name alone, in order to delete it.
    let nothing = Attach { source: None, ..subscriber("durable", &[]) };
    assert_eq!(refused(&mut client, channel, nothing).await, "amqp:not-found");
    // A client that does not ask for a topic gets the reply of the service.
    assert_eq!(refused(&mut client, channel, jms("plain", "news")).await, "amqp:not-allowed");

    let both = ["one", "two"]
        .map(|name| client.amqp.attach(channel, subscriber(name, &["topic"])).unwrap());
    for link in both {
        assert!(client.attached(link).await.source.is_some());
    }
    let sender = client.sender(channel, "s", "news");
    client.attached(sender).await;
    client.credit(sender).await;
    assert_eq!(client.send(sender, Draft::data("x")).await, Some(DeliveryState::Accepted));
    for link in both {
        assert_eq!(take(&mut client, link, 1).await[0].1, "x");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_a_delivery_time_is_scheduled() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let attach = Attach {
        name: Str::from("s"),
        role: Role::Sender,
        source: Some(Source::default()),
        target: Some(Target::at("q").into()),
        desired_capabilities: [Symbol::from_static("DELAYED_DELIVERY")].into_iter().collect(),
        ..Attach::default()
    };
    let sender = client.amqp.attach(channel, attach).unwrap();
    assert!(client.attached(sender).await.offered_capabilities.contains("DELAYED_DELIVERY"));
    client.credit(sender).await;
    let hour = i64::try_from(world.engine.now().0).unwrap() + 3_600_000;
    for (name, value) in [
        ("x-opt-delivery-time", hour),
        ("x-opt-delivery-delay", 3_600_000),
        ("x-opt-delivery-delay", 0),
    ] {
        let message_annotations = Map::default().with(name, value);
        let draft = Draft { message_annotations, ..Draft::data(name) };
        assert_eq!(client.send(sender, draft).await, Some(DeliveryState::Accepted));
    }
    let facts = world.engine.describe(queue).await.unwrap();
    assert_eq!((facts.ready, facts.scheduled), (1, 2));
    // It is not due, so browsers do not see it.
    let link = client.amqp.attach(channel, browser("b", "q")).unwrap();
    client.attached(link).await;
    assert_eq!(bodies(&mut client, link, 10).await.len(), 1);
}
