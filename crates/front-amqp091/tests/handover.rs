//! The next active consumer of a queue gets the messages of the last one first, even those that were on their way.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Client, World};
use malote_front_amqp091::wire::method::{Method, channel, connection};
use malote_front_amqp091::wire::table::FieldTable;

const MESSAGES: u64 = 3_000;

/// How the active consumer leaves.
#[derive(Clone, Copy)]
enum Leaves {
    Channel,
    Connection,
}

async fn leave(client: &mut Client, how: Leaves) {
    match how {
        Leaves::Channel => client.send(1, channel::Close::default()).await,
        Leaves::Connection => client.send(0, connection::Close::default()).await,
    }
    // Deliveries that were on their way come first.
    while let Some(frame) = client.frame().await {
        if let Ok(Method::ChannelCloseOk(_) | Method::ConnectionCloseOk(_)) =
            Method::decode(&frame.payload)
        {
            return;
        }
    }
}

async fn hand_over(how: Leaves) {
    let world = World::new();
    let arguments = FieldTable::builder().with("x-single-active-consumer", true).build();
    let mut publisher = world.channel().await;
    publisher.declare("q", arguments).await;
    let publishing = tokio::spawn(async move {
        for n in 1..=MESSAGES {
            publisher.publish("", "q", &n.to_string()).await;
            if n % 8 == 0 {
                tokio::task::yield_now().await;
            }
        }
        publisher
    });
    let mut active = world.channel().await;
    active.consume("q", "a", false).await;
    let mut acknowledged = 0;
    while acknowledged < MESSAGES {
        let mut next = world.channel().await;
        next.consume("q", "b", false).await;
        // While it leaves, more messages are on their way to it.
        for _ in 0..(MESSAGES - acknowledged).min(60) {
            let received = active.content().await;
            acknowledged += 1;
            assert_eq!(received.text(), acknowledged.to_string(), "the oldest message first");
            active.ack(received.deliver().delivery_tag, false).await;
        }
        leave(&mut active, how).await;
        active = next;
    }
    publishing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_channel_hands_over_in_order() {
    hand_over(Leaves::Channel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_hands_over_in_order() {
    hand_over(Leaves::Connection).await;
}
