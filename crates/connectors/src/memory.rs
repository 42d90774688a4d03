//! A broker for tests of handlers: the engine itself, on a disk in memory, with a clock that the test moves and faults
//! that it asks for. Everything else is as in production; nothing is mocked.

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

use crate::broker::{Broker, BrokerError, Doing, Held, Sent, Settle, Source};
use crate::capabilities::Capabilities;
use crate::depth::Depth;
use crate::embedded::Embedded;

/// When its time begins: the first second of 2026.
const BEGIN: Timestamp = Timestamp(1_767_225_600_000);

/// A broker in memory.
pub struct Memory {
    embedded: Embedded,
    clock: Arc<ManualClock>,
    running: Mutex<Option<Running>>,
    lose: AtomicU32,
    lose_nth: AtomicU32,
    repeat: AtomicU32,
}

impl Memory {
    /// An empty one.
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
        let told = clock.clone();
        let opened = Engine::open_at(disk, &options, chance, move |_| told);
        let (engine, running) = opened.map_err(|error| BrokerError::Refused {
            code: "open_failed".into(),
            text: error.to_string(),
        })?;
        let none = || AtomicU32::new(0);
        let (lose, lose_nth, repeat) = (none(), none(), none());
        let embedded = Embedded::over(&engine);
        Ok(Self { embedded, clock, running: Mutex::new(Some(running)), lose, lose_nth, repeat })
    }

    /// Moves its clock: delays, locks and times to live go by.
    pub fn advance(&self, time: Duration) {
        self.clock.advance_ms(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.embedded.engine().wake();
    }

    /// The next so many settlements do not arrive, and their messages come again: the worker was killed after the
    /// effect, or lost its lock.
    pub fn lose_settlements(&self, count: u32) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// The nth settlement from now does not arrive, and no other: 1 is the next.
    pub fn lose_settlement(&self, nth: u32) {
        self.lose_nth.store(nth, Ordering::SeqCst);
    }

    /// The next so many messages that are completed come once more all the same.
    pub fn repeat_messages(&self, count: u32) {
        self.repeat.store(count, Ordering::SeqCst);
    }

    /// Takes a session from its holder.
    pub async fn break_session(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> Result<(), BrokerError> {
        Ok(self.embedded.engine().break_session(queue.clone(), session.clone()).await?)
    }

    /// What a queue is and holds.
    pub async fn facts(&self, queue: &QueueName) -> Result<QueueFacts, BrokerError> {
        Ok(self.embedded.engine().describe(queue.clone()).await?)
    }
}

/// Takes one of a count, if there is one.
fn take(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Broker for Memory {
    fn capabilities(&self) -> &Capabilities {
        self.embedded.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        self.embedded.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        self.embedded.send(messages)
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        self.embedded.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        self.embedded.accept(queue, session, lock, wait)
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let mut lost = Vec::with_capacity(items.len());
            let mut changed = Vec::with_capacity(items.len());
            for item in items {
                let done = item.settlement == Settlement::Complete;
                let is_nth = take(&self.lose_nth) && self.lose_nth.load(Ordering::SeqCst) == 0;
                let is_lost = is_nth || take(&self.lose);
                lost.push(is_lost);
                // What comes again does so at once. What is repeated was done: a state that it changed is changed.
                changed.push(match item {
                    item if is_lost => Settle::release(item.lease),
                    item if done && take(&self.repeat) => {
                        Settle { state: item.state, ..Settle::release(item.lease) }
                    }
                    item => item,
                });
            }
            let each = self.embedded.settle(&queue, changed).await?;
            let told = each.into_iter().zip(lost);
            Ok(told
                .map(|(each, lost)| if lost { Err(BrokerError::LockLost) } else { each })
                .collect())
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        self.embedded.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        self.embedded.state(queue, held)
    }

    fn look_at_state(&self, queue: &QueueName, session: &SessionId) -> Doing<'_, Option<Bytes>> {
        self.embedded.look_at_state(queue, session)
    }

    fn look_at_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> Doing<'_, (Vec<SessionId>, Option<u32>)> {
        self.embedded.look_at_sessions(queue, from, max)
    }

    fn now(&self) -> Timestamp {
        self.embedded.now()
    }

    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        self.embedded.depth(queue)
    }

    fn close(&self) -> Doing<'_, ()> {
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
