//! A broker for tests of handlers: the engine on a disk in memory, with a clock that the test advances and faults
//! that the test requests. Everything else works as in production.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote_engine::chance::Chance;
use malote_engine::clock::ManualClock;
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_engine::{Engine, QueueFacts, Running};
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, SessionId, Settlement, Timestamp,
};
use parking_lot::Mutex;

use crate::broker::{Broker, BrokerError, BrokerFuture, Sent, SessionHold, Settle, Source};
use crate::capabilities::Capabilities;
use crate::depth::Depth;
use crate::embedded::Embedded;

/// The clock starts at the first second of 2026.
const BEGIN: Timestamp = Timestamp(1_767_225_600_000);

/// A broker in memory.
pub struct Memory {
    embedded: Embedded,
    clock: Arc<ManualClock>,
    running: Mutex<Option<Running>>,
    lose_next: AtomicU32,
    lose_nth: AtomicU32,
    repeat: AtomicU32,
}

impl Memory {
    /// Creates an empty broker.
    pub fn new() -> Result<Self, BrokerError> {
        let clock = Arc::new(ManualClock::starting_at(BEGIN));
        let options = Options {
            segment_bytes: 4 << 20,
            spares: 2,
            spares_reserved: 1,
            free_bytes_min: 0,
            scrub_bytes_per_s: 0,
            ..Options::default()
        };
        let (disk, chance) = (Arc::new(MemoryDisk::new()), Chance::of_seed(BEGIN.0));
        let engine_clock = clock.clone();
        let opened = Engine::open_at(disk, &options, chance, move |_| engine_clock);
        let (engine, running) = opened.map_err(|error| BrokerError::Refused {
            code: "open_failed".into(),
            text: error.to_string(),
        })?;
        let none = || AtomicU32::new(0);
        let (lose_next, lose_nth, repeat) = (none(), none(), none());
        let embedded = Embedded::on_engine(&engine);
        Ok(Self {
            embedded,
            clock,
            running: Mutex::new(Some(running)),
            lose_next,
            lose_nth,
            repeat,
        })
    }

    /// Advances the clock, so that delays, locks and times to live pass.
    pub fn advance(&self, time: Duration) {
        self.clock.advance_ms(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.embedded.engine().wake();
    }

    /// Loses the next `count` settlements; their messages are delivered again. This simulates a worker that lost its
    /// lock, or was killed after its effect.
    pub fn lose_settlements(&self, count: u32) {
        self.lose_next.store(count, Ordering::SeqCst);
    }

    /// Loses only the nth settlement from now; 1 is the next.
    pub fn lose_settlement(&self, nth: u32) {
        self.lose_nth.store(nth, Ordering::SeqCst);
    }

    /// Delivers the next `count` completed messages once more.
    pub fn repeat_messages(&self, count: u32) {
        self.repeat.store(count, Ordering::SeqCst);
    }

    /// Ends the hold of a session.
    pub async fn break_session(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> Result<(), BrokerError> {
        Ok(self.embedded.engine().break_session(queue.clone(), session.clone()).await?)
    }

    /// The settings and counts of a queue.
    pub async fn facts(&self, queue: &QueueName) -> Result<QueueFacts, BrokerError> {
        Ok(self.embedded.engine().describe(queue.clone()).await?)
    }
}

/// Decrements a counter. False if it was zero.
fn take(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Broker for Memory {
    fn capabilities(&self) -> &Capabilities {
        self.embedded.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        self.embedded.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        self.embedded.send(messages)
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        self.embedded.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        self.embedded.accept(queue, session, lock, wait)
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let mut lost = Vec::with_capacity(items.len());
            let mut changed = Vec::with_capacity(items.len());
            for item in items {
                let done = item.settlement == Settlement::Complete;
                let is_nth = take(&self.lose_nth) && self.lose_nth.load(Ordering::SeqCst) == 0;
                let is_lost = is_nth || take(&self.lose_next);
                lost.push(is_lost);
                // Both are redelivered at once. A repeated message was completed, so its change of state takes effect.
                changed.push(match item {
                    item if is_lost => Settle::release(item.lease),
                    item if done && take(&self.repeat) => {
                        Settle { state: item.state, ..Settle::release(item.lease) }
                    }
                    item => item,
                });
            }
            let each = self.embedded.settle(&queue, changed).await?;
            let engine_clock = each.into_iter().zip(lost);
            Ok(engine_clock
                .map(|(each, lost)| if lost { Err(BrokerError::LockLost) } else { each })
                .collect())
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        self.embedded.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        self.embedded.state(queue, held)
    }

    fn peek_state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> BrokerFuture<'_, Option<Bytes>> {
        self.embedded.peek_state(queue, session)
    }

    fn list_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> BrokerFuture<'_, (Vec<SessionId>, Option<u32>)> {
        self.embedded.list_sessions(queue, from, max)
    }

    fn now(&self) -> Timestamp {
        self.embedded.now()
    }

    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        self.embedded.depth(queue)
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            self.embedded.close().await?;
            let running = self.running.lock().take();
            if let Some(running) = running {
                running.stop().await;
            }
            Ok(())
        })
    }
}
