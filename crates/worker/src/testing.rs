//! Test your handlers in milliseconds: the real engine in memory, a clock that you move, faults that you ask for.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use malote::testing::TestBroker;
//! use malote::{Failure, QueueSpec, Worker};
//!
//! async fn greet(name: String) -> Result<(), Failure> {
//!     if name.is_empty() { Err(Failure::retry("nobody")) } else { Ok(()) }
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

use crate::client::name;
use crate::{Delivery, Error, Malote, Report, Running, Worker};

/// How often a queue is looked at while it drains.
const LOOK: Duration = Duration::from_millis(1);
/// No test's message is held as long.
const LOCK: Duration = Duration::from_secs(3600);

/// A broker in memory.
pub struct TestBroker {
    memory: Arc<Memory>,
    malote: Malote,
}

/// What a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Waiting for a worker.
    pub ready: u64,
    /// Out to one.
    pub locked: u64,
    /// Not yet due.
    pub delayed: u64,
    /// Given up.
    pub dead: u64,
}

impl TestBroker {
    /// An empty one. Its time stands still until you move it.
    pub fn new() -> Result<Self, Error> {
        let memory = Arc::new(Memory::new()?);
        let malote = Malote::over(memory.clone());
        Ok(Self { memory, malote })
    }

    /// The way to it, for senders and workers.
    pub fn malote(&self) -> &Malote {
        &self.malote
    }

    /// Moves the broker's clock: delays, locks and times to live go by.
    pub fn advance(&self, time: Duration) {
        self.memory.advance(time);
    }

    /// The next so many outcomes do not reach the broker, and their messages come again: the worker was killed after
    /// the effect, or lost its lock.
    pub fn lose_settlements(&self, count: u32) {
        self.memory.lose_settlements(count);
    }

    /// The nth outcome from now does not reach the broker, and no other: 1 is the next. A loop over all of them is a
    /// crash at every point.
    pub fn lose_settlement(&self, nth: u32) {
        self.memory.lose_settlement(nth);
    }

    /// The next so many messages that are done come once more all the same.
    pub fn repeat_messages(&self, count: u32) {
        self.memory.repeat_messages(count);
    }

    /// Takes a session from whoever holds it.
    pub async fn break_session(&self, queue: &str, session: &SessionId) -> Result<(), Error> {
        Ok(self.memory.break_session(&name(queue)?, session).await?)
    }

    /// What a queue holds.
    pub async fn held(&self, queue: &str) -> Result<Held, Error> {
        let facts = self.memory.facts(&name(queue)?).await?;
        let (ready, locked, delayed) = (facts.ready, facts.locked, facts.delayed);
        Ok(Held { ready, locked, delayed, dead: facts.dead_lettered })
    }

    /// Takes the dead letters of a queue, oldest first.
    pub async fn take_dead(&self, queue: &str) -> Result<Vec<Delivery>, Error> {
        let dead = name(queue)?.dead_letters();
        let broker = self.malote.broker();
        let source = broker.open(&dead, LOCK).await?;
        let mut all = Vec::new();
        loop {
            let some = source.fetch(1024, Duration::ZERO).await?;
            if some.is_empty() {
                return Ok(all);
            }
            broker.settle(&dead, some.iter().map(|d| Settle::complete(d.lease)).collect()).await?;
            all.extend(some);
        }
    }

    /// Runs a worker until nothing is left that it could do now, and stops it. What is delayed stays.
    pub async fn drain(&self, worker: Worker) -> Result<Report, Error> {
        let queue = worker.queue()?;
        let running = worker.start().await?;
        while !self.is_drained(&queue, &running).await? {
            tokio::time::sleep(LOOK).await;
        }
        running.stop();
        running.ended().await
    }

    async fn is_drained(&self, queue: &QueueName, running: &Running) -> Result<bool, Error> {
        running.flushed().await;
        let facts = self.memory.facts(queue).await?;
        // A session whose first message is delayed is not ready, whatever stands behind it.
        let left = if facts.spec.sessions.required() { facts.sessions_ready } else { facts.ready };
        // A session that the engine has given and no slot knows of is on its way to one.
        let known = facts.sessions_held == running.idle() as u64;
        Ok(left == 0 && facts.locked == 0 && known && running.busy() == 0)
    }
}
