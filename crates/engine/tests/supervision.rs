//! A panic on any engine thread: no caller waits forever, the engine is poisoned, and a restart recovers.
#![allow(clippy::unwrap_used)] // a test

#[path = "common/trap.rs"]
mod trap;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::ManualClock;
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_engine::{Connection, Consume, Engine, EngineError, Outbox, Receive, Running, Wants};
use malote_model::{
    Body, BodyKind, Filter, Message, QueueName, QueueSpec, Rule, Sessions, Timestamp, TopicName,
    TopicSpec, When,
};
use trap::{Trap, TrapClock, TrapDisk};

/// A timeout for things that happen at once, even on slow machines.
const AT_ONCE: Duration = Duration::from_secs(60);

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(body: &str) -> Message {
    let body = Body { bytes: Bytes::from(body.to_owned()), kind: BodyKind::Bytes };
    Message { body, ..Message::default() }
}

fn receive(queue: &str, wait_ms: u64) -> Receive {
    let (queue, max, lock_ms, take, hold, per_session) = (name(queue), 100, None, false, None, 1);
    Receive { queue, max, wait_ms, lock_ms, take, hold, per_session }
}

/// An engine with a trap, whose clock stands still.
struct Trapped {
    disk: MemoryDisk,
    trap: Trap,
    clock: Arc<ManualClock>,
    engine: Engine,
    running: Running,
}

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        first_segment_bytes: 16 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 1 << 10,
        ..Options::default()
    }
}

const BEGIN: Timestamp = Timestamp(1_800_000_000_000);

impl Trapped {
    fn open(disk: MemoryDisk, trap: Trap) -> Self {
        let on: Arc<TrapDisk<MemoryDisk>> = Arc::new(TrapDisk(disk.clone(), trap.clone()));
        let mut clock = Arc::new(ManualClock::starting_at(BEGIN));
        let (engine, running) = Engine::open_at(on, &options(), Chance::of_system(), |floor| {
            clock = Arc::new(ManualClock::starting_at(floor.max(BEGIN)));
            Arc::new(TrapClock(clock.clone(), trap.clone()))
        })
        .unwrap();
        Self { disk, trap, clock, engine, running }
    }

    async fn new() -> Self {
        let this = Self::open(MemoryDisk::new(), Trap::default());
        this.engine.declare(name("q"), QueueSpec::default()).await.unwrap();
        this.engine.declare(name("empty"), QueueSpec::default()).await.unwrap();
        let sessions = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        this.engine.declare(name("sessions"), sessions).await.unwrap();
        this.engine.send(vec![(name("q"), message("kept"))]).await.unwrap();
        this
    }
}

/// All kinds of callers that can wait for the engine.
struct Waiting {
    receive: tokio::task::JoinHandle<Result<usize, EngineError>>,
    accept: tokio::task::JoinHandle<Result<bool, EngineError>>,
    connection: (Connection, Outbox),
}

impl Waiting {
    async fn on(engine: &Engine) -> Self {
        let connection = engine.connect();
        let wants = Wants::Any { per_session: 1 };
        let (queue, credit, take, lock_ms) = (name("empty"), 1, false, None);
        let consume = Consume {
            queue,
            wants,
            credit,
            take,
            lock_ms,
            free_standing: true,
            priority: 0,
            exclusive: false,
        };
        connection.0.attach(consume).await.unwrap();
        let (asking, accepting) = (engine.clone(), engine.clone());
        let receive = async move { asking.receive(receive("empty", 20_000)).await };
        let receive = tokio::spawn(async move { receive.await.map(|got| got.len()) });
        let accept = tokio::spawn(async move {
            let held = accepting.accept(name("sessions"), None, 20_000, None).await;
            held.map(|held| held.is_some())
        });
        // Both have reached the core when it answers a third.
        tokio::task::yield_now().await;
        engine.describe(name("q")).await.unwrap();
        Self { receive, accept, connection }
    }

    async fn all_hear_of_it(self, engine: &Engine) {
        let poisoned = EngineError::Poisoned;
        let received = tokio::time::timeout(AT_ONCE, self.receive).await;
        assert_eq!(received.expect("a receive hangs").unwrap(), Err(poisoned.clone()));
        let accepted = tokio::time::timeout(AT_ONCE, self.accept).await;
        assert_eq!(accepted.expect("an accept hangs").unwrap(), Err(poisoned.clone()));
        let (connection, mut outbox) = self.connection;
        let said = tokio::time::timeout(AT_ONCE, outbox.next()).await;
        assert!(said.expect("an outbox hangs").is_none());
        tokio::time::timeout(AT_ONCE, connection.end()).await.expect("an end hangs");
        // Later callers as well.
        let sent = engine.send(vec![(name("q"), message("late"))]);
        let sent = tokio::time::timeout(AT_ONCE, sent).await.expect("a send hangs");
        assert_eq!(sent.unwrap_err(), poisoned);
        let (_connection, mut outbox) = engine.connect();
        let said = tokio::time::timeout(AT_ONCE, outbox.next()).await;
        assert!(said.expect("a new outbox hangs").is_none());
    }
}

impl Trapped {
    /// Waits for the failure and returns it.
    async fn failure(&self) -> String {
        for _ in 0..AT_ONCE.as_millis() {
            if let Some(failure) = self.running.failure() {
                assert!(self.running.is_poisoned() && self.engine.is_poisoned());
                return failure.to_string();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("a thread panicked, and the engine did not notice");
    }

    /// A restart finds everything that was answered.
    async fn recovers(self) {
        let Self { disk, trap, engine, running, .. } = self;
        trap.clear();
        drop(engine);
        tokio::time::timeout(AT_ONCE, running.stop()).await.expect("stopping hangs");
        let Self { engine, running, .. } = Self::open(disk, trap);
        let got = engine.receive(receive("q", 0)).await.unwrap();
        let bodies: Vec<_> = got.iter().map(|d| d.stored.message.body.bytes.clone()).collect();
        assert!(bodies.contains(&Bytes::from("kept")), "{bodies:?}");
        assert!(!running.is_poisoned());
        running.stop().await;
    }
}

#[tokio::test]
async fn a_panic_on_the_core_thread() {
    let trapped = Trapped::new().await;
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.set("core");
    let asked = tokio::time::timeout(AT_ONCE, trapped.engine.describe(name("q"))).await;
    assert_eq!(asked.expect("a question hangs").unwrap_err(), EngineError::Poisoned);
    let failure = trapped.failure().await;
    assert_eq!(failure, "internal error: thread `core` panicked: the trap of `core`");
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}

/// A panic of the core does not wait for a hanging disk.
#[tokio::test]
async fn a_panic_on_the_core_thread_while_syncs_hang() {
    let trapped = Trapped::new().await;
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.hold_syncs();
    let engine = trapped.engine.clone();
    let sending =
        tokio::spawn(
            async move { engine.send(vec![(name("q"), message("unknown"))]).await.map(drop) },
        );
    let journal = trapped.engine.journal();
    while journal.written() <= journal.durable() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    trapped.trap.set("core");
    let asked = tokio::time::timeout(AT_ONCE, trapped.engine.describe(name("q"))).await;
    assert_eq!(asked.expect("a question hangs").unwrap_err(), EngineError::Poisoned);
    let sent = tokio::time::timeout(AT_ONCE, sending).await;
    assert_eq!(sent.expect("a send hangs").unwrap(), Err(EngineError::Poisoned));
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}

/// The pool of spare segments is locked while it accesses the disk.
#[tokio::test]
async fn a_panic_on_the_thread_that_creates_segments() {
    let trapped = Trapped::new().await;
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.set("spares");
    let body = "x".repeat(50 << 10);
    // Segments are begun until no spare is left.
    while !trapped.running.is_poisoned() {
        let sent = trapped.engine.send(vec![(name("q"), message(&body))]);
        match tokio::time::timeout(AT_ONCE, sent).await.expect("a send hangs") {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => assert_eq!(error, EngineError::Poisoned),
        }
    }
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}

#[tokio::test]
async fn a_panic_on_the_housekeeping_thread() {
    let trapped = Trapped::new().await;
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.set("housekeeping");
    trapped.engine.send(vec![(name("q"), message(&"x".repeat(2000)))]).await.unwrap();
    trapped.failure().await;
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}

#[tokio::test]
async fn a_panic_on_a_journal_thread() {
    let trapped = Trapped::new().await;
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.set("journal");
    let sent = trapped.engine.send(vec![(name("q"), message("unknown"))]);
    let sent = tokio::time::timeout(AT_ONCE, sent).await.expect("a send hangs");
    assert_eq!(sent.unwrap_err(), EngineError::Poisoned);
    let failure = trapped.failure().await;
    assert!(failure.starts_with("internal error: thread `journal-"), "{failure}");
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}

/// Scheduled messages of a topic are read by another thread.
#[tokio::test]
async fn a_panic_on_the_reading_thread() {
    let trapped = Trapped::new().await;
    let topic = TopicName::new("t").unwrap();
    trapped.engine.declare_topic(topic.clone(), TopicSpec::default()).await.unwrap();
    let rule = Rule { name: "all".into(), filter: Filter::All, action: None };
    trapped.engine.bind(topic.clone(), name("q"), rule).await.unwrap();
    let waiting = Waiting::on(&trapped.engine).await;
    trapped.trap.set("reads");
    let at = When::At(trapped.engine.now().plus_ms(1000));
    let later = Message { when: at, ..message("later") };
    trapped.engine.send(vec![(topic, later)]).await.unwrap();
    trapped.clock.advance_ms(2000);
    trapped.engine.wake();
    trapped.failure().await;
    waiting.all_hear_of_it(&trapped.engine).await;
    trapped.recovers().await;
}
