//! Messages of one link arrive in the order they were sent, even if they wait for memory.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::pin::Pin;

use bytes::Bytes;
use common::{Client, World};
use futures_util::FutureExt as _;
use malote_engine::{Engine, Peek, Receive};
use malote_model::{Body, Durability, Message, QueueName, QueueSpec, Seq};
use malote_wire_amqp::connection::{Event, LinkId, Outgoing};
use malote_wire_amqp::message::{Draft, Properties};
use malote_wire_amqp::types::Str;

const ROUNDS: usize = 5;
/// Per round: messages that wait for memory, and messages that arrive when some is free.
const WAITING: usize = 40;
const LATE: usize = 40;

const LARGE_BYTES: usize = 32 << 20;

/// A send that reserves as much memory as possible; two of them reserve all of it. It keeps the memory until it is
/// polled again. None if it completed immediately.
fn filler(
    engine: &Engine,
    queue: &QueueName,
) -> Option<Pin<Box<impl Future<Output = ()> + use<>>>> {
    let (engine, queue) = (engine.clone(), queue.clone());
    let mut filler = Box::pin(async move {
        let bytes = vec![b'x'; LARGE_BYTES - 2048].into();
        let message = Message { body: Body { bytes, ..Body::default() }, ..Message::default() };
        engine.send(vec![(queue, message)]).await.unwrap();
    });
    filler.as_mut().now_or_never().is_none().then_some(filler)
}

fn take(queue: &QueueName) -> Receive {
    let queue = queue.clone();
    let (max, wait_ms) = (1, 60_000);
    Receive { queue, max, wait_ms, lock_ms: None, take: true, hold: None, per_session: 1 }
}

/// Writes messages without yielding to the server.
async fn send(client: &mut Client, link: LinkId, from: usize, count: usize) {
    for n in from..from + count {
        let properties = Properties { group_id: Some(Str::from("s")), ..Properties::default() };
        // Of different sizes: a small message must not overtake a larger one that waits for memory.
        let mut body = format!("{n:06}").into_bytes();
        body.resize(6 + (n % 7) * 2000, b'.');
        let payload = Draft { properties: Some(properties), ..Draft::data(body) }.to_bytes();
        let tag = Bytes::copy_from_slice(&(n as u32).to_be_bytes());
        let outgoing = Outgoing { key: n as u64, tag, payload, ..Outgoing::default() };
        client.amqp.send(link, outgoing).unwrap();
    }
    client.write().await;
}

/// Single-threaded: the server's task runs only while this test waits.
#[tokio::test]
async fn sends_that_wait_for_memory_are_not_overtaken() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    let large = QueueName::new("large").unwrap();
    let spec = QueueSpec {
        message_bytes_max: LARGE_BYTES as u64,
        durability: Durability::Relaxed,
        ..QueueSpec::default()
    };
    world.engine.declare(large.clone(), spec).await.unwrap();
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.sender(channel, "s", "orders");
    client.attached(link).await;
    client.credit(link).await;

    let mut sent = 0;
    for _ in 0..ROUNDS {
        let fillers = [filler(&world.engine, &large), filler(&world.engine, &large)];
        send(&mut client, link, sent, WAITING).await;
        // Meanwhile the server reads those messages, and the fillers complete.
        for _ in 0..2 {
            world.engine.receive(take(&large)).await.unwrap();
        }
        // These are already written when memory becomes free for the earlier ones.
        send(&mut client, link, sent + WAITING, LATE).await;
        for filler in fillers.into_iter().flatten() {
            filler.await;
        }
        sent += WAITING + LATE;
        for _ in 0..WAITING + LATE {
            client.until(|event| matches!(event, Event::Disposition(_)).then_some(())).await;
        }
    }

    let (mut numbers, mut next) = (Vec::new(), Some(Seq(0)));
    while let Some(from) = next {
        let peek = Peek { queue: queue.clone(), from, max: 100, session: None, state: None };
        let (seen, more) = world.engine.peek(peek).await.unwrap();
        next = more;
        for seen in seen {
            let body = seen.stored.unwrap().message.body.bytes;
            numbers.push(String::from_utf8_lossy(&body[..6]).parse::<usize>().unwrap());
        }
    }
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
}
