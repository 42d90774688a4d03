//! A breaker of several workers: one of them tries at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use malote::testing::TestBroker;
use malote::{Breaker, Failure, QueueSpec, Retry, Running, State, Worker};

use crate::until;

const Q: &str = "payments";
const COUNT: u64 = 200;

/// A dependency that counts who calls it at the same time.
#[derive(Default)]
struct Bank {
    is_back: AtomicBool,
    is_tried: AtomicBool,
    now: AtomicU32,
    most: AtomicU32,
    tries: AtomicU32,
}

async fn charge(bank: State<Arc<Bank>>) -> Result<(), Failure> {
    let tried = bank.is_tried.load(Ordering::SeqCst);
    if tried {
        let now = bank.now.fetch_add(1, Ordering::SeqCst) + 1;
        bank.most.fetch_max(now, Ordering::SeqCst);
        // So long that another worker's try would meet it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        bank.now.fetch_sub(1, Ordering::SeqCst);
        bank.tries.fetch_add(1, Ordering::SeqCst);
    }
    match bank.is_back.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err(Failure::of_dependency("bank", "it is closed")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_at_a_time_tries_whether_it_is_back() {
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
    // All are open, and nothing runs that was begun before.
    until("all breakers are open", async || {
        workers.iter().all(|running| !running.is_taking() && running.busy() == 0)
    })
    .await;
    bank.is_tried.store(true, Ordering::SeqCst);
    until("it is tried", async || bank.tries.load(Ordering::SeqCst) >= 6).await;
    assert_eq!(bank.most.load(Ordering::SeqCst), 1, "two workers tried at once");
    bank.is_tried.store(false, Ordering::SeqCst);
    bank.is_back.store(true, Ordering::SeqCst);
    until("all is done", async || {
        workers.iter().map(|running| running.counts().done).sum::<u64>() == COUNT
    })
    .await;
    for running in workers {
        running.stop();
        let counts = running.ended().await.unwrap().counts;
        assert_eq!((counts.dead, counts.lost, counts.panicked), (0, 0, 0));
    }
}
