//! Renews the locks of fetched messages and held sessions, on a thread that handlers cannot block.
//!
//! A lock's time starts when this process receives or renews it. It is renewed after a third of that time. A lock is
//! lost when the broker reports it, or when it could not be renewed before its time ended. Its token fires then.

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

/// Leases renewed in one call.
const BATCH_MAX: usize = 1024;

pub(super) struct LockRenewal {
    table: Arc<LockTable>,
    _stop_thread: DropGuard,
}

struct LockTable {
    lock_time: Duration,
    counts: Counters,
    all: Mutex<HashMap<LeaseToken, Arc<Lock>>>,
}

/// The lock of a message or a session, as this process knows it.
pub(crate) struct Lock {
    time: Duration,
    /// When it was granted or last renewed.
    since: Mutex<Instant>,
    lost: CancellationToken,
}

impl Lock {
    /// False after its time ended, also if this process was frozen then.
    pub(crate) fn is_valid(&self) -> bool {
        if self.since.lock().elapsed() >= self.time {
            self.lost.cancel();
        }
        !self.lost.is_cancelled()
    }

    /// Fires when the lock is lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// Renews a lock until it is dropped.
pub(super) struct LockGuard {
    table: Arc<LockTable>,
    lease: LeaseToken,
    lock: Arc<Lock>,
}

impl LockGuard {
    pub(super) fn lock(&self) -> &Arc<Lock> {
        &self.lock
    }

    /// Fires when the lock is lost.
    pub(super) fn lost(&self) -> &CancellationToken {
        self.lock.lost()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.table.all.lock().remove(&self.lease);
    }
}

impl LockRenewal {
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        lock_time: Duration,
        counts: Counters,
    ) -> std::io::Result<Self> {
        let table = Arc::new(LockTable { lock_time, counts, all: Mutex::default() });
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (thread_table, stopped) = (table.clone(), stop.clone());
        std::thread::Builder::new().name("malote-locks".into()).spawn(move || {
            runtime.block_on(stopped.run_until_cancelled(thread_table.renew(&*broker, &queue)));
        })?;
        Ok(Self { table, _stop_thread: stop.drop_guard() })
    }

    pub(super) fn guard(&self, lease: LeaseToken) -> LockGuard {
        self.insert(&mut self.table.all.lock(), lease, Instant::now())
    }

    /// For leases that were granted at the same time.
    pub(super) fn guard_all(&self, leases: impl Iterator<Item = LeaseToken>) -> Vec<LockGuard> {
        let (now, mut all) = (Instant::now(), self.table.all.lock());
        leases.map(|lease| self.insert(&mut all, lease, now)).collect()
    }

    fn insert(
        &self,
        all: &mut HashMap<LeaseToken, Arc<Lock>>,
        lease: LeaseToken,
        since: Instant,
    ) -> LockGuard {
        let (time, since) = (self.table.lock_time, Mutex::new(since));
        let lock = Arc::new(Lock { time, since, lost: CancellationToken::new() });
        all.insert(lease, lock.clone());
        LockGuard { table: self.table.clone(), lease, lock }
    }
}

impl LockTable {
    async fn renew(&self, broker: &dyn Broker, queue: &QueueName) {
        loop {
            tokio::time::sleep(self.lock_time / 6).await;
            for batch in self.due().chunks(BATCH_MAX) {
                let asked = Instant::now();
                let renewed = broker.renew(queue, batch.to_vec(), self.lock_time);
                // A later answer would come too late for the lock.
                match tokio::time::timeout(self.lock_time / 3, renewed).await {
                    Ok(Ok(each)) => self.record(batch, &each, asked),
                    Ok(Err(error)) => {
                        tracing::warn!(%queue, %error, locks = batch.len(), "locks were not renewed");
                    }
                    Err(_) => {
                        tracing::warn!(%queue, locks = batch.len(), "locks were not renewed: the broker did not answer in time")
                    }
                }
            }
            self.expire();
        }
    }

    fn due(&self) -> Vec<LeaseToken> {
        let all = self.all.lock();
        let due = all.iter().filter(|(_, lock)| lock.since.lock().elapsed() >= self.lock_time / 3);
        due.map(|(lease, _)| *lease).collect()
    }

    fn record(&self, batch: &[LeaseToken], each: &[Result<(), BrokerError>], asked: Instant) {
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

    /// Marks the locks as lost whose time has ended.
    fn expire(&self) {
        for lock in self.all.lock().values() {
            lock.is_valid();
        }
    }
}
