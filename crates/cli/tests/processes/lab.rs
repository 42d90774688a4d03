//! A server, worker processes, and their log.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use malote::{Address, Delivery, Malote, Message, QueueName, SessionId};
use malote_connectors::Settle;
use rustix::process::{Pid, Signal, kill_process};

use crate::child::{Event, Role};
use crate::common::Server;

/// Longer than a slow machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const Q: &str = "jobs";

pub struct Lab {
    pub server: Server,
    pub malote: Malote,
    url: String,
}

impl Lab {
    /// Starts a server with one queue.
    pub async fn start(declare: &str) -> Self {
        let server = Server::start();
        server.ok(format!("queue create {Q} {declare}").trim_end());
        let url = server.url.replace("http://", "malote://");
        let malote = Malote::connect(&url).await.unwrap();
        Self { server, malote, url }
    }

    pub fn dir(&self) -> PathBuf {
        self.server.home.path().to_owned()
    }

    /// Starts a worker process and waits until it fetches messages.
    pub async fn worker(&self, role: Role, lock: Duration) -> Worker {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::run", "--ignored", "--nocapture"]);
        command.env("MALOTE_TEST_ROLE", format!("{role:?}")).env("MALOTE_TEST_URL", &self.url);
        command
            .env("MALOTE_TEST_DIR", self.dir())
            .env("MALOTE_TEST_LOCK", lock.as_millis().to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let worker = Worker { child };
        let pid = worker.pid();
        self.until("a worker is ready", |log| {
            log.iter().any(|event| event.pid == pid && event.what == "ready")
        })
        .await;
        worker
    }

    pub async fn send(&self, messages: Vec<Message>) {
        let to = Address::Queue(QueueName::new(Q).unwrap());
        let all = messages.into_iter().map(|message| (to.clone(), message)).collect();
        self.malote.send_all(all).await.unwrap();
    }

    /// All entries of the log so far.
    pub fn log(&self) -> Vec<Event> {
        let text = std::fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until the log meets a condition.
    pub async fn until(&self, what: &str, is_so: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            if is_so(&log) {
                return log;
            }
            assert!(std::time::Instant::now() < end, "it never came to that: {what}\n{log:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ids of messages that had an effect, with the process that wrote it, oldest first.
    pub async fn effects(&self) -> Vec<(String, u32)> {
        let db = crate::child::database(&self.dir());
        let rows = db.run(|db| {
            let mut all = db.prepare("select id, pid from effects order by rowid")?;
            let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        });
        rows.await.unwrap()
    }

    /// Receives the dead letters.
    pub async fn take_dead(&self) -> Vec<Delivery> {
        let dead = QueueName::new(Q).unwrap().dead_letters();
        let source = self.malote.broker().open(&dead, Duration::from_secs(60)).await.unwrap();
        let some = source.fetch(100, Duration::from_millis(200)).await.unwrap();
        let settled = some.iter().map(|one| Settle::complete(one.lease)).collect();
        self.malote.broker().settle(&dead, settled).await.unwrap();
        source.close().await.unwrap();
        some
    }

    /// Waits until the queue is empty.
    pub async fn until_empty(&self) {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let shown = self.server.ok(&format!("queue get {Q} -o json"));
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let count = |name: &str| shown["counts"][name].as_u64().unwrap();
            if count("ready") + count("locked") + count("delayed") == 0 {
                return;
            }
            assert!(std::time::Instant::now() < end, "it is never empty: {shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A worker process. Dropping it kills it.
pub struct Worker {
    child: Child,
}

impl Worker {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the process exits. Returns whether it succeeded.
    pub async fn ended(mut self) -> bool {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(std::time::Instant::now() < end, "it does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the worker with SIGTERM.
    pub async fn stop(self) {
        self.signal(Signal::TERM);
        assert!(self.ended().await, "a worker that was asked to stop failed");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn message(id: &str, subject: &str, session: Option<&str>) -> Message {
    let body = malote::model::Body { bytes: id.to_owned().into(), ..Default::default() };
    Message {
        message_id: Some(id.to_owned()),
        subject: Some(subject.to_owned()),
        session: session.map(|session| SessionId::new(session).unwrap()),
        body,
        ..Message::default()
    }
}
