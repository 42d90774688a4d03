//! Cases that every broker must pass.

use std::time::Duration;

use malote_connectors::{BrokerError, Settle};
use malote_model::{Changes, Message, Properties, QueueSpec, Settlement, Value};

use crate::TestEnv;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NO_WAIT, TIMEOUT, queue, text, to};

pub async fn a_message_is_sent_received_and_completed(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let sent = broker.send(vec![(to(Q), text("hello"))]).await.unwrap();
    assert_eq!((sent.len(), sent[0].duplicate), (1, false));
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(10, TIMEOUT).await.unwrap();
    assert_eq!(received.len(), 1);
    assert_eq!(&received[0].message.body.bytes[..], b"hello");
    assert_eq!((received[0].receives, received[0].failed), (1, 0));
    let done = broker.settle(&queue(Q), vec![Settle::complete(received[0].lease)]).await.unwrap();
    assert_eq!(done, [Ok(())]);
    source.close().await.unwrap();
    let again = env.connect().await.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(again.fetch(10, NO_WAIT).await.unwrap(), []);
}

pub async fn all_fields_of_a_message_are_delivered(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let mut properties = Properties::new();
    properties.set("small", Value::I8(-1));
    properties.set("bytes", Value::Bytes(vec![0, 255].into()));
    properties.set("list", Value::List(vec![Value::Null, Value::F32(0.5)]));
    let some = |text: &str| Some(text.to_owned());
    let sent = Message {
        message_id: some("m-1"),
        key: some("k"),
        subject: some("placed"),
        to: some("t"),
        reply_to: some("r"),
        reply_to_session: some("rs"),
        correlation_id: some("c"),
        content_type: some("text/plain"),
        content_encoding: some("identity"),
        user_id: some("u"),
        app_id: some("a"),
        dedup_id: some("d"),
        properties,
        ttl_ms: Some(3_600_000),
        ..text("hello")
    };
    broker.send(vec![(to(Q), sent.clone())]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0).message;
    let expected = Message { origin_id: some("m-1"), ..sent };
    assert_eq!(received, env.delivered(expected));
}

pub async fn a_queue_is_first_in_first_out(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let all: Vec<_> = (0..50).map(|n| (to(Q), text(&n.to_string()))).collect();
    broker.send(all).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let mut received = Vec::new();
    while received.len() < 50 {
        let some = source.fetch(7, TIMEOUT).await.unwrap();
        assert!((1..=7).contains(&some.len()), "{}", some.len());
        received.extend(some);
    }
    let bodies: Vec<_> = received.iter().map(|d| &d.message.body.bytes[..]).collect();
    let expected: Vec<_> = (0..50).map(|n: u32| n.to_string().into_bytes()).collect();
    assert_eq!(bodies, expected);
}

pub async fn an_abandoned_message_is_counted_and_redelivered(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let first = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let settlement = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
    let item = Settle { lease: first.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
    let second = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!((second.seq, second.receives, second.failed), (first.seq, 2, 1));
    assert_ne!(second.lease, first.lease);
}

pub async fn a_lease_can_be_settled_only_once(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let complete = vec![Settle::complete(received.lease)];
    assert_eq!(broker.settle(&queue(Q), complete.clone()).await.unwrap(), [Ok(())]);
    let again = broker.settle(&queue(Q), complete).await.unwrap();
    assert_eq!(again, [Err(BrokerError::LockLost)]);
    let renewed = broker.renew(&queue(Q), vec![received.lease], LOCK).await.unwrap();
    assert_eq!(renewed, [Err(BrokerError::LockLost)]);
}

pub async fn each_lease_is_settled_independently(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let all: Vec<_> = (0..4).map(|n| (to(Q), text(&n.to_string()))).collect();
    broker.send(all).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let mut received = Vec::new();
    while received.len() < 4 {
        received.extend(source.fetch(4, TIMEOUT).await.unwrap());
    }
    broker.settle(&queue(Q), vec![Settle::complete(received[1].lease)]).await.unwrap();
    let failed = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
    let items = vec![
        Settle::complete(received[0].lease),
        Settle::complete(received[1].lease),
        Settle { lease: received[2].lease, settlement: failed, state: None },
        Settle::complete(received[3].lease),
    ];
    let done = broker.settle(&queue(Q), items).await.unwrap();
    assert_eq!(done, [Ok(()), Err(BrokerError::LockLost), Ok(()), Ok(())]);
    let back = source.fetch(4, TIMEOUT).await.unwrap();
    assert_eq!((back.len(), &back[0].message.body.bytes[..]), (1, &b"2"[..]));
}

pub async fn a_fetch_waits(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let waiting = tokio::spawn(async move { source.fetch(1, TIMEOUT).await.unwrap().len() });
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    assert_eq!(waiting.await.unwrap(), 1);
}

pub async fn a_dropped_fetch_leases_nothing(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), source.fetch(1, TIMEOUT)).await;
    assert!(waited.is_err(), "the queue was not empty");
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    // The message may have been pushed to the dropped source, which then releases it.
    drop(source);
    let other = env.connect().await.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(other.fetch(1, TIMEOUT).await.unwrap().len(), 1);
}

pub async fn closing_releases_prefetched_messages(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let all: Vec<_> = (0..8).map(|n| (to(Q), text(&n.to_string()))).collect();
    broker.send(all).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let first = source.fetch(8, TIMEOUT).await.unwrap();
    broker
        .settle(&queue(Q), first.iter().map(|d| Settle::release(d.lease)).collect())
        .await
        .unwrap();
    source.close().await.unwrap();
    let other = env.connect().await.open(&queue(Q), LOCK).await.unwrap();
    let mut received = 0;
    while received < 8 {
        let some = other.fetch(8, TIMEOUT).await.unwrap();
        assert!(!some.is_empty(), "only {received} messages were redelivered");
        assert!(some.iter().all(|d| d.failed == 0));
        received += some.len();
    }
}

pub async fn an_unknown_queue_is_refused(env: &TestEnv) {
    let broker = env.connect().await;
    assert_eq!(refused(broker.open(&queue("nowhere"), LOCK).await), "queue_not_found");
    assert_eq!(refused(broker.send(vec![(to("nowhere"), text("x"))]).await), "queue_not_found");
    let accepted = broker.accept(&queue("nowhere"), None, LOCK, NO_WAIT).await;
    assert_eq!(refused(accepted), "queue_not_found");
}
