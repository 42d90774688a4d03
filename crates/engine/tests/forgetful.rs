//! The page cache may contain any part of a file, even parts of records.
#![allow(clippy::unwrap_used)] // a test

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::disk::{DirEntry, Disk, DiskFile, MemoryDisk};
use malote_engine::journal::Options;
use malote_engine::{Engine, Peek, Receive};
use malote_model::{Body, BodyKind, Message, QueueName, QueueSpec, Seq};

/// Small, so that most records, and many of their headers, cross the edge of a page.
const PAGE_BYTES: u64 = 64;

/// A directory whose page cache changes with every read.
#[derive(Clone, Default)]
struct Forgetful {
    disk: MemoryDisk,
    looks: Arc<AtomicU64>,
}

struct ForgetfulFile {
    file: Arc<dyn DiskFile>,
    looks: Arc<AtomicU64>,
}

impl Forgetful {
    fn file(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(ForgetfulFile { file: file?, looks: self.looks.clone() }))
    }
}

impl Disk for Forgetful {
    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.disk.open(name))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.disk.create(name))
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

impl DiskFile for ForgetfulFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        let first = offset / PAGE_BYTES;
        // One page of five is missing, a different one with each read.
        let held = (first..).take_while(|page| !(page + look).is_multiple_of(5)).count() as u64;
        let end = (first + held) * PAGE_BYTES;
        match end.checked_sub(offset) {
            None | Some(0) => Err(io::ErrorKind::WouldBlock.into()),
            Some(len) => {
                let len = buf.len().min(len as usize);
                self.file.read_at(&mut buf[..len], offset)
            }
        }
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[tokio::test]
async fn a_partly_cached_record_is_not_damaged() {
    let disk = Forgetful::default();
    let (engine, running) =
        Engine::open_on(Arc::new(disk.clone()), &Options::default(), Chance::of_system()).unwrap();
    let queue = QueueName::new("q").unwrap();
    engine.declare(queue.clone(), QueueSpec::default()).await.unwrap();
    let body = |n: usize| Bytes::from(vec![n as u8; n * 7 % 500]);
    let message =
        |n| Message { body: Body { bytes: body(n), kind: BodyKind::Bytes }, ..Message::default() };
    let all: Vec<Bytes> = (0..500).map(body).collect();
    for some in (0..500).collect::<Vec<_>>().chunks(50) {
        engine.send(some.iter().map(|&n| (queue.clone(), message(n))).collect()).await.unwrap();
    }

    let (mut seen, mut from) = (Vec::new(), Some(Seq(0)));
    while let Some(at) = from {
        let peek = Peek { queue: queue.clone(), from: at, max: 64, session: None, state: None };
        let (some, next) = engine.peek(peek).await.unwrap();
        seen.extend(some.into_iter().map(|s| s.stored.unwrap().message.body.bytes));
        from = next;
    }
    assert_eq!(seen, all);

    let mut got = Vec::new();
    while got.len() < all.len() {
        // Removed on delivery: what is mistaken for damaged here is lost.
        let (max, wait_ms, lock_ms, take, hold, per_session) = (20, 0, None, true, None, 1);
        let queue = queue.clone();
        let receive = Receive { queue, max, wait_ms, lock_ms, take, hold, per_session };
        let some = engine.receive(receive).await.unwrap();
        assert!(!some.is_empty(), "{} of {}", got.len(), all.len());
        got.extend(some.into_iter().map(|d| d.stored.message.body.bytes));
    }
    assert_eq!(got, all);
    assert_eq!(engine.damaged(), 0);
    assert!(disk.looks.load(Ordering::Relaxed) > 50, "the page cache was not examined");
    running.stop().await;
}
