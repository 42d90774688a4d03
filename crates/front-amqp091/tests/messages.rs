//! Publishing, confirms, returns, consuming, acknowledging.

mod common;

use common::{World, short};
use malote_front_amqp091::wire::frame::FrameKind;
use malote_front_amqp091::wire::method::{Method, basic, channel, connection, queue, tx};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::FieldTable;

#[tokio::test]
async fn a_message_arrives_byte_for_byte() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let headers = FieldTable::builder().with("n", 1_i32).with("s", "text").build();
    let properties = BasicProperties {
        content_type: Some(b"text/plain"),
        headers: Some(headers.as_table()),
        delivery_mode: Some(2),
        message_id: Some(b"m-1"),
        timestamp: Some(5),
        ..Default::default()
    };
    client.publish_with("", "q", false, properties, "hello").await;
    let got = client.get("q").await.unwrap();
    assert_eq!((got.text(), got.properties.decode()), ("hello", properties));
    let get_ok = got.get_ok();
    assert_eq!((&*get_ok.exchange, &*get_ok.routing_key, get_ok.redelivered), ("", "q", false));
    assert!(client.get("q").await.is_none());
    client.send(1, basic::Reject { delivery_tag: 1, requeue: true }).await;
    assert!(client.get("q").await.unwrap().get_ok().redelivered);
}

#[tokio::test]
async fn confirms_follow_returns_and_cover_many_messages() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    client.confirms().await;
    client.publish_with("", "nobody", true, BasicProperties::default(), "lost").await;
    let returned = client.content().await;
    let Method::BasicReturn(method) = &returned.method else { panic!("{returned:?}") };
    assert_eq!(
        (method.reply_code, &*method.reply_text, returned.text()),
        (312, "NO_ROUTE", "lost")
    );
    client.confirmed(1).await;
    for n in 0..500 {
        client.publish("", "q", &n.to_string()).await;
    }
    client.confirmed(501).await;
    let declared = client.declare("q", FieldTable::default()).await;
    assert_eq!((declared.message_count, declared.consumer_count), (500, 0));
}

#[tokio::test]
async fn prefetch_limits_what_is_outstanding() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    for n in 0..10 {
        client.publish("", "q", &n.to_string()).await;
    }
    client.call(basic::Qos { prefetch_count: 3, ..Default::default() }).await;
    client.consume("q", "c", false).await;
    for n in 0..3 {
        assert_eq!(client.content().await.text(), n.to_string());
    }
    // Nothing follows until something is acknowledged: the answer to the next request comes first.
    assert!(matches!(client.call(basic::Qos::default()).await, Method::BasicQosOk(_)));
    client.ack(2, true).await;
    assert_eq!(client.content().await.text(), "3");
    assert_eq!(client.content().await.text(), "4");
    client.send(1, basic::Nack { delivery_tag: 3, multiple: false, requeue: true }).await;
    let again = client.content().await;
    assert_eq!((again.text(), again.deliver().redelivered), ("2", true));
}

#[tokio::test]
async fn a_shared_prefetch_limit_covers_all_consumers_of_a_channel() {
    let world = World::new();
    let mut client = world.channel().await;
    for queue in ["a", "b"] {
        client.declare(queue, FieldTable::default()).await;
        client.publish("", queue, queue).await;
        client.publish("", queue, queue).await;
    }
    client.call(basic::Qos { prefetch_count: 2, global: true, ..Default::default() }).await;
    client.consume("a", "a", false).await;
    let first = [client.content().await, client.content().await];
    assert_eq!(first.each_ref().map(|one| one.text()), ["a", "a"]);
    client.consume("b", "b", false).await;
    assert!(matches!(client.call(channel::Flow { active: true }).await, Method::ChannelFlowOk(_)));
    client.ack(1, false).await;
    let third = client.content().await;
    assert_eq!((third.text(), third.deliver().delivery_tag), ("b", 3));
    client.ack(0, true).await;
    assert_eq!(client.content().await.text(), "b");
}

#[tokio::test]
async fn messages_of_a_closed_channel_return_in_order() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    for n in 0..5 {
        client.publish("", "q", &n.to_string()).await;
    }
    client.consume("q", "c", false).await;
    for _ in 0..5 {
        client.content().await;
    }
    let closed = client.call(channel::Close { reply_code: 200, ..Default::default() }).await;
    assert!(matches!(closed, Method::ChannelCloseOk(_)));
    client.open_channel(1).await;
    client.consume("q", "d", true).await;
    for n in 0..5 {
        let again = client.content().await;
        assert_eq!((again.text(), again.deliver().redelivered), (&*n.to_string(), true));
    }
    let declared = client.declare("q", FieldTable::default()).await;
    assert_eq!((declared.message_count, declared.consumer_count), (0, 1));
}

#[tokio::test]
async fn a_cancelled_consumer_gets_nothing_more() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    client.consume("q", "c", false).await;
    let cancel = basic::Cancel { consumer_tag: short("c"), no_wait: false };
    assert!(matches!(client.call(cancel).await, Method::BasicCancelOk(_)));
    client.publish("", "q", "x").await;
    assert_eq!(client.get("q").await.unwrap().text(), "x");
    client.consume("q", "d", false).await;
    let deleted = client.call(queue::Delete { queue: short("q"), ..Default::default() }).await;
    // The consumer gets a cancel, before or after the answer.
    let both = [deleted, client.method().await];
    assert!(
        both.iter().any(|method| matches!(method, Method::BasicCancel(c) if c.consumer_tag == "d"))
    );
    assert!(both.iter().any(|method| matches!(method, Method::QueueDeleteOk(_))));
}

#[tokio::test]
async fn large_bodies_are_cut_into_frames() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let body = "x".repeat(500_000);
    client.publish("", "q", &body).await;
    client.publish("", "q", "").await;
    client.consume("q", "c", true).await;
    assert_eq!(client.content().await.text(), body);
    assert_eq!(client.content().await.text(), "");
}

#[tokio::test]
async fn a_transaction_takes_effect_with_its_commit() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    client.publish("", "q", "old").await;
    let old = client.get("q").await.unwrap();
    assert_eq!(old.text(), "old");
    assert!(matches!(client.call(tx::Select {}).await, Method::TxSelectOk(_)));
    client.publish("", "q", "dropped").await;
    client.ack(1, false).await;
    assert!(matches!(client.call(tx::Rollback {}).await, Method::TxRollbackOk(_)));
    assert_eq!(client.declare("q", FieldTable::default()).await.message_count, 0);
    client.publish("", "q", "new").await;
    client.ack(1, false).await;
    assert!(matches!(client.call(tx::Commit {}).await, Method::TxCommitOk(_)));
    assert_eq!(client.get("q").await.unwrap().text(), "new");
    client.ack(1, false).await;
    let (code, text) = client.refusal(tx::Commit {}).await;
    assert_eq!((code, &*text), (406, "PRECONDITION_FAILED - unknown delivery tag 1"));
}

#[tokio::test]
async fn replies_go_straight_to_the_requester() {
    let world = World::new();
    let (mut client, mut server) = (world.channel().await, world.channel().await);
    server.declare("rpc", FieldTable::default()).await;
    server.consume("rpc", "s", true).await;
    client.consume("amq.rabbitmq.reply-to", "c", true).await;
    let asked = BasicProperties { reply_to: Some(b"amq.rabbitmq.reply-to"), ..Default::default() };
    client.publish_with("", "rpc", false, asked, "ping").await;
    let request = server.content().await;
    let name = String::from_utf8(request.properties.decode().reply_to.unwrap().to_vec()).unwrap();
    assert!(name.starts_with("amq.rabbitmq.reply-to."), "{name}");
    server.publish("", &name, "pong").await;
    let reply = client.content().await;
    assert_eq!((reply.text(), &*reply.deliver().consumer_tag), ("pong", "c"));
    client.send(0, connection::Close { reply_code: 200, ..Default::default() }).await;
    assert!(matches!(client.method().await, Method::ConnectionCloseOk(_)));
    assert!(client.frame().await.is_none());
    let passive = queue::Declare { queue: short(&name), passive: true, ..Default::default() };
    assert_eq!(server.refusal(passive).await.0, 404);
}

#[tokio::test]
async fn a_heartbeat_is_no_request() {
    let world = World::new();
    let mut client = world.channel().await;
    client.write(&[FrameKind::Heartbeat as u8, 0, 0, 0, 0, 0, 0, 0xce]).await;
    client.declare("q", FieldTable::default()).await;
}

#[tokio::test]
async fn a_key_that_is_no_queue_name_is_unroutable() {
    let world = World::new();
    let mut client = world.channel().await;
    client.confirms().await;
    client.publish("", "", "no name").await;
    client.confirmed(1).await;
    client.publish_with("", "", true, BasicProperties::default(), "returned").await;
    assert_eq!(client.content().await.text(), "returned");
    client.confirmed(2).await;
}

#[tokio::test]
async fn a_deleted_queue_is_answered_before_its_consumers_are_cancelled() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    client.consume("q", "tag", false).await;
    let delete = queue::Delete { queue: short("q"), ..Default::default() };
    client.send(1, delete).await;
    assert!(matches!(client.method().await, Method::QueueDeleteOk(_)));
    assert!(matches!(client.method().await, Method::BasicCancel(_)));
}
