//! A broker as a case sees it: calls that a fault left without an answer are made again, and the ledger is kept.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::{
    Broker, BrokerError, Capabilities, Delivery, Depth, Doing, Held, Sent, Settle, Source,
};
use malote_model::{Address, LeaseToken, Message, QueueName, QueueSpec, SessionId, Timestamp};
use tokio::time::Instant;

use crate::trial::Trial;

/// How long settlements without an answer are asked for again.
const SETTLE_FOR: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Steady {
    inner: Arc<dyn Broker>,
    trial: Arc<Trial>,
}

impl Steady {
    pub async fn connect(
        trial: &Arc<Trial>,
        connect: impl FnMut() -> Doing<'static, Arc<dyn Broker>> + Send,
    ) -> Result<Self, BrokerError> {
        let inner = trial.repeat(connect).await?;
        Ok(Self { inner, trial: trial.clone() })
    }

    fn source(&self, inner: Box<dyn Source>) -> Box<dyn Source> {
        if let Some(held) = inner.held() {
            let strange = self.trial.ledger.lock().held(held);
            strange.into_iter().for_each(|what| self.trial.strange(what));
        }
        let (trial, leases) = (self.trial.clone(), parking_lot::Mutex::default());
        Box::new(SteadySource { inner: Some(inner), trial, leases })
    }

    /// Each answer that says that it may work later is asked for again.
    async fn each<'a, I: Clone + Send + Sync>(
        &'a self,
        items: &[I],
        ask: impl Fn(Vec<I>) -> Doing<'a, Vec<Result<(), BrokerError>>> + Send + Sync,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let until = Instant::now() + SETTLE_FOR;
        let mut answers = self.trial.repeat(|| ask(items.to_vec())).await?;
        loop {
            let open: Vec<usize> = (0..answers.len())
                .filter(|&nth| {
                    let error = answers[nth].as_ref().err();
                    error.is_some_and(|error| self.trial.may_repeat(error, until))
                })
                .collect();
            if open.is_empty() {
                return Ok(answers);
            }
            tokio::time::sleep(PAUSE).await;
            match ask(open.iter().map(|&nth| items[nth].clone()).collect()).await {
                Ok(again) => {
                    open.into_iter().zip(again).for_each(|(nth, answer)| answers[nth] = answer);
                }
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Broker for Steady {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        let queue = self.trial.own(queue);
        Box::pin(
            async move { self.trial.repeat(|| self.inner.declare(&queue, spec.clone())).await },
        )
    }

    fn send(&self, mut messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        Box::pin(async move {
            {
                let mut ledger = self.trial.ledger.lock();
                for (to, message) in &mut messages {
                    ledger.name(message);
                    if let Address::Queue(queue) = to {
                        ledger.sending(queue, message);
                        *queue = self.trial.own(queue);
                    }
                }
            }
            let again = |error: &BrokerError| {
                if let BrokerError::Unreachable { .. } = error {
                    self.trial.sent_again(messages.len());
                }
            };
            let sent =
                self.trial.repeat_noting(|| self.inner.send(messages.clone()), again).await?;
            self.trial.tally.sent.fetch_add(messages.len(), Relaxed);
            let mut ledger = self.trial.ledger.lock();
            messages.iter().for_each(|(_, message)| ledger.sent(message));
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        let queue = self.trial.own(queue);
        Box::pin(async move {
            let opened = self.trial.repeat(|| self.inner.open(&queue, lock)).await;
            opened.map(|source| self.source(source))
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let queue = self.trial.own(queue);
        Box::pin(async move {
            let accept = || self.inner.accept(&queue, session.clone(), lock, wait);
            let unheard = |error: &BrokerError| self.trial.taken_unheard(error);
            let accepted = self.trial.repeat_noting(accept, unheard).await?;
            Ok(accepted.map(|source| self.source(source)))
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let (queue, own) = (queue.clone(), self.trial.own(queue));
        Box::pin(async move {
            let answers = self.each(&items, |some| self.inner.settle(&own, some)).await?;
            for (item, answer) in items.iter().zip(&answers) {
                let mut ledger = self.trial.ledger.lock();
                let in_hand = ledger.is_in_hand(&item.lease);
                match answer {
                    Ok(()) => {
                        self.trial.tally.settled.fetch_add(1, Relaxed);
                        ledger.settled(&queue, &item.lease, &item.settlement, true);
                    }
                    Err(BrokerError::LockLost) if in_hand => {
                        self.trial.lock_lost();
                        ledger.settled(&queue, &item.lease, &item.settlement, false);
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
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = self.trial.own(queue);
        Box::pin(async move {
            let answers = self.each(&leases, |some| self.inner.renew(&queue, some, lock)).await?;
            for (lease, answer) in leases.iter().zip(&answers) {
                if answer == &Err(BrokerError::LockLost)
                    && self.trial.ledger.lock().is_in_hand(lease)
                {
                    self.trial.lock_lost();
                }
            }
            Ok(answers)
        })
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        let (queue, held) = (self.trial.own(queue), held.clone());
        Box::pin(async move { self.trial.repeat(|| self.inner.state(&queue, &held)).await })
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        let queue = self.trial.own(queue);
        Box::pin(async move { self.trial.repeat(|| self.inner.depth(&queue)).await })
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move { self.trial.repeat(|| self.inner.close()).await })
    }
}

struct SteadySource {
    /// None once it was let go.
    inner: Option<Box<dyn Source>>,
    trial: Arc<Trial>,
    /// What came through it.
    leases: parking_lot::Mutex<Vec<LeaseToken>>,
}

impl Source for SteadySource {
    fn held(&self) -> Option<&Held> {
        self.inner.as_ref()?.held()
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let inner = self.inner.as_ref().ok_or(BrokerError::Closed)?;
            let unheard = |error: &BrokerError| self.trial.taken_unheard(error);
            let got = self.trial.repeat_noting(|| inner.fetch(max, wait), unheard).await?;
            self.trial.tally.delivered.fetch_add(got.len(), Relaxed);
            if got.is_empty() {
                self.trial.nothing_came();
            }
            for delivery in &got {
                let strange = self.trial.ledger.lock().came(delivery);
                strange.into_iter().for_each(|what| self.trial.strange(what));
                self.leases.lock().push(delivery.lease);
            }
            Ok(got)
        })
    }

    fn close(mut self: Box<Self>) -> Doing<'static, ()> {
        self.let_go();
        let (inner, trial) = (self.inner.take(), self.trial.clone());
        Box::pin(async move {
            let mut inner = inner;
            // It is let go by its end at the latest: there is nothing to ask for again.
            let close = || match inner.take() {
                Some(inner) => inner.close(),
                None => Box::pin(async { Ok(()) }),
            };
            trial.repeat(close).await
        })
    }
}

impl SteadySource {
    /// With a session goes all that is in hand of it.
    fn let_go(&self) {
        let Some(held) = self.held() else { return };
        let mut ledger = self.trial.ledger.lock();
        ledger.let_go(&held.hold);
        self.leases.lock().iter().for_each(|lease| ledger.let_go(lease));
    }
}

impl Drop for SteadySource {
    fn drop(&mut self) {
        self.let_go();
    }
}
