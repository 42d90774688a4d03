//! Renews what is in hand, on a thread that no handler can starve.
//!
//! A lock is counted from when this process heard of it. It is renewed after a third of its time; one that the broker
//! says is over, or that could not be renewed until its end, is lost: its token fires.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError};
use malote_model::{LeaseToken, QueueName};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Counters;

/// Leases renewed by one call.
const BATCH_MAX: usize = 1024;

pub(super) struct Locks {
    table: Arc<Table>,
    _end: DropGuard,
}

struct Table {
    lock: Duration,
    counts: Counters,
    all: Mutex<HashMap<LeaseToken, Arc<Lock>>>,
}

/// A lock in hand, as far as this process knows.
pub(crate) struct Lock {
    time: Duration,
    /// When it was granted or renewed last.
    since: Mutex<Instant>,
    lost: CancellationToken,
}

impl Lock {
    /// Whether it still holds. Not after its time, even if this process was frozen and nobody saw it end.
    pub(crate) fn holds(&self) -> bool {
        if self.since.lock().elapsed() >= self.time {
            self.lost.cancel();
        }
        !self.lost.is_cancelled()
    }

    /// Fires when it is lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// A lock that is renewed until this is dropped.
pub(super) struct Watch {
    table: Arc<Table>,
    lease: LeaseToken,
    lock: Arc<Lock>,
}

impl Watch {
    /// The lock itself.
    pub(super) fn lock(&self) -> &Arc<Lock> {
        &self.lock
    }

    /// Fires when the lock is lost.
    pub(super) fn lost(&self) -> &CancellationToken {
        self.lock.lost()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.table.all.lock().remove(&self.lease);
    }
}

impl Locks {
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        lock: Duration,
        counts: Counters,
    ) -> std::io::Result<Self> {
        let table = Arc::new(Table { lock, counts, all: Mutex::default() });
        let end = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (of_thread, until) = (table.clone(), end.clone());
        std::thread::Builder::new().name("malote-locks".into()).spawn(move || {
            runtime.block_on(until.run_until_cancelled(of_thread.renew(&*broker, &queue)));
        })?;
        Ok(Self { table, _end: end.drop_guard() })
    }

    pub(super) fn watch(&self, lease: LeaseToken) -> Watch {
        self.insert(&mut self.table.all.lock(), lease, Instant::now())
    }

    /// Several that were granted together.
    pub(super) fn watch_all(&self, leases: impl Iterator<Item = LeaseToken>) -> Vec<Watch> {
        let (now, mut all) = (Instant::now(), self.table.all.lock());
        leases.map(|lease| self.insert(&mut all, lease, now)).collect()
    }

    fn insert(
        &self,
        all: &mut HashMap<LeaseToken, Arc<Lock>>,
        lease: LeaseToken,
        since: Instant,
    ) -> Watch {
        let (time, since) = (self.table.lock, Mutex::new(since));
        let lock = Arc::new(Lock { time, since, lost: CancellationToken::new() });
        all.insert(lease, lock.clone());
        Watch { table: self.table.clone(), lease, lock }
    }
}

impl Table {
    async fn renew(&self, broker: &dyn Broker, queue: &QueueName) {
        loop {
            tokio::time::sleep(self.lock / 6).await;
            for batch in self.due().chunks(BATCH_MAX) {
                let asked = Instant::now();
                let renewed = broker.renew(queue, batch.to_vec(), self.lock);
                // An answer that comes after the lock's end helps nobody.
                match tokio::time::timeout(self.lock / 3, renewed).await {
                    Ok(Ok(each)) => self.note(batch, &each, asked),
                    Ok(Err(error)) => {
                        tracing::warn!(%queue, %error, locks = batch.len(), "locks could not be renewed");
                    }
                    Err(_) => {
                        tracing::warn!(%queue, locks = batch.len(), "renewing locks takes too long")
                    }
                }
            }
            self.give_up();
        }
    }

    fn due(&self) -> Vec<LeaseToken> {
        let all = self.all.lock();
        let due = all.iter().filter(|(_, lock)| lock.since.lock().elapsed() >= self.lock / 3);
        due.map(|(lease, _)| *lease).collect()
    }

    fn note(&self, batch: &[LeaseToken], each: &[Result<(), BrokerError>], asked: Instant) {
        let all = self.all.lock();
        for (lease, renewed) in batch.iter().zip(each) {
            let Some(lock) = all.get(lease) else { continue };
            match renewed {
                Ok(()) => {
                    *lock.since.lock() = asked;
                    self.counts.renewed.fetch_add(1, Ordering::Relaxed);
                }
                Err(BrokerError::LockLost) => lock.lost.cancel(),
                Err(_) => {}
            }
        }
    }

    /// What could not be renewed until its end is lost, whatever the broker would say.
    fn give_up(&self) {
        for lock in self.all.lock().values() {
            lock.holds();
        }
    }
}
