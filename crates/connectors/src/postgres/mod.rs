//! `postgres://`: a PostgreSQL database as the broker, with tables in the schema `malote`.
//!
//! | file | contains |
//! |---|---|
//! | `config.rs`, `tls.rs` | the URL, TLS |
//! | `connection.rs` | connections and prepared statements |
//! | `tables.sql`, `install.rs` | the tables |
//! | `owner.rs` | registers this process, so that others notice its end |
//! | `wakeups.rs` | wakes receivers when messages arrive |
//! | `maintenance.rs` | due and expired messages, expired leases |
//! | `queues.rs`, `send.rs`, `claim.rs`, `sessions.rs`, `settle.rs`, `renew.rs`, `depth.rs` | the operations |
//! | `settle_transaction.rs` | the statements that settle |
//! | `local_holds.rs`, `token.rs`, `message.rs` | held sessions, lease tokens, messages as rows |
//!
//! No transaction is open while a message is processed. All times come from the database. The connector runs on its own
//! thread, so that handlers cannot delay renewals.

mod claim;
mod config;
mod connection;
mod depth;
mod error;
mod install;
mod local_holds;
mod maintenance;
mod message;
mod owner;
mod queues;
mod renew;
mod send;
mod sessions;
mod settle;
mod settle_transaction;
mod tls;
mod token;
mod wakeups;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::time::Duration;

use bytes::Bytes;
use malote_model::{Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, SessionId};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::claim::PgPlainSource;
use self::config::PgConfig;
use self::connection::{PgConnector, Sql};
use self::local_holds::LocalHold;
use self::queues::PgQueue;
use self::token::PgToken;
use self::wakeups::PendingNotifications;
use crate::broker::{Broker, BrokerError, BrokerFuture, Sent, SessionHold, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;
use crate::io_thread::IoRuntime;

/// The broker's name in errors.
const BROKER: &str = "PostgreSQL";

/// PostgreSQL has all capabilities. Behind a connection pool (`pooled=true`), leases end only with their locks.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: BROKER,
    retry_hold: RetryHold::Session,
    declare: true,
    sessions: true,
    fair_sessions: true,
    choose_lock: true,
    session_state: true,
    state_with_settle: true,
    renew: true,
    release: true,
    delay: true,
    schedule: true,
    dead_letter: true,
    changes: true,
    dedup: true,
    atomic_send: true,
    bound_leases: true,
};

/// How long releasing leases may take after the connector was dropped.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Statements of the connection for claims.
const CLAIMS: &[&Sql] = &[
    &queues::FIND_QUEUE,
    &queues::DECLARE_QUEUE,
    &claim::CLAIM,
    &sessions::FETCH,
    &sessions::GET_STATE,
    &depth::PLAIN_DEPTH,
    &depth::SESSION_DEPTH,
    &renew::RENEW,
    &renew::RENEW_HOLDS,
];

/// State shared by the connector, its sources and its tasks.
struct PgShared {
    config: Arc<PgConfig>,
    /// For claims and renewals, which a crash of the server may lose.
    claiming: PgConnector,
    /// For accepting sessions. The id of a hold must never be used twice, so it must survive a crash.
    accepting: PgConnector,
    sending: PgConnector,
    settling: PgConnector,
    maintenance: PgConnector,
    maintenance_lock: tokio::sync::Mutex<()>,
    send_calls: mpsc::Sender<send::SendCall>,
    settle_calls: mpsc::Sender<settle::SettleCall>,
    queues: Mutex<HashMap<QueueName, Arc<PgQueue>>>,
    /// The id of this process in `malote.owners`; 0 before registration.
    owner: AtomicI32,
    owner_registered: AtomicBool,
    owner_wakeup: Notify,
    /// The number of claims so far.
    claim_count: AtomicU32,
    /// Leased messages of queues without sessions, with their leases.
    plain_leases: Mutex<HashMap<i64, i64>>,
    holds: Mutex<HashMap<i64, Arc<LocalHold>>>,
    holds_by_session: Mutex<HashMap<i64, Arc<LocalHold>>>,
    wakeups: Mutex<HashMap<i32, Arc<watch::Sender<u64>>>>,
    /// Queues with a new subscriber that need a `listen`.
    unlistened: Mutex<Vec<i32>>,
    pending_notifications: Mutex<PendingNotifications>,
    accept_queues: Mutex<HashMap<i32, mpsc::Sender<sessions::AcceptCall>>>,
    /// When the next delayed message of this process is due.
    next_due: Mutex<Option<Instant>>,
    handle: Handle,
}

/// A PostgreSQL database.
pub struct PostgresBroker {
    shared: Arc<PgShared>,
    capabilities: Capabilities,
    end: CancellationToken,
    /// Ends the thread when the last clone is dropped; sources have one.
    thread_guard: Arc<DropGuard>,
}

impl PostgresBroker {
    /// Connects, and creates the tables if they do not exist.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let config = Arc::new(PgConfig::parse(url)?);
        let runtime = IoRuntime::new("malote-postgres")?;
        let end = CancellationToken::new();
        let (send_calls, sent) = send::channel();
        let (settle_calls, settled) = settle::channel();
        let shared = Arc::new(PgShared {
            claiming: PgConnector::new(&config, true, CLAIMS),
            accepting: PgConnector::new(
                &config,
                false,
                &[&sessions::ACCEPT, &sessions::ACCEPT_NAMED],
            ),
            sending: PgConnector::new(&config, false, send::STATEMENTS),
            settling: PgConnector::new(&config, false, settle_transaction::STATEMENTS),
            maintenance: PgConnector::new(&config, false, maintenance::ON_DEMAND),
            maintenance_lock: tokio::sync::Mutex::new(()),
            send_calls,
            settle_calls,
            queues: Mutex::default(),
            owner: AtomicI32::new(0),
            owner_registered: AtomicBool::new(false),
            owner_wakeup: Notify::new(),
            claim_count: AtomicU32::new(0),
            plain_leases: Mutex::default(),
            holds: Mutex::default(),
            holds_by_session: Mutex::default(),
            wakeups: Mutex::default(),
            unlistened: Mutex::default(),
            pending_notifications: Mutex::default(),
            accept_queues: Mutex::default(),
            next_due: Mutex::default(),
            handle: runtime.handle(),
            config,
        });
        let (started, outcome) = oneshot::channel();
        let (shared_of_thread, until) = (shared.clone(), end.clone());
        runtime.start(move || async move {
            if let Err(error) = install::install(&shared_of_thread.config).await {
                let _ = started.send(Err(error));
                return;
            }
            tokio::spawn(shared_of_thread.clone().write_sends(sent));
            tokio::spawn(shared_of_thread.clone().write_settlements(settled));
            tokio::spawn(owner::run(shared_of_thread.clone(), started));
            until.cancelled().await;
            // Dropping the connector also releases its leases, if there is time.
            let _ = tokio::time::timeout(CLOSE_MAX, shared_of_thread.close()).await;
        })?;
        let thread_guard = Arc::new(end.clone().drop_guard());
        outcome.await.unwrap_or(Err(BrokerError::Closed))?;
        let bound_leases = !shared.config.pooled;
        let capabilities = Capabilities { bound_leases, ..CAPABILITIES };
        Ok(Self { shared, capabilities, end, thread_guard })
    }

    /// Runs on the connector's thread, to the end even if the caller gives up.
    fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, BrokerError>> + Send + 'static,
    ) -> BrokerFuture<'_, T> {
        Box::pin(async move {
            if self.end.is_cancelled() {
                return Err(BrokerError::Closed);
            }
            let (reply, answer) = oneshot::channel();
            self.shared.handle.spawn(async move {
                let _ = reply.send(what.await); // the caller gave up
            });
            answer.await.unwrap_or(Err(BrokerError::Closed))
        })
    }
}

impl Broker for PostgresBroker {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        self.run(async move { shared.declare(&queue, spec).await })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        let shared = self.shared.clone();
        self.run(async move { shared.send(messages).await })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        let (shared, queue, thread_guard) =
            (self.shared.clone(), queue.clone(), self.thread_guard.clone());
        self.run(async move {
            let queue = shared.queue(&queue).await?;
            if queue.has_sessions() {
                return Err(Refusal::SessionRequired { queue: queue.name.clone() }.into());
            }
            Ok(Box::new(PgPlainSource { shared, queue, lock, _thread_guard: thread_guard })
                as Box<dyn Source>)
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        Box::pin(async move {
            let of = shared.clone();
            let queue = self.run(async move { of.queue(&queue).await }).await?;
            shared.require_sessions(&queue)?;
            let accepted = match session {
                Some(session) => shared.accept_named(&queue, session, lock).await?,
                None => shared.accept_next(&queue, lock, wait).await?,
            };
            Ok(accepted.map(|mut source| {
                source.thread_guard = Some(self.thread_guard.clone());
                Box::new(source) as Box<dyn Source>
            }))
        })
    }

    fn settle(
        &self,
        _queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        // Not in a task of the thread: settlements keep the order of the calls.
        Box::pin(async move { self.shared.settle(items).await })
    }

    fn renew(
        &self,
        _queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let shared = self.shared.clone();
        self.run(async move { shared.renew(&leases, lock).await })
    }

    fn state(&self, _queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        let (shared, hold) = (self.shared.clone(), held.hold);
        self.run(async move {
            let Some(PgToken::Session { num, hold }) = PgToken::decode(hold) else {
                return Err(BrokerError::LockLost);
            };
            let rows = shared.claiming.query(&sessions::GET_STATE, &[&num, &hold]).await?;
            let row = rows.first().ok_or(BrokerError::LockLost)?;
            Ok(row.try_get::<_, Option<Vec<u8>>>(0)?.map(Bytes::from))
        })
    }

    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        self.run(async move { shared.depth(&queue).await })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            if self.end.is_cancelled() {
                return Ok(());
            }
            let shared = self.shared.clone();
            let ended = self.run(async move { shared.close().await }).await;
            self.end.cancel();
            ended
        })
    }
}
