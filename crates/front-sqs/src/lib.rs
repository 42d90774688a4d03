//! Amazon SQS for its SDKs: AWS JSON 1.0 and Query/XML on one endpoint; each request tells which.
//!
//! | what | where |
//! |---|---|
//! | an HTTP request in, a reply out; which requests belong to SQS | `listen.rs` |
//! | request signatures | `sigv4.rs` |
//! | both protocols, URLs, ARNs, receipt handles, message attributes | `wire/` |
//! | table of actions | `ops/mod.rs` |
//! | CreateQueue, GetQueueUrl, ListQueues, DeleteQueue, PurgeQueue | a file each in `ops/` |
//! | GetQueueAttributes, SetQueueAttributes | `ops/queue_attributes.rs`, `ops/queue_spec.rs` |
//! | TagQueue, UntagQueue, ListQueueTags | `ops/tags.rs` |
//! | AddPermission, RemovePermission | `ops/permissions.rs` |
//! | SendMessage, SendMessageBatch | `ops/send_message.rs` |
//! | ReceiveMessage | `ops/receive_message.rs`, `ops/receive_attempts.rs` |
//! | DeleteMessage, DeleteMessageBatch | `ops/delete_message.rs` |
//! | ChangeMessageVisibility, ChangeMessageVisibilityBatch | `ops/change_visibility.rs` |
//! | ListDeadLetterSourceQueues | `ops/dead_letter_sources.rs` |
//! | message move tasks | `ops/move_tasks.rs` |
//! | CloudWatch: GetMetricStatistics, GetMetricData, ListMetrics | `ops/metrics.rs` |
//! | errors in both protocols | [`refusal`] |
//! | audit records | `audit.rs` |
//!
//! A message group is a session, a receipt handle is a lease, and a redrive policy is a queue's dead-letter target.
//! Messages can be exchanged with every other front end. The server owns listeners, TLS and credentials.

#![allow(missing_docs, reason = "used by the server only")]

mod audit;
mod expiring_map;
mod listen;
mod ops;
pub mod refusal;
mod sigv4;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use malote_engine::Engine;
use malote_engine::chance::Chance;
use malote_model::{Access, QueueName, WebGuard};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use listen::{claims, router, serve};
pub use ops::ACTIONS;
pub use sigv4::Keys;

use expiring_map::ExpiringMap;

#[derive(Clone, Debug)]
pub struct Settings {
    /// The account in URLs and ARNs: twelve digits.
    pub account: String,
    /// The region for unsigned requests.
    pub region: String,
    /// Base of queue URLs. Default: the host that the caller used.
    pub public_url: Option<String>,
    /// Minimum time between two purges of a queue.
    pub purge_pause: Duration,
    /// Which web origins and host names are accepted.
    pub web: WebGuard,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            account: "000000000000".into(),
            region: "us-east-1".into(),
            public_url: None,
            purge_pause: Duration::from_secs(60),
            web: WebGuard::default(),
        }
    }
}

/// Bytes of all request bodies in progress.
const BODIES_BYTES_MAX: usize = 128 << 20;

/// The front end. Cheap to clone.
#[derive(Clone)]
pub struct Sqs(Arc<SqsState>);

struct SqsState {
    engine: Engine,
    chance: Chance,
    access: Arc<dyn Access>,
    verifier: sigv4::Verifier,
    history: Arc<malote_engine::History>,
    settings: Settings,
    shutdown: CancellationToken,
    bodies: Arc<Semaphore>,
    /// Serializes changes of queues, because each change reads the queue first.
    changing: tokio::sync::Mutex<()>,
    /// Queues that were purged recently.
    purges: Mutex<ExpiringMap<QueueName, ()>>,
    attempts: ops::receive_attempts::ReceiveAttempts,
    move_tasks: ops::move_tasks::MoveTasks,
    tasks: TaskTracker,
}

impl Sqs {
    /// A new id for a request or a task.
    fn new_id(&self) -> String {
        self.0.chance.uuid_v7(self.0.engine.now()).to_string()
    }

    /// [`Sqs::run`] must run concurrently, so that shutdown waits for the move tasks.
    pub fn new(
        engine: Engine,
        access: Arc<dyn Access>,
        keys: Arc<dyn Keys>,
        history: Arc<malote_engine::History>,
        settings: Settings,
        shutdown: CancellationToken,
    ) -> Self {
        let purge_pause_ms = u64::try_from(settings.purge_pause.as_millis()).unwrap_or(u64::MAX);
        Self(Arc::new(SqsState {
            engine,
            chance: Chance::of_system(),
            access,
            verifier: sigv4::Verifier::new(keys),
            history,
            shutdown,
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX >> 10)),
            changing: tokio::sync::Mutex::default(),
            purges: Mutex::new(ExpiringMap::new(malote_model::limits::QUEUES_MAX, purge_pause_ms)),
            attempts: ops::receive_attempts::ReceiveAttempts::default(),
            move_tasks: ops::move_tasks::MoveTasks::default(),
            tasks: TaskTracker::new(),
            settings,
        }))
    }

    /// Waits for shutdown, then for the move tasks to end.
    pub async fn run(&self) {
        self.0.shutdown.cancelled().await;
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}
