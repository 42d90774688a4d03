//! A breaker of several workers: only one of them sends probes at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use malote::testing::TestBroker;
use malote::{Breaker, Failure, QueueSpec, Retry, Running, State, Worker};

use crate::until;

const Q: &str = "payments";
const COUNT: u64 = 200;

/// A dependency that counts concurrent calls.
#[derive(Default)]
struct Bank {
    is_up: AtomicBool,
    count_calls: AtomicBool,
    running: AtomicU32,
    running_max: AtomicU32,
    calls: AtomicU32,
}

async fn charge(bank: State<Arc<Bank>>) -> Result<(), Failure> {
    let count_calls = bank.count_calls.load(Ordering::SeqCst);
    if count_calls {
        let running = bank.running.fetch_add(1, Ordering::SeqCst) + 1;
        bank.running_max.fetch_max(running, Ordering::SeqCst);
        // Long enough for a concurrent probe of another worker to be noticed.
        tokio::time::sleep(Duration::from_millis(300)).await;
        bank.running.fetch_sub(1, Ordering::SeqCst);
        bank.calls.fetch_add(1, Ordering::SeqCst);
    }
    match bank.is_up.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err(Failure::of_dependency("bank", "the bank is down")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_at_a_time_probes_the_dependency() {
    let broker = TestBroker::new().unwrap();
    broker
        .malote()
        .declare(Q, QueueSpec { failed_max: None, ..QueueSpec::default() })
        .await
        .unwrap();
    for n in 0..COUNT {
        broker.malote().send_text(Q, n.to_string()).await.unwrap();
    }
    let bank = Arc::new(Bank::default());
    let start = async || -> Running {
        let breaker = Breaker::of("bank").open_for(Duration::from_millis(500));
        let worker = Worker::new(broker.malote(), Q).handle(charge).slots(5).breaker(breaker);
        worker.retry(Retry::at_once(1000)).state(bank.clone()).start().await.unwrap()
    };
    let workers = [start().await, start().await, start().await];
    // All breakers are open, and no handler is running.
    until("all breakers are open", async || {
        workers.iter().all(|running| !running.is_fetching() && running.busy() == 0)
    })
    .await;
    bank.count_calls.store(true, Ordering::SeqCst);
    until("there are six probes", async || bank.calls.load(Ordering::SeqCst) >= 6).await;
    assert_eq!(
        bank.running_max.load(Ordering::SeqCst),
        1,
        "two workers sent probes at the same time"
    );
    bank.count_calls.store(false, Ordering::SeqCst);
    bank.is_up.store(true, Ordering::SeqCst);
    until("all messages are done", async || {
        workers.iter().map(|running| running.counts().done).sum::<u64>() == COUNT
    })
    .await;
    for running in workers {
        running.stop();
        let counts = running.ended().await.unwrap().counts;
        assert_eq!((counts.dead, counts.lost, counts.panicked), (0, 0, 0));
    }
}
