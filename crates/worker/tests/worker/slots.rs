//! Slots that follow what there is to do.

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

/// Handlers wait here until they are let through.
struct Door {
    open: Semaphore,
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Door {
    fn new() -> Arc<Self> {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { open: Semaphore::new(0), inside, most })
    }
}

async fn wait(door: State<Arc<Door>>) {
    let inside = door.inside.fetch_add(1, Ordering::SeqCst) + 1;
    door.most.fetch_max(inside, Ordering::SeqCst);
    door.open.acquire().await.unwrap().forget();
    door.inside.fetch_sub(1, Ordering::SeqCst);
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

async fn start(broker: &TestBroker, door: &Arc<Door>, sessions: bool) -> Running {
    let worker = Worker::new(broker.malote(), Q).state(door.clone()).handle(wait).scale(quick());
    let worker = if sessions { worker.sessions(1..=5) } else { worker.slots(1..=5) };
    worker.start().await.unwrap()
}

/// One, then as many as there may be, then one again; and all is handled.
async fn come_and_go(broker: TestBroker, sessions: bool) {
    let door = Door::new();
    let running = start(&broker, &door, sessions).await;
    assert_eq!(running.slots(), 1);
    for n in 0..30 {
        let sending = broker.malote().send_text(Q, "x");
        let sending = if sessions { sending.session(format!("s{n}")) } else { sending };
        sending.await.unwrap();
    }
    until("five at once", async || door.inside.load(Ordering::SeqCst) == 5).await;
    assert_eq!(running.slots(), 5);
    let expected = if sessions { Reason::Sessions } else { Reason::Waiting };
    assert_eq!(running.metrics().scaled.unwrap().reason, expected);
    door.open.add_permits(30);
    until("the end of work", async || running.counts().done == 30).await;
    until("one slot", async || running.slots() == 1).await;
    assert_eq!(door.most.load(Ordering::SeqCst), 5);
    // The one that is left still works, and alone.
    for _ in 0..2 {
        let sending = broker.malote().send_text(Q, "x");
        if sessions {
            sending.session("s0").await.unwrap()
        } else {
            sending.await.unwrap()
        };
    }
    until("another one", async || door.inside.load(Ordering::SeqCst) == 1).await;
    door.open.add_permits(2);
    until("the last ones", async || running.counts().done == 32).await;
    running.stop();
    running.ended().await.unwrap();
}

#[tokio::test]
async fn slots_come_with_messages_and_go_without() {
    come_and_go(queue(Sessions::None).await, false).await;
}

#[tokio::test]
async fn slots_come_with_sessions_and_go_without() {
    come_and_go(queue(Sessions::Dynamic).await, true).await;
}

#[tokio::test]
async fn a_number_is_that_number() {
    let (broker, door) = (queue(Sessions::None).await, Door::new());
    let worker = Worker::new(broker.malote(), Q).state(door.clone()).handle(wait).slots(3);
    let running = worker.scale(quick()).start().await.unwrap();
    for _ in 0..10 {
        broker.malote().send_text(Q, "x").await.unwrap();
    }
    until("three at once", async || door.inside.load(Ordering::SeqCst) == 3).await;
    assert_eq!((running.slots(), running.metrics().scaled), (3, None));
    door.open.add_permits(10);
    until("all", async || running.counts().done == 10).await;
    assert_eq!(door.most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn no_slots_are_added_while_a_breaker_is_open() {
    async fn fails() -> Result<(), Failure> {
        Err(Failure::of_dependency("bank", "it is closed"))
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
    // Too few to need another slot, and enough to open the breaker.
    send(10).await;
    until("the breaker", async || !running.is_taking()).await;
    send(200).await;
    let reason = || running.metrics().scaled.map(|scaled| scaled.reason);
    until("its reason", async || reason() == Some(Reason::Breaker)).await;
    assert_eq!(running.metrics().breakers[0].state, malote::BreakerState::Open);
    // It would have grown several times by now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((running.slots(), reason()), (1, Some(Reason::Breaker)));
    // What was not begun has no failure.
    let held = broker.held(Q).await.unwrap();
    assert_eq!((held.dead, running.counts().started), (0, 10));
}

#[tokio::test]
async fn bounds_that_cannot_be_are_refused() {
    let broker = queue(Sessions::None).await;
    for bad in [Bounds { min: 0, max: 3 }, Bounds { min: 3, max: 2 }, Bounds::from(1_000_000)] {
        let worker = Worker::new(broker.malote(), Q).handle(async || ()).slots(bad);
        let Err(error) = worker.start().await else { panic!("{bad} was accepted") };
        assert!(error.to_string().contains("slots must be"), "{error}");
    }
}

#[tokio::test]
async fn metrics_tell_what_happened() {
    let broker = queue(Sessions::None).await;
    for n in 0..4 {
        broker.malote().send_text(Q, n.to_string()).await.unwrap();
    }
    async fn handle(text: String) -> Result<(), Failure> {
        if text == "3" { Err(Failure::dead("No", "no")) } else { Ok(()) }
    }
    let running = Worker::new(broker.malote(), Q).handle(handle).slots(2).start().await.unwrap();
    until("all", async || running.counts().done + running.counts().dead == 4).await;
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
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    running.stop();
    running.ended().await.unwrap();
}
