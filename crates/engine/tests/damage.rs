//! Messages that are damaged on disk, in a running engine.
#![allow(clippy::unwrap_used)] // a test

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use malote_engine::journal::Options;
use malote_engine::{
    Consume, DeadLetterSelection, Delivery, Engine, MessageState, Outbound, Peek, Receive, Running,
    Settings, Wants,
};
use malote_model::{
    Address, Body, BodyKind, DeadLetterTarget, Message, QueueName, QueueSpec, Seq, SessionId,
    Sessions, Settlement,
};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(body: &str) -> Message {
    Message {
        session: Some(SessionId::new("one").unwrap()),
        body: Body { bytes: Bytes::copy_from_slice(body.as_bytes()), kind: BodyKind::Text },
        ..Message::default()
    }
}

fn receive(queue: QueueName, max: u32) -> Receive {
    let (wait_ms, lock_ms, take, hold, per_session) = (0, None, false, None, 100);
    Receive { queue, max, wait_ms, lock_ms, take, hold, per_session }
}

fn bodies(deliveries: &[Delivery]) -> Vec<Bytes> {
    deliveries.iter().map(|d| d.stored.message.body.bytes.clone()).collect()
}

/// Flips one bit at the only place where the data directory contains this text. Returns the file.
#[allow(clippy::disallowed_methods, reason = "simulates a broken disk")]
fn damage(dir: &Path, text: &str) -> String {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut bytes) = std::fs::read(&path) else { continue };
        if let Some(at) = bytes.windows(text.len()).position(|w| w == text.as_bytes()) {
            use std::os::unix::fs::FileExt;
            bytes[at] ^= 1;
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
            return path.file_name().unwrap().to_str().unwrap().to_owned();
        }
    }
    panic!("`{text}` is in no file");
}

async fn look(engine: &Engine, queue: QueueName) -> Vec<malote_engine::PeekedMessage> {
    let peek = Peek { queue, from: Seq(0), max: 100, session: None, state: None };
    engine.peek(peek).await.unwrap().0
}

#[tokio::test]
async fn a_damaged_message_is_dead_lettered_and_the_others_are_delivered() {
    for sessions in [Sessions::None, Sessions::Dynamic] {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let (q, other) = (name("q"), name("other"));
        engine.declare(other.clone(), QueueSpec::default()).await.unwrap();
        // A damaged message goes neither to another queue nor is it dropped.
        let dead_letter = DeadLetterTarget::Queue(other.clone());
        let spec = QueueSpec { sessions, dead_letter, ..QueueSpec::default() };
        engine.declare(q.clone(), spec).await.unwrap();
        let sent = ["first body", "second body", "third body"].map(|b| (q.clone(), message(b)));
        engine.send(sent.into()).await.unwrap();
        let file = damage(dir.path(), "first body");

        let seen = look(&engine, q.clone()).await;
        assert_eq!(seen.iter().map(|s| s.stored.is_ok()).collect::<Vec<_>>(), [false, true, true]);

        // One is asked for: the damaged one is skipped.
        let got = engine.receive(receive(q.clone(), 1)).await.unwrap();
        assert_eq!(bodies(&got), ["second body"]);
        let leases = got.iter().filter_map(|d| d.lease).collect();
        engine.settle(None, leases, Settlement::Complete, None).await.unwrap();
        assert_eq!(bodies(&engine.receive(receive(q.clone(), 9)).await.unwrap()), ["third body"]);
        assert_eq!(engine.damaged(), 1);

        let facts = engine.describe(q.clone()).await.unwrap();
        assert_eq!((facts.ready, facts.locked, facts.dead_lettered), (0, 1, 1));
        let totals = facts.totals;
        assert_eq!((totals.dead_lettered, totals.abandoned, totals.lost), (1, 0, 0));
        assert_eq!(engine.describe(other.clone()).await.unwrap().ready, 0);
        let seen = look(&engine, q.dead_letters()).await;
        let unreadable = seen[0].stored.as_ref().unwrap_err();
        let dead = seen[0].dead().unwrap();
        assert_eq!((dead.reason.as_str(), dead.from_seq), ("Damaged", Seq(1)));
        assert!(dead.text.contains(&file) && unreadable.text.contains(&file), "{dead:?}");

        // Received as a dead letter, it is deferred, once.
        assert!(engine.receive(receive(q.dead_letters(), 9)).await.unwrap().is_empty());
        assert_eq!(look(&engine, q.dead_letters()).await[0].state, MessageState::Deferred);
        assert_eq!(
            engine.redrive(q.clone(), DeadLetterSelection::Oldest(9), None).await.unwrap(),
            0
        );
        running.stop().await;

        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let seen = look(&engine, q.dead_letters()).await;
        assert_eq!(seen[0].dead().map(|dead| dead.reason.as_str()), Some("Damaged"));
        assert_eq!(engine.purge(q.dead_letters()).await.unwrap(), 1);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_consumer_is_notified_of_credit_used_by_a_damaged_message() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let q = name("q");
    engine.declare(q.clone(), QueueSpec::default()).await.unwrap();
    let sent = ["first body", "second body", "third body"].map(|b| (q.clone(), message(b)));
    engine.send(sent.into()).await.unwrap();
    damage(dir.path(), "first body");
    let (connection, mut outbox) = engine.connect();
    let consume = Consume {
        queue: q.clone(),
        wants: Wants::Any { per_session: 1 },
        credit: 2,
        take: false,
        lock_ms: None,
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    let consumer = connection.attach(consume).await.unwrap();
    let mut got = Vec::new();
    while got.len() < 2 {
        match outbox.next().await {
            Some(Outbound::Deliver(_, deliveries)) => got.extend(bodies(&deliveries)),
            Some(Outbound::Damaged(of, 1)) => {
                // Neither message of the credit of two is leased: one was read, one was not.
                assert_eq!(
                    (of, connection.credit(consumer, 1, false).await.unwrap()),
                    (consumer, 0)
                );
            }
            other => panic!("{other:?}"),
        }
    }
    got.sort();
    assert_eq!(got, ["second body", "third body"]);
    connection.close().await;
    running.stop().await;
}

/// Segments so small that a test fills many of them. Only snapshots read the journal.
fn open_small(dir: &Path) -> (Engine, Running) {
    let journal = Options {
        segment_bytes: 128 << 10,
        first_segment_bytes: 64 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 256 << 10,
        scrub_bytes_per_s: 0,
        ..Options::default()
    };
    Engine::open(Settings { journal, ..Settings::at(dir) }).unwrap()
}

/// Traffic on another queue until this many segments were recycled.
async fn recycle(engine: &Engine, segments: u64) {
    let noise = name("noise");
    let _ = engine.declare(noise.clone(), QueueSpec::default()).await.unwrap();
    let goal = engine.disk().recycled + segments;
    for _ in 0..3000 {
        if engine.disk().recycled >= goal {
            return;
        }
        let body = "noise".repeat(2000);
        engine.send((0..4).map(|_| (noise.clone(), message(&body))).collect()).await.unwrap();
        let got = engine.receive(receive(noise.clone(), 4)).await.unwrap();
        let leases = got.iter().filter_map(|d| d.lease).collect();
        engine.settle(None, leases, Settlement::Complete, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no segment was used again: {:?}", engine.disk());
}

fn sessioned() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

#[tokio::test]
async fn messages_of_a_queue_whose_declaration_is_damaged_are_kept_and_can_be_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open_small(dir.path());
    let (before, lost) = (name("before"), name("the-lost-name"));
    engine.declare(before.clone(), QueueSpec::default()).await.unwrap();
    engine.declare(lost.clone(), sessioned()).await.unwrap();
    engine.send(vec![(before.clone(), message("of another queue"))]).await.unwrap();
    for n in 0..5 {
        let one = Message { message_id: Some(format!("id-{n}")), ..message(&format!("body {n}")) };
        engine.send(vec![(lost.clone(), one)]).await.unwrap();
    }
    // Settled messages do not reappear.
    let got = engine.receive(receive(lost.clone(), 1)).await.unwrap();
    let leases = got.iter().filter_map(|d| d.lease).collect();
    engine.settle(None, leases, Settlement::Complete, None).await.unwrap();
    // Deleted regularly: it is not recovered.
    let gone = name("gone");
    engine.declare(gone.clone(), QueueSpec::default()).await.unwrap();
    engine.send(vec![(gone.clone(), message("gone"))]).await.unwrap();
    engine.delete(gone).await.unwrap();
    running.stop().await;
    damage(dir.path(), "the-lost-name");

    let (engine, running) = open_small(dir.path());
    let recovered = |facts: Vec<malote_engine::QueueFacts>| {
        let of_lost = |facts: &malote_engine::QueueFacts| {
            facts.name != name("before") && facts.name != name("the-lost-name")
        };
        facts.into_iter().find(|facts| of_lost(facts) && facts.ready == 4).map(|facts| facts.name)
    };
    let found = recovered(engine.list().await.unwrap()).expect("the messages are in no queue");
    // The application declares its queue again, and runs for a long time.
    engine.declare(lost.clone(), sessioned()).await.unwrap();
    recycle(&engine, 12).await;
    running.stop().await;

    let (engine, running) = open_small(dir.path());
    assert_eq!(recovered(engine.list().await.unwrap()), Some(found.clone()));
    assert!(engine.describe(lost.clone()).await.unwrap().ready == 0);
    let spec = QueueSpec {
        forward_to: Some(Address::Queue(lost.clone())),
        ..engine.describe(found.clone()).await.unwrap().spec
    };
    engine.update(found.clone(), spec).await.unwrap();
    let got =
        engine.receive(Receive { wait_ms: 60_000, ..receive(lost.clone(), 4) }).await.unwrap();
    assert_eq!(bodies(&got), ["body 1", "body 2", "body 3", "body 4"]);
    for (n, delivery) in got.iter().enumerate() {
        let message = &delivery.stored.message;
        assert_eq!(message.message_id.as_deref(), Some(format!("id-{}", n + 1).as_str()));
        assert_eq!(message.session, Some(SessionId::new("one").unwrap()));
    }
    engine.delete(found).await.unwrap();
    assert_eq!(engine.describe(before).await.unwrap().ready, 1);
    running.stop().await;
}

#[tokio::test]
async fn damage_found_while_serving_does_not_stop_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open_small(dir.path());
    let q = name("the-damaged-name");
    engine.declare(q.clone(), sessioned()).await.unwrap();
    let sent = ["first", "second"].map(|body| (q.clone(), message(body)));
    engine.send(sent.into()).await.unwrap();
    assert_eq!(engine.disk().snapshot_bytes, 0);
    let file = damage(dir.path(), "the-damaged-name");
    recycle(&engine, 12).await;
    let facts = engine.disk();
    assert!(facts.snapshot_bytes > 0 && facts.damaged == 1, "{facts:?}");
    running.stop().await;

    // The served state is restored; the damaged file is kept.
    let (engine, running) = open_small(dir.path());
    assert_eq!(engine.describe(q.clone()).await.unwrap().ready, 2);
    assert_eq!(bodies(&engine.receive(receive(q, 2)).await.unwrap()), ["first", "second"]);
    assert!(dir.path().join(&file).exists());
    assert!(dir.path().join(file.replace(".log", ".damaged")).exists());
    running.stop().await;
}
