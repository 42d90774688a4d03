//! Tests handlers in milliseconds: the real engine in memory, a clock that you control, and faults on demand.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use malote::testing::TestBroker;
//! use malote::{Failure, QueueSpec, Worker};
//!
//! async fn greet(name: String) -> Result<(), Failure> {
//!     if name.is_empty() { Err(Failure::retry("the name is empty")) } else { Ok(()) }
//! }
//!
//! let broker = TestBroker::new()?;
//! broker.malote().declare("names", QueueSpec::default()).await?;
//! broker.malote().send_text("names", "ana").await?;
//! let report = broker.drain(Worker::new(broker.malote(), "names").handle(greet)).await?;
//! assert_eq!(report.counts.done, 1);
//! # Ok::<(), malote::Error>(()) }).unwrap();
//! ```

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Memory, Settle};
use malote_model::{QueueName, SessionId};

use crate::client::queue_name;
use crate::{Delivery, Error, Malote, Report, Running, Worker};

/// How often `drain` checks the queue.
const POLL: Duration = Duration::from_millis(1);
/// Longer than any test locks a message.
const LOCK: Duration = Duration::from_secs(3600);

/// A broker in memory.
pub struct TestBroker {
    memory: Arc<Memory>,
    malote: Malote,
}

/// The numbers of messages in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestQueueCounts {
    /// Ready for delivery.
    pub ready: u64,
    /// Locked by a worker.
    pub locked: u64,
    /// Delayed, and not due yet.
    pub delayed: u64,
    /// Number of messages that were dead-lettered.
    pub dead: u64,
}

impl TestBroker {
    /// Creates a broker without queues. Its clock stands still until you move it.
    pub fn new() -> Result<Self, Error> {
        let memory = Arc::new(Memory::new()?);
        let malote = Malote::with_broker(memory.clone());
        Ok(Self { memory, malote })
    }

    /// The connection for senders and workers.
    pub fn malote(&self) -> &Malote {
        &self.malote
    }

    /// Moves the broker's clock forward. Delays, locks and times to live pass.
    pub fn advance(&self, time: Duration) {
        self.memory.advance(time);
    }

    /// Loses the next `count` settlements, and delivers their messages again. This simulates a worker that is killed
    /// after the effect, or loses its lock.
    pub fn lose_settlements(&self, count: u32) {
        self.memory.lose_settlements(count);
    }

    /// Loses only the nth settlement from now; 1 is the next. Used in a loop, it simulates a crash at every point.
    pub fn lose_settlement(&self, nth: u32) {
        self.memory.lose_settlement(nth);
    }

    /// Delivers the next `count` completed messages once more.
    pub fn repeat_messages(&self, count: u32) {
        self.memory.repeat_messages(count);
    }

    /// Takes a session away from its holder.
    pub async fn break_session(&self, queue: &str, session: &SessionId) -> Result<(), Error> {
        Ok(self.memory.break_session(&queue_name(queue)?, session).await?)
    }

    /// The numbers of messages in a queue.
    pub async fn counts(&self, queue: &str) -> Result<TestQueueCounts, Error> {
        let facts = self.memory.facts(&queue_name(queue)?).await?;
        let (ready, locked, delayed) = (facts.ready, facts.locked, facts.delayed);
        Ok(TestQueueCounts { ready, locked, delayed, dead: facts.dead_lettered })
    }

    /// Removes and returns the dead letters of a queue, oldest first.
    pub async fn take_dead_letters(&self, queue: &str) -> Result<Vec<Delivery>, Error> {
        let dead = queue_name(queue)?.dead_letters();
        let broker = self.malote.broker();
        let source = broker.open(&dead, LOCK).await?;
        let mut all = Vec::new();
        loop {
            let fetched = source.fetch(1024, Duration::ZERO).await?;
            if fetched.is_empty() {
                return Ok(all);
            }
            let complete =
                fetched.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
            broker.settle(&dead, complete).await?;
            all.extend(fetched);
        }
    }

    /// Runs a worker until it has no work left that is due, and stops it. Delayed messages stay in the queue.
    pub async fn drain(&self, worker: Worker) -> Result<Report, Error> {
        let queue = worker.queue()?;
        let running = worker.start().await?;
        while !self.is_drained(&queue, &running).await? {
            tokio::time::sleep(POLL).await;
        }
        running.stop();
        running.ended().await
    }

    async fn is_drained(&self, queue: &QueueName, running: &Running) -> Result<bool, Error> {
        running.flushed().await;
        let facts = self.memory.facts(queue).await?;
        // A session whose first message is delayed is not ready, even if later messages are.
        let left = if facts.spec.sessions.required() { facts.sessions_ready } else { facts.ready };
        // If more sessions are held than slots are idle, a session is on its way to a slot.
        let all_idle = facts.sessions_held == running.idle() as u64;
        Ok(left == 0 && facts.locked == 0 && all_idle && running.busy() == 0)
    }
}
