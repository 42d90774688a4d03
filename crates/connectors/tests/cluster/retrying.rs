//! The broker that cases use: it repeats calls that failed because of a fault, and records messages.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::{
    Broker, BrokerError, BrokerFuture, Capabilities, Delivery, Depth, Sent, SessionHold, Settle,
    Source,
};
use malote_model::{Address, LeaseToken, Message, QueueName, QueueSpec, SessionId, Timestamp};
use tokio::time::Instant;

use crate::trial::Trial;

/// How long unanswered settlements are repeated.
const SETTLE_FOR: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

pub struct RetryingBroker {
    inner: Arc<dyn Broker>,
    trial: Arc<Trial>,
}

impl RetryingBroker {
    pub async fn connect(
        trial: &Arc<Trial>,
        connect: impl FnMut() -> BrokerFuture<'static, Arc<dyn Broker>> + Send,
    ) -> Result<Self, BrokerError> {
        let inner = trial.retry(connect).await?;
        Ok(Self { inner, trial: trial.clone() })
    }

    fn source(&self, inner: Box<dyn Source>) -> Box<dyn Source> {
        if let Some(held) = inner.held() {
            let anomaly = self.trial.expected.lock().held(held);
            anomaly.into_iter().for_each(|what| self.trial.anomaly(what));
        }
        let (trial, leases) = (self.trial.clone(), parking_lot::Mutex::default());
        Box::new(RetryingSource { inner: Some(inner), trial, leases })
    }

    /// Repeats items with a transient error.
    async fn retry_each<'a, I: Clone + Send + Sync>(
        &'a self,
        items: &[I],
        call: impl Fn(Vec<I>) -> BrokerFuture<'a, Vec<Result<(), BrokerError>>> + Send + Sync,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let until = Instant::now() + SETTLE_FOR;
        let mut answers = self.trial.retry(|| call(items.to_vec())).await?;
        loop {
            let failed: Vec<usize> = (0..answers.len())
                .filter(|&index| {
                    let error = answers[index].as_ref().err();
                    error.is_some_and(|error| self.trial.may_retry(error, until))
                })
                .collect();
            if failed.is_empty() {
                return Ok(answers);
            }
            tokio::time::sleep(PAUSE).await;
            match call(failed.iter().map(|&index| items[index].clone()).collect()).await {
                Ok(results) => {
                    failed
                        .into_iter()
                        .zip(results)
                        .for_each(|(index, answer)| answers[index] = answer);
                }
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Broker for RetryingBroker {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        let queue = self.trial.trial_queue(queue);
        Box::pin(async move { self.trial.retry(|| self.inner.declare(&queue, spec.clone())).await })
    }

    fn send(&self, mut messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            {
                let mut expected = self.trial.expected.lock();
                for (to, message) in &mut messages {
                    expected.assign_id(message);
                    if let Address::Queue(queue) = to {
                        expected.sending(queue, message);
                        *queue = self.trial.trial_queue(queue);
                    }
                }
            }
            let retry = |error: &BrokerError| {
                if let BrokerError::Unreachable { .. } = error {
                    self.trial.sent_again(messages.len());
                }
            };
            let sent = self.trial.retry_noting(|| self.inner.send(messages.clone()), retry).await?;
            self.trial.counters.sent.fetch_add(messages.len(), Relaxed);
            let mut expected = self.trial.expected.lock();
            messages.iter().for_each(|(_, message)| expected.sent(message));
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        let queue = self.trial.trial_queue(queue);
        Box::pin(async move {
            let opened = self.trial.retry(|| self.inner.open(&queue, lock)).await;
            opened.map(|source| self.source(source))
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let queue = self.trial.trial_queue(queue);
        Box::pin(async move {
            let accept = || self.inner.accept(&queue, session.clone(), lock, wait);
            let on_retry = |error: &BrokerError| self.trial.answer_lost(error);
            let accepted = self.trial.retry_noting(accept, on_retry).await?;
            Ok(accepted.map(|source| self.source(source)))
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let (queue, trial_queue) = (queue.clone(), self.trial.trial_queue(queue));
        Box::pin(async move {
            let answers =
                self.retry_each(&items, |some| self.inner.settle(&trial_queue, some)).await?;
            for (item, answer) in items.iter().zip(&answers) {
                let mut expected = self.trial.expected.lock();
                let leased = expected.is_leased(&item.lease);
                match answer {
                    Ok(()) => {
                        self.trial.counters.settled.fetch_add(1, Relaxed);
                        expected.settled(&queue, &item.lease, &item.settlement, true);
                    }
                    Err(BrokerError::LockLost) if leased => {
                        self.trial.lock_lost();
                        expected.settled(&queue, &item.lease, &item.settlement, false);
                    }
                    Err(_) => {}
                }
            }
            Ok(answers)
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = self.trial.trial_queue(queue);
        Box::pin(async move {
            let answers =
                self.retry_each(&leases, |some| self.inner.renew(&queue, some, lock)).await?;
            for (lease, answer) in leases.iter().zip(&answers) {
                if answer == &Err(BrokerError::LockLost)
                    && self.trial.expected.lock().is_leased(lease)
                {
                    self.trial.lock_lost();
                }
            }
            Ok(answers)
        })
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        let (queue, held) = (self.trial.trial_queue(queue), held.clone());
        Box::pin(async move { self.trial.retry(|| self.inner.state(&queue, &held)).await })
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let queue = self.trial.trial_queue(queue);
        Box::pin(async move { self.trial.retry(|| self.inner.depth(&queue)).await })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move { self.trial.retry(|| self.inner.close()).await })
    }
}

struct RetryingSource {
    /// None once released.
    inner: Option<Box<dyn Source>>,
    trial: Arc<Trial>,
    /// The leases of its messages.
    leases: parking_lot::Mutex<Vec<LeaseToken>>,
}

impl Source for RetryingSource {
    fn held(&self) -> Option<&SessionHold> {
        self.inner.as_ref()?.held()
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let inner = self.inner.as_ref().ok_or(BrokerError::Closed)?;
            let on_retry = |error: &BrokerError| self.trial.answer_lost(error);
            let received = self.trial.retry_noting(|| inner.fetch(max, wait), on_retry).await?;
            self.trial.counters.delivered.fetch_add(received.len(), Relaxed);
            if received.is_empty() {
                self.trial.fetched_nothing();
            }
            for delivery in &received {
                let anomaly = self.trial.expected.lock().delivered(delivery);
                anomaly.into_iter().for_each(|what| self.trial.anomaly(what));
                self.leases.lock().push(delivery.lease);
            }
            Ok(received)
        })
    }

    fn close(mut self: Box<Self>) -> BrokerFuture<'static, ()> {
        self.released();
        let (inner, trial) = (self.inner.take(), self.trial.clone());
        Box::pin(async move {
            let mut inner = inner;
            // The first call consumes the source, so there is nothing to repeat.
            let close = || match inner.take() {
                Some(inner) => inner.close(),
                None => Box::pin(async { Ok(()) }),
            };
            trial.retry(close).await
        })
    }
}

impl RetryingSource {
    /// Releasing a session also releases its messages.
    fn released(&self) {
        let Some(held) = self.held() else { return };
        let mut expected = self.trial.expected.lock();
        expected.released(&held.hold);
        self.leases.lock().iter().for_each(|lease| expected.released(lease));
    }
}

impl Drop for RetryingSource {
    fn drop(&mut self) {
        self.released();
    }
}
