//! A message that the disk holds no longer whole, under a running engine.
#![allow(clippy::unwrap_used)] // a test

use std::path::Path;

use bytes::Bytes;
use malote_engine::{
    Consume, Delivery, Engine, MessageState, Outbound, Peek, Receive, Settings, Wants, Which,
};
use malote_model::{
    Body, BodyKind, DeadLetterTarget, Message, QueueName, QueueSpec, Seq, SessionId, Sessions,
    Settlement,
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

/// Flips one bit of the only place where the data directory has this text. Tells the file.
#[allow(clippy::disallowed_methods, reason = "what a broken disk does comes through no door")]
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

async fn look(engine: &Engine, queue: QueueName) -> Vec<malote_engine::Seen> {
    let peek = Peek { queue, from: Seq(0), max: 100, session: None, state: None };
    engine.peek(peek).await.unwrap().0
}

#[tokio::test]
async fn a_damaged_message_goes_to_the_dead_letters_and_the_others_arrive() {
    for sessions in [Sessions::None, Sessions::Dynamic] {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let (q, other) = (name("q"), name("other"));
        engine.declare(other.clone(), QueueSpec::default()).await.unwrap();
        // Neither another queue nor dropping is for what cannot be read.
        let dead_letter = DeadLetterTarget::Queue(other.clone());
        let spec = QueueSpec { sessions, dead_letter, ..QueueSpec::default() };
        engine.declare(q.clone(), spec).await.unwrap();
        let sent = ["first body", "second body", "third body"].map(|b| (q.clone(), message(b)));
        engine.send(sent.into()).await.unwrap();
        let file = damage(dir.path(), "first body");

        let seen = look(&engine, q.clone()).await;
        assert_eq!(seen.iter().map(|s| s.stored.is_ok()).collect::<Vec<_>>(), [false, true, true]);

        // One is asked for: the damaged one is passed over.
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

        // Received as a dead letter it is set aside, once.
        assert!(engine.receive(receive(q.dead_letters(), 9)).await.unwrap().is_empty());
        assert_eq!(look(&engine, q.dead_letters()).await[0].state, MessageState::Deferred);
        assert_eq!(engine.redrive(q.clone(), Which::Oldest(9), None).await.unwrap(), 0);
        running.stop().await;

        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let seen = look(&engine, q.dead_letters()).await;
        assert_eq!(seen[0].dead().map(|dead| dead.reason.as_str()), Some("Damaged"));
        assert_eq!(engine.purge(q.dead_letters()).await.unwrap(), 1);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_consumer_is_told_of_the_credit_that_a_damaged_message_used() {
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
    };
    let consumer = connection.attach(consume).await.unwrap();
    let mut got = Vec::new();
    while got.len() < 2 {
        match outbox.next().await {
            Some(Outbound::Deliver(_, deliveries)) => got.extend(bodies(&deliveries)),
            Some(Outbound::Damaged(of, 1)) => {
                // Neither message of the credit of two is out: one was read, one was not.
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
