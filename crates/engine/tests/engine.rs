//! The engine's API: threads, a real disk, restarts.
#![allow(clippy::unwrap_used)] // a test

use std::time::Duration;

use bytes::Bytes;
use malote_engine::{
    Consume, DeadLetterSelection, Engine, Outbound, Peek, Receive, Settings, Wants,
};
use malote_model::{
    Body, BodyKind, Changes, Dedup, LeaseToken, Message, Properties, QueueName, QueueSpec, Seq,
    SessionId, Sessions, Settlement, TopicName, TopicSpec, Value, limits,
};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(body: &str, session: Option<&str>) -> Message {
    Message {
        session: session.map(|s| SessionId::new(s).unwrap()),
        body: Body { bytes: Bytes::copy_from_slice(body.as_bytes()), kind: BodyKind::Text },
        ..Message::default()
    }
}

fn receive(queue: &str, max: u32, wait_ms: u64) -> Receive {
    Receive {
        queue: name(queue),
        max,
        wait_ms,
        lock_ms: None,
        take: false,
        hold: None,
        per_session: 1,
    }
}

#[tokio::test]
async fn sent_messages_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    assert!(engine.declare(name("q"), QueueSpec::default()).await.unwrap());
    let sent = engine
        .send((0..100).map(|n| (name("q"), message(&format!("m{n}"), None))).collect())
        .await
        .unwrap();
    assert_eq!(sent.len(), 100);
    let got = engine.receive(receive("q", 10, 0)).await.unwrap();
    let leases: Vec<_> = got.iter().filter_map(|d| d.lease).collect();
    let settled =
        engine.settle(None, leases[..5].to_vec(), Settlement::Complete, None).await.unwrap();
    assert!(settled.iter().all(Result::is_ok));
    running.stop().await;

    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let facts = engine.describe(name("q")).await.unwrap();
    assert_eq!((facts.ready, facts.locked, facts.totals.completed), (90, 5, 5));
    // Free-standing leases survive.
    let settled =
        engine.settle(None, leases[5..].to_vec(), Settlement::Complete, None).await.unwrap();
    assert!(settled.iter().all(Result::is_ok));
    let next = engine.receive(receive("q", 1, 0)).await.unwrap();
    assert_eq!(next[0].stored.message.body.bytes, "m10");
    assert_eq!(next[0].stored.message.message_id, Some(sent[10].message_id.clone()));
    running.stop().await;
}

#[tokio::test]
async fn a_receive_that_is_cancelled_while_it_waits_takes_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    for _ in 0..20 {
        let gone =
            tokio::time::timeout(Duration::from_millis(1), engine.receive(receive("q", 1, 10_000)))
                .await;
        assert!(gone.is_err());
    }
    engine.send(vec![(name("q"), message("x", None))]).await.unwrap();
    let got = engine.receive(receive("q", 1, 60_000)).await.unwrap();
    assert_eq!((got.len(), got[0].failed), (1, 0));
    running.stop().await;
}

#[tokio::test]
async fn pushed_messages_follow_credit_and_come_back_when_the_connection_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    engine.declare(name("s"), spec).await.unwrap();
    let (connection, mut outbox) = engine.connect();
    let waiting =
        async { connection.accept(name("s"), None, 10_000, None).await.unwrap().unwrap() };
    let sending = async {
        let all = (0..5).map(|n| (name("s"), message(&format!("m{n}"), Some("one"))));
        engine.send(all.collect()).await.unwrap();
    };
    let (held, ()) = tokio::join!(waiting, sending);
    let (wants, credit) = (Wants::Held(held.hold), 3);
    let consume = Consume {
        queue: name("s"),
        wants,
        credit,
        take: false,
        lock_ms: None,
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    connection.attach(consume).await.unwrap();
    let Some(Outbound::Deliver(_, got)) = outbox.next().await else { panic!("no delivery") };
    let bodies: Vec<_> = got.iter().map(|d| d.stored.message.body.bytes.clone()).collect();
    assert_eq!(bodies, ["m0", "m1", "m2"]);
    drop(connection);
    let held = engine.accept(name("s"), None, 60_000, None).await.unwrap().unwrap();
    let mut again = receive("s", 9, 0);
    again.hold = Some(held.hold);
    let got = engine.receive(again).await.unwrap();
    assert_eq!((got.len(), got[0].failed, got[4].failed), (5, 1, 0));
    running.stop().await;
}

#[tokio::test]
async fn dead_letters_are_redriven_and_edited() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    engine
        .send((0..3).map(|n| (name("q"), message(&format!("m{n}"), None))).collect())
        .await
        .unwrap();
    let got = engine.receive(receive("q", 3, 0)).await.unwrap();
    let leases = got.iter().filter_map(|d| d.lease).collect();
    let dead = Settlement::DeadLetter {
        reason: "bad".into(),
        text: "no".into(),
        changes: Default::default(),
    };
    engine.settle(None, leases, dead, None).await.unwrap();
    let peek =
        Peek { queue: name("q").dead_letters(), from: Seq(0), max: 10, session: None, state: None };
    let (seen, _) = engine.peek(peek).await.unwrap();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].stored.as_ref().unwrap().dead.as_ref().unwrap().reason, "bad");
    engine
        .resend(name("q").dead_letters(), Seq(1), name("q"), message("edited", None))
        .await
        .unwrap();
    assert_eq!(engine.redrive(name("q"), DeadLetterSelection::Oldest(10), None).await.unwrap(), 2);
    let got = engine.receive(receive("q", 9, 0)).await.unwrap();
    let bodies: Vec<_> = got.iter().map(|d| d.stored.message.body.bytes.clone()).collect();
    assert_eq!(bodies, ["edited", "m1", "m2"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_senders_and_receivers_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    let senders: Vec<_> = (0..8)
        .map(|s| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for n in 0..200 {
                    engine
                        .send(vec![(name("q"), message(&format!("{s}-{n}"), None))])
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let got = engine.receive(receive("q", 32, 1_000)).await.unwrap();
                    if got.is_empty() {
                        return seen;
                    }
                    seen.extend(got.iter().map(|d| d.stored.message.body.bytes.clone()));
                    let leases = got.iter().filter_map(|d| d.lease).collect();
                    let each =
                        engine.settle(None, leases, Settlement::Complete, None).await.unwrap();
                    assert!(each.iter().all(Result::is_ok));
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let mut all = Vec::new();
    for receiver in receivers {
        all.extend(receiver.await.unwrap());
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 1600);
    running.stop().await;
}

#[tokio::test]
async fn a_token_of_another_queue_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("mine"), QueueSpec::default()).await.unwrap();
    engine.declare(name("yours"), QueueSpec::default()).await.unwrap();
    engine.send(vec![(name("yours"), message("x", None))]).await.unwrap();
    let lease = engine.receive(receive("yours", 1, 0)).await.unwrap()[0].lease.unwrap();
    let (mine, yours) = (name("mine"), name("yours"));
    assert!(
        engine.settle(Some(&mine), vec![lease], Settlement::Complete, None).await.unwrap()[0]
            .is_err()
    );
    assert!(engine.renew(Some(&mine), vec![lease], None).await.unwrap()[0].is_err());
    assert!(
        engine.settle(Some(&yours), vec![lease], Settlement::Complete, None).await.unwrap()[0]
            .is_ok()
    );
    running.stop().await;
}

#[tokio::test]
async fn staged_work_of_a_transaction_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let lease: LeaseToken = "0".repeat(32).parse().unwrap();
    let mut properties = Properties::new();
    properties.set("large", Value::Bytes(vec![0; 60 << 10].into()));
    let changes = Changes { properties };
    let large = [
        Settlement::Abandon { delay_ms: 0, changes: changes.clone() },
        Settlement::Defer { changes: changes.clone() },
        Settlement::DeadLetter { reason: String::new(), text: String::new(), changes },
    ];
    for settlement in large {
        let mut transaction = engine.transaction();
        let staged = (0..4096)
            .take_while(|_| transaction.settle(None, lease, settlement.clone()).is_ok())
            .count();
        // 16 MiB by 60 KiB each.
        assert!((200..280).contains(&staged), "{staged}");
    }
    let mut transaction = engine.transaction();
    let small = (0..5000)
        .take_while(|_| transaction.settle(None, lease, Settlement::Complete).is_ok())
        .count();
    assert_eq!(small, limits::SEND_BATCH_MAX);
    // Results of sends to queues and topics differ in their copies.
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    let topic = TopicName::new("t").unwrap();
    engine.declare_topic(topic.clone(), TopicSpec::default()).await.unwrap();
    let mut transaction = engine.transaction();
    transaction.send(name("q"), message("x", None)).unwrap();
    transaction.send(topic, message("y", None)).unwrap();
    let sent = transaction.commit().await.unwrap();
    assert_eq!((sent[0].copies, sent[1].copies), (None, Some(0)));
    running.stop().await;
}

#[tokio::test]
async fn messages_that_no_consumer_saw_return_uncounted() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    // No message is returned because its lock expires.
    let spec = QueueSpec { lock_ms: 3_600_000, failed_max: Some(1), ..QueueSpec::default() };
    for free_standing in [true, false] {
        let queue = name(if free_standing { "free" } else { "bound" });
        engine.declare(queue.clone(), spec.clone()).await.unwrap();
        let all = (0..5).map(|n| (queue.clone(), message(&format!("m{n}"), None)));
        engine.send(all.collect()).await.unwrap();
        let (connection, mut outbox) = engine.connect();
        let consume = Consume {
            queue: queue.clone(),
            wants: Wants::Any { per_session: 1 },
            credit: 0,
            take: false,
            lock_ms: None,
            free_standing,
            priority: 0,
            exclusive: false,
        };
        let consumer = connection.attach(consume).await.unwrap();
        connection.credit(consumer, 2, false).await.unwrap();
        let Some(Outbound::Deliver(_, seen)) = outbox.next().await else { panic!("no delivery") };
        connection.credit(consumer, 3, false).await.unwrap();
        while engine.describe(queue.clone()).await.unwrap().locked < 5 {
            tokio::task::yield_now().await;
        }
        drop(outbox);
        connection.close().await;
        let back = if free_standing { 5 - seen.len() } else { 5 };
        let mut got = engine.receive(receive(queue.as_str(), 9, 10_000)).await.unwrap();
        while got.len() < back {
            got.extend(engine.receive(receive(queue.as_str(), 9, 10_000)).await.unwrap());
        }
        assert_eq!((got.len(), got.iter().map(|d| d.failed).max()), (back, Some(0)));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_cancelled_read_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    let (connection, mut outbox) = engine.connect();
    let consume = Consume {
        queue: name("q"),
        wants: Wants::Any { per_session: 1 },
        credit: 50,
        take: false,
        lock_ms: None,
        free_standing: true,
        priority: 0,
        exclusive: false,
    };
    connection.attach(consume).await.unwrap();
    let all = (0..50).map(|n| (name("q"), message(&format!("m{n}"), None)));
    engine.send(all.collect()).await.unwrap();
    let mut got = 0;
    while got < 50 {
        // The caller drops the future again and again.
        let next = tokio::time::timeout(std::time::Duration::from_micros(1), outbox.next()).await;
        if let Ok(Some(Outbound::Deliver(_, deliveries))) = next {
            got += deliveries.len();
        }
    }
    connection.close().await;
    running.stop().await;
}

#[tokio::test]
async fn old_messages_are_dropped_and_a_duplicate_gets_the_first_id() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let dedup = Some(Dedup { window_ms: 600_000, per_session: false, content: false });
    let spec = QueueSpec { dedup, sessions: Sessions::Dynamic, ..QueueSpec::default() };
    engine.declare(name("s"), spec).await.unwrap();
    let known = || Message { dedup_id: Some("k".into()), ..message("x", Some("a")) };
    let first = engine.send(vec![(name("s"), known())]).await.unwrap().remove(0);
    let later = engine.now().plus_ms(1);
    while engine.now() < later {
        tokio::task::yield_now().await;
    }
    engine.send(vec![(name("s"), message("y", Some("b")))]).await.unwrap();
    let purged = engine.purge_older(name("s"), None, later, 100).await.unwrap();
    assert_eq!((purged, engine.describe(name("s")).await.unwrap().ready), (1, 1));
    running.stop().await;
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    let again = engine.send(vec![(name("s"), known())]).await.unwrap().remove(0);
    assert!(again.duplicate && !first.duplicate);
    assert_eq!((again.message_id, again.seq), (first.message_id, first.seq));
    running.stop().await;
}
