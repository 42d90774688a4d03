//! The real engine with its threads on the simulated disk: clients work, the power fails, and the engine opens the
//! disk.
//!
//! Threads make each run different, but a seed chooses what the disk loses. Acknowledged messages must exist, in
//! order, and no message may have two holders.
#![allow(clippy::unwrap_used)] // test code

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::ManualClock;
use malote_engine::journal::Options;
use malote_engine::{Engine, Peek, Receive, Running};
use malote_model::{
    Body, BodyKind, Message, QueueName, QueueSpec, Seq, SessionId, Sessions, Settlement, Timestamp,
};
use malote_sim::disk::{Faults, SimDisk};
use malote_sim::rng::Rng;
use parking_lot::Mutex;

const SESSIONS: u64 = 3;
/// Longer than a run of the engine, so that only a restart or a settlement ends a lease.
const LOCK_MS: u64 = 3_600_000;

/// A message: its session, and its number in the session.
type Which = (u64, u64);

/// What the clients know.
#[derive(Default, Clone)]
struct History {
    tried: BTreeSet<Which>,
    sent: BTreeSet<Which>,
    completing: BTreeSet<Which>,
    completed: BTreeSet<Which>,
    /// Leased in this run of the engine.
    out: BTreeSet<Which>,
}

impl History {
    /// A message was delivered: no other client holds it, and all earlier messages of its session are completed.
    fn delivered(&mut self, which: Which) {
        let (session, n) = which;
        assert!(self.tried.contains(&which), "{which:?} was never sent");
        assert!(!self.completed.contains(&which), "{which:?} was completed, but exists");
        assert!(self.out.insert(which), "{which:?} has two holders");
        let mut earlier = self.sent.range((session, 0)..(session, n));
        let passed = earlier.find(|earlier| !self.completing.contains(earlier));
        assert_eq!(passed, None, "{which:?} was delivered before an earlier message");
    }

    /// Checks the messages found at a start.
    fn check(&self, found: &BTreeMap<u64, Vec<u64>>) {
        let all: BTreeSet<Which> =
            found.iter().flat_map(|(&s, seen)| seen.iter().map(move |&n| (s, n))).collect();
        for (session, seen) in found {
            assert!(seen.is_sorted(), "session {session} is out of order: {seen:?}");
            assert!(
                seen.windows(2).all(|two| two[0] != two[1]),
                "a message exists twice: {seen:?}"
            );
        }
        for which in self.sent.iter().filter(|which| !self.completing.contains(which)) {
            assert!(all.contains(which), "{which:?} was acknowledged, but is lost");
        }
        for which in &all {
            assert!(self.tried.contains(which), "{which:?} was never sent");
            assert!(!self.completed.contains(which), "{which:?} was completed, but exists");
        }
    }
}

fn queue() -> QueueName {
    QueueName::new("line").unwrap()
}

fn message((session, n): Which) -> Message {
    let bytes = [&session.to_le_bytes()[..], &n.to_le_bytes(), &[7; 300]].concat();
    Message {
        session: Some(SessionId::new(&format!("s{session}")).unwrap()),
        body: Body { bytes: Bytes::from(bytes), kind: BodyKind::Bytes },
        ..Message::default()
    }
}

fn which(message: &Message) -> Which {
    let number = |at: usize| message.body.bytes[at..at + 8].try_into().map(u64::from_le_bytes);
    (number(0).unwrap(), number(8).unwrap())
}

fn open(disk: &SimDisk, seed: u64, at: u64) -> (Engine, Running, Arc<ManualClock>) {
    let options = Options {
        segment_bytes: 96 << 10,
        first_segment_bytes: 32 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 64 << 10,
        snapshot_after_ratio: 1,
        compact_floor_bytes: 128 << 10,
        ..Options::default()
    };
    let mut clock = None;
    let opened =
        Engine::open_at(Arc::new(disk.clone()), &options, Chance::of_seed(seed), |floor| {
            clock.insert(Arc::new(ManualClock::starting_at(Timestamp(floor.0.max(at))))).clone()
        });
    let (engine, running) = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    (engine, running, clock.unwrap())
}

async fn produce(
    engine: Engine,
    session: u64,
    history: Arc<Mutex<History>>,
    over: Arc<AtomicBool>,
) {
    let mut next = history.lock().tried.range((session, 0)..(session + 1, 0)).count() as u64;
    while !over.load(Ordering::Relaxed) {
        let these: Vec<Which> = (next..next + 1 + next % 3).map(|n| (session, n)).collect();
        next += these.len() as u64;
        history.lock().tried.extend(&these);
        let items = these.iter().map(|&which| (queue(), message(which))).collect();
        if engine.send(items).await.is_err() {
            return; // poisoned or stopping, or no segment is available
        }
        history.lock().sent.extend(these);
    }
}

async fn consume(engine: Engine, history: Arc<Mutex<History>>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let receive = Receive {
            queue: queue(),
            max: 4,
            wait_ms: 0,
            lock_ms: Some(LOCK_MS),
            take: false,
            hold: None,
            per_session: 2,
        };
        let Ok(got) = engine.receive(receive).await else { return };
        let mine: Vec<_> = got.iter().map(|d| which(&d.stored.message)).collect();
        {
            let mut history = history.lock();
            for (i, &one) in mine.iter().enumerate() {
                // Several messages of a session arrive together and in order; the same client holds the earlier ones.
                history.delivered(one);
                if mine[i + 1..].iter().any(|later| later.0 == one.0) {
                    history.completing.insert(one);
                }
            }
            history.completing.extend(&mine);
        }
        for (delivery, one) in got.iter().zip(mine) {
            let lease = vec![delivery.lease.unwrap()];
            match engine.settle(None, lease, Settlement::Complete, None).await {
                Ok(each) => assert_eq!(each, [Ok(())], "{one:?} was leased"),
                Err(_) => return,
            }
            let mut history = history.lock();
            history.completed.insert(one);
            history.out.remove(&one);
        }
        tokio::task::yield_now().await;
    }
}

async fn all(engine: &Engine) -> BTreeMap<u64, Vec<u64>> {
    let (mut found, mut from) = (BTreeMap::<u64, Vec<u64>>::new(), Seq(0));
    loop {
        let peek = Peek { queue: queue(), from, max: 1000, session: None, state: None };
        let (seen, next) = engine.peek(peek).await.unwrap();
        for seen in seen {
            let (session, n) = which(&seen.stored.unwrap().message);
            found.entry(session).or_default().push(n);
        }
        match next {
            Some(next) => from = next,
            None => return found,
        }
    }
}

/// One run: clients work until a number of messages is acknowledged or the disk fails. Then the power fails.
async fn live(
    (engine, running): (Engine, Running),
    disk: &SimDisk,
    rng: &mut Rng,
    history: &Arc<Mutex<History>>,
) -> SimDisk {
    let over = Arc::new(AtomicBool::new(false));
    let (mut producers, mut tasks) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    for session in 0..SESSIONS {
        producers.spawn(produce(engine.clone(), session, history.clone(), over.clone()));
    }
    for _ in 0..2 {
        tasks.spawn(consume(engine.clone(), history.clone(), over.clone()));
    }
    let enough = history.lock().sent.len() as u64 + 30 + rng.below(1500);
    if rng.chance(25) {
        let sync_fails_in = Some(rng.below(200));
        disk.set_faults(Faults { sync_fails_in, ..Faults::default() });
    }
    while (history.lock().sent.len() as u64) < enough && !producers.is_empty() {
        tokio::task::yield_now().await;
        while let Some(done) = producers.try_join_next() {
            done.unwrap();
        }
    }
    assert_eq!(engine.disk().diverged, 0, "a replay differs from the served state");
    let (left, known) = {
        // The history does not change while the power fails. Later changes only affect the old disk.
        let mut history = history.lock();
        history.out.clear();
        (disk.crashed(rng), history.clone())
    };
    over.store(true, Ordering::Relaxed);
    for mut tasks in [producers, tasks] {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
    drop(engine);
    running.stop().await;
    *history.lock() = known;
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn acknowledged_messages_survive_power_loss() {
    for seed in 0..4_u64 {
        let mut rng = Rng::new(seed);
        let history = Arc::new(Mutex::new(History::default()));
        let mut disk = SimDisk::new();
        let mut at = 1_700_000_000_000;
        for life in 0..6 {
            let (engine, running, clock) = open(&disk, seed * 100 + life, at);
            assert_eq!(running.report().diverged, None, "seed {seed}");
            let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
            engine.declare(queue(), spec).await.unwrap();
            let found = all(&engine).await;
            history.lock().check(&found);
            // All leases of the last run have expired by then.
            at += 2 * LOCK_MS;
            clock.advance_ms(2 * LOCK_MS);
            engine.wake();
            disk = live((engine, running), &disk, &mut rng, &history).await;
        }
        let (engine, running, _) = open(&disk, seed, at);
        let found = all(&engine).await;
        history.lock().check(&found);
        running.stop().await;
        let history = history.lock();
        assert!(
            history.sent.len() > 100 && history.completed.len() > 20,
            "seed {seed} sent or completed too little"
        );
    }
}
