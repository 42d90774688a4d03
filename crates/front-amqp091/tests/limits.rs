//! The bounds of one connection. Each of them covers all its channels together.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use bytes::BytesMut;
use common::{Client, World, short};
use malote_front_amqp091::limits;
use malote_front_amqp091::wire::content::put_content;
use malote_front_amqp091::wire::frame::{FrameKind, put_frame, put_method};
use malote_front_amqp091::wire::method::{Method, basic, channel, tx};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::{ArrayBuilder, FieldTable};

const FRAME_BYTES: usize = 100_000;

/// Publishes on a channel, with one frame of the body after the other.
async fn publish(client: &mut Client, channel: u16, key: &str, body_bytes: usize) {
    let publish = basic::Publish { routing_key: short(key), ..Default::default() };
    let (properties, body) = (BasicProperties::default().encode(), vec![b'x'; body_bytes]);
    let mut out = BytesMut::new();
    put_content(&mut out, channel, 131_072, &publish, &properties, &body);
    client.write(&out).await;
}

/// The next close, of whatever channel.
async fn next_close(client: &mut Client) -> (u16, String) {
    loop {
        match client.method().await {
            Method::ChannelClose(close) => return (close.reply_code, close.reply_text.to_string()),
            Method::ConnectionClose(close) => {
                return (close.reply_code, close.reply_text.to_string());
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn bodies_that_never_end_are_bounded() {
    let world = World::new();
    let mut client = world.client().await;
    let (mut out, size) = (BytesMut::new(), 30_u64 << 20);
    for number in 1..=10 {
        client.open_channel(number).await;
        let publish = basic::Publish { routing_key: short("q"), ..Default::default() };
        put_method(&mut out, number, &publish);
        let mut header = vec![0, 60, 0, 0];
        header.extend(size.to_be_bytes());
        header.extend([0, 0]);
        put_frame(&mut out, FrameKind::Header, number, |out| out.extend_from_slice(&header));
    }
    client.write(&out).await;
    out.clear();
    put_frame(&mut out, FrameKind::Body, 1, |out| out.extend_from_slice(&[0; FRAME_BYTES]));
    // One channel may have its whole message; the others together must not exceed the bound.
    let frames = limits::UNFINISHED_BYTES_MAX / FRAME_BYTES + 1;
    for n in 0..frames {
        out[2] = (n % 10 + 1) as u8;
        client.write(&out).await;
    }
    let (code, text) = next_close(&mut client).await;
    assert_eq!(code, 506, "{text}");
    assert!(text.contains("unfinished messages"), "{text}");
}

/// Each connection is within its own bound.
#[tokio::test]
async fn unfinished_bodies_of_many_connections_are_bounded() {
    let world = World::new();
    let (mut start, mut part) = (BytesMut::new(), BytesMut::new());
    put_method(&mut start, 1, &basic::Publish { routing_key: short("q"), ..Default::default() });
    let mut header = vec![0, 60, 0, 0];
    header.extend((30_u64 << 20).to_be_bytes());
    header.extend([0, 0]);
    put_frame(&mut start, FrameKind::Header, 1, |out| out.extend_from_slice(&header));
    put_frame(&mut part, FrameKind::Body, 1, |out| out.extend_from_slice(&[0; FRAME_BYTES]));
    let frames = (29 << 20) / FRAME_BYTES;
    let mut held = Vec::new();
    for _ in 0..limits::UNFINISHED_ADDRESS_BYTES_MAX / (frames * FRAME_BYTES) {
        let mut client = world.channel().await;
        client.write(&start).await;
        for _ in 0..frames {
            client.write(&part).await;
        }
        held.push(client);
    }
    let mut last = world.channel().await;
    last.write(&start).await;
    for _ in 0..frames {
        last.write(&part).await;
    }
    let (code, text) = next_close(&mut last).await;
    assert_eq!((code, text.contains("unfinished messages")), (506, true), "{text}");
    // It gave up its part, so others have room.
    let mut other = world.channel().await;
    other.confirms().await;
    other.declare("q", FieldTable::default()).await;
    publish(&mut other, 1, "q", 5 << 20).await;
    other.confirmed(1).await;
}

#[tokio::test]
async fn a_body_larger_than_a_message_is_refused_by_its_header() {
    let world = World::new();
    let mut client = world.channel().await;
    let mut out = BytesMut::new();
    put_method(&mut out, 1, &basic::Publish { routing_key: short("q"), ..Default::default() });
    let mut header = vec![0, 60, 0, 0];
    header.extend(u64::MAX.to_be_bytes());
    header.extend([0, 0]);
    put_frame(&mut out, FrameKind::Header, 1, |out| out.extend_from_slice(&header));
    client.write(&out).await;
    let (code, text) = next_close(&mut client).await;
    assert_eq!((code, text.contains("message size 18446744073709551615")), (406, true), "{text}");
}

#[tokio::test]
async fn transactions_of_all_channels_are_bounded() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    for number in 2..=4 {
        client.open_channel(number).await;
        client.send(number, tx::Select {}).await;
        assert!(matches!(client.method().await, Method::TxSelectOk(_)));
    }
    let third = limits::STAGED_BYTES_MAX / 5 * 2;
    publish(&mut client, 2, "q", third).await;
    publish(&mut client, 3, "q", third).await;
    publish(&mut client, 4, "q", third).await;
    let (code, text) = next_close(&mut client).await;
    assert_eq!((code, text.contains("uncommitted transactions")), (406, true), "{text}");
    client.send(4, channel::CloseOk {}).await;
    // The closed channel released its share, and so does a commit: there is room again.
    client.send(2, tx::Commit {}).await;
    assert!(matches!(client.method().await, Method::TxCommitOk(_)));
    publish(&mut client, 2, "q", third).await;
    client.send(2, tx::Rollback {}).await;
    assert!(matches!(client.method().await, Method::TxRollbackOk(_)));
    publish(&mut client, 2, "q", third).await;
    client.send(2, tx::Commit {}).await;
    assert!(matches!(client.method().await, Method::TxCommitOk(_)));
}

#[tokio::test]
async fn copies_for_many_keys_are_bounded() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let body = "x".repeat(100 << 10);
    for (keys, refused) in [(3, false), (200, true)] {
        // A queue gets one copy, even if it is named twice.
        let names = (0..keys).map(|n| format!("q{n}"));
        let names = names.chain(["q", "q0"].map(str::to_owned));
        let array = names.fold(ArrayBuilder::default(), |keys, name| keys.with(name.as_str()));
        let headers = FieldTable::builder().with("CC", array.values()).build();
        let properties =
            BasicProperties { headers: Some(headers.as_table()), ..Default::default() };
        client.publish_with("", "q", false, properties, &body).await;
        if refused {
            let (code, text) = client.closed().await;
            assert_eq!((code, text.contains("201 queues")), (406, true), "{text}");
        } else {
            client.get_soon("q").await;
            assert!(client.get("q").await.is_none());
        }
    }
}

#[tokio::test]
async fn consumers_of_a_connection_are_bounded() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let mut out = BytesMut::new();
    for n in 0..limits::CONSUMERS_MAX {
        let (queue, consumer_tag) = (short("q"), short(&n.to_string()));
        let no_wait = true;
        let consume = basic::Consume { queue, consumer_tag, no_wait, ..Default::default() };
        out.clear();
        put_method(&mut out, 1, &consume);
        client.write(&out).await;
    }
    let (code, text) =
        client.refusal(basic::Consume { queue: short("q"), ..Default::default() }).await;
    assert_eq!((code, text.contains("of consumers")), (530, true), "{text}");
}

#[tokio::test]
async fn messages_held_back_by_a_shared_limit_are_bounded() {
    let world = World::new();
    let mut client = world.channel().await;
    for n in 0..30 {
        client.declare(&format!("q{n}"), FieldTable::default()).await;
        publish(&mut client, 1, &format!("q{n}"), 1 << 20).await;
    }
    // Thirty consumers that share one place: each gets its message in the end.
    client.call(basic::Qos { prefetch_count: 1, global: true, ..Default::default() }).await;
    let mut out = BytesMut::new();
    for n in 0..30 {
        let (queue, no_wait) = (short(&format!("q{n}")), true);
        put_method(&mut out, 1, &basic::Consume { queue, no_wait, ..Default::default() });
    }
    client.write(&out).await;
    for _ in 0..30 {
        let received = client.content().await;
        assert_eq!(received.body.len(), 1 << 20);
        client.ack(received.deliver().delivery_tag, false).await;
    }
}

#[tokio::test]
async fn the_arguments_of_a_consumer_are_bounded() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let of = |bytes: usize| {
        let text = "x".repeat(bytes);
        FieldTable::builder().with("x", text.as_str()).build()
    };
    let most = limits::CONSUMER_ARGUMENTS_BYTES_MAX;
    let overhead = of(0).as_bytes().len();
    for (bytes, accepted) in [(most - overhead, true), (most - overhead + 1, false)] {
        let consume =
            basic::Consume { queue: short("q"), arguments: of(bytes), ..Default::default() };
        match accepted {
            true => assert!(matches!(client.call(consume).await, Method::BasicConsumeOk(_))),
            false => assert_eq!(client.refusal(consume).await.0, 406),
        }
    }
}
