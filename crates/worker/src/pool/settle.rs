//! Tells the broker what became of messages: many at a time, while slots go on.
//!
//! A slot does not wait for the disk. A session is let go once all that was settled of it is answered for, so nobody
//! else gets what is about to be done.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Settle, Source};
use malote_model::QueueName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Count, Counters, PAUSE_FIRST, PAUSE_MAX};

/// Settlements that wait to be told.
const WAITING_MAX: usize = 4096;
/// Settlements told by one call, and calls at once: one is on its way while the disk works on another.
const BATCH_MAX: usize = 1024;
const CALLS_MAX: usize = 4;
/// Sessions that are being let go.
const CLOSING_MAX: usize = 1024;

enum Order {
    Settle(Decided),
    Close { source: Box<dyn Source>, after: TaskTracker, _room: OwnedSemaphorePermit },
    Flush(oneshot::Sender<()>),
}

/// What was decided about a message.
pub(super) struct Decided {
    pub settle: Settle,
    /// What it counts as, once the broker agreed.
    pub count: Count,
    /// Fired if the broker does not: the lock was lost.
    pub lost: CancellationToken,
    /// Held until it is answered for.
    pub open: Option<TaskTrackerToken>,
}

pub(super) struct Settler {
    orders: mpsc::Sender<Order>,
    closing: Arc<Semaphore>,
}

impl Settler {
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        lock: Duration,
        counts: Counters,
    ) -> Self {
        let (orders, given) = mpsc::channel(WAITING_MAX);
        tokio::spawn(Desk { broker, queue, lock, counts }.serve(given));
        Self { orders, closing: Arc::new(Semaphore::new(CLOSING_MAX)) }
    }

    pub(super) async fn settle(&self, decided: Decided) {
        let _ = self.orders.send(Order::Settle(decided)).await; // nobody left to tell: its lock ends it
    }

    /// Lets go of a session once what was settled of it is answered for.
    pub(super) async fn close(&self, source: Box<dyn Source>, after: TaskTracker) {
        let Ok(room) = self.closing.clone().acquire_owned().await else { return };
        let _ = self.orders.send(Order::Close { source, after, _room: room }).await;
    }

    pub(super) async fn flushed(&self) {
        let (done, flushed) = oneshot::channel();
        if self.orders.send(Order::Flush(done)).await.is_ok() {
            let _ = flushed.await; // gone is flushed, too
        }
    }
}

#[derive(Clone)]
struct Desk {
    broker: Arc<dyn Broker>,
    queue: QueueName,
    lock: Duration,
    counts: Counters,
}

impl Desk {
    async fn serve(self, mut orders: mpsc::Receiver<Order>) {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        let mut under_way = TaskTracker::new();
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while orders.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut decided = Vec::with_capacity(batch.len());
            let mut flushes = Vec::new();
            for order in batch.drain(..) {
                match order {
                    Order::Settle(one) => decided.push(one),
                    Order::Close { source, after, _room } => {
                        let queue = self.queue.clone();
                        under_way.spawn(async move {
                            after.close();
                            after.wait().await;
                            if let Err(error) = source.close().await {
                                tracing::debug!(%queue, %error, "a session was not let go; its lock ends it");
                            }
                            drop(_room);
                        });
                    }
                    Order::Flush(done) => flushes.push(done),
                }
            }
            if !decided.is_empty() {
                let Ok(call) = calls.clone().acquire_owned().await else { return };
                let desk = self.clone();
                under_way.spawn(async move {
                    desk.tell(decided).await;
                    drop(call);
                });
            }
            if !flushes.is_empty() {
                let before = std::mem::replace(&mut under_way, TaskTracker::new());
                before.close();
                before.wait().await;
                for done in flushes {
                    let _ = done.send(()); // whoever asked may be gone
                }
            }
        }
    }

    /// Tells until the broker answers, or the locks are over anyway.
    async fn tell(&self, decided: Vec<Decided>) {
        let until = Instant::now() + self.lock;
        let mut pause = PAUSE_FIRST;
        let mut left = decided;
        loop {
            let items = left.iter().map(|one| one.settle.clone()).collect();
            let each = match self.broker.settle(&self.queue, items).await {
                Ok(each) => each,
                Err(error) => vec![Err(error); left.len()],
            };
            let mut again = Vec::new();
            for (one, result) in left.into_iter().zip(each) {
                match result {
                    Ok(()) => self.counts.add(one.count),
                    Err(error) if error.is_transient() && Instant::now() < until => again.push(one),
                    Err(error) => self.lost(&one, &error),
                }
            }
            if again.is_empty() {
                return;
            }
            left = again;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn lost(&self, one: &Decided, error: &BrokerError) {
        let (queue, lease) = (&self.queue, one.settle.lease);
        let outcome = one.settle.settlement.word();
        tracing::warn!(%queue, %lease, outcome, %error, "an outcome was not taken: the message comes again");
        self.counts.add(Count::lost);
        one.lost.cancel();
    }
}
