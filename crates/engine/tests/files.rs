//! Files that disappear or cannot be created, in a running engine.
#![allow(clippy::unwrap_used)] // a test

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::disk::{DirEntry, Disk, DiskFile, MemoryDisk};
use malote_engine::journal::Options;
use malote_engine::{Engine, EngineError, Receive, Running, Settings};
use malote_model::{Body, BodyKind, Message, QueueName, QueueSpec, Settlement};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn message(bytes: usize) -> Message {
    let body = Body { bytes: Bytes::from(vec![7; bytes]), kind: BodyKind::Bytes };
    Message { body, ..Message::default() }
}

async fn poisoned(running: &Running) {
    for _ in 0..1200 {
        if running.is_poisoned() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the engine did not notice");
}

#[allow(clippy::disallowed_methods, reason = "simulates a change by another program")]
fn remove(dir: &Path, which: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if which(path.file_name().unwrap().to_str().unwrap()) {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[tokio::test]
async fn a_send_into_a_deleted_segment_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
    engine.declare(name("q"), QueueSpec::default()).await.unwrap();
    engine.send(vec![(name("q"), message(10))]).await.unwrap();
    remove(dir.path(), |name| name.ends_with(".log"));
    let answer = engine.send(vec![(name("q"), message(10))]).await;
    assert_eq!(answer.unwrap_err(), EngineError::Poisoned);
    poisoned(&running).await;
    running.stop().await;
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "simulates a change by another program")]
async fn an_idle_engine_detects_that_its_directory_or_lock_file_was_removed() {
    for what in ["segments", "lock", "directory", "another directory"] {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let (engine, running) = Engine::open(Settings::at(&data)).unwrap();
        engine.declare(name("q"), QueueSpec::default()).await.unwrap();
        match what {
            "segments" => remove(&data, |name| name.ends_with(".log")),
            "lock" => remove(&data, |name| name == "lock"),
            _ => std::fs::rename(&data, parent.path().join("moved")).unwrap(),
        }
        if what == "another directory" {
            std::fs::create_dir(&data).unwrap();
        }
        poisoned(&running).await;
        assert_eq!(engine.list().await.unwrap_err(), EngineError::Poisoned, "{what}");
        running.stop().await;
    }
}

/// A directory in which no file can be created while there are no descriptors.
#[derive(Clone, Default)]
struct Scarce {
    disk: MemoryDisk,
    exhausted: Arc<AtomicBool>,
}

const EMFILE: i32 = 24;

impl Disk for Scarce {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name)
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if self.exhausted.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        self.disk.create(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.disk.try_lock()
    }
    fn unlock(&self) {
        self.disk.unlock();
    }
    fn place(&self) -> String {
        self.disk.place()
    }
}

#[tokio::test]
async fn running_out_of_file_descriptors_is_reported_and_recovers() {
    let disk = Scarce::default();
    let options = Options {
        segment_bytes: 64 << 10,
        first_segment_bytes: 64 << 10,
        free_bytes_min: 0,
        ..Options::default()
    };
    let (engine, running) =
        Engine::open_on(Arc::new(disk.clone()), &options, Chance::of_system()).unwrap();
    let q = name("q");
    engine.declare(q.clone(), QueueSpec::default()).await.unwrap();
    // Spares are reserved for settling, once there are some.
    while running.spares() < options.spares {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    disk.exhausted.store(true, Ordering::SeqCst);
    let refused = loop {
        match engine.send(vec![(q.clone(), message(10_000))]).await {
            Ok(_) => {}
            Err(EngineError::Refused(refusal)) => break refusal.to_string(),
            Err(other) => panic!("{other}"),
        }
    };
    assert!(refused.contains("file descriptor"), "{refused}");
    assert!(!refused.contains("disk is full"), "{refused}");
    // Settling still works.
    let (max, wait_ms, lock_ms, take, hold, per_session) = (1, 0, None, false, None, 1);
    let receive = Receive { queue: q.clone(), max, wait_ms, lock_ms, take, hold, per_session };
    let got = engine.receive(receive).await.unwrap();
    let leases = got.iter().filter_map(|d| d.lease).collect();
    assert!(engine.settle(None, leases, Settlement::Complete, None).await.unwrap()[0].is_ok());

    disk.exhausted.store(false, Ordering::SeqCst);
    for tries in 0.. {
        if engine.send(vec![(q.clone(), message(10_000))]).await.is_ok() {
            break;
        }
        assert!(tries < 1200, "sending stays refused");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.stop().await;
}
