//! Lets one worker at a time probe a dependency that was down, of all workers that share a broker.
//!
//! The worker that probes holds a session, named after the dependency, in a queue without messages. A session has one
//! holder, and is released when its holder dies.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Source};
use malote_model::{QueueName, QueueSpec, SessionId, Sessions};
use tokio::sync::OnceCell;

/// Workers create this queue.
const QUEUE: &str = "malote-breakers";
/// Longer than a probe usually takes. A worker whose probe takes longer may not be the only one.
const LOCK_MIN: Duration = Duration::from_secs(60);

pub(crate) struct ProbeLock {
    broker: Arc<dyn Broker>,
    queue: QueueName,
    lock: Duration,
    /// Whether the queue could be created. This is tried when a breaker opens for the first time.
    has_queue: OnceCell<bool>,
}

/// Permits this worker to probe until it is dropped. Without a session, every worker may probe.
pub(crate) type ProbePermit = Option<Box<dyn Source>>;

impl ProbeLock {
    /// None if the broker lacks the capabilities; then every worker probes.
    pub(crate) fn new(broker: &Arc<dyn Broker>, probe_max: Duration) -> Option<Self> {
        let can = broker.capabilities();
        if !(can.declare && can.sessions) {
            tracing::info!(
                broker = can.broker,
                "this broker cannot coordinate breakers; each worker probes dependencies itself"
            );
            return None;
        }
        let (queue, lock) = (QueueName::new(QUEUE).ok()?, probe_max.max(LOCK_MIN));
        Some(Self { broker: broker.clone(), queue, lock, has_queue: OnceCell::new() })
    }

    /// None if another worker probes this dependency, or the broker does not answer.
    pub(crate) async fn acquire(&self, dependency: &str) -> Option<ProbePermit> {
        let session = SessionId::new(dependency).ok()?;
        if !*self.has_queue.get_or_try_init(|| self.declare()).await.ok()? {
            return Some(None);
        }
        let held = self.broker.accept(&self.queue, Some(session), self.lock, Duration::ZERO).await;
        match held {
            Ok(held) => held.map(Some),
            // This broker cannot accept a session by name.
            Err(BrokerError::Unsupported { .. }) => Some(None),
            Err(_) => None,
        }
    }

    /// Creates the queue. Returns false if the broker refuses, and an error if the call must be repeated.
    async fn declare(&self) -> Result<bool, BrokerError> {
        let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        match self.broker.declare(&self.queue, spec).await {
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                tracing::warn!(queue = QUEUE, %error, "breakers are not coordinated; each worker probes dependencies itself");
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }
}
