//! Compaction, backups and other background work, with threads and a real disk.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::disk::{MemoryDisk, OsDisk};
use malote_engine::journal::{Options, RestoreError, check_backup, restore};
use malote_engine::{Consume, Engine, Receive, Running, Settings, Wants};
use malote_model::{
    Body, BodyKind, LeaseToken, Message, QueueName, QueueSpec, SessionId, Sessions, Settlement,
};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(body: Vec<u8>, session: Option<String>) -> Message {
    Message {
        session: session.map(|s| SessionId::new(&s).unwrap()),
        body: Body { bytes: Bytes::from(body), kind: BodyKind::Bytes },
        ..Message::default()
    }
}

fn receive(queue: &str, max: u32) -> Receive {
    Receive {
        queue: name(queue),
        max,
        wait_ms: 0,
        // Longer than the test takes on the slowest disk.
        lock_ms: Some(3_600_000),
        take: false,
        hold: None,
        per_session: 1,
    }
}

/// Segments so small that a test fills many of them.
fn open(dir: &std::path::Path) -> (Engine, Running) {
    let journal = Options {
        segment_bytes: 256 << 10,
        first_segment_bytes: 64 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 512 << 10,
        compact_floor_bytes: 2 << 20,
        ..Options::default()
    };
    Engine::open(Settings { journal, ..Settings::at(dir) }).unwrap()
}

async fn complete(engine: &Engine, leases: Vec<LeaseToken>) {
    let each = engine.settle(None, leases, Settlement::Complete, None).await.unwrap();
    assert!(each.iter().all(Result::is_ok));
}

#[tokio::test]
async fn live_records_of_nearly_empty_segments_are_copied_and_the_segments_freed() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open(dir.path());
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    engine.declare(name("noise"), QueueSpec::default()).await.unwrap();
    let mut kept = Vec::new();
    for n in 0..200_u64 {
        let all = (0..40).map(|i| {
            let body = [&(n * 40 + i).to_le_bytes()[..], &[i as u8; 1000]].concat();
            (name("q"), message(body, None))
        });
        engine.send(all.collect()).await.unwrap();
        // One message of forty stays.
        let got = engine.receive(receive("q", 40)).await.unwrap();
        let leases: Vec<_> = got.iter().filter_map(|d| d.lease).collect();
        kept.push(got[39].clone());
        complete(&engine, leases[..39].to_vec()).await;
    }
    let live = 200 * 1100;
    let allowed = 2 * live + (2 << 20);
    assert!(engine.journal().written_bytes() > 3 * allowed);
    // Some traffic, so that snapshots are due; copying needs two of them.
    for _ in 0..2000 {
        let spares = running.spares() as u64 * (256 << 10);
        if running.journal_bytes() + spares.min(3 * (256 << 10)) <= allowed {
            break;
        }
        let all = (0..4).map(|_| (name("noise"), message(vec![0; 2000], None)));
        engine.send(all.collect()).await.unwrap();
        let got = engine.receive(receive("noise", 4)).await.unwrap();
        complete(&engine, got.iter().filter_map(|d| d.lease).collect()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let bytes = running.journal_bytes();
    assert!(bytes <= allowed, "{bytes} bytes of journal for {live} live ones");
    // Leases, counters and contents are unchanged, here and after a restart.
    complete(&engine, kept[..50].iter().filter_map(|d| d.lease).collect()).await;
    running.stop().await;
    let (engine, running) = open(dir.path());
    complete(&engine, kept[50..100].iter().filter_map(|d| d.lease).collect()).await;
    let release = Settlement::Release { delay_ms: 0 };
    let leases = kept[100..].iter().filter_map(|d| d.lease).collect();
    assert!(engine.settle(None, leases, release, None).await.unwrap().iter().all(Result::is_ok));
    let got = engine.receive(receive("q", 1000)).await.unwrap();
    assert_eq!(got.len(), 100);
    for (before, after) in kept[100..].iter().zip(&got) {
        assert_eq!((before.seq, &before.stored), (after.seq, &after.stored));
        assert_eq!(after.receives, 2);
    }
    running.stop().await;
}

/// Compaction moves a message between its grant and its delivery. If the engine has stopped meanwhile, the message cannot
/// be located, and a later one must not overtake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_delivered_after_a_message_that_cannot_be_located() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open(dir.path());
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    engine.declare(name("noise"), QueueSpec::default()).await.unwrap();
    let (connection, mut outbox) = engine.connect();
    let consume = Consume {
        queue: name("q"),
        wants: Wants::Any { per_session: 1 },
        credit: 2,
        take: false,
        lock_ms: Some(3_600_000),
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    connection.attach(consume).await.unwrap();
    engine.send(vec![(name("q"), message(vec![1; 2000], None))]).await.unwrap();
    // The segment of the first message becomes nearly empty, is copied and recycled.
    let noise = async || {
        let all = (0..40).map(|_| (name("noise"), message(vec![0; 2000], None)));
        engine.send(all.collect()).await.unwrap();
        let got = engine.receive(receive("noise", 40)).await.unwrap();
        complete(&engine, got.iter().filter_map(|d| d.lease).collect()).await;
    };
    let has_body = |path: &std::path::PathBuf| {
        std::fs::read(path).unwrap().windows(2000).any(|bytes| bytes == [1; 2000])
    };
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "log");
    let segment = files.filter(is_segment).find(has_body).unwrap();
    for round in 0.. {
        assert!(round < 3000, "the segment of the first message was not recycled");
        noise().await;
        if round % 16 == 0 && !has_body(&segment) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.send(vec![(name("q"), message(vec![2; 2000], None))]).await.unwrap();
    running.stop().await;
    assert!(outbox.next().await.is_none());
}

fn bytes_of(engine: &Engine) -> Vec<u8> {
    engine.backup().unwrap().flat_map(|piece| piece.unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_contains_exactly_what_was_answered_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open(dir.path());
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    engine.declare(name("s"), spec).await.unwrap();
    let stop = AtomicBool::new(false);
    let answered: [AtomicU64; 4] = Default::default();
    let asked: [AtomicU64; 4] = Default::default();
    let removed = parking_lot::Mutex::new(BTreeSet::new());
    let sender = |session: usize| {
        let (engine, stop, answered, asked) = (&engine, &stop, &answered, &asked);
        async move {
            for n in 0_u64.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let body = [&(session as u64).to_le_bytes()[..], &n.to_le_bytes(), &[7; 500]];
                let one = message(body.concat(), Some(format!("s{session}")));
                asked[session].store(n + 1, Ordering::SeqCst);
                engine.send(vec![(name("s"), one)]).await.unwrap();
                answered[session].store(n + 1, Ordering::SeqCst);
            }
        }
    };
    let receiver = async {
        while !stop.load(Ordering::SeqCst) {
            let got = engine.receive(receive("s", 8)).await.unwrap();
            for d in got {
                // Recorded before the request: everything that is missing later is in here.
                removed.lock().insert(which(&d.stored.message));
                complete(&engine, vec![d.lease.unwrap()]).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let taking = async {
        let mut backups = Vec::new();
        for _ in 0..4 {
            let goal = answered[0].load(Ordering::SeqCst) + 200;
            while answered[0].load(Ordering::SeqCst) < goal {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let before: Vec<u64> = answered.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            let engine = engine.clone();
            let bytes = tokio::task::spawn_blocking(move || bytes_of(&engine)).await.unwrap();
            let after: Vec<u64> = asked.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            backups.push((before, bytes, after, removed.lock().clone()));
        }
        stop.store(true, Ordering::SeqCst);
        backups
    };
    let (_, _, _, _, (), backups) =
        tokio::join!(sender(0), sender(1), sender(2), sender(3), receiver, taking);
    running.stop().await;
    for (before, bytes, after, removed) in backups {
        let dir = tempfile::tempdir().unwrap();
        let restored = restore(&mut &bytes[..], &OsDisk::open(dir.path()).unwrap()).unwrap();
        assert_eq!(restored.bytes, bytes.len() as u64);
        let (engine, running) = open(dir.path());
        let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut from = malote_model::Seq(0);
        loop {
            let (queue, max, session, state) = (name("s"), 1000, None, None);
            let peek = malote_engine::Peek { queue, from, max, session, state };
            let (seen, next) = engine.peek(peek).await.unwrap();
            for seen in seen {
                let (session, n) = which(&seen.stored.unwrap().message);
                found.entry(session).or_default().push(n);
            }
            let Some(next) = next else { break };
            from = next;
        }
        for session in 0..4_u64 {
            let found = found.remove(&session).unwrap_or_default();
            assert!(found.is_sorted(), "session {session} is out of order");
            let mut have: BTreeSet<u64> = found.iter().copied().collect();
            assert_eq!(have.len(), found.len(), "session {session} holds one twice");
            let last = have.last().copied().unwrap_or(0);
            assert!(last < after[session as usize].max(1), "{last} was never sent");
            have.extend(removed.iter().filter(|(s, _)| *s == session).map(|(_, n)| n));
            for n in 0..before[session as usize] {
                assert!(have.contains(&n), "{n} of session {session} is not in the backup");
            }
        }
        running.stop().await;
    }
}

fn which(message: &Message) -> (u64, u64) {
    let bytes = &message.body.bytes;
    let at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (at(0), at(8))
}

#[tokio::test]
async fn a_truncated_or_changed_backup_is_refused_and_restores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = open(dir.path());
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    let all = (0..10).map(|n| (name("q"), message(vec![n; 100], None)));
    engine.send(all.collect()).await.unwrap();
    let good = bytes_of(&engine);
    running.stop().await;
    assert_eq!(check_backup(&mut &good[..]).unwrap().files, 1);
    for cut in 0..good.len() {
        let refused = check_backup(&mut &good[..cut]);
        assert!(
            matches!(refused, Err(RestoreError::CutShort | RestoreError::NotABackup)),
            "cut at {cut}: {refused:?}"
        );
    }
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(check_backup(&mut &bad[..]).is_err(), "bit {bit}");
    }
    let longer = [&good[..], b"x"].concat();
    assert!(matches!(check_backup(&mut &longer[..]), Err(RestoreError::Damaged(_))));

    let target = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(target.path()).unwrap();
    let names = || -> Vec<String> {
        use malote_engine::disk::Disk;
        disk.list().unwrap().into_iter().map(|entry| entry.name).collect()
    };
    assert!(restore(&mut &good[..good.len() - 1], &disk).is_err());
    assert_eq!(names(), ["lock"]);
    restore(&mut &good[..], &disk).unwrap();
    assert_eq!(names(), ["lock", "segment-000001.log"]);
    // Existing data is never overwritten.
    assert!(matches!(restore(&mut &good[..], &disk), Err(RestoreError::NotEmpty(_))));
    let (engine, running) = open(target.path());
    assert_eq!(engine.describe(name("q")).await.unwrap().ready, 10);
    assert!(matches!(restore(&mut &good[..], &disk), Err(RestoreError::InUse(_))));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_finished_backup_can_be_restored() {
    // In memory, so that segments follow one another as fast as possible.
    let options = Options {
        segment_bytes: 16 << 10,
        first_segment_bytes: 16 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 64 << 10,
        ..Options::default()
    };
    let disk = Arc::new(MemoryDisk::new());
    let (engine, running) = Engine::open_on(disk, &options, Chance::of_system()).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::SeqCst) {
                let all = (0..2).map(|_| (name("q"), message(vec![7; 3000], None)));
                engine.send(all.collect()).await.unwrap();
                let got = engine.receive(receive("q", 2)).await.unwrap();
                complete(&engine, got.iter().filter_map(|d| d.lease).collect()).await;
            }
        }
    });
    for n in 0..300 {
        let engine = engine.clone();
        let bytes = tokio::task::spawn_blocking(move || {
            let pieces: std::io::Result<Vec<_>> = engine.backup()?.collect();
            Ok::<_, std::io::Error>(pieces?.concat())
        });
        // Under such a load a backup may fail, but it is never invalid.
        let Ok(bytes) = bytes.await.unwrap() else { continue };
        check_backup(&mut &bytes[..]).unwrap();
        restore(&mut &bytes[..], &MemoryDisk::new()).unwrap_or_else(|why| panic!("{n}: {why}"));
    }
    stop.store(true, Ordering::SeqCst);
    load.await.unwrap();
    running.stop().await;
}
