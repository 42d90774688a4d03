//! The native front end: HTTP API, health, metrics and the native WebSocket connection.
//!
//! | what | where |
//! |---|---|
//! | the table of routes | `routes.rs` |
//! | declare, update, delete, purge, pause queues | `ops/queues.rs` |
//! | declare, delete topics; subscriptions; rules and their test | `ops/topics.rs`, `ops/subscriptions.rs`, `ops/rules.rs` |
//! | send one, a batch, over several queues and topics | `ops/send.rs`, `ops/metadata.rs` |
//! | a request and its reply in one call | `ops/request.rs`, `replies.rs` |
//! | several operations, atomically | `ops/transactions.rs` |
//! | receive, receive deferred, cancel scheduled | `ops/receive.rs` |
//! | settle, renew | `ops/settle.rs` |
//! | accept, release, renew, break, state of sessions | `ops/sessions.rs` |
//! | sagas that workers drive | `ops/sagas.rs` |
//! | peek | `ops/peek.rs` |
//! | dead letters: list, purge, redrive, resend | `ops/dead_letters.rs` |
//! | partition, scale, version, problems, OpenAPI | `ops/about.rs`, `openapi.rs` |
//! | a backup of everything | `ops/backup.rs` |
//! | the audit log: records and queries | `audit.rs`, `ops/audit.rs` |
//! | all queues at a glance, once or as events | `overview/`, `ops/overview.rs` |
//! | the dashboard: files of the folder `dashboard` | `dashboard.rs` |
//! | `/livez` `/readyz` `/health/…` | `health.rs` |
//! | `/metrics…`, one hour of history | `metrics/`, `ops/history.rs` |
//! | the native connection: send, attach, settle … | `native/` |
//!
//! An operation decodes, checks [`Access`], makes one engine call and encodes. An invalid request is answered with a
//! [`problem::Problem`]. No input makes this crate panic or use unbounded memory ([`Limits`]).
//! The server does listening, TLS and credentials: it implements [`Authenticate`] and passes streams to
//! [`serve_connection`], or to that of `malote-http` if a port has several front ends.

#![allow(missing_docs)] // an internal API: comments explain what names do not

mod access;
mod audit;
mod convert;
mod dashboard;
mod extract;
pub mod health;
mod limits;
pub mod metrics;
pub mod native;
pub mod openapi;
mod ops;
mod overview;
pub mod problem;
mod replies;
pub mod requests;
mod routes;

use std::sync::Arc;

use malote_engine::Engine;
use malote_model::Access;
use malote_wire_native::nearest;
use malote_wire_native::overview::Endpoint;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use health::Readiness;
pub use limits::Limits;
pub use malote_http::{
    AllAnonymous, Authenticate, Authenticated, Budget, Credential, Unauthenticated,
};
pub use problem::busy_answer;
pub use routes::router;

/// The shared state of all operations. Clones are cheap.
#[derive(Clone)]
pub struct Api {
    pub engine: Engine,
    pub access: Arc<dyn Access>,
    pub authenticate: Arc<dyn Authenticate>,
    pub limits: Arc<Limits>,
    pub readiness: Arc<Readiness>,
    /// Cancelled when the process begins to stop: waits end and native connections close.
    pub shutdown: CancellationToken,
    /// Whether `?create=` is supported.
    pub create_on_send: bool,
    /// Counts and durations of requests.
    pub metrics: Arc<metrics::RequestMetrics>,
    /// The last hour of every queue.
    pub history: Arc<malote_engine::History>,
    /// The ports of the server, which it sets once they are open.
    endpoints: Arc<std::sync::OnceLock<Vec<Endpoint>>>,
    watch: Arc<overview::Watch>,
    /// Limits concurrent streams of events.
    streams: Arc<Semaphore>,
    bodies: Arc<Budget>,
    control_bodies: Arc<Budget>,
    /// Limits concurrent peeks, because each has a page of messages in memory.
    peeks: Arc<Semaphore>,
    staged: Arc<Semaphore>,
    /// Allows one backup at a time, because it reads the whole disk.
    backups: Arc<Semaphore>,
    /// Limits concurrent pages of `/metrics/per-object`.
    scrapes: Arc<Semaphore>,
    native: Arc<native::Connections>,
    replies: Arc<replies::Replies>,
    tasks: TaskTracker,
}

impl Api {
    /// [`Api::run`] must run concurrently, because it samples the history.
    pub fn new(
        engine: Engine,
        access: Arc<dyn Access>,
        authenticate: Arc<dyn Authenticate>,
        limits: Limits,
        readiness: Arc<Readiness>,
        shutdown: CancellationToken,
    ) -> Self {
        // One address gets at most half.
        let bodies = Budget::new(limits.bodies_bytes_max, limits.bodies_bytes_max / 2);
        let control_bytes_max = limits.control_bodies_bytes_max;
        let control_bodies = Budget::new(control_bytes_max, control_bytes_max / 2);
        let peeks = Arc::new(Semaphore::new(limits.peeks_max));
        let scrapes = Arc::new(Semaphore::new(limits.metrics_pages_max));
        let staged = Arc::new(Semaphore::new(limits.staged_bytes_all_max));
        let streams = Arc::new(Semaphore::new(limits.streams_max));
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
            endpoints: Arc::default(),
            watch: Arc::default(),
            streams,
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

    /// Sets the ports that the dashboard shows. Later calls have no effect.
    pub fn set_endpoints(&self, endpoints: Vec<Endpoint>) {
        let _ = self.endpoints.set(endpoints);
    }

    /// Samples the history until shutdown, then waits until every native connection has ended.
    pub async fn run(&self) {
        self.history.run(&self.engine, self.shutdown.cancelled()).await;
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
