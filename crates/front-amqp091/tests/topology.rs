//! Exchanges, queues, bindings, arguments, dead letters, restarts, and every refusal with its text.
#![allow(clippy::unwrap_used, reason = "also in helpers of tests")]

mod common;

use common::{Client, World, short};
use malote_front_amqp091::wire::method::{Method, basic, exchange, queue, tx};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::{FieldTable, FieldValue};

fn arguments() -> malote_front_amqp091::wire::table::TableBuilder {
    FieldTable::builder()
}

async fn texts(client: &mut Client, queue: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(got) = client.get(queue).await {
        texts.push(got.text().to_owned());
    }
    texts
}

#[tokio::test]
async fn exchanges_route_by_their_kind() {
    let world = World::new();
    let mut client = world.channel().await;
    for (queue, exchange, key) in [
        ("d", "amq.direct", "k"),
        ("f", "amq.fanout", "any"),
        ("t", "amq.topic", "a.*.#"),
        ("t", "amq.topic", "#.z"),
    ] {
        client.declare(queue, FieldTable::default()).await;
        client.bind(queue, exchange, key).await;
    }
    for (exchange, key) in [
        ("amq.direct", "k"),
        ("amq.direct", "other"),
        ("amq.fanout", "x"),
        ("amq.topic", "a.b"),
        ("amq.topic", "a.z"),
        ("amq.topic", "b"),
    ] {
        client.publish(exchange, key, key).await;
    }
    assert_eq!(texts(&mut client, "d").await, ["k"]);
    assert_eq!(texts(&mut client, "f").await, ["x"]);
    assert_eq!(texts(&mut client, "t").await, ["a.b", "a.z"]);
}

#[tokio::test]
async fn exchanges_can_be_bound_to_each_other() {
    let world = World::new();
    let mut client = world.channel().await;
    let alternate = arguments().with("alternate-exchange", "rest").build();
    client.declare_exchange("rest", "fanout", FieldTable::default()).await;
    client.declare_exchange("in", "topic", alternate).await;
    client.declare_exchange("out", "direct", FieldTable::default()).await;
    for (queue, exchange, key) in [("q", "out", "a.b"), ("r", "rest", "")] {
        client.declare(queue, FieldTable::default()).await;
        client.bind(queue, exchange, key).await;
    }
    let bind = exchange::Bind {
        destination: short("out"),
        source: short("in"),
        routing_key: short("a.#"),
        ..Default::default()
    };
    assert!(matches!(client.call(bind.clone()).await, Method::ExchangeBindOk(_)));
    client.publish("in", "a.b", "one").await;
    client.publish("in", "z", "two").await;
    let got = client.get("q").await.unwrap();
    assert_eq!((got.text(), &*got.get_ok().exchange), ("one", "in"));
    assert_eq!(texts(&mut client, "r").await, ["two"]);
    let exchange::Bind { destination, source, routing_key, .. } = bind;
    let unbind = exchange::Unbind { destination, source, routing_key, ..Default::default() };
    assert!(matches!(client.call(unbind).await, Method::ExchangeUnbindOk(_)));
    client.publish("in", "a.b", "three").await;
    assert_eq!(texts(&mut client, "r").await, ["three"]);
}

#[tokio::test]
async fn copies_go_to_further_keys_and_bcc_is_secret() {
    let world = World::new();
    let mut client = world.channel().await;
    for queue in ["a", "b", "c"] {
        client.declare(queue, FieldTable::default()).await;
        client.bind(queue, "amq.direct", queue).await;
    }
    let list = |key| malote_front_amqp091::wire::table::ArrayBuilder::default().with(key);
    let (cc, bcc) = (list("b"), list("c"));
    let headers = arguments().with("CC", cc.values()).with("BCC", bcc.values()).build();
    let properties = BasicProperties { headers: Some(headers.as_table()), ..Default::default() };
    for exchange in ["amq.direct", ""] {
        client.publish_with(exchange, "a", false, properties, "x").await;
        for queue in ["a", "b", "c"] {
            let got = client.get(queue).await.unwrap();
            assert_eq!(&*got.get_ok().routing_key, "a");
            let headers = got.properties.decode().headers.unwrap();
            assert!(headers.get("BCC").is_none() && headers.get("CC").is_some());
        }
    }
}

fn death(got: &common::Received) -> Vec<(String, String, i64)> {
    let headers = got.properties.decode().headers.unwrap();
    let deaths = headers.get("x-death").unwrap().as_array().unwrap();
    let text = |value: Option<FieldValue<'_>>| value.unwrap().as_str().unwrap().to_owned();
    deaths
        .map(|death| {
            let death = death.as_table().unwrap();
            let count = death.get("count").unwrap().as_integer().unwrap();
            (text(death.get("queue")), text(death.get("reason")), count)
        })
        .collect()
}

#[tokio::test]
async fn dead_letters_carry_their_history() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare_exchange("dlx", "direct", FieldTable::default()).await;
    let work = arguments().with("x-dead-letter-exchange", "dlx").build();
    let retry = arguments()
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "work")
        .with("x-message-ttl", 5_i32)
        .build();
    client.declare("work", work).await;
    client.declare("retry", retry).await;
    client.bind("retry", "dlx", "work").await;
    let properties = BasicProperties { expiration: Some(b"600000"), ..Default::default() };
    client.publish_with("", "work", false, properties, "job").await;
    for round in 1..=3 {
        let got = client.get_soon("work").await;
        let tag = got.get_ok().delivery_tag;
        if round > 1 {
            let (work, retry) = (("work", "rejected"), ("retry", "expired"));
            let expected = [retry, work].map(|(q, r)| (q.into(), r.into(), round - 1));
            assert_eq!(death(&got), expected);
            assert_eq!(&*got.get_ok().exchange, "");
            let given = got.properties.decode();
            assert_eq!(given.expiration, None);
            let headers = given.headers.unwrap();
            let first = headers.get("x-death").unwrap().as_array().unwrap();
            let first = first.last().unwrap().as_table().unwrap();
            assert_eq!(first.get("original-expiration").unwrap().as_str(), Some("600000"));
            assert_eq!(first.get("exchange").unwrap().as_str(), Some(""));
            assert_eq!(headers.get("x-first-death-queue").unwrap().as_str(), Some("work"));
        }
        client.send(1, basic::Nack { delivery_tag: tag, multiple: false, requeue: false }).await;
    }
}

#[tokio::test]
async fn limits_drop_reject_and_dead_letter() {
    let world = World::new();
    let mut client = world.channel().await;
    client.confirms().await;
    let head = arguments().with("x-max-length", 2_i32).build();
    client.declare("head", head).await;
    for n in 1..=3_u64 {
        client.publish("", "head", &n.to_string()).await;
        client.confirmed(n).await;
    }
    assert_eq!(texts(&mut client, "head").await, ["2", "3"]);
    let full = arguments().with("x-max-length", 1_i32).with("x-overflow", "reject-publish").build();
    client.declare("full", full).await;
    client.publish("", "full", "first").await;
    client.confirmed(4).await;
    client.publish("", "full", "second").await;
    assert!(matches!(client.method().await, Method::BasicNack(nack) if nack.delivery_tag == 5));
    client.declare("grave", FieldTable::default()).await;
    let newest = arguments()
        .with("x-max-length", 1_i32)
        .with("x-overflow", "reject-publish-dlx")
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "grave")
        .build();
    client.declare("newest", newest).await;
    client.publish("", "newest", "kept").await;
    client.confirmed(6).await;
    client.publish("", "newest", "refused").await;
    assert!(matches!(client.method().await, Method::BasicNack(nack) if nack.delivery_tag == 7));
    let got = client.get_soon("grave").await;
    assert_eq!((got.text(), death(&got)), ("refused", vec![("newest".into(), "maxlen".into(), 1)]));
}

#[tokio::test]
async fn durable_things_survive_a_restart_and_others_do_not() {
    let world = World::new();
    let mut client = world.channel().await;
    client.confirms().await;
    client.declare("keeps", FieldTable::default()).await;
    client.bind("keeps", "amq.topic", "#").await;
    let transient = queue::Declare { queue: short("goes"), ..Default::default() };
    client.call(transient).await;
    client.publish("amq.topic", "k", "kept").await;
    client.confirmed(1).await;
    let world = world.restarted().await;
    let mut client = world.channel().await;
    let got = client.get("keeps").await.unwrap();
    assert_eq!((got.text(), &*got.get_ok().exchange), ("kept", "amq.topic"));
    client.publish("amq.topic", "k", "again").await;
    assert_eq!(client.get("keeps").await.unwrap().text(), "again");
    let passive = queue::Declare { queue: short("goes"), passive: true, ..Default::default() };
    assert_eq!(
        client.refusal(passive).await,
        (404, "NOT_FOUND - no queue 'goes' in vhost '/'".into())
    );
}

#[tokio::test]
async fn sessions_give_order_per_key_to_stock_clients() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("s", arguments().with("x-sessions", true).build()).await;
    for (session, body) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
        let headers = arguments().with("x-session", session).build();
        let headers = Some(headers.as_table());
        let properties = BasicProperties { headers, ..Default::default() };
        client.publish_with("", "s", false, properties, body).await;
    }
    client.consume("s", "c", false).await;
    assert_eq!(client.content().await.text(), "a1");
    assert_eq!(client.content().await.text(), "b1");
    client.ack(1, false).await;
    assert_eq!(client.content().await.text(), "a2");
    client.publish("", "s", "none").await;
    let (code, text) = client.closed().await;
    assert_eq!(code, 406, "{text}");
}

#[tokio::test]
async fn a_queue_takes_the_session_from_a_header_a_key_or_a_correlation_id() {
    let world = World::new();
    let mut client = world.channel().await;
    for (name, from) in [("h", "header:customer"), ("k", "routing-key"), ("c", "correlation-id")] {
        let sessions = arguments().with("x-sessions", true).with("x-session-from", from);
        client.declare(name, sessions.build()).await;
        client.bind(name, "amq.fanout", "").await;
    }
    // Of each message, every queue takes another field. One session is served at a time.
    for (customer, key, correlation, body) in
        [(1_i32, "x", "i", "1"), (1, "y", "ii", "2"), (2, "x", "ii", "3"), (2, "y", "i", "4")]
    {
        let headers = arguments().with("customer", customer).with("x-session", "ignored").build();
        let properties = BasicProperties {
            headers: Some(headers.as_table()),
            correlation_id: Some(correlation.as_bytes()),
            ..Default::default()
        };
        client.publish_with("amq.fanout", key, false, properties, body).await;
    }
    for (name, first) in [("h", ["1", "3"]), ("k", ["1", "2"]), ("c", ["1", "2"])] {
        let mut consumer = world.channel().await;
        consumer.consume(name, "tag", false).await;
        let got = [consumer.content().await, consumer.content().await];
        assert_eq!(got.each_ref().map(|content| content.text()), first, "{name}");
    }
    let mut client = world.channel().await;
    client.publish("", "h", "no header").await;
    assert_eq!(client.closed().await.0, 406);
    for (bad, why) in [("header:", "must have 1 to 255 bytes"), ("body", "expected 'header:NAME'")]
    {
        let mut client = world.channel().await;
        let sessions = arguments().with("x-sessions", true).with("x-session-from", bad).build();
        let declare = queue::Declare {
            queue: short("bad"),
            durable: true,
            arguments: sessions,
            ..Default::default()
        };
        let (code, text) = client.refusal(declare).await;
        assert!(code == 406 && text.contains(why), "{code} {text}");
    }
}

#[tokio::test]
async fn refusals_have_the_texts_of_rabbitmq() {
    let world = World::new();
    let (mut client, mut other) = (world.channel().await, world.channel().await);
    let declare = |name: &str| queue::Declare { queue: short(name), ..Default::default() };
    client.declare("q", arguments().with("x-message-ttl", 1000_i32).build()).await;
    let passive = queue::Declare { passive: true, ..declare("none") };
    assert_eq!(
        client.refusal(passive).await,
        (404, "NOT_FOUND - no queue 'none' in vhost '/'".into())
    );
    assert_eq!(
        client.refusal(declare("q")).await,
        (406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'".into())
    );
    let ttl = arguments().with("x-message-ttl", 2000_i64).build();
    let differs = queue::Declare { durable: true, arguments: ttl, ..declare("q") };
    assert_eq!(
        client.refusal(differs).await,
        (406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '2000' of type 'long' but current is the value '1000' of type 'signedint'".into())
    );
    assert_eq!(
        client.refusal(declare("amq.mine")).await,
        (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'".into())
    );
    assert_eq!(
        client.refusal(basic::Ack { delivery_tag: 7, multiple: false }).await,
        (406, "PRECONDITION_FAILED - unknown delivery tag 7".into())
    );
    assert_eq!(
        client.refusal(tx::Commit {}).await,
        (406, "PRECONDITION_FAILED - channel is not transactional".into())
    );
    client.publish("none", "k", "x").await;
    assert_eq!(client.closed().await, (404, "NOT_FOUND - no exchange 'none' in vhost '/'".into()));
    let bind = queue::Bind { queue: short("q"), ..Default::default() };
    assert_eq!(
        client.refusal(bind).await,
        (403, "ACCESS_REFUSED - operation not permitted on the default exchange".into())
    );
    let kind = |kind| exchange::Declare {
        exchange: short("amq.topic"),
        kind: short(kind),
        durable: true,
        ..Default::default()
    };
    assert_eq!(
        client.refusal(kind("fanout")).await,
        (406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': received 'fanout' but current is 'topic'".into())
    );
    client.call(queue::Declare { exclusive: true, ..declare("own") }).await;
    let (code, text) = other.refusal(queue::Declare { passive: true, ..declare("own") }).await;
    assert!(
        code == 405
            && text.starts_with(
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'own'"
            ),
        "{text}"
    );
    client.consume("q", "same", false).await;
    let again =
        basic::Consume { queue: short("q"), consumer_tag: short("same"), ..Default::default() };
    assert_eq!(
        client.refusal(again).await,
        (530, "NOT_ALLOWED - attempt to reuse consumer tag 'same'".into())
    );
    let stream = arguments().with("x-queue-type", "stream").build();
    let stream = queue::Declare { durable: true, arguments: stream, ..declare("log") };
    assert_eq!(
        other.refusal(stream).await,
        (406, "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'log' in vhost '/': unsupported queue type 'stream'".into())
    );
}
