//! Amazon SQS as its SDKs speak it: AWS JSON 1.0 and Query/XML, told apart by request, on one endpoint.
//!
//! | what | where |
//! |---|---|
//! | a request in, an answer out; which requests are ours | `listen.rs` |
//! | who signed it | `sign.rs` |
//! | both protocols, URLs, ARNs, handles, attributes of messages | `wire/` |
//! | which action is which function | `ops/mod.rs` |
//! | CreateQueue GetQueueUrl ListQueues DeleteQueue PurgeQueue | `ops/queues.rs` |
//! | GetQueueAttributes SetQueueAttributes | `ops/attributes.rs`, `ops/spec.rs` |
//! | TagQueue UntagQueue ListQueueTags AddPermission RemovePermission | `ops/labels.rs` |
//! | SendMessage SendMessageBatch | `ops/send.rs` |
//! | ReceiveMessage | `ops/receive.rs`; repeated ones: `attempts.rs` |
//! | DeleteMessage ChangeMessageVisibility and their batches | `ops/settle.rs` |
//! | ListDeadLetterSourceQueues and message move tasks | `ops/moves.rs` |
//! | CloudWatch: GetMetricStatistics GetMetricData ListMetrics | `ops/metrics.rs` |
//! | every error in the words of both protocols | [`refusal`] |
//! | what the audit log is told | `audit.rs` |
//!
//! A message group is a session, a receipt handle is a lease, a redrive policy is a queue's dead-letter target: what
//! is sent here is received by any other front end, and the other way round. Listening, TLS and credentials are the
//! server's.

mod attempts;
mod audit;
mod listen;
mod ops;
mod recent;
pub mod refusal;
mod sign;
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
pub use ops::metrics::{History, NoHistory, Sample};
pub use sign::Keys;

use recent::Recent;

/// What an operator may choose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The account in URLs and ARNs: twelve digits.
    pub account: String,
    /// The region of callers that do not sign.
    pub region: String,
    /// What queue URLs begin with, if not with the host that the caller used.
    pub public_url: Option<String>,
    /// For how long a queue cannot be purged again.
    pub purge_pause: Duration,
    /// Which web pages may call it, and by which names.
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

/// Bodies of all requests under way, together.
const BODIES_BYTES_MAX: usize = 128 << 20;

/// The front end. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Sqs(Arc<Inner>);

struct Inner {
    engine: Engine,
    chance: Chance,
    access: Arc<dyn Access>,
    verifier: sign::Verifier,
    history: Arc<dyn History>,
    settings: Settings,
    shutdown: CancellationToken,
    bodies: Arc<Semaphore>,
    /// Changes of queues are read, decided and written: one at a time, or one would undo the other.
    changing: tokio::sync::Mutex<()>,
    /// When each queue was purged last.
    purges: Mutex<Recent<QueueName, ()>>,
    attempts: attempts::Attempts,
    moves: ops::moves::Moves,
    tasks: TaskTracker,
}

impl Sqs {
    /// A new id: of a request, or of a task.
    fn new_id(&self) -> String {
        self.0.chance.uuid_v7(self.0.engine.now()).to_string()
    }

    /// A front end over an engine. [`Sqs::run`] must be running beside it for its tasks to be waited for.
    pub fn new(
        engine: Engine,
        access: Arc<dyn Access>,
        keys: Arc<dyn Keys>,
        history: Arc<dyn History>,
        settings: Settings,
        shutdown: CancellationToken,
    ) -> Self {
        let purge_pause_ms = u64::try_from(settings.purge_pause.as_millis()).unwrap_or(u64::MAX);
        Self(Arc::new(Inner {
            engine,
            chance: Chance::of_system(),
            access,
            verifier: sign::Verifier::new(keys),
            history,
            shutdown,
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX >> 10)),
            changing: tokio::sync::Mutex::default(),
            purges: Mutex::new(Recent::new(malote_model::limits::QUEUES_MAX, purge_pause_ms)),
            attempts: attempts::Attempts::default(),
            moves: ops::moves::Moves::default(),
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
