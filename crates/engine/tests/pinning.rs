//! Messages that are removed on delivery stay readable until their receiver has read them, however late.
#![allow(clippy::unwrap_used)] // a test

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::ManualClock;
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_engine::{Consume, Delivery, Engine, Outbound, Receive, Wants};
use malote_model::{
    Body, BodyKind, Changes, Message, QueueName, QueueSpec, Settlement, Timestamp, Value, When,
};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(body: String) -> Message {
    Message { body: Body { bytes: body.into(), kind: BodyKind::Bytes }, ..Message::default() }
}

async fn receive(engine: &Engine, queue: &str, take: bool) -> Vec<Delivery> {
    let (queue, max, wait_ms, lock_ms, hold, per_session) = (name(queue), 100, 0, None, None, 1);
    let receive = Receive { queue, max, wait_ms, lock_ms, take, hold, per_session };
    engine.receive(receive).await.unwrap()
}

/// Fills segments of the journal with messages that are completed at once.
async fn noise(engine: &Engine, kib: usize) {
    for _ in 0..kib / 64 {
        let some = (0..8).map(|_| (name("noise"), message("n".repeat(8 << 10))));
        engine.send(some.collect()).await.unwrap();
        assert_eq!(receive(engine, "noise", true).await.len(), 8);
    }
}

/// Messages that were scheduled, forwarded, dead-lettered or changed have overlay records.
#[tokio::test]
async fn a_message_removed_on_delivery_stays_readable_in_an_older_segment() {
    let options = Options {
        segment_bytes: 128 << 10,
        first_segment_bytes: 16 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 64 << 10,
        snapshot_after_ratio: 1,
        scrub_bytes_per_s: 0,
        ..Options::default()
    };
    let clock = Arc::new(ManualClock::starting_at(Timestamp(1_800_000_000_000)));
    let (disk, on) = (Arc::new(MemoryDisk::new()), clock.clone());
    let (engine, running) = Engine::open_at(disk, &options, Chance::of_system(), |_| on).unwrap();
    for queue in ["noise", "scheduled", "changed", "dead", "last"] {
        engine.declare(name(queue), QueueSpec::default()).await.unwrap();
    }
    let forward = QueueSpec { forward_to: Some(name("last").into()), ..QueueSpec::default() };
    engine.declare(name("forwarding"), forward).await.unwrap();

    // The bodies.
    let later = When::At(engine.now().plus_ms(1000));
    let body = |queue: &str| format!("body of {queue}");
    for queue in ["scheduled", "forwarding"] {
        let message = Message { when: later, ..message(body(queue)) };
        engine.send(vec![(name(queue), message)]).await.unwrap();
    }
    let mut leases = Vec::new();
    for queue in ["changed", "dead"] {
        engine.send(vec![(name(queue), message(body(queue)))]).await.unwrap();
        leases.push(receive(&engine, queue, false).await[0].lease.unwrap());
    }
    noise(&engine, 512).await;

    // The overlays, in other segments.
    clock.advance_ms(2000);
    engine.wake();
    let mut changes = Changes::default();
    changes.properties.set("n", Value::U64(1));
    let settle = async |lease, settlement| {
        engine.settle(None, vec![lease], settlement, None).await.unwrap().remove(0).unwrap();
    };
    settle(leases[0], Settlement::Abandon { delay_ms: 0, changes: changes.clone() }).await;
    let (reason, text) = ("test".into(), String::new());
    settle(leases[1], Settlement::DeadLetter { reason, text, changes }).await;
    noise(&engine, 512).await;

    // Removed on delivery, and not read yet.
    let taken = ["scheduled", "last", "changed", "dead/$deadletterqueue"];
    let (connection, mut outbox) = engine.connect();
    for queue in taken {
        let (queue, wants) = (name(queue), Wants::Any { per_session: 1 });
        let (credit, take, lock_ms, free_standing) = (1, true, None, true);
        let consume = Consume {
            queue: queue.clone(),
            wants,
            credit,
            take,
            lock_ms,
            free_standing,
            priority: 0,
            exclusive: false,
        };
        connection.attach(consume).await.unwrap();
        while engine.describe(queue.clone()).await.unwrap().totals.delivered == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // Every earlier segment is recycled, unless it is pinned.
    let (before, recycled) = (engine.disk().segments, engine.disk().recycled);
    while engine.disk().recycled < recycled + before + 20 {
        noise(&engine, 64).await;
    }

    let mut bodies = Vec::new();
    while bodies.len() < taken.len() {
        match outbox.next().await.unwrap() {
            Outbound::Deliver(_, some) => {
                bodies.extend(some.into_iter().map(|d| d.stored.message.body.bytes));
            }
            other => panic!("lost: {other:?}; found {bodies:?}"),
        }
    }
    let wanted = ["scheduled", "forwarding", "changed", "dead"];
    assert_eq!(bodies, wanted.map(|queue| Bytes::from(body(queue))));
    assert_eq!(engine.damaged(), 0);

    // Read, and so no longer pinned.
    running.stop().await;
}
