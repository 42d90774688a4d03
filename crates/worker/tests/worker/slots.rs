//! The number of slots follows the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote::model::Sessions;
use malote::scale::Reason;
use malote::testing::TestBroker;
use malote::{Bounds, Breaker, Failure, QueueSpec, Running, Scale, State, Worker};
use tokio::sync::Semaphore;

use crate::until;

const Q: &str = "jobs";

/// Handlers wait here until the test releases them.
struct Gate {
    open: Semaphore,
    waiting: AtomicUsize,
    waiting_max: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Self> {
        let (waiting, waiting_max) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { open: Semaphore::new(0), waiting, waiting_max })
    }
}

async fn wait(gate: State<Arc<Gate>>) {
    let waiting = gate.waiting.fetch_add(1, Ordering::SeqCst) + 1;
    gate.waiting_max.fetch_max(waiting, Ordering::SeqCst);
    gate.open.acquire().await.unwrap().forget();
    gate.waiting.fetch_sub(1, Ordering::SeqCst);
}

fn quick() -> Scale {
    let (up_after, down_after) = (Duration::from_millis(200), Duration::from_millis(400));
    Scale { up_after, down_after, waiting_each: 1, ..Scale::default() }
}

async fn queue(sessions: Sessions) -> TestBroker {
    let broker = TestBroker::new().unwrap();
    let spec = QueueSpec { sessions, ..QueueSpec::default() };
    broker.malote().declare(Q, spec).await.unwrap();
    broker
}

async fn start(broker: &TestBroker, gate: &Arc<Gate>, sessions: bool) -> Running {
    let worker = Worker::new(broker.malote(), Q).state(gate.clone()).handle(wait).scale(quick());
    let worker = if sessions { worker.sessions(1..=5) } else { worker.slots(1..=5) };
    worker.start().await.unwrap()
}

/// Starts with one slot, grows to the maximum and shrinks to one again. All messages are handled.
async fn grow_and_shrink(broker: TestBroker, sessions: bool) {
    let gate = Gate::new();
    let running = start(&broker, &gate, sessions).await;
    assert_eq!(running.slots(), 1);
    for n in 0..30 {
        let sending = broker.malote().send_text(Q, "x");
        let sending = if sessions { sending.session(format!("s{n}")) } else { sending };
        sending.await.unwrap();
    }
    until("five running handlers", async || gate.waiting.load(Ordering::SeqCst) == 5).await;
    assert_eq!(running.slots(), 5);
    let expected = if sessions { Reason::Sessions } else { Reason::Waiting };
    assert_eq!(running.metrics().scaled.unwrap().reason, expected);
    gate.open.add_permits(30);
    until("all messages are done", async || running.counts().done == 30).await;
    until("one slot", async || running.slots() == 1).await;
    assert_eq!(gate.waiting_max.load(Ordering::SeqCst), 5);
    // The remaining slot still works.
    for _ in 0..2 {
        let sending = broker.malote().send_text(Q, "x");
        if sessions {
            sending.session("s0").await.unwrap()
        } else {
            sending.await.unwrap()
        };
    }
    until("one running handler", async || gate.waiting.load(Ordering::SeqCst) == 1).await;
    gate.open.add_permits(2);
    until("the last messages are done", async || running.counts().done == 32).await;
    running.stop();
    running.ended().await.unwrap();
}

#[tokio::test]
async fn slots_follow_waiting_messages() {
    grow_and_shrink(queue(Sessions::None).await, false).await;
}

#[tokio::test]
async fn slots_follow_sessions_with_work() {
    grow_and_shrink(queue(Sessions::Dynamic).await, true).await;
}

#[tokio::test]
async fn a_fixed_number_of_slots_does_not_change() {
    let (broker, gate) = (queue(Sessions::None).await, Gate::new());
    let worker = Worker::new(broker.malote(), Q).state(gate.clone()).handle(wait).slots(3);
    let running = worker.scale(quick()).start().await.unwrap();
    for _ in 0..10 {
        broker.malote().send_text(Q, "x").await.unwrap();
    }
    until("three running handlers", async || gate.waiting.load(Ordering::SeqCst) == 3).await;
    assert_eq!((running.slots(), running.metrics().scaled), (3, None));
    gate.open.add_permits(10);
    until("all messages are done", async || running.counts().done == 10).await;
    assert_eq!(gate.waiting_max.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn no_slots_are_added_while_a_breaker_is_open() {
    async fn fails() -> Result<(), Failure> {
        Err(Failure::of_dependency("bank", "the bank is down"))
    }
    let broker = queue(Sessions::None).await;
    let scale = Scale { waiting_each: 50, ..quick() };
    let worker = Worker::new(broker.malote(), Q).handle(fails).slots(1..=5).scale(scale);
    let breaker = Breaker::of("bank").open_for(Duration::from_secs(300));
    let running = worker.breaker(breaker).start().await.unwrap();
    let send = async |count: usize| {
        for _ in 0..count {
            broker.malote().send_text(Q, "x").await.unwrap();
        }
    };
    // Enough messages to open the breaker, but not for another slot.
    send(10).await;
    until("the breaker opens", async || !running.is_fetching()).await;
    send(200).await;
    let reason = || running.metrics().scaled.map(|scaled| scaled.reason);
    until("the breaker is the reason", async || reason() == Some(Reason::Breaker)).await;
    assert_eq!(running.metrics().breakers[0].state, malote::BreakerState::Open);
    // Long enough for several changes without the breaker.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((running.slots(), reason()), (1, Some(Reason::Breaker)));
    // Messages that were not started have no failed attempt.
    let counts = broker.counts(Q).await.unwrap();
    assert_eq!((counts.dead, running.counts().started), (0, 10));
}

#[tokio::test]
async fn invalid_bounds_are_refused() {
    let broker = queue(Sessions::None).await;
    for bad in [Bounds { min: 0, max: 3 }, Bounds { min: 3, max: 2 }, Bounds::from(1_000_000)] {
        let worker = Worker::new(broker.malote(), Q).handle(async || ()).slots(bad);
        let Err(error) = worker.start().await else { panic!("{bad} was accepted") };
        assert!(error.to_string().contains("number of slots"), "{error}");
    }
}

#[tokio::test]
async fn metrics_count_outcomes() {
    let broker = queue(Sessions::None).await;
    for n in 0..4 {
        broker.malote().send_text(Q, n.to_string()).await.unwrap();
    }
    async fn handle(text: String) -> Result<(), Failure> {
        if text == "3" { Err(Failure::dead("No", "no")) } else { Ok(()) }
    }
    let running = Worker::new(broker.malote(), Q).handle(handle).slots(2).start().await.unwrap();
    until("all messages are settled", async || running.counts().done + running.counts().dead == 4)
        .await;
    let metrics = running.metrics();
    assert_eq!((metrics.times.count(), metrics.slots, metrics.taking), (4, 2, true));
    let page = metrics.render(malote::metrics::Format::OpenMetrics);
    for line in [
        "malote_worker_messages_total{queue=\"jobs\",outcome=\"done\"} 3\n",
        "malote_worker_messages_total{queue=\"jobs\",outcome=\"dead\"} 1\n",
        "malote_worker_duration_seconds_count{queue=\"jobs\"} 4\n",
        "malote_worker_slots{queue=\"jobs\"} 2\n",
        "# EOF\n",
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
    running.stop();
    running.ended().await.unwrap();
}
