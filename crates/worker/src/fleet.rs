//! One worker at a time tries whether a dependency is back, of all that share a broker.
//!
//! Whoever tries holds the session of the dependency's name in a queue that has no messages: a hold has one owner, and
//! ends when its owner vanishes.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Source};
use malote_model::{QueueName, QueueSpec, SessionId, Sessions};
use tokio::sync::OnceCell;

/// The queue. Workers make it.
const QUEUE: &str = "malote-breakers";
/// Longer than a try takes; one that takes longer is not alone any more.
const LOCK_MIN: Duration = Duration::from_secs(60);

/// The others.
pub(crate) struct Fleet {
    broker: Arc<dyn Broker>,
    queue: QueueName,
    lock: Duration,
    /// Whether the queue is there: it is made when a breaker opens for the first time.
    is_there: OnceCell<bool>,
}

/// The right to try, until it is dropped; of nothing where each tries on its own.
pub(crate) type Right = Option<Box<dyn Source>>;

impl Fleet {
    /// None where the broker cannot help: each worker tries on its own then.
    pub(crate) fn of(broker: &Arc<dyn Broker>, try_max: Duration) -> Option<Self> {
        let can = broker.capabilities();
        if !(can.declare && can.sessions) {
            tracing::info!(
                broker = can.broker,
                "breakers of several workers do not know of each other here"
            );
            return None;
        }
        let (queue, lock) = (QueueName::new(QUEUE).ok()?, try_max.max(LOCK_MIN));
        Some(Self { broker: broker.clone(), queue, lock, is_there: OnceCell::new() })
    }

    /// The right to try, if nobody has it.
    pub(crate) async fn ask(&self, dependency: &str) -> Option<Right> {
        let session = SessionId::new(dependency).ok()?;
        if !*self.is_there.get_or_try_init(|| self.declare()).await.ok()? {
            return Some(None);
        }
        let held = self.broker.accept(&self.queue, Some(session), self.lock, Duration::ZERO).await;
        match held {
            Ok(held) => held.map(Some),
            // No session can be asked for by its name there.
            Err(BrokerError::Unsupported { .. }) => Some(None),
            Err(_) => None,
        }
    }

    /// Whether the queue is there now. A broker that does not answer is asked again.
    async fn declare(&self) -> Result<bool, BrokerError> {
        let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        match self.broker.declare(&self.queue, spec).await {
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                tracing::warn!(queue = QUEUE, %error, "breakers of several workers do not know of each other");
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }
}
