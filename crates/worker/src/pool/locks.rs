//! Renews what is in hand, on a thread that no handler can starve.
//!
//! A lock is counted from when this process heard of it. It is renewed after a third of its time; one that the broker
//! says is over, or that could not be renewed until its end, is lost: its token fires.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError};
use malote_model::{LeaseToken, QueueName};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Leases renewed by one call.
const BATCH_MAX: usize = 1024;

pub(super) struct Locks {
    table: Arc<Table>,
    _end: DropGuard,
}

struct Table {
    lock: Duration,
    all: Mutex<HashMap<LeaseToken, Entry>>,
}

struct Entry {
    /// When it was granted or renewed last, as far as is known.
    since: Instant,
    lost: CancellationToken,
}

/// A lock that is renewed until this is dropped.
pub(super) struct Watch {
    table: Arc<Table>,
    lease: LeaseToken,
    lost: CancellationToken,
}

impl Watch {
    /// Fires when the lock is lost.
    pub(super) fn lost(&self) -> &CancellationToken {
        &self.lost
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
    ) -> std::io::Result<Self> {
        let table = Arc::new(Table { lock, all: Mutex::default() });
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
        all: &mut HashMap<LeaseToken, Entry>,
        lease: LeaseToken,
        since: Instant,
    ) -> Watch {
        let lost = CancellationToken::new();
        all.insert(lease, Entry { since, lost: lost.clone() });
        Watch { table: self.table.clone(), lease, lost }
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
        let due = all.iter().filter(|(_, entry)| entry.since.elapsed() >= self.lock / 3);
        due.map(|(lease, _)| *lease).collect()
    }

    fn note(&self, batch: &[LeaseToken], each: &[Result<(), BrokerError>], asked: Instant) {
        let mut all = self.all.lock();
        for (lease, renewed) in batch.iter().zip(each) {
            let Some(entry) = all.get_mut(lease) else { continue };
            match renewed {
                Ok(()) => entry.since = asked,
                Err(BrokerError::LockLost) => entry.lost.cancel(),
                Err(_) => {}
            }
        }
    }

    /// What could not be renewed until its end is lost, whatever the broker would say.
    fn give_up(&self) {
        for entry in self.all.lock().values().filter(|entry| entry.since.elapsed() >= self.lock) {
            entry.lost.cancel();
        }
    }
}
