//! The results of handlers, and what happens to their messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::testing::{TestBroker, TestQueueCounts};
use malote::{
    Attempt, Batch, Body, Error, Failure, Meta, Outcome, QueueSpec, Retry, Saga, State, Text,
    UnknownTypes, Value, Worker,
};
use serde::{Deserialize, Serialize};

const Q: &str = "orders";

async fn broker() -> TestBroker {
    let broker = TestBroker::new().unwrap();
    let spec = QueueSpec { failed_max: None, ..QueueSpec::default() };
    broker.malote().declare(Q, spec).await.unwrap();
    broker
}

fn worker(broker: &TestBroker) -> Worker {
    Worker::new(broker.malote(), Q).name("test")
}

fn empty(dead: u64) -> TestQueueCounts {
    TestQueueCounts { ready: 0, locked: 0, delayed: 0, dead }
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: u32,
}

#[tokio::test]
async fn arguments_come_from_the_message_and_the_worker() {
    let broker = broker().await;
    let send = broker.malote().send(Q, &Order { id: 7 }).id("m-7").subject("placed");
    send.property("from", Value::String("web".into())).await.unwrap();
    async fn handle(
        order: Order,
        Text(text): Text,
        Body(bytes): Body,
        meta: Meta,
        Attempt(attempt): Attempt,
        seen: State<AtomicU32>,
    ) {
        assert_eq!((text.as_str(), &bytes[..]), (r#"{"id":7}"#, &br#"{"id":7}"#[..]));
        assert_eq!(meta.message().subject.as_deref(), Some("placed"));
        assert_eq!(meta.message().properties.get("from"), Some(&Value::String("web".into())));
        assert_eq!((meta.idempotency_key(), meta.attempt(), attempt), ("m-7", 1, 1));
        seen.fetch_add(order.id, Ordering::SeqCst);
    }
    let report =
        broker.drain(worker(&broker).handle(handle).state(AtomicU32::new(0))).await.unwrap();
    assert_eq!((report.counts.done, report.counts.started), (1, 1));
    assert_eq!(broker.counts(Q).await.unwrap(), empty(0));
}

#[tokio::test]
async fn an_undecodable_body_is_dead_lettered_at_once_with_the_reason() {
    let broker = broker().await;
    broker.malote().send_text(Q, "no json").await.unwrap();
    async fn handle(_: Order) {}
    let report = broker.drain(worker(&broker).handle(handle)).await.unwrap();
    assert_eq!((report.counts.dead, report.counts.retried), (1, 0));
    let dead = broker.take_dead_letters(Q).await.unwrap().remove(0);
    let (reason, text) = dead.dead.unwrap();
    assert_eq!(reason, "Undecodable");
    assert!(text.contains("Order"), "{text}");
}

#[tokio::test]
async fn a_failed_message_is_retried_after_its_delay_and_dead_lettered_with_its_history() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").id("m").await.unwrap();
    async fn fail() -> Result<(), Failure> {
        let _: u32 = "x".parse()?; // always fails
        Ok(())
    }
    let make = || worker(&broker).handle(fail).retry(Retry::fixed(Duration::from_secs(10), 3));
    for nth in 1..=2 {
        let report = broker.drain(make()).await.unwrap();
        assert_eq!(report.counts.retried, 1, "attempt {nth}");
        assert_eq!(broker.counts(Q).await.unwrap().delayed, 1);
        // The message is not delivered before its delay is over.
        broker.advance(Duration::from_secs(9));
        assert_eq!(broker.drain(make()).await.unwrap().counts.started, 0);
        broker.advance(Duration::from_secs(2));
    }
    assert_eq!(broker.drain(make()).await.unwrap().counts.dead, 1);
    let dead = broker.take_dead_letters(Q).await.unwrap().remove(0);
    let (reason, text) = dead.dead.unwrap();
    assert_eq!(reason, "MaxAttempts");
    assert_eq!(text, "attempt 3 of 3 failed: invalid digit found in string");
    let history = dead.message.properties.get("malote-history");
    let Some(Value::List(history)) = history else { panic!("{history:?}") };
    let attempts: Vec<_> = history
        .iter()
        .map(|entry| {
            let Value::Map(entry) = entry else { panic!("{entry:?}") };
            let field = |name| entry.iter().find(|(have, _)| have == name).unwrap().1.clone();
            assert_eq!(field("worker"), Value::String("test".into()));
            assert_eq!(field("error"), Value::String("invalid digit found in string".into()));
            field("attempt")
        })
        .collect();
    assert_eq!(attempts, [Value::I64(1), Value::I64(2), Value::I64(3)]);
}

#[tokio::test]
async fn panics_and_time_outs_are_failed_attempts_and_do_not_end_the_worker() {
    let broker = broker().await;
    for body in ["panic", "hang", "fine"] {
        broker.malote().send_text(Q, body).await.unwrap();
    }
    async fn handle(text: String, Attempt(attempt): Attempt) {
        match text.as_str() {
            "panic" if attempt == 1 => panic!("on purpose"),
            "hang" if attempt == 1 => std::future::pending().await,
            _ => {}
        }
    }
    // Long enough for the other messages on a slow machine.
    let worker = worker(&broker).handle(handle).timeout(Duration::from_secs(10));
    let report = broker.drain(worker.retry(Retry::at_once(3))).await.unwrap();
    let counts = report.counts;
    assert_eq!((counts.done, counts.panicked, counts.timed_out, counts.retried), (3, 1, 1, 2));
    assert_eq!(report.stuck, 0);
}

#[tokio::test]
async fn snooze_and_release_do_not_count_as_attempts() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").await.unwrap();
    async fn snooze(Attempt(attempt): Attempt, runs: State<Arc<AtomicU32>>) -> Outcome {
        assert_eq!(attempt, 1);
        match runs.fetch_add(1, Ordering::SeqCst) {
            0 => Outcome::Release,
            1..5 => Outcome::Snooze(Duration::from_secs(3600)),
            _ => Outcome::Done,
        }
    }
    let runs = Arc::new(AtomicU32::new(0));
    for _ in 0..6 {
        broker.drain(worker(&broker).handle(snooze).state(runs.clone())).await.unwrap();
        broker.advance(Duration::from_secs(3601));
    }
    assert_eq!((runs.load(Ordering::SeqCst), broker.counts(Q).await.unwrap()), (6, empty(0)));
}

#[tokio::test]
async fn handlers_are_selected_by_type_and_unknown_types_wait_for_another_worker() {
    let broker = broker().await;
    for kind in ["a", "b", "c"] {
        broker.malote().send_text(Q, kind).subject(kind).await.unwrap();
    }
    let typed = broker.malote().send_text(Q, "a").property("type", Value::String("a".into()));
    typed.await.unwrap();
    async fn is_a(text: String) {
        assert_eq!(text, "a");
    }
    async fn is_b(text: String) {
        assert_eq!(text, "b");
    }
    let unknown = UnknownTypes { delay: Duration::from_secs(5), receives: 3 };
    let make = || worker(&broker).on("a", is_a).on("b", is_b).unknown_types(unknown);
    let report = broker.drain(make()).await.unwrap();
    assert_eq!((report.counts.done, report.counts.snoozed, report.counts.panicked), (3, 1, 0));
    for (snoozed, dead) in [(1, 0), (0, 1)] {
        broker.advance(Duration::from_secs(6));
        let counts = broker.drain(make()).await.unwrap().counts;
        assert_eq!((counts.snoozed, counts.dead), (snoozed, dead));
    }
    let (reason, text) = broker.take_dead_letters(Q).await.unwrap().remove(0).dead.unwrap();
    let words = (reason.as_str(), text.as_str());
    assert_eq!(words, ("UnknownType", "no worker has a handler for messages of type `c`"));
}

#[tokio::test]
async fn a_message_that_was_lost_with_three_workers_is_dead_lettered() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").await.unwrap();
    // Three workers are lost: their locks expire.
    for _ in 0..3 {
        let queue = malote::QueueName::new(Q).unwrap();
        let lock = Duration::from_secs(5);
        let source = broker.malote().broker().open(&queue, lock).await.unwrap();
        assert_eq!(source.fetch(1, Duration::from_secs(60)).await.unwrap().len(), 1);
        broker.advance(Duration::from_secs(6));
    }
    async fn handle(_: Body) {
        panic!("the handler must not run");
    }
    let report = broker.drain(worker(&broker).handle(handle)).await.unwrap();
    assert_eq!((report.counts.dead, report.counts.started), (1, 0));
    let (reason, _) = broker.take_dead_letters(Q).await.unwrap().remove(0).dead.unwrap();
    assert_eq!(reason, "WorkerLost");
}

/// One of the messages that were fetched when two workers were lost may be the cause. Each is handled alone.
#[tokio::test]
async fn a_message_before_its_last_allowed_loss_is_handled_alone() {
    const COUNT: u32 = 6;
    let broker = broker().await;
    for n in 0..COUNT {
        broker.malote().send_text(Q, n.to_string()).await.unwrap();
    }
    let queue = malote::QueueName::new(Q).unwrap();
    for _ in 0..2 {
        let source = broker.malote().broker().open(&queue, Duration::from_secs(5)).await.unwrap();
        let mut out = 0;
        while out < COUNT as usize {
            out += source.fetch(COUNT, Duration::from_secs(60)).await.unwrap().len();
        }
        broker.advance(Duration::from_secs(6));
    }
    async fn handle(
        meta: malote::Meta,
        broker: State<Arc<TestBroker>>,
        runs: State<Arc<AtomicU32>>,
    ) {
        assert_eq!(meta.lost(), 2);
        runs.fetch_add(1, Ordering::SeqCst);
        for _ in 0..10 {
            tokio::task::yield_now().await;
            assert_eq!(broker.counts(Q).await.unwrap().locked, 1, "other messages are fetched");
        }
    }
    let (broker, runs) = (Arc::new(broker), Arc::new(AtomicU32::new(0)));
    let mut done = 0;
    for _ in 0..COUNT {
        let worker = worker(&broker).handle(handle).slots(4).state(broker.clone());
        let counts = broker.drain(worker.state(runs.clone())).await.unwrap().counts;
        assert_eq!((counts.panicked, counts.dead), (0, 0));
        done += counts.done;
        // Messages that could not be isolated are delivered again a little later.
        broker.advance(Duration::from_secs(2));
    }
    assert_eq!((done, runs.load(Ordering::SeqCst)), (u64::from(COUNT), COUNT));
}

#[tokio::test]
async fn lost_settlements_and_repeated_messages_can_be_simulated() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").await.unwrap();
    async fn count(runs: State<Arc<AtomicU32>>) {
        runs.fetch_add(1, Ordering::SeqCst);
    }
    let runs = Arc::new(AtomicU32::new(0));
    broker.lose_settlements(2);
    broker.repeat_messages(1);
    let report = broker.drain(worker(&broker).handle(count).state(runs.clone())).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), report.counts.lost, report.counts.done), (4, 2, 2));
}

#[tokio::test]
async fn invalid_workers_are_refused_at_start() {
    let broker = broker().await;
    async fn handle(_: Body) {}
    let refused = |worker: Worker| async { worker.start().await.err().unwrap().to_string() };
    assert!(refused(worker(&broker)).await.contains("no handler"));
    assert!(refused(worker(&broker).handle(handle).slots(0)).await.contains("number of slots"));
    assert!(
        refused(worker(&broker).handle(handle).handle(handle))
            .await
            .contains("more than one handler")
    );
    assert!(refused(worker(&broker).handle(handle).sessions(5)).await.contains("no sessions"));
    struct Database;
    async fn takes_database(_: State<Database>) {}
    async fn takes_database_for_batch(_: Batch<Body>, _: State<Database>) {}
    async fn step(data: u32, _: State<Database>) -> Result<u32, Failure> {
        Ok(data)
    }
    let forgotten = refused(worker(&broker).handle(takes_database)).await;
    assert!(forgotten.contains("Database") && forgotten.contains(".state("), "{forgotten}");
    assert!(refused(worker(&broker).on("a", takes_database)).await.contains("Database"));
    let batch = worker(&broker).handle_batch(takes_database_for_batch, 10, Duration::ZERO);
    assert!(refused(batch).await.contains("Database"));
    let saga = Saga::named("s").step("one", step);
    assert!(refused(Worker::of_saga(broker.malote(), saga)).await.contains("Database"));
    let given = worker(&broker).state(Database).handle(takes_database).start().await.unwrap();
    given.stop();
    given.ended().await.unwrap();
    let nowhere = Worker::new(broker.malote(), "nowhere").handle(handle);
    assert!(refused(nowhere).await.contains("does not exist"));
    let bad = Worker::new(broker.malote(), "").handle(handle);
    assert!(matches!(bad.start().await.err(), Some(Error::Broker(_))));
}
