//! What handlers say, and what becomes of their messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::testing::{Held, TestBroker};
use malote::{
    Attempt, Batch, Body, Error, Failure, Meta, Outcome, QueueSpec, Retry, Saga, State, Text,
    Unknown, Value, Worker,
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

fn empty(dead: u64) -> Held {
    Held { ready: 0, locked: 0, delayed: 0, dead }
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
    async fn take(
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
    let report = broker.drain(worker(&broker).handle(take).state(AtomicU32::new(0))).await.unwrap();
    assert_eq!((report.counts.done, report.counts.started), (1, 1));
    assert_eq!(broker.held(Q).await.unwrap(), empty(0));
}

#[tokio::test]
async fn what_cannot_be_read_dies_at_once_and_says_why() {
    let broker = broker().await;
    broker.malote().send_text(Q, "no json").await.unwrap();
    async fn take(_: Order) {}
    let report = broker.drain(worker(&broker).handle(take)).await.unwrap();
    assert_eq!((report.counts.dead, report.counts.retried), (1, 0));
    let dead = broker.take_dead(Q).await.unwrap().remove(0);
    let (reason, text) = dead.dead.unwrap();
    assert_eq!(reason, "Undecodable");
    assert!(text.contains("Order"), "{text}");
}

#[tokio::test]
async fn a_failure_comes_again_after_its_delay_and_dies_with_its_history() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").id("m").await.unwrap();
    async fn fail() -> Result<(), Failure> {
        let _: u32 = "x".parse()?; // always wrong
        Ok(())
    }
    let make = || worker(&broker).handle(fail).retry(Retry::fixed(Duration::from_secs(10), 3));
    for nth in 1..=2 {
        let report = broker.drain(make()).await.unwrap();
        assert_eq!(report.counts.retried, 1, "attempt {nth}");
        assert_eq!(broker.held(Q).await.unwrap().delayed, 1);
        // Nothing happens before its time.
        broker.advance(Duration::from_secs(9));
        assert_eq!(broker.drain(make()).await.unwrap().counts.started, 0);
        broker.advance(Duration::from_secs(2));
    }
    assert_eq!(broker.drain(make()).await.unwrap().counts.dead, 1);
    let dead = broker.take_dead(Q).await.unwrap().remove(0);
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
async fn panics_and_time_outs_cost_an_attempt_and_never_the_worker() {
    let broker = broker().await;
    for body in ["panic", "hang", "fine"] {
        broker.malote().send_text(Q, body).await.unwrap();
    }
    async fn take(text: String, Attempt(attempt): Attempt) {
        match text.as_str() {
            "panic" if attempt == 1 => panic!("on purpose"),
            "hang" if attempt == 1 => std::future::pending().await,
            _ => {}
        }
    }
    // Whoever does not hang must not be late on a slow machine.
    let worker = worker(&broker).handle(take).timeout(Duration::from_secs(10));
    let report = broker.drain(worker.retry(Retry::at_once(3))).await.unwrap();
    let counts = report.counts;
    assert_eq!((counts.done, counts.panicked, counts.timed_out, counts.retried), (3, 1, 1, 2));
    assert_eq!(report.stuck, 0);
}

#[tokio::test]
async fn snoozing_and_releasing_count_nothing() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").await.unwrap();
    async fn later(Attempt(attempt): Attempt, runs: State<Arc<AtomicU32>>) -> Outcome {
        assert_eq!(attempt, 1);
        match runs.fetch_add(1, Ordering::SeqCst) {
            0 => Outcome::Release,
            1..5 => Outcome::Snooze(Duration::from_secs(3600)),
            _ => Outcome::Done,
        }
    }
    let runs = Arc::new(AtomicU32::new(0));
    for _ in 0..6 {
        broker.drain(worker(&broker).handle(later).state(runs.clone())).await.unwrap();
        broker.advance(Duration::from_secs(3601));
    }
    assert_eq!((runs.load(Ordering::SeqCst), broker.held(Q).await.unwrap()), (6, empty(0)));
}

#[tokio::test]
async fn types_find_their_handlers_and_unknown_ones_wait_for_another_worker() {
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
    let unknown = Unknown { every: Duration::from_secs(5), receives: 3 };
    let make = || worker(&broker).on("a", is_a).on("b", is_b).unknown(unknown);
    let report = broker.drain(make()).await.unwrap();
    assert_eq!((report.counts.done, report.counts.snoozed, report.counts.panicked), (3, 1, 0));
    for (snoozed, dead) in [(1, 0), (0, 1)] {
        broker.advance(Duration::from_secs(6));
        let counts = broker.drain(make()).await.unwrap().counts;
        assert_eq!((counts.snoozed, counts.dead), (snoozed, dead));
    }
    let (reason, text) = broker.take_dead(Q).await.unwrap().remove(0).dead.unwrap();
    let words = (reason.as_str(), text.as_str());
    assert_eq!(words, ("UnknownType", "no worker has a handler for `c`"));
}

#[tokio::test]
async fn a_message_that_takes_workers_with_it_dies() {
    let broker = broker().await;
    broker.malote().send_text(Q, "x").await.unwrap();
    // Three workers that vanish: their locks run out.
    for _ in 0..3 {
        let queue = malote::QueueName::new(Q).unwrap();
        let lock = Duration::from_secs(5);
        let source = broker.malote().broker().open(&queue, lock).await.unwrap();
        assert_eq!(source.fetch(1, Duration::from_secs(60)).await.unwrap().len(), 1);
        broker.advance(Duration::from_secs(6));
    }
    async fn take(_: Body) {
        panic!("nobody should run it");
    }
    let report = broker.drain(worker(&broker).handle(take)).await.unwrap();
    assert_eq!((report.counts.dead, report.counts.started), (1, 0));
    let (reason, _) = broker.take_dead(Q).await.unwrap().remove(0).dead.unwrap();
    assert_eq!(reason, "WorkerLost");
}

/// Of those that were in hand when workers vanished one may be to blame: each runs with nothing else in hand.
#[tokio::test]
async fn a_last_life_is_spent_alone() {
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
    async fn take(meta: malote::Meta, broker: State<Arc<TestBroker>>, runs: State<Arc<AtomicU32>>) {
        assert_eq!(meta.lost(), 2);
        runs.fetch_add(1, Ordering::SeqCst);
        for _ in 0..10 {
            tokio::task::yield_now().await;
            assert_eq!(broker.held(Q).await.unwrap().locked, 1, "others are in hand");
        }
    }
    let (broker, runs) = (Arc::new(broker), Arc::new(AtomicU32::new(0)));
    let mut done = 0;
    for _ in 0..COUNT {
        let worker = worker(&broker).handle(take).slots(4).state(broker.clone());
        let counts = broker.drain(worker.state(runs.clone())).await.unwrap().counts;
        assert_eq!((counts.panicked, counts.dead), (0, 0));
        done += counts.done;
        // Those that could not be alone come back a little later.
        broker.advance(Duration::from_secs(2));
    }
    assert_eq!((done, runs.load(Ordering::SeqCst)), (u64::from(COUNT), COUNT));
}

#[tokio::test]
async fn faults_can_be_asked_for() {
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
async fn what_cannot_work_is_refused_at_the_start() {
    let broker = broker().await;
    async fn take(_: Body) {}
    let refused = |worker: Worker| async { worker.start().await.err().unwrap().to_string() };
    assert!(refused(worker(&broker)).await.contains("no handler"));
    assert!(refused(worker(&broker).handle(take).slots(0)).await.contains("slots must be"));
    assert!(refused(worker(&broker).handle(take).handle(take)).await.contains("one handler"));
    assert!(refused(worker(&broker).handle(take).sessions(5)).await.contains("no sessions"));
    struct Database;
    async fn needs(_: State<Database>) {}
    async fn needs_for_all(_: Batch<Body>, _: State<Database>) {}
    async fn step(data: u32, _: State<Database>) -> Result<u32, Failure> {
        Ok(data)
    }
    let forgotten = refused(worker(&broker).handle(needs)).await;
    assert!(forgotten.contains("Database") && forgotten.contains(".state("), "{forgotten}");
    assert!(refused(worker(&broker).on("a", needs)).await.contains("Database"));
    let batch = worker(&broker).handle_batch(needs_for_all, 10, Duration::ZERO);
    assert!(refused(batch).await.contains("Database"));
    let saga = Saga::named("s").step("one", step);
    assert!(refused(Worker::of_saga(broker.malote(), saga)).await.contains("Database"));
    let given = worker(&broker).state(Database).handle(needs).start().await.unwrap();
    given.stop();
    given.ended().await.unwrap();
    let nowhere = Worker::new(broker.malote(), "nowhere").handle(take);
    assert!(refused(nowhere).await.contains("does not exist"));
    let bad = Worker::new(broker.malote(), "").handle(take);
    assert!(matches!(bad.start().await.err(), Some(Error::Broker(_))));
}
