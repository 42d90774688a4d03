//! One worker at a time tries whether a dependency is back, of all that share a broker.
//!
//! Whoever tries holds the session of the dependency's name in a queue that has no messages: a hold has one owner, and
//! ends when its owner vanishes.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, Source};
use malote_model::{QueueName, QueueSpec, SessionId, Sessions};

/// The queue. Workers make it.
const QUEUE: &str = "malote-breakers";
/// Longer than a try takes; one that takes longer is not alone any more.
const LOCK_MIN: Duration = Duration::from_secs(60);

/// The others.
pub(crate) struct Fleet {
    broker: Arc<dyn Broker>,
    queue: QueueName,
    lock: Duration,
}

/// The right to try, until it is dropped.
pub(crate) type Right = Box<dyn Source>;

impl Fleet {
    /// None where the broker cannot help: each worker tries on its own then.
    pub(crate) async fn of(broker: &Arc<dyn Broker>, try_max: Duration) -> Option<Self> {
        let can = broker.capabilities();
        if !(can.declare && can.sessions) {
            tracing::info!(
                broker = can.broker,
                "breakers of several workers do not know of each other here"
            );
            return None;
        }
        let queue = QueueName::new(QUEUE).ok()?;
        let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        if let Err(error) = broker.declare(&queue, spec).await {
            tracing::warn!(queue = QUEUE, %error, "breakers of several workers do not know of each other");
            return None;
        }
        Some(Self { broker: broker.clone(), queue, lock: try_max.max(LOCK_MIN) })
    }

    /// The right to try, if nobody has it.
    pub(crate) async fn ask(&self, dependency: &str) -> Option<Right> {
        let session = SessionId::new(dependency).ok()?;
        let held = self.broker.accept(&self.queue, Some(session), self.lock, Duration::ZERO).await;
        held.ok().flatten()
    }
}
