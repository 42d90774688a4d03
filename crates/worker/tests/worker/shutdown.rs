//! How handlers and workers end: shutdown, cancellation, lost locks, stuck handlers, open breakers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::testing::{TestBroker, TestQueueCounts};
use malote::{
    Body, Breaker, Cancelled, Error, Failure, QueueSpec, Retry, Running, SessionId, Shutdown,
    State, Worker,
};
use tokio::sync::Semaphore;

use crate::{TIMEOUT, until, until_counts};

const Q: &str = "orders";

async fn broker() -> TestBroker {
    let broker = TestBroker::new().unwrap();
    broker.malote().declare(Q, QueueSpec::default()).await.unwrap();
    broker
}

async fn send(broker: &TestBroker, count: usize) {
    for n in 0..count {
        broker.malote().send_text(Q, n.to_string()).await.unwrap();
    }
}

async fn started(running: &Running, count: u64) {
    until("the handlers start", async || running.counts().started >= count).await;
}

fn ready(count: u64) -> TestQueueCounts {
    TestQueueCounts { ready: count, locked: 0, delayed: 0, dead: 0 }
}

#[tokio::test]
async fn running_handlers_finish_and_no_message_is_started() {
    let broker = broker().await;
    send(&broker, 10).await;
    async fn wait(go: State<Arc<Semaphore>>) {
        go.acquire().await.unwrap().forget();
    }
    let go = Arc::new(Semaphore::new(0));
    let worker = Worker::new(broker.malote(), Q).handle(wait).slots(2).state(go.clone());
    let running = worker.start().await.unwrap();
    started(&running, 2).await;
    running.stop();
    assert!(!running.is_fetching() || running.busy() == 2);
    go.add_permits(100);
    let report = running.ended().await.unwrap();
    assert_eq!((report.counts.done, report.counts.started), (2, 2));
    until_counts(&broker, Q, ready(8)).await;
}

#[tokio::test]
async fn slow_handlers_are_cancelled_then_dropped_and_their_messages_are_not_counted() {
    let broker = broker().await;
    send(&broker, 2).await;
    async fn hang(Body(body): Body, cancelled: Cancelled, cancelled_count: State<Arc<AtomicU32>>) {
        cancelled.wait().await;
        cancelled_count.fetch_add(1, Ordering::SeqCst);
        if &body[..] == b"0" {
            std::future::pending::<()>().await;
        }
    }
    let cancelled_count = Arc::new(AtomicU32::new(0));
    let shutdown = Shutdown {
        drain: Duration::from_millis(20),
        // Long enough on a slow machine for the handler that finishes.
        cancel: Duration::from_secs(10),
        release: TIMEOUT,
        flush: TIMEOUT,
    };
    let worker = Worker::new(broker.malote(), Q).handle(hang).state(cancelled_count.clone());
    let running = worker.shutdown(shutdown).start().await.unwrap();
    started(&running, 2).await;
    running.stop();
    let counts = running.ended().await.unwrap().counts;
    assert_eq!(cancelled_count.load(Ordering::SeqCst), 2);
    // One handler finished after its cancellation, the other one was dropped.
    assert_eq!((counts.done, counts.released, counts.retried), (1, 1, 0));
    let again = broker
        .drain(Worker::new(broker.malote(), Q).handle(check_uncounted_release))
        .await
        .unwrap();
    assert_eq!((again.counts.done, again.counts.panicked), (1, 0));
    async fn check_uncounted_release(meta: malote::Meta) {
        assert_eq!((meta.attempt(), meta.lost(), meta.delivery().failed), (1, 0, 0));
    }
}

#[tokio::test]
async fn stop_now_drops_running_handlers() {
    let broker = broker().await;
    send(&broker, 1).await;
    async fn hang() {
        std::future::pending::<()>().await;
    }
    let running = Worker::new(broker.malote(), Q).handle(hang).start().await.unwrap();
    started(&running, 1).await;
    running.stop();
    running.stop_now();
    assert_eq!(running.ended().await.unwrap().counts.released, 1);
    until_counts(&broker, Q, ready(1)).await;
}

#[tokio::test]
async fn a_lost_lock_cancels_the_handler_and_its_outcome_is_refused() {
    let broker = TestBroker::new().unwrap();
    let sessions = malote::model::Sessions::Dynamic;
    broker.malote().declare(Q, QueueSpec { sessions, ..QueueSpec::default() }).await.unwrap();
    broker.malote().send_text(Q, "x").session("a").await.unwrap();
    async fn hang(
        cancelled: Cancelled,
        meta: malote::Meta,
        cancelled_count: State<Arc<AtomicU32>>,
    ) {
        if meta.delivery().receives == 1 {
            cancelled.wait().await;
            cancelled_count.fetch_add(1, Ordering::SeqCst);
        }
    }
    let cancelled_count = Arc::new(AtomicU32::new(0));
    let worker =
        Worker::new(broker.malote(), Q).handle(hang).sessions(2).state(cancelled_count.clone());
    let running = worker.lock(Duration::from_secs(3)).start().await.unwrap();
    started(&running, 1).await;
    broker.break_session(Q, &SessionId::new("a").unwrap()).await.unwrap();
    until("the message is done", async || running.counts().done == 1).await;
    running.stop();
    let counts = running.ended().await.unwrap().counts;
    assert_eq!((counts.lost, counts.done, counts.started), (1, 1, 2));
}

/// Locks are renewed by a thread of their own: handlers that never yield do not lose theirs.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_its_thread_keeps_its_lock() {
    let broker = broker().await;
    send(&broker, 1).await;
    async fn block(broker: State<Arc<TestBroker>>) {
        // Longer than the lock time, in steps that are short enough for the renewal.
        for _ in 0..14 {
            std::thread::sleep(Duration::from_millis(500));
            broker.advance(Duration::from_millis(500));
        }
    }
    let broker = Arc::new(broker);
    let worker = Worker::new(broker.malote(), Q).handle(block).state(broker.clone());
    let counts = broker.drain(worker.lock(Duration::from_secs(6))).await.unwrap().counts;
    assert_eq!((counts.done, counts.lost, counts.started), (1, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn handlers_that_ignore_their_cancellation_are_abandoned() {
    let broker = broker().await;
    send(&broker, 2).await;
    async fn block(go: State<Arc<std::sync::Barrier>>) {
        go.wait(); // blocks the thread
    }
    let go = Arc::new(std::sync::Barrier::new(3));
    let worker = Worker::new(broker.malote(), Q).handle(block).slots(2).state(go.clone());
    let worker = worker.timeout(Duration::from_millis(50)).stuck_after(Duration::from_millis(50));
    let running = worker.retry(Retry::at_once(1)).start().await.unwrap();
    // Every slot has a stuck handler, so the worker ends.
    let ended = running.ended().await;
    go.wait();
    assert_eq!(ended, Err(Error::Stuck { stuck: 2 }));
}

/// While a dependency is down, no message is fetched, and messages that were not started lose no attempt.
#[tokio::test]
async fn no_message_is_fetched_while_a_breaker_is_open() {
    let broker = broker().await;
    send(&broker, 1000).await;
    async fn fail() -> Result<(), Failure> {
        Err(Failure::of_dependency("bank", "the bank is down"))
    }
    let worker =
        Worker::new(broker.malote(), Q).handle(fail).slots(50).breaker(Breaker::of("bank"));
    let running = worker.start().await.unwrap();
    until("the breaker opens", async || !running.is_fetching()).await;
    running.stop();
    let counts = running.ended().await.unwrap().counts;
    assert!((10..=150).contains(&counts.started), "{counts:?}");
    assert_eq!(counts.started, counts.retried);
    until_counts(
        &broker,
        Q,
        TestQueueCounts { delayed: counts.started, ..ready(1000 - counts.started) },
    )
    .await;
    // Released messages have no failed attempt.
    async fn check_uncounted(meta: malote::Meta) {
        assert_eq!((meta.attempt(), meta.delivery().failed), (1, 0));
    }
    let rest =
        broker.drain(Worker::new(broker.malote(), Q).handle(check_uncounted)).await.unwrap().counts;
    assert_eq!((rest.done, rest.panicked), (1000 - counts.started, 0));
}
