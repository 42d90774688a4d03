//! A queue without sessions: each source has a channel of its own, that is fed by `feed.rs`, and settles on that.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use malote_model::{DeadReason, LeaseToken, Seq, Settlement};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::convert::Arrived;
use super::feed::{Feed, PREFETCH_MIN};
use super::settle::{Letter, laid_over, letter, unsupported};
use super::topology::Topology;
use super::way::Way;
use super::{Tools, wait};
use crate::broker::{BrokerError, Delivery, Doing, Held, Settle, Source};

/// What is there now arrives within this, or counts as not there: longer for a consumer that has just begun.
const NOW: Duration = Duration::from_millis(20);
const NOW_FIRST: Duration = Duration::from_millis(500);

/// What is in hand of a queue.
pub(super) struct Counter {
    pub tools: Arc<Tools>,
    pub topology: Arc<Topology>,
    leases: Mutex<HashMap<LeaseToken, Lease>>,
    /// What messages come over, as long as somebody has it.
    ways: Mutex<Vec<Weak<Way>>>,
}

#[derive(Clone)]
struct Lease {
    way: Arc<Way>,
    tag: u64,
    arrived: Arrived,
}

impl Counter {
    pub(super) fn new(tools: Arc<Tools>, topology: Arc<Topology>) -> Self {
        Self { tools, topology, leases: Mutex::default(), ways: Mutex::default() }
    }

    pub(super) async fn open(self: &Arc<Self>) -> Result<Box<dyn Source>, BrokerError> {
        let feed = tokio::sync::Mutex::new(Some(self.feed(PREFETCH_MIN).await?));
        Ok(Box::new(PlainSource { counter: self.clone(), feed, closed: false }))
    }

    async fn feed(&self, prefetch: u16) -> Result<Feed, BrokerError> {
        let begin = Feed::begin(self.tools.clone(), self.topology.names.queue(), prefetch);
        let feed = self.tools.io.run(begin).await?;
        let mut ways = self.ways.lock();
        ways.retain(|way| way.upgrade().is_some());
        ways.push(Arc::downgrade(&feed.way));
        drop(ways);
        Ok(feed)
    }

    /// What this process has of the queue: fetched ahead, and handed out.
    pub(super) fn here(&self) -> (u64, u64) {
        let ways: Vec<Arc<Way>> = self.ways.lock().iter().filter_map(Weak::upgrade).collect();
        let open = ways.iter().filter(|way| !way.is_lost()).map(|way| way.open() as u64).sum();
        let out = self.leases.lock().values().filter(|lease| !lease.way.is_lost()).count() as u64;
        (u64::saturating_sub(open, out), out)
    }

    fn grant(&self, way: &Arc<Way>, tag: u64, mut arrived: Arrived) -> Delivery {
        arrived.receives = arrived.receives.saturating_add(1);
        let lease = self.tools.token(way.number);
        let delivery = delivery(&arrived, lease);
        self.leases.lock().insert(lease, Lease { way: way.clone(), tag, arrived });
        delivery
    }

    pub(super) fn renew(&self, lease: LeaseToken) -> Result<(), BrokerError> {
        match self.leases.lock().get(&lease) {
            Some(lease) if !lease.way.is_lost() => Ok(()),
            _ => Err(BrokerError::LockLost),
        }
    }

    /// Each on its own: what goes on to another place is stored there before it is gone here.
    pub(super) async fn settle(&self, items: Vec<Settle>) -> Vec<Result<(), BrokerError>> {
        let mut all = vec![Err(BrokerError::LockLost); items.len()];
        let mut told: Vec<(Arc<Way>, Told)> = Vec::new();
        let mut moving = Vec::new();
        let (mut parcels, mut moved) = (Vec::new(), Vec::new());
        for (nth, item) in items.into_iter().enumerate() {
            if let Some(error) = unsupported(&item) {
                all[nth] = Err(error);
                continue;
            }
            let lease = {
                let mut leases = self.leases.lock();
                match leases.get(&item.lease) {
                    Some(lease) if lease.way.is_lost() => {
                        leases.remove(&item.lease);
                        continue;
                    }
                    Some(lease) => lease.clone(),
                    None => continue,
                }
            };
            let done = Done { nth, token: item.lease, tag: lease.tag };
            match self.goes_on(&lease.arrived, item.settlement) {
                Goes::Nowhere => note(&mut told, &lease.way).done.push(done),
                Goes::Back => note(&mut told, &lease.way).back.push(done),
                Goes::On(letter) => moving.push((done, lease.way, letter)),
            }
        }
        for (done, way, letter) in moving {
            match letter.parcel(&self.tools, &self.topology).await {
                Ok(parcel) => {
                    parcels.push(parcel);
                    moved.push((done, way));
                }
                Err(error) => {
                    // It can go nowhere else, whoever tries.
                    all[done.nth] = Err(error);
                    self.leases.lock().remove(&done.token);
                    let _ = way.requeue(&[done.tag]).await; // a way that is lost gives it back, too
                }
            }
        }
        if !parcels.is_empty() {
            let stored = self.tools.publisher.publish(parcels).await;
            for (n, (done, way)) in moved.into_iter().enumerate() {
                match stored.as_ref().map_or_else(|e| Err(e.clone()), |each| each[n].clone()) {
                    Ok(()) => note(&mut told, &way).done.push(done),
                    Err(error) => all[done.nth] = Err(error),
                }
            }
        }
        for (way, Told { done, back }) in told {
            let tags = |all: &[Done]| all.iter().map(|one| one.tag).collect::<Vec<_>>();
            let (acked, requeued) = (way.ack(&tags(&done)).await, way.requeue(&tags(&back)).await);
            let mut leases = self.leases.lock();
            for (some, outcome) in [(done, acked), (back, requeued)] {
                for one in some {
                    // Of two that settle the same, one was the first.
                    let known = leases.remove(&one.token).is_some();
                    all[one.nth] = if known { outcome.clone() } else { Err(BrokerError::LockLost) };
                }
            }
        }
        all
    }

    fn goes_on(&self, arrived: &Arrived, settlement: Settlement) -> Goes {
        match settlement {
            Settlement::Complete | Settlement::Defer { .. } => Goes::Nowhere,
            Settlement::Release { delay_ms: 0 } => Goes::Back,
            Settlement::Release { delay_ms } => {
                Goes::On(Letter::Later { arrived: arrived.clone(), delay_ms })
            }
            Settlement::Abandon { delay_ms, changes } => {
                let mut arrived = laid_over(arrived, changes);
                arrived.failed = arrived.failed.saturating_add(1);
                match self.topology.spec.failed_max.filter(|&max| arrived.failed >= max) {
                    None => Goes::On(Letter::Later { arrived, delay_ms }),
                    Some(failed_max) => {
                        let reason = DeadReason::MaxFailed { failed: arrived.failed, failed_max };
                        Goes::On(letter(arrived, reason.word().to_owned(), reason.text()))
                    }
                }
            }
            Settlement::DeadLetter { reason, text, changes } => {
                Goes::On(letter(laid_over(arrived, changes), reason, text))
            }
        }
    }
}

enum Goes {
    Nowhere,
    Back,
    On(Letter),
}

struct Done {
    nth: usize,
    token: LeaseToken,
    tag: u64,
}

#[derive(Default)]
struct Told {
    done: Vec<Done>,
    back: Vec<Done>,
}

/// What is told over one way; there are few.
fn note<'a>(all: &'a mut Vec<(Arc<Way>, Told)>, way: &Arc<Way>) -> &'a mut Told {
    let at = all.iter().position(|(other, _)| Arc::ptr_eq(other, way)).unwrap_or(all.len());
    if at == all.len() {
        all.push((way.clone(), Told::default()));
    }
    &mut all[at].1
}

pub(super) fn delivery(arrived: &Arrived, lease: LeaseToken) -> Delivery {
    Delivery {
        // RabbitMQ numbers nothing.
        seq: Seq(0),
        lease,
        receives: arrived.receives,
        failed: arrived.failed,
        enqueued_at: arrived.enqueued_at,
        last: false,
        dead: arrived.dead.clone(),
        message: (*arrived.message).clone(),
    }
}

struct PlainSource {
    counter: Arc<Counter>,
    /// None while it is made anew.
    feed: tokio::sync::Mutex<Option<Feed>>,
    /// It was let go by `close`, which waits: there is nothing left for `drop`.
    closed: bool,
}

impl Source for PlainSource {
    fn held(&self) -> Option<&Held> {
        None
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut slot = self.feed.lock().await;
            let began = Instant::now();
            loop {
                let feed = self.fed(&mut slot, max).await?;
                while let Ok(came) = feed.arrivals.try_recv() {
                    feed.took(came);
                }
                let got = self.take(feed, max);
                if !got.is_empty() {
                    return Ok(got);
                }
                let now = if feed.since.elapsed() < NOW_FIRST { NOW_FIRST } else { NOW };
                let until = began + wait.max(now);
                let lost = feed.way.lost.clone();
                tokio::select! {
                    came = tokio::time::timeout_at(until, feed.arrivals.recv()) => match came {
                        Ok(came) => feed.took(came.flatten()),
                        Err(_) => return Ok(Vec::new()),
                    },
                    () = lost.cancelled() => {}
                }
            }
        })
    }

    fn close(mut self: Box<Self>) -> Doing<'static, ()> {
        self.closed = true;
        let (feed, counter) = (self.feed.get_mut().take(), self.counter.clone());
        Box::pin(async move {
            match feed {
                Some(feed) => counter.tools.io.run(feed.close(|| true)).await,
                None => Ok(()),
            }
        })
    }
}

impl PlainSource {
    /// The feed, made anew if its channel was lost, with room for so many more.
    async fn fed<'a>(
        &self,
        slot: &'a mut Option<Feed>,
        max: u32,
    ) -> Result<&'a mut Feed, BrokerError> {
        let old = slot.take_if(|feed| feed.way.is_lost());
        if slot.is_none() {
            // Nothing of it can be settled any more.
            self.counter.leases.lock().retain(|_, lease| !lease.way.is_lost());
            let prefetch = match old {
                Some(old) => old.prefetch().await,
                None => PREFETCH_MIN,
            };
            *slot = Some(self.counter.feed(prefetch).await?);
        }
        let feed = slot.as_mut().ok_or(BrokerError::Closed)?;
        if feed.here.is_empty() && feed.arrivals.is_empty() {
            let open = u32::try_from(feed.way.open()).unwrap_or(u32::MAX).saturating_add(max);
            feed.make_room(open).await?;
        }
        Ok(feed)
    }

    /// What may be handed out now. What came too early waits once more.
    fn take(&self, feed: &mut Feed, max: u32) -> Vec<Delivery> {
        let mut got = Vec::new();
        while got.len() < max as usize {
            let Some((tag, arrived)) = feed.here.pop_front() else { break };
            match arrived.at {
                None => got.push(self.counter.grant(&feed.way, tag, arrived)),
                Some(at) => {
                    let (counter, way) = (self.counter.clone(), feed.way.clone());
                    let io = counter.tools.io.handle.clone();
                    io.spawn(async move {
                        let again = wait::parcel(&counter.tools, &counter.topology, &arrived, at);
                        let again = match again.await {
                            Ok(parcel) => counter.tools.publisher.publish_one(parcel).await,
                            Err(error) => Err(error),
                        };
                        let _ = match again {
                            Ok(()) => way.ack(&[tag]).await,
                            Err(error) => {
                                tracing::debug!(%error, "a message that came early goes back");
                                way.requeue(&[tag]).await
                            }
                        };
                    });
                }
            }
        }
        got
    }
}

impl Drop for PlainSource {
    fn drop(&mut self) {
        if let Some(feed) = self.feed.get_mut().take().filter(|_| !self.closed) {
            let io = self.counter.tools.io.handle.clone();
            let counter = Arc::downgrade(&self.counter);
            io.spawn(async move {
                if let Err(error) = feed.close(|| counter.strong_count() > 0).await {
                    tracing::debug!(%error, "a consumer was not let go; its channel's end does it");
                }
            });
        }
    }
}
