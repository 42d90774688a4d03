//! Memory and queues stay within their limits, whatever callers do.
#![allow(clippy::unwrap_used)] // a test

#[path = "common/trap.rs"]
#[allow(dead_code)]
mod trap;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_engine::{Engine, EngineError, Running, StateChange};
use malote_model::{Body, BodyKind, Message, QueueName, QueueSpec, Refusal, SessionId, Sessions};
use trap::{Trap, TrapDisk};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(bytes: usize, session: Option<&str>) -> Message {
    Message {
        session: session.map(|session| SessionId::new(session).unwrap()),
        body: Body { bytes: Bytes::from(vec![b'x'; bytes]), kind: BodyKind::Bytes },
        ..Message::default()
    }
}

fn open(disk: &MemoryDisk, trap: &Trap) -> (Engine, Running) {
    let disk = Arc::new(TrapDisk(disk.clone(), trap.clone()));
    Engine::open_on(disk, &Options::default(), Chance::of_system()).unwrap()
}

#[tokio::test]
async fn cancelled_sends_hold_their_memory_budget_until_written() {
    let trap = Trap::default();
    let (engine, running) = open(&MemoryDisk::new(), &trap);
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    trap.hold_syncs();
    for _ in 0..3000 {
        tokio::select! {
            biased;
            sent = engine.send(vec![(name("q"), message(100 << 10, None))]) => panic!("{sent:?}"),
            () = std::future::ready(()) => {}
        }
    }
    // Abandoned sends are still in memory: there is no budget for more.
    let more = vec![(name("q"), message(100 << 10, None))];
    let more = engine.send_unless(more, std::future::ready(()));
    let more = tokio::time::timeout(Duration::from_secs(60), more).await;
    let busy = Err(EngineError::Refused(Refusal::Busy));
    assert_eq!(more.expect("it found room"), busy);
    trap.clear();
    engine.send(vec![(name("q"), message(100 << 10, None))]).await.unwrap();
    let ready = engine.describe(name("q")).await.unwrap().ready;
    assert!(ready > 1 && ready <= 64 << 20 >> 10, "{ready}");
    running.stop().await;
}

#[tokio::test]
async fn session_states_count_against_the_bytes_of_their_queue() {
    let (disk, trap) = (MemoryDisk::new(), Trap::default());
    let (engine, running) = open(&disk, &trap);
    let (sessions, bytes_max) = (Sessions::Dynamic, Some(1000));
    let spec = QueueSpec { sessions, bytes_max, ..QueueSpec::default() };
    engine.declare(name("q"), spec).await.unwrap();
    let mut holds = Vec::new();
    for session in ["a", "b"] {
        let session = Some(SessionId::new(session).unwrap());
        let held = engine.accept(name("q"), session, 0, None).await.unwrap();
        holds.push(held.unwrap().hold);
    }
    let set = async |engine: &Engine, hold, bytes: usize| {
        let state = (bytes > 0).then(|| Bytes::from(vec![1; bytes]));
        engine.set_state(None, StateChange { hold, state }).await
    };
    let full = EngineError::Refused(Refusal::QueueFull {
        queue: name("q"),
        field: "bytes_max",
        limit: 1000,
    });
    set(&engine, holds[0], 600).await.unwrap();
    assert_eq!(engine.describe(name("q")).await.unwrap().bytes, 600);
    assert_eq!(set(&engine, holds[1], 401).await, Err(full.clone()));
    set(&engine, holds[1], 400).await.unwrap();
    let sent = engine.send(vec![(name("q"), message(10, Some("a")))]).await;
    assert_eq!(sent, Err(full));
    running.stop().await;

    // They count after a restart, too, and no longer once they are cleared.
    let (engine, running) = open(&disk, &trap);
    assert_eq!(engine.describe(name("q")).await.unwrap().bytes, 1000);
    set(&engine, holds[0], 100).await.unwrap();
    set(&engine, holds[1], 0).await.unwrap();
    assert_eq!(engine.describe(name("q")).await.unwrap().bytes, 100);
    engine.send(vec![(name("q"), message(10, Some("a")))]).await.unwrap();
    running.stop().await;
}
