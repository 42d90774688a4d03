//! Sends of one link arrive in the order in which they were sent, also where they have to wait for room.
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
/// In each round: so many wait for room, and so many come when there is some.
const WAITING: usize = 40;
const LATE: usize = 40;

const LARGE_BYTES: usize = 32 << 20;

/// A send that takes as much room as one can: two of them take all. It keeps it until it is looked at again, whenever
/// it is answered; none if that was at once.
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

/// Writes some, without letting the server in between.
async fn send(client: &mut Client, link: LinkId, from: usize, count: usize) {
    for n in from..from + count {
        let properties = Properties { group_id: Some(Str::from("s")), ..Properties::default() };
        // Of different sizes: what is small must not slip into room that is too small for what is before it.
        let mut body = format!("{n:06}").into_bytes();
        body.resize(6 + (n % 7) * 2000, b'.');
        let payload = Draft { properties: Some(properties), ..Draft::data(body) }.to_bytes();
        let tag = Bytes::copy_from_slice(&(n as u32).to_be_bytes());
        let outgoing = Outgoing { key: n as u64, tag, payload, ..Outgoing::default() };
        client.amqp.send(link, outgoing).unwrap();
    }
    client.write().await;
}

/// One thread: the server's task runs only where this test waits.
#[tokio::test]
async fn sends_that_wait_for_room_are_not_passed() {
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
        // Meanwhile the server reads those, and the fillers are answered: they are there to be taken.
        for _ in 0..2 {
            world.engine.receive(take(&large)).await.unwrap();
        }
        // These lie at the server's door when there is room for those before them.
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
