//! Handlers that handle_all several messages in one call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::testing::{TestBroker, TestQueueCounts};
use malote::{
    Address, Batch, Error, Failure, Message, Outcome, QueueName, QueueSpec, Retry, SessionId,
    State, Text, Worker,
};

use crate::{until, until_counts};

const Q: &str = "readings";
const HOUR: Duration = Duration::from_secs(3600);
/// Long enough for all sent messages to join a batch on a slow machine.
const GATHER: Duration = Duration::from_secs(5);

async fn broker(sessions: bool) -> TestBroker {
    let broker = TestBroker::new().unwrap();
    let sessions = match sessions {
        true => malote::model::Sessions::Dynamic,
        false => malote::model::Sessions::None,
    };
    let spec = QueueSpec { failed_max: None, sessions, ..QueueSpec::default() };
    broker.malote().declare(Q, spec).await.unwrap();
    broker
}

fn message(session: Option<&str>, subject: Option<&str>, body: &str) -> (Address, Message) {
    let body = malote::model::Body { bytes: body.to_owned().into(), ..Default::default() };
    let session = session.map(|session| SessionId::new(session).unwrap());
    let subject = subject.map(str::to_owned);
    let to = Address::Queue(QueueName::new(Q).unwrap());
    (to, Message { session, subject, body, ..Message::default() })
}

async fn send(broker: &TestBroker, session: Option<&str>, bodies: impl Iterator<Item = u32>) {
    let all = bodies.map(|body| message(session, None, &body.to_string())).collect();
    broker.malote().send_all(all).await.unwrap();
}

/// The bodies of every call.
type Calls = Arc<Mutex<Vec<Vec<u32>>>>;

async fn record(batch: Batch<u32>, calls: State<Calls>) {
    calls.lock().unwrap().push(batch.iter().map(|one| one.value).collect());
}

fn empty(dead: u64) -> TestQueueCounts {
    TestQueueCounts { ready: 0, locked: 0, delayed: 0, dead }
}

#[tokio::test]
async fn full_batches_do_not_wait_and_the_last_waits_for_a_limited_time() {
    let broker = broker(false).await;
    send(&broker, None, 0..50).await;
    let calls = Calls::default();
    // Only the last batch, which is not full, waits.
    let worker = Worker::new(broker.malote(), Q)
        .handle_batch(record, 16, GATHER)
        .slots(1)
        .state(calls.clone());
    let report = broker.drain(worker).await.unwrap();
    assert_eq!((report.counts.done, report.counts.started), (50, 50));
    let calls = calls.lock().unwrap();
    assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16, 2]);
    assert_eq!(calls.concat(), (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn messages_that_arrive_while_a_batch_waits_join_it() {
    let broker = broker(false).await;
    let calls = Calls::default();
    let worker = Worker::new(broker.malote(), Q).lock(4 * HOUR).state(calls.clone());
    let running = worker.handle_batch(record, 3, HOUR).slots(8).start().await.unwrap();
    for n in 0..6 {
        send(&broker, None, n..n + 1).await;
    }
    until("full batches are handled", async || running.counts().done == 6).await;
    // A batch that is not full when the worker stops is not started.
    send(&broker, None, 6..7).await;
    until("the message is locked", async || broker.counts(Q).await.unwrap().locked > 0).await;
    running.stop();
    let counts = running.ended().await.unwrap().counts;
    assert_eq!((counts.started, counts.done), (6, 6));
    assert_eq!(calls.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    until_counts(&broker, Q, TestQueueCounts { ready: 1, ..empty(0) }).await;
}

/// Another slot handles the remaining messages while the first batch is running.
#[tokio::test]
async fn messages_beyond_a_full_batch_go_to_another_slot() {
    let broker = broker(false).await;
    async fn handle_all(batch: Batch<u32>, go: State<Arc<tokio::sync::Notify>>) {
        if batch.iter().any(|one| one.value == 0) {
            go.notified().await;
        }
    }
    let go = Arc::new(tokio::sync::Notify::new());
    let worker = Worker::new(broker.malote(), Q).slots(3).state(go.clone());
    let worker = worker.handle_batch(handle_all, 2, Duration::from_millis(100));
    let running = worker.start().await.unwrap();
    send(&broker, None, 0..1).await;
    send(&broker, None, 1..4).await;
    until("another slot handles two messages", async || running.counts().done >= 2).await;
    go.notify_one();
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 4);
}

#[tokio::test]
async fn each_message_has_its_own_outcome() {
    let broker = broker(false).await;
    for body in ["done", "again", "dead", "later", "no number"] {
        broker.malote().send_all(vec![message(None, None, body)]).await.unwrap();
    }
    async fn handle_all(batch: Batch<Text>) -> Vec<Outcome> {
        let each = batch.into_iter().map(|one| match one.value.0.as_str() {
            "again" if one.meta.attempt() == 1 => Failure::retry("not yet").into(),
            "dead" => Outcome::Dead { reason: "Bad".into(), text: "the body says so".into() },
            "later" if one.meta.delivery().receives == 1 => Outcome::Snooze(HOUR),
            _ => Outcome::Done,
        });
        each.collect()
    }
    let make = || {
        let worker = Worker::new(broker.malote(), Q).retry(Retry::at_once(3));
        worker.handle_batch(handle_all, 8, Duration::ZERO)
    };
    let counts = broker.drain(make()).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried, counts.dead, counts.snoozed), (3, 1, 1, 1));
    broker.advance(HOUR * 2);
    assert_eq!(broker.drain(make()).await.unwrap().counts.done, 1);
    assert_eq!(broker.counts(Q).await.unwrap(), empty(1));
}

#[tokio::test]
async fn one_result_applies_to_all_messages_except_undecodable_ones() {
    let broker = broker(false).await;
    for body in ["1", "x", "2"] {
        broker.malote().send_all(vec![message(None, None, body)]).await.unwrap();
    }
    async fn handle_all(batch: Batch<u32>, calls: State<Calls>) -> Result<(), Failure> {
        record(batch, calls.clone()).await;
        if calls.lock().unwrap().len() == 1 { Err(Failure::retry("busy")) } else { Ok(()) }
    }
    let calls = Calls::default();
    let worker = Worker::new(broker.malote(), Q).handle_batch(handle_all, 8, GATHER);
    let worker = worker.retry(Retry::at_once(3)).slots(1).state(calls.clone());
    let counts = broker.drain(worker).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried, counts.dead), (2, 2, 1));
    assert_eq!(*calls.lock().unwrap(), [[1, 2], [1, 2]]);
    assert_eq!(
        broker.take_dead_letters(Q).await.unwrap()[0].dead.as_ref().unwrap().0,
        "Undecodable"
    );
}

#[tokio::test]
async fn a_panic_or_too_few_outcomes_cost_each_message_an_attempt() {
    let broker = broker(false).await;
    send(&broker, None, 0..4).await;
    async fn handle_all(batch: Batch<u32>, calls: State<AtomicU32>) -> Vec<()> {
        match calls.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("on purpose"),
            1 => vec![(); 3],
            _ => batch.iter().map(|one| assert_eq!(one.meta.attempt(), 3)).collect(),
        }
    }
    let worker = Worker::new(broker.malote(), Q).handle_batch(handle_all, 4, GATHER);
    let worker = worker.retry(Retry::at_once(5)).slots(1).state(AtomicU32::new(0));
    let counts = broker.drain(worker).await.unwrap().counts;
    assert_eq!((counts.panicked, counts.retried, counts.done), (1, 8, 4));
}

/// Messages after a failed message of the session are delivered again after it, whatever their own outcomes are.
#[tokio::test]
async fn messages_after_a_retried_one_of_the_session_are_delivered_again() {
    let broker = broker(true).await;
    send(&broker, Some("a"), 0..8).await;
    send(&broker, Some("b"), 100..103).await;
    async fn handle_all(batch: Batch<u32>, calls: State<Calls>) -> Vec<Outcome> {
        calls.lock().unwrap().push(batch.iter().map(|one| one.value).collect());
        let each = batch.iter().map(|one| match one.value {
            // A dead-lettered message does not hold back the others.
            1 => Outcome::Dead { reason: "Bad".into(), text: "one".into() },
            3 if one.meta.attempt() == 1 => {
                Failure::retry_after("busy", Duration::from_secs(10)).into()
            }
            _ => Outcome::Done,
        });
        each.collect()
    }
    let calls = Calls::default();
    let make = || {
        let worker = Worker::new(broker.malote(), Q).sessions(1).state(calls.clone());
        worker.handle_batch(handle_all, 6, GATHER)
    };
    let counts = broker.drain(make()).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried, counts.dead, counts.released), (5, 1, 1, 2));
    broker.advance(Duration::from_secs(11));
    let counts = broker.drain(make()).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried, counts.lost), (5, 0, 0));
    assert_eq!(broker.counts(Q).await.unwrap(), empty(1));
    let calls = calls.lock().unwrap();
    let of_a: Vec<_> = calls.iter().filter(|call| call[0] < 100).cloned().collect();
    assert_eq!(of_a, [vec![0, 1, 2, 3, 4, 5], vec![3, 4, 5, 6, 7]]);
    assert!(calls.iter().all(|call| call.iter().all(|n| (*n < 100) == (call[0] < 100))));
}

/// Messages of a session for different handlers stay in order: a batch ends before a message for another handler.
#[tokio::test]
async fn a_batch_of_a_session_ends_at_another_handlers_message() {
    let broker = broker(true).await;
    let all = [("one", 1), ("one", 2), ("other", 3), ("one", 4), ("one", 5), ("one", 6)];
    let all = all.map(|(subject, n)| message(Some("a"), Some(subject), &n.to_string()));
    broker.malote().send_all(all.to_vec()).await.unwrap();
    async fn other(n: u32, calls: State<Calls>) {
        calls.lock().unwrap().push(vec![n]);
    }
    let calls = Calls::default();
    let worker = Worker::new(broker.malote(), Q).sessions(1).state(calls.clone());
    let worker = worker.on_batch("one", record, 2, GATHER).on("other", other);
    assert_eq!(broker.drain(worker).await.unwrap().counts.done, 6);
    assert_eq!(*calls.lock().unwrap(), [vec![1, 2], vec![3], vec![4, 5], vec![6]]);
}

#[tokio::test]
async fn invalid_batch_limits_are_refused_at_start() {
    let broker = broker(false).await;
    for (max, wait) in [(0, 0), (2000, 0), (10, 20)] {
        let wait = Duration::from_secs(wait);
        let worker = Worker::new(broker.malote(), Q).handle_batch(record, max, wait);
        let Err(Error::Settings(text)) = worker.start().await else { panic!("{max}, {wait:?}") };
        assert!(text.starts_with("the batch "), "{text}");
    }
}
