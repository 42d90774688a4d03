//! `postgres://`: a PostgreSQL database as the broker, with its own tables in the schema `malote`.
//!
//! | file | has |
//! |---|---|
//! | `config.rs`, `tls.rs` | the URL |
//! | `link.rs` | connections and statements |
//! | `tables.sql`, `install.rs` | the tables |
//! | `anchor.rs` | how others know that we are there |
//! | `bells.rs` | how who waits is woken |
//! | `keeper.rs` | what time does |
//! | `queues.rs`, `send.rs`, `claim.rs`, `sessions.rs`, `settle.rs`, `write.rs`, `renew.rs`, `depth.rs` | the verbs |
//! | `holds.rs`, `token.rs`, `message.rs` | sessions in hand, tokens and messages as rows |
//!
//! No transaction is open while a message is in hand. Time is the database's. All of it runs on a thread of its own, so
//! that no handler can keep locks from being renewed.

mod anchor;
mod bells;
mod claim;
mod config;
mod depth;
mod error;
mod holds;
mod install;
mod keeper;
mod link;
mod message;
mod queues;
mod renew;
mod send;
mod sessions;
mod settle;
mod tls;
mod token;
mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::SystemClock;
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, SessionId, Timestamp,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::bells::Unsaid;
use self::claim::PlainSource;
use self::config::Config;
use self::holds::Hold;
use self::link::{Line, Sql};
use self::queues::Queue;
use self::token::Token;
use crate::broker::{Broker, BrokerError, Doing, Held, Sent, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::Depth;

/// In messages.
const NAME: &str = "PostgreSQL";

/// What it can do: everything. Behind a pool of connections, `pooled=true`, leases end when their locks do.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
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

/// How long whoever drops it may take to give back what is out.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Statements of the connection that claims.
const CLAIMS: &[&Sql] = &[
    &queues::FIND,
    &queues::DECLARE,
    &claim::CLAIM,
    &sessions::FETCH,
    &sessions::STATE_OF,
    &depth::PLAIN,
    &depth::SESSIONS,
    &renew::RENEW,
    &renew::RENEW_HOLDS,
];

/// What all parts share.
struct Shared {
    config: Arc<Config>,
    /// Claims and renewals: what a crash of the server may forget.
    claims: Line,
    /// Sessions: the number of a hold must never be given twice, so a crash may not forget it.
    accepting: Line,
    sending: Line,
    settling: Line,
    keeping: Line,
    keeping_alone: tokio::sync::Mutex<()>,
    sends: mpsc::Sender<send::Call>,
    settles: mpsc::Sender<settle::Work>,
    queues: Mutex<HashMap<QueueName, Arc<Queue>>>,
    /// Who we are to others; 0 before we are anybody.
    owner: AtomicI32,
    anchored: AtomicBool,
    anchor_called: Notify,
    /// Claims so far.
    count: AtomicU32,
    /// Messages in hand of queues without sessions, with their leases.
    plain: Mutex<HashMap<i64, i64>>,
    holds: Mutex<HashMap<i64, Arc<Hold>>>,
    called_by_session: Mutex<HashMap<i64, Arc<Hold>>>,
    bells: Mutex<HashMap<i32, Arc<watch::Sender<u64>>>>,
    /// Queues that somebody waits for and nobody listens to yet.
    unheard: Mutex<Vec<i32>>,
    unsaid: Mutex<Unsaid>,
    desks: Mutex<HashMap<i32, mpsc::Sender<sessions::Ask>>>,
    /// When something of ours is due.
    due: Mutex<Option<Instant>>,
    chance: Chance,
    clock: SystemClock,
    handle: Handle,
}

/// A PostgreSQL database.
pub struct Postgres {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    end: CancellationToken,
    /// The thread ends with the last who has this: sources keep it, too.
    alive: Arc<DropGuard>,
}

impl Postgres {
    /// Connects, and makes the tables where they are missing.
    pub async fn connect(url: &str) -> Result<Self, BrokerError> {
        let config = Arc::new(Config::of(url)?);
        let start = |e: std::io::Error| BrokerError::Refused {
            code: "no_thread".into(),
            text: format!("the thread of the connection cannot be started: {e}"),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(start)?;
        let end = CancellationToken::new();
        let (sends, sent) = send::channel();
        let (settles, settled) = settle::channel();
        let shared = Arc::new(Shared {
            claims: Line::new(&config, true, CLAIMS),
            accepting: Line::new(&config, false, &[&sessions::ACCEPT, &sessions::ACCEPT_NAMED]),
            sending: Line::new(&config, false, send::STATEMENTS),
            settling: Line::new(&config, false, write::STATEMENTS),
            keeping: Line::new(&config, false, keeper::ASIDE),
            keeping_alone: tokio::sync::Mutex::new(()),
            sends,
            settles,
            queues: Mutex::default(),
            owner: AtomicI32::new(0),
            anchored: AtomicBool::new(false),
            anchor_called: Notify::new(),
            count: AtomicU32::new(0),
            plain: Mutex::default(),
            holds: Mutex::default(),
            called_by_session: Mutex::default(),
            bells: Mutex::default(),
            unheard: Mutex::default(),
            unsaid: Mutex::default(),
            desks: Mutex::default(),
            due: Mutex::default(),
            chance: Chance::of_system(),
            clock: SystemClock::starting_at(Timestamp(0)),
            handle: runtime.handle().clone(),
            config,
        });
        let (started, outcome) = oneshot::channel();
        let (of_thread, until) = (shared.clone(), end.clone());
        std::thread::Builder::new()
            .name("malote-postgres".into())
            .spawn(move || {
                runtime.block_on(async {
                    if let Err(error) = install::install(&of_thread.config).await {
                        let _ = started.send(Err(error));
                        return;
                    }
                    tokio::spawn(of_thread.clone().write_sends(sent));
                    tokio::spawn(of_thread.clone().write_settlements(settled));
                    tokio::spawn(anchor::keep(of_thread.clone(), started));
                    until.cancelled().await;
                    // Dropped is closed, as far as there is time for it.
                    let _ = tokio::time::timeout(LEAVE_MAX, of_thread.end()).await;
                });
            })
            .map_err(start)?;
        let alive = Arc::new(end.clone().drop_guard());
        outcome.await.unwrap_or(Err(BrokerError::Closed))?;
        let bound_leases = !shared.config.pooled;
        let capabilities = Capabilities { bound_leases, ..CAPABILITIES };
        Ok(Self { shared, capabilities, end, alive })
    }

    /// Runs on the connector's own thread, to its end even if nobody waits for it.
    fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, BrokerError>> + Send + 'static,
    ) -> Doing<'_, T> {
        Box::pin(async move {
            if self.end.is_cancelled() {
                return Err(BrokerError::Closed);
            }
            let (reply, answer) = oneshot::channel();
            self.shared.handle.spawn(async move {
                let _ = reply.send(what.await); // whoever asked may be gone
            });
            answer.await.unwrap_or(Err(BrokerError::Closed))
        })
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Broker for Postgres {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        self.run(async move { shared.declare(&queue, spec).await })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        let shared = self.shared.clone();
        self.run(async move { shared.send(messages).await })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        let (shared, queue, alive) = (self.shared.clone(), queue.clone(), self.alive.clone());
        self.run(async move {
            let queue = shared.queue(&queue).await?;
            if queue.has_sessions() {
                return Err(Refusal::SessionRequired { queue: queue.name.clone() }.into());
            }
            Ok(Box::new(PlainSource { shared, queue, lock, _alive: alive }) as Box<dyn Source>)
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        Box::pin(async move {
            let of = shared.clone();
            let queue = self.run(async move { of.queue(&queue).await }).await?;
            shared.needs_sessions(&queue)?;
            let accepted = match session {
                Some(session) => shared.accept_named(&queue, session, lock).await?,
                None => shared.accept_next(&queue, lock, wait).await?,
            };
            Ok(accepted.map(|mut source| {
                source.alive = Some(self.alive.clone());
                Box::new(source) as Box<dyn Source>
            }))
        })
    }

    fn settle(
        &self,
        _queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        // Not through the thread's tasks: settlements keep the order in which they are asked for.
        Box::pin(async move { self.shared.settle(items).await })
    }

    fn renew(
        &self,
        _queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let shared = self.shared.clone();
        self.run(async move { shared.renew(&leases, lock).await })
    }

    fn state(&self, _queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        let (shared, hold) = (self.shared.clone(), held.hold);
        self.run(async move {
            let Some(Token::Hold { num, hold }) = Token::read(hold) else {
                return Err(BrokerError::LockLost);
            };
            let rows = shared.claims.rows(&sessions::STATE_OF, &[&num, &hold]).await?;
            let row = rows.first().ok_or(BrokerError::LockLost)?;
            Ok(row.try_get::<_, Option<Vec<u8>>>(0)?.map(Bytes::from))
        })
    }

    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        let (shared, queue) = (self.shared.clone(), queue.clone());
        self.run(async move { shared.depth(&queue).await })
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            if self.end.is_cancelled() {
                return Ok(());
            }
            let shared = self.shared.clone();
            let ended = self.run(async move { shared.end().await }).await;
            self.end.cancel();
            ended
        })
    }
}
