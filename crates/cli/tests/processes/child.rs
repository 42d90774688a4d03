//! The worker process, and its log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use malote::once::sqlite::Sqlite;
use malote::{
    Broker, BrokerError, Cancelled, Capabilities, Failure, FromDelivery, Incoming, Malote, Message,
    Meta, Retry, Session, State, Tx, Worker,
};
use malote_connectors::{BrokerFuture, Sent, SessionHold, Settle, Source};
use malote_model::{Address, LeaseToken, QueueName, QueueSpec, SessionId};
use tokio::task::JoinHandle;

use crate::lab::Q;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Applies every message.
    Apply,
    /// The same, with sessions.
    ApplySessions,
    /// Applies messages without settling them. Hangs on messages that ask for it.
    Mute,
    /// Applies one message and waits for a signal.
    Slow,
    /// Works for a while on each message. One of them crashes the process.
    Abort,
    /// The same, with sessions.
    AbortSessions,
    /// Works for a short time on each message, and checks that no other process has its session.
    Steady,
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use Role::*;
        let all = [Apply, ApplySessions, Mute, Slow, Abort, AbortSessions, Steady];
        all.into_iter().find(|role| format!("{role:?}") == text).ok_or_else(|| text.to_owned())
    }
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct Event {
    pub pid: u32,
    /// Milliseconds since 1970.
    pub at_ms: u128,
    pub what: String,
    pub id: String,
    pub attempt: u32,
    pub lost: u32,
    pub receives: u32,
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [pid, at_ms, what, id, attempt, lost, receives] = fields[..] else {
            return Err(line.to_owned());
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| line.to_owned());
        Ok(Self {
            pid: number(pid)?,
            at_ms: at_ms.parse().map_err(|_| line.to_owned())?,
            what: what.to_owned(),
            id: id.to_owned(),
            attempt: number(attempt)?,
            lost: number(lost)?,
            receives: number(receives)?,
        })
    }
}

pub fn now_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// The directory that the processes share.
#[derive(Clone)]
struct SharedDir {
    dir: PathBuf,
    log: Arc<File>,
    /// Tasks that still write to the log before the process ends.
    pending_entries: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl SharedDir {
    fn at(dir: PathBuf) -> Self {
        std::fs::create_dir_all(dir.join("locks")).unwrap();
        let log = OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        Self { dir, log: Arc::new(log), pending_entries: Arc::default() }
    }

    /// Each entry is one write, so that entries of several processes do not mix.
    fn log_event(&self, what: &str, id: &str, counters: (u32, u32, u32)) {
        let (attempt, lost, receives) = counters;
        let (pid, at_ms) = (std::process::id(), now_ms());
        let line = format!("{pid}\t{at_ms}\t{what}\t{id}\t{attempt}\t{lost}\t{receives}\n");
        (&*self.log).write_all(line.as_bytes()).unwrap();
    }

    /// A file lock, which ends with the process. Logs a violation if another process has it.
    fn own(&self, what: &str) -> File {
        let file = File::create(self.dir.join("locks").join(what)).unwrap();
        if file.try_lock().is_err() {
            self.log_event("twice", what, (0, 0, 0));
        }
        file
    }
}

/// A message in progress. No other process may have it until this is dropped.
struct Begun {
    shared: SharedDir,
    meta: Meta,
    _own: File,
}

impl Begun {
    fn id(&self) -> String {
        self.meta.message().message_id.clone().unwrap()
    }

    fn log_event(&self, what: &str) {
        let meta = &self.meta;
        let counters = (meta.attempt(), meta.lost(), meta.delivery().receives);
        self.shared.log_event(what, &self.id(), counters);
    }
}

impl FromDelivery for Begun {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let meta = Meta::from_delivery(incoming).await?;
        let shared = SharedDir::clone(&*State::<SharedDir>::from_delivery(incoming).await?);
        let own = shared.own(meta.message().message_id.as_deref().unwrap());
        let begun = Self { shared, meta, _own: own };
        begun.log_event("begun");
        Ok(begun)
    }
}

pub fn database(dir: &Path) -> Sqlite {
    let db = rusqlite::Connection::open(dir.join("app.db")).unwrap();
    db.execute_batch("create table if not exists effects (id text, pid integer)").unwrap();
    Sqlite::with_connection(db).unwrap()
}

async fn effect(tx: &Tx<Sqlite>, id: String) -> Result<(), Failure> {
    let write = "insert into effects (id, pid) values (?1, ?2)";
    tx.run(move |db| db.execute(write, (id, std::process::id()))).await?;
    Ok(())
}

async fn apply(begun: Begun, tx: Tx<Sqlite>) -> Result<(), Failure> {
    effect(&tx, begun.id()).await
}

async fn hang(_begun: Begun) {
    std::future::pending::<()>().await;
}

/// Logs whether its token was cancelled, even if it is dropped then.
async fn slow(begun: Begun, tx: Tx<Sqlite>, cancelled: Cancelled) -> Result<(), Failure> {
    effect(&tx, begun.id()).await?;
    let (shared, id) = (begun.shared.clone(), begun.id());
    let entry = tokio::spawn(async move {
        cancelled.wait().await;
        shared.log_event("cancelled", &id, (0, 0, 0));
    });
    begun.shared.pending_entries.lock().unwrap().push(entry);
    begun.log_event("written");
    while !begun.shared.dir.join("go").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn abort(begun: Begun) {
    if begun.id().starts_with("abort") {
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::process::abort();
    }
    // Long enough to be in progress when the other message crashes the process.
    tokio::time::sleep(Duration::from_millis(500)).await;
    begun.log_event("done");
}

async fn steady(begun: Begun, Session(session): Session) {
    let _own = begun.shared.own(session.as_str());
    tokio::time::sleep(Duration::from_millis(5)).await;
    begun.log_event("done");
}

#[test]
#[ignore = "a worker process of the other tests"]
fn run() {
    let var = |name: &str| std::env::var(name).expect("set by the test that starts it");
    let role: Role = var("MALOTE_TEST_ROLE").parse().unwrap();
    let lock = Duration::from_millis(var("MALOTE_TEST_LOCK").parse().unwrap());
    let dir = PathBuf::from(var("MALOTE_TEST_DIR"));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work(role, &var("MALOTE_TEST_URL"), dir, lock));
}

async fn work(role: Role, url: &str, dir: PathBuf, lock: Duration) {
    let shared = SharedDir::at(dir.clone());
    let mut malote = Malote::connect(url).await.unwrap();
    if role == Role::Mute {
        malote = Malote::with_broker(Arc::new(Mute(malote.broker().clone())));
    }
    let worker = Worker::new(&malote, Q)
        .lock(lock)
        .state(shared.clone())
        .retry(Retry { attempts: 20, ..Retry::fixed(Duration::from_millis(200), 20) });
    let database = || database(&dir);
    let worker = match role {
        Role::Apply => worker.handle(apply).state(database()),
        Role::ApplySessions => worker.handle(apply).state(database()).sessions(4),
        Role::Mute => worker.on("hang", hang).on("apply", apply).state(database()),
        Role::Slow => worker.handle(slow).state(database()).sessions(1),
        Role::Abort => worker.handle(abort).slots(8),
        Role::AbortSessions => worker.handle(abort).sessions(8),
        Role::Steady => worker.handle(steady).sessions(8),
    };
    // Wait until the signal handler exists.
    let stop = tokio::spawn(async {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::terminate()).unwrap().recv().await;
    });
    tokio::task::yield_now().await;
    let running = worker.start().await.unwrap();
    shared.log_event("ready", "-", (0, 0, 0));
    stop.await.unwrap();
    running.stop();
    let counts = running.ended().await.unwrap().counts;
    let lost = u32::try_from(counts.lost).unwrap();
    let pending_entries = std::mem::take(&mut *shared.pending_entries.lock().unwrap());
    for entry in pending_entries {
        // A handler that was not cancelled by now will not be.
        let _ = tokio::time::timeout(Duration::from_secs(30), entry).await;
    }
    shared.log_event("ended", "-", (u32::try_from(counts.done).unwrap(), lost, 0));
    malote.close().await.unwrap();
}

/// A connection that drops settlements: effects happen, but the broker does not learn of them.
struct Mute(Arc<dyn Broker>);

impl Broker for Mute {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        self.0.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        self.0.send(messages)
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        self.0.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        self.0.accept(queue, session, lock, wait)
    }

    fn settle(
        &self,
        _: &QueueName,
        _: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        Box::pin(std::future::pending())
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        self.0.renew(queue, leases, lock)
    }

    fn state(
        &self,
        queue: &QueueName,
        held: &SessionHold,
    ) -> BrokerFuture<'_, Option<bytes::Bytes>> {
        self.0.state(queue, held)
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        self.0.close()
    }
}
