//! A queue without sessions. Each source has its own channel, with the consumers of `prefetch.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use malote_model::{DeadReason, LeaseToken, Seq, Settlement, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::convert::InboundMessage;
use super::prefetch::{PREFETCH_MIN, PrefetchConsumer};
use super::settle::{Republish, dead_letter, unsupported, with_changes};
use super::topology::QueueTopology;
use super::tracked_channel::TrackedChannel;
use super::{RabbitContext, delay_queues};
use crate::broker::{BrokerError, BrokerFuture, Delivery, SessionHold, Settle, Source};

/// How long to wait for messages before the queue counts as empty. A new consumer gets more time.
const EMPTY_WAIT: Duration = Duration::from_millis(20);
const EMPTY_WAIT_FIRST: Duration = Duration::from_millis(500);

/// A queue without sessions, with its leases.
pub(super) struct PlainQueue {
    pub context: Arc<RabbitContext>,
    pub topology: Arc<QueueTopology>,
    leases: Mutex<HashMap<LeaseToken, PlainLease>>,
    /// Channels that are still in use.
    channels: Mutex<Vec<Weak<TrackedChannel>>>,
}

#[derive(Clone)]
struct PlainLease {
    tracked: Arc<TrackedChannel>,
    tag: u64,
    inbound: InboundMessage,
}

impl PlainQueue {
    pub(super) fn new(context: Arc<RabbitContext>, topology: Arc<QueueTopology>) -> Self {
        Self { context, topology, leases: Mutex::default(), channels: Mutex::default() }
    }

    pub(super) async fn open(self: &Arc<Self>) -> Result<Box<dyn Source>, BrokerError> {
        let consumer = tokio::sync::Mutex::new(Some(self.consumer(PREFETCH_MIN).await?));
        Ok(Box::new(RabbitPlainSource { plain: self.clone(), consumer, closed: false }))
    }

    async fn consumer(&self, prefetch: u16) -> Result<PrefetchConsumer, BrokerError> {
        let begin =
            PrefetchConsumer::begin(self.context.clone(), self.topology.names.queue(), prefetch);
        let consumer = self.context.io.run(begin).await?;
        let mut channels = self.channels.lock();
        channels.retain(|tracked| tracked.upgrade().is_some());
        channels.push(Arc::downgrade(&consumer.tracked));
        drop(channels);
        Ok(consumer)
    }

    /// Messages of the queue in this process: prefetched, and leased.
    pub(super) fn local_counts(&self) -> (u64, u64) {
        let channels: Vec<Arc<TrackedChannel>> =
            self.channels.lock().iter().filter_map(Weak::upgrade).collect();
        let open = channels
            .iter()
            .filter(|tracked| !tracked.is_lost())
            .map(|tracked| tracked.unsettled_count() as u64)
            .sum();
        let out =
            self.leases.lock().values().filter(|lease| !lease.tracked.is_lost()).count() as u64;
        (u64::saturating_sub(open, out), out)
    }

    fn grant(
        &self,
        tracked: &Arc<TrackedChannel>,
        tag: u64,
        mut inbound: InboundMessage,
    ) -> Delivery {
        inbound.receives = inbound.receives.saturating_add(1);
        let lease = self.context.new_lease(tracked.number);
        let delivery = delivery(&inbound, lease);
        self.leases.lock().insert(lease, PlainLease { tracked: tracked.clone(), tag, inbound });
        delivery
    }

    pub(super) fn renew(&self, lease: LeaseToken) -> Result<(), BrokerError> {
        match self.leases.lock().get(&lease) {
            Some(lease) if !lease.tracked.is_lost() => Ok(()),
            _ => Err(BrokerError::LockLost),
        }
    }

    /// Settles each lease on its own. A message that moves is published to its new queue before it is acknowledged
    /// here.
    pub(super) async fn settle(&self, items: Vec<Settle>) -> Vec<Result<(), BrokerError>> {
        let mut all = vec![Err(BrokerError::LockLost); items.len()];
        let mut settlements: Vec<(Arc<TrackedChannel>, ChannelSettlements)> = Vec::new();
        let mut republishing = Vec::new();
        let (mut publications, mut republished) = (Vec::new(), Vec::new());
        for (index, item) in items.into_iter().enumerate() {
            if let Some(error) = unsupported(&item) {
                all[index] = Err(error);
                continue;
            }
            let lease = {
                let mut leases = self.leases.lock();
                match leases.get(&item.lease) {
                    Some(lease) if lease.tracked.is_lost() => {
                        leases.remove(&item.lease);
                        continue;
                    }
                    Some(lease) => lease.clone(),
                    None => continue,
                }
            };
            let done = SettledLease { index, token: item.lease, tag: lease.tag };
            match self.disposition(&lease.inbound, item.settlement) {
                Disposition::Ack => settlements_of(&mut settlements, &lease.tracked).ack.push(done),
                Disposition::Requeue => {
                    settlements_of(&mut settlements, &lease.tracked).requeue.push(done)
                }
                Disposition::Republish(republish) => {
                    republishing.push((done, lease.tracked, republish))
                }
            }
        }
        for (done, tracked, republish) in republishing {
            match republish.publication(&self.context, &self.topology).await {
                Ok(publication) => {
                    publications.push(publication);
                    republished.push((done, tracked));
                }
                Err(error) => {
                    // No process could publish it elsewhere.
                    all[done.index] = Err(error);
                    self.leases.lock().remove(&done.token);
                    // On an error the channel is lost, and RabbitMQ requeues its messages.
                    let _ = tracked.requeue(&[done.tag]).await;
                }
            }
        }
        if !publications.is_empty() {
            let stored = self.context.publisher.publish(publications).await;
            for (n, (done, tracked)) in republished.into_iter().enumerate() {
                match stored.as_ref().map_or_else(|e| Err(e.clone()), |each| each[n].clone()) {
                    Ok(()) => settlements_of(&mut settlements, &tracked).ack.push(done),
                    Err(error) => all[done.index] = Err(error),
                }
            }
        }
        for (tracked, ChannelSettlements { ack, requeue }) in settlements {
            let tags = |all: &[SettledLease]| all.iter().map(|one| one.tag).collect::<Vec<_>>();
            let (acked, requeued) =
                (tracked.ack(&tags(&ack)).await, tracked.requeue(&tags(&requeue)).await);
            let mut leases = self.leases.lock();
            for (settled, outcome) in [(ack, acked), (requeue, requeued)] {
                for one in settled {
                    // If two calls settle the same lease, the first one wins.
                    let known = leases.remove(&one.token).is_some();
                    all[one.index] =
                        if known { outcome.clone() } else { Err(BrokerError::LockLost) };
                }
            }
        }
        all
    }

    fn disposition(&self, inbound: &InboundMessage, settlement: Settlement) -> Disposition {
        match settlement {
            Settlement::Complete | Settlement::Defer { .. } => Disposition::Ack,
            Settlement::Release { delay_ms: 0 } => Disposition::Requeue,
            Settlement::Release { delay_ms } => {
                Disposition::Republish(Republish::Delayed { inbound: inbound.clone(), delay_ms })
            }
            Settlement::Abandon { delay_ms, changes } => {
                let mut inbound = with_changes(inbound, changes);
                inbound.failed = inbound.failed.saturating_add(1);
                match self.topology.spec.failed_max.filter(|&max| inbound.failed >= max) {
                    None => Disposition::Republish(Republish::Delayed { inbound, delay_ms }),
                    Some(failed_max) => {
                        let reason = DeadReason::MaxFailed { failed: inbound.failed, failed_max };
                        Disposition::Republish(dead_letter(
                            inbound,
                            reason.word().to_owned(),
                            reason.text(),
                        ))
                    }
                }
            }
            Settlement::DeadLetter { reason, text, changes } => {
                Disposition::Republish(dead_letter(with_changes(inbound, changes), reason, text))
            }
        }
    }
}

impl PlainQueue {
    /// Returns a message that is not due yet to a delay queue.
    async fn delay_again(
        self: Arc<Self>,
        tracked: Arc<TrackedChannel>,
        tag: u64,
        inbound: InboundMessage,
        at: Timestamp,
    ) {
        let publication = delay_queues::publication(&self.context, &self.topology, &inbound, at);
        let published = match publication.await {
            Ok(publication) => self.context.publisher.publish_one(publication).await,
            Err(error) => Err(error),
        };
        // On an error the channel is lost, and RabbitMQ requeues its messages.
        let _ = match published {
            Ok(()) => tracked.ack(&[tag]).await,
            Err(error) => {
                tracing::debug!(%error, "a message that is not due yet is requeued");
                tracked.requeue(&[tag]).await
            }
        };
    }
}

enum Disposition {
    Ack,
    Requeue,
    Republish(Republish),
}

struct SettledLease {
    index: usize,
    token: LeaseToken,
    tag: u64,
}

#[derive(Default)]
struct ChannelSettlements {
    ack: Vec<SettledLease>,
    requeue: Vec<SettledLease>,
}

/// The settlements of one channel. A linear search is enough: there are few channels.
fn settlements_of<'a>(
    all: &'a mut Vec<(Arc<TrackedChannel>, ChannelSettlements)>,
    tracked: &Arc<TrackedChannel>,
) -> &'a mut ChannelSettlements {
    let at = all.iter().position(|(other, _)| Arc::ptr_eq(other, tracked)).unwrap_or(all.len());
    if at == all.len() {
        all.push((tracked.clone(), ChannelSettlements::default()));
    }
    &mut all[at].1
}

pub(super) fn delivery(inbound: &InboundMessage, lease: LeaseToken) -> Delivery {
    Delivery {
        // RabbitMQ does not number messages.
        seq: Seq(0),
        lease,
        receives: inbound.receives,
        failed: inbound.failed,
        enqueued_at: inbound.enqueued_at,
        last: false,
        dead: inbound.dead.clone(),
        message: (*inbound.message).clone(),
    }
}

struct RabbitPlainSource {
    plain: Arc<PlainQueue>,
    /// None while a new one is being opened.
    consumer: tokio::sync::Mutex<Option<PrefetchConsumer>>,
    /// Set by `close`, which waits for the end; `drop` then has nothing to do.
    closed: bool,
}

impl Source for RabbitPlainSource {
    fn held(&self) -> Option<&SessionHold> {
        None
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut slot = self.consumer.lock().await;
            let began = Instant::now();
            loop {
                let consumer = self.consumer(&mut slot, max).await?;
                while let Ok(received) = consumer.deliveries.try_recv() {
                    consumer.buffer(received);
                }
                let taken = self.take(consumer, max);
                if !taken.is_empty() {
                    return Ok(taken);
                }
                let empty_wait = if consumer.since.elapsed() < EMPTY_WAIT_FIRST {
                    EMPTY_WAIT_FIRST
                } else {
                    EMPTY_WAIT
                };
                let until = began + wait.max(empty_wait);
                let lost = consumer.tracked.lost.clone();
                tokio::select! {
                    received = tokio::time::timeout_at(until, consumer.deliveries.recv()) => match received {
                        Ok(received) => consumer.buffer(received.flatten()),
                        Err(_) => return Ok(Vec::new()),
                    },
                    () = lost.cancelled() => {}
                }
            }
        })
    }

    fn close(mut self: Box<Self>) -> BrokerFuture<'static, ()> {
        self.closed = true;
        let (consumer, plain) = (self.consumer.get_mut().take(), self.plain.clone());
        Box::pin(async move {
            match consumer {
                Some(consumer) => plain.context.io.run(consumer.close(|| true)).await,
                None => Ok(()),
            }
        })
    }
}

impl RabbitPlainSource {
    /// The consumer, with room for `max` more messages. Opens a new one if its channel was lost.
    async fn consumer<'a>(
        &self,
        slot: &'a mut Option<PrefetchConsumer>,
        max: u32,
    ) -> Result<&'a mut PrefetchConsumer, BrokerError> {
        let old = slot.take_if(|consumer| consumer.tracked.is_lost());
        if slot.is_none() {
            // Leases of a lost channel cannot be settled any more.
            self.plain.leases.lock().retain(|_, lease| !lease.tracked.is_lost());
            let prefetch = match old {
                Some(old) => old.prefetch().await,
                None => PREFETCH_MIN,
            };
            *slot = Some(self.plain.consumer(prefetch).await?);
        }
        let consumer = slot.as_mut().ok_or(BrokerError::Closed)?;
        if consumer.buffered.is_empty() && consumer.deliveries.is_empty() {
            let open = u32::try_from(consumer.tracked.unsettled_count())
                .unwrap_or(u32::MAX)
                .saturating_add(max);
            consumer.raise_prefetch(open).await?;
        }
        Ok(consumer)
    }

    /// Leases up to `max` buffered messages. Those that are not due yet go back to a delay queue.
    fn take(&self, consumer: &mut PrefetchConsumer, max: u32) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while taken.len() < max as usize {
            let Some((tag, inbound)) = consumer.buffered.pop_front() else { break };
            match inbound.at {
                None => taken.push(self.plain.grant(&consumer.tracked, tag, inbound)),
                Some(at) => {
                    let delay =
                        self.plain.clone().delay_again(consumer.tracked.clone(), tag, inbound, at);
                    self.plain.context.io.handle.spawn(delay);
                }
            }
        }
        taken
    }
}

impl Drop for RabbitPlainSource {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.get_mut().take().filter(|_| !self.closed) {
            let io = self.plain.context.io.handle.clone();
            let plain = Arc::downgrade(&self.plain);
            io.spawn(async move {
                if let Err(error) = consumer.close(|| plain.strong_count() > 0).await {
                    tracing::debug!(%error, "a consumer was not closed; it ends with its channel");
                }
            });
        }
    }
}
