//! Sends settlements to the broker in batches, while slots continue.
//!
//! A slot does not wait for the broker's disk. A session is released only after the broker has answered all its
//! settlements, so that no other worker gets a message that is being completed.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Settle, Source};
use malote_model::QueueName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Count, Counters, broker_pause};

/// Settlements that wait to be sent. Slots wait when there are more.
const QUEUED_MAX: usize = 4096;
/// Settlements in one call.
const BATCH_MAX: usize = 1024;
/// Concurrent calls: one is on its way while the broker writes another to disk.
const CALLS_MAX: usize = 4;
/// Sessions that are being released.
const CLOSING_MAX: usize = 1024;

enum SettleCommand {
    Settle(PendingSettlement),
    Close { source: Box<dyn Source>, after: TaskTracker, _permit: OwnedSemaphorePermit },
    Flush(oneshot::Sender<()>),
}

/// The settlement of one message.
pub(super) struct PendingSettlement {
    pub settle: Settle,
    /// Counted when the broker has accepted the settlement.
    pub count: Count,
    /// Fired if the broker refuses the settlement because the lock was lost.
    pub lost: CancellationToken,
    /// Keeps the session open until the broker has answered.
    pub open: Option<TaskTrackerToken>,
}

pub(super) struct SettlementQueue {
    commands: mpsc::Sender<SettleCommand>,
    closing: Arc<Semaphore>,
}

impl SettlementQueue {
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        lock: Duration,
        counts: Counters,
    ) -> Self {
        let (commands, received) = mpsc::channel(QUEUED_MAX);
        tokio::spawn(SettleTask { broker, queue, lock, counts }.run(received));
        Self { commands, closing: Arc::new(Semaphore::new(CLOSING_MAX)) }
    }

    pub(super) async fn settle(&self, settlement: PendingSettlement) {
        // Fails only if the task is gone; the message then returns when its lock expires.
        let _ = self.commands.send(SettleCommand::Settle(settlement)).await;
    }

    /// Releases a session after the settlements tracked by `after`.
    pub(super) async fn close(&self, source: Box<dyn Source>, after: TaskTracker) {
        let Ok(permit) = self.closing.clone().acquire_owned().await else { return };
        let _ = self.commands.send(SettleCommand::Close { source, after, _permit: permit }).await;
    }

    /// Waits until all earlier commands are done.
    pub(super) async fn flushed(&self) {
        let (done, flushed) = oneshot::channel();
        if self.commands.send(SettleCommand::Flush(done)).await.is_ok() {
            let _ = flushed.await; // an error means that the task has ended
        }
    }
}

#[derive(Clone)]
struct SettleTask {
    broker: Arc<dyn Broker>,
    queue: QueueName,
    lock: Duration,
    counts: Counters,
}

impl SettleTask {
    async fn run(self, mut commands: mpsc::Receiver<SettleCommand>) {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        let mut pending = TaskTracker::new();
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while commands.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut settlements = Vec::with_capacity(batch.len());
            let mut flushes = Vec::new();
            for command in batch.drain(..) {
                match command {
                    SettleCommand::Settle(settlement) => settlements.push(settlement),
                    SettleCommand::Close { source, after, _permit } => {
                        let queue = self.queue.clone();
                        pending.spawn(async move {
                            after.close();
                            after.wait().await;
                            if let Err(error) = source.close().await {
                                tracing::debug!(%queue, %error, "a session was not released; its lock will expire");
                            }
                            drop(_permit);
                        });
                    }
                    SettleCommand::Flush(done) => flushes.push(done),
                }
            }
            if !settlements.is_empty() {
                let Ok(call) = calls.clone().acquire_owned().await else { return };
                let task = self.clone();
                pending.spawn(async move {
                    task.send(settlements).await;
                    drop(call);
                });
            }
            if !flushes.is_empty() {
                let earlier = std::mem::replace(&mut pending, TaskTracker::new());
                earlier.close();
                earlier.wait().await;
                for done in flushes {
                    let _ = done.send(()); // the caller may have given up
                }
            }
        }
    }

    /// Sends settlements until the broker answers each of them, or the locks have expired.
    async fn send(&self, settlements: Vec<PendingSettlement>) {
        let until = Instant::now() + self.lock;
        let mut pause = broker_pause();
        let mut left = settlements;
        loop {
            let items = left.iter().map(|one| one.settle.clone()).collect();
            let results = match self.broker.settle(&self.queue, items).await {
                Ok(results) => results,
                Err(error) => vec![Err(error); left.len()],
            };
            let mut retry = Vec::new();
            for (one, result) in left.into_iter().zip(results) {
                match result {
                    Ok(()) => self.counts.add(one.count),
                    Err(error) if error.is_transient() && Instant::now() < until => retry.push(one),
                    Err(error) => self.record_lost(&one, &error),
                }
            }
            if retry.is_empty() {
                return;
            }
            left = retry;
            tokio::time::sleep(pause.next()).await;
        }
    }

    fn record_lost(&self, one: &PendingSettlement, error: &BrokerError) {
        let (queue, lease) = (&self.queue, one.settle.lease);
        let outcome = one.settle.settlement.word();
        tracing::warn!(%queue, %lease, outcome, %error, "settlement refused; the message will be delivered again");
        self.counts.add(Count::lost);
        one.lost.cancel();
    }
}
