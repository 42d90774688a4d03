//! The native front end: HTTP API, health, metrics and the native WebSocket connection.
//!
//! | what | where |
//! |---|---|
//! | which routes exist, and which function answers each | [`routes`] |
//! | declare, update, delete, purge, pause queues | `ops/queues.rs` |
//! | declare, delete topics; subscriptions; rules, and trying one | `ops/topics.rs`, `ops/subscriptions.rs`, `ops/rules.rs` |
//! | send one, a batch, over several queues and topics | `ops/send.rs`, `ops/metadata.rs` |
//! | a request and its answer in one call | `ops/request.rs`, `replies.rs` |
//! | several operations, all or nothing | `ops/transactions.rs` |
//! | receive, receive deferred, cancel scheduled | `ops/receive.rs` |
//! | settle, renew | `ops/settle.rs` |
//! | accept, release, renew, break, state of sessions | `ops/sessions.rs` |
//! | sagas that workers drive | `ops/sagas.rs` |
//! | peek | `ops/peek.rs` |
//! | dead letters: list, purge, redrive, resend | `ops/dead_letters.rs` |
//! | partition, scale, version, problems, OpenAPI | `ops/about.rs`, `openapi.rs` |
//! | a backup of everything | `ops/backup.rs` |
//! | the audit log: what is recorded, reading it | `audit.rs`, `ops/audit.rs` |
//! | `/livez` `/readyz` `/health/…` | `health.rs` |
//! | `/metrics…`, one hour of history | `metrics/`, `history.rs` |
//! | the native connection: send, attach, settle … | `native/` |
//!
//! An operation decodes, asks [`Access`], makes one engine call and encodes. What is wrong with a request is a
//! [`problem::Problem`]; nothing a caller sends makes this crate panic or hold memory without a bound ([`Limits`]).
//! Listening, TLS and credentials are the server's: it implements [`Authenticate`] and hands streams to
//! [`serve_connection`], or to that of `malote-http` where a port has other front ends as well.

mod access;
mod audit;
mod convert;
mod extract;
pub mod health;
pub mod history;
mod limits;
pub mod metrics;
pub mod native;
pub mod openapi;
mod ops;
pub mod problem;
mod replies;
pub mod requests;
mod routes;

use std::sync::Arc;

use malote_engine::Engine;
use malote_model::Access;
use malote_wire_native::nearest;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use health::Readiness;
pub use limits::Limits;
pub use malote_http::{Authenticate, Authenticated, Budget, Credential, Nobody, Unauthenticated};
pub use problem::busy_answer;
pub use routes::router;

/// What every operation holds. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Api {
    /// The broker.
    pub engine: Engine,
    /// Who may do what.
    pub access: Arc<dyn Access>,
    /// Who calls.
    pub authenticate: Arc<dyn Authenticate>,
    /// Bounds.
    pub limits: Arc<Limits>,
    /// Whether the process is ready for work.
    pub readiness: Arc<Readiness>,
    /// Cancelled when the process begins to stop: waits end, native connections close.
    pub shutdown: CancellationToken,
    /// Whether `?create=` is honoured.
    pub create_on_send: bool,
    /// Counts and durations of requests.
    pub metrics: Arc<metrics::Metrics>,
    /// The last hour of every queue.
    pub history: Arc<history::History>,
    bodies: Arc<Budget>,
    control_bodies: Arc<Budget>,
    /// Peeks that are being made: each holds a page of messages.
    peeks: Arc<Semaphore>,
    staged: Arc<Semaphore>,
    /// One backup at a time: each reads the whole disk.
    backups: Arc<Semaphore>,
    /// Pages of metrics with every object that are being read.
    scrapes: Arc<Semaphore>,
    native: Arc<native::Connections>,
    replies: Arc<replies::Replies>,
    tasks: TaskTracker,
}

impl Api {
    /// An API over an engine. [`Api::run`] must be running beside it for the history to fill.
    pub fn new(
        engine: Engine,
        access: Arc<dyn Access>,
        authenticate: Arc<dyn Authenticate>,
        limits: Limits,
        readiness: Arc<Readiness>,
        shutdown: CancellationToken,
    ) -> Self {
        // Half for one address: nobody takes what all need.
        let bodies = Budget::new(limits.bodies_bytes_max, limits.bodies_bytes_max / 2);
        let control_bytes_max = limits.control_bodies_bytes_max;
        let control_bodies = Budget::new(control_bytes_max, control_bytes_max / 2);
        let peeks = Arc::new(Semaphore::new(limits.peeks_max));
        let scrapes = Arc::new(Semaphore::new(limits.metrics_pages_max));
        let staged = Arc::new(Semaphore::new(limits.staged_bytes_all_max));
        Self {
            engine,
            access,
            authenticate,
            limits: Arc::new(limits),
            readiness,
            shutdown,
            create_on_send: true,
            metrics: Arc::default(),
            history: Arc::default(),
            bodies,
            control_bodies,
            peeks,
            staged,
            backups: Arc::new(Semaphore::new(1)),
            scrapes,
            native: Arc::default(),
            replies: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Samples the history until shutdown, then waits until every native connection has ended.
    pub async fn run(&self) {
        self.history.run(&self.engine, &self.shutdown).await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Serves a connection of the native API until the peer, a timeout or `shutdown` ends it.
pub async fn serve_connection<S>(
    stream: S,
    router: axum::Router,
    peer: impl Into<malote_http::Peer>,
    limits: &Limits,
    shutdown: CancellationToken,
) -> Result<(), hyper::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let limits = limits.connection();
    malote_http::serve_connection(stream, router, peer, &limits, busy_answer, shutdown).await
}
