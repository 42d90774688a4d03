//! A queue without sessions: one task fetches messages into the prefetch, and slots handle them.

use std::sync::Arc;

use malote_connectors::{BrokerError, Delivery, Settle, Source};
use tokio::time::Instant;

use super::isolation::FetchPermit;
use super::lock_renewal::LockGuard;
use super::prefetch::{Prefetch, PrefetchedMessage, WorkItem};
use super::settle::PendingSettlement;
use super::{Count, Pool, broker_pause};

/// An open source of messages, and the permit to fetch them.
type OpenSource = (Box<dyn Source>, FetchPermit);

pub(super) fn start(pool: &Arc<Pool>) -> Arc<Prefetch> {
    let ahead = !pool.limiter.has_limits();
    let limits = pool.routes.batch_handlers().map(|handler| handler.limits).collect();
    let prefetch = Prefetch::new(pool.settings.slots.min, pool.settings.lock, ahead, limits);
    let prefetch = Arc::new(prefetch);
    pool.tasks.spawn(fetch(pool.clone(), prefetch.clone()));
    prefetch
}

async fn fetch(pool: Arc<Pool>, prefetch: Arc<Prefetch>) {
    let mut open_source: Option<OpenSource> = None;
    let mut pause = broker_pause();
    let stop_fetching = &pool.phases.stop_fetching;
    while !stop_fetching.is_cancelled() {
        let blocked = pool.limiter.blocked_for();
        if blocked.is_some() || pool.isolation.is_requested() {
            // Another worker may be able to handle the prefetched messages.
            release_prefetched(&pool, &prefetch).await;
            close(&mut open_source).await;
        }
        if let Some(wait) = blocked {
            let _ = stop_fetching.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        let Some((source, permit)) = &open_source else {
            let permit = stop_fetching.run_until_cancelled(pool.isolation.fetch_permit()).await;
            let Some(permit) = permit else { break };
            match pool.broker.open(&pool.queue, pool.settings.lock).await {
                Ok(source) => open_source = Some((source, permit)),
                Err(error) => pool.pause_after(&error, &mut pause).await,
            }
            continue;
        };
        let fetched = tokio::select! {
            biased;
            () = stop_fetching.cancelled() => break,
            // The message that needs isolation may occupy the last slot.
            () = pool.isolation.requested() => continue,
            fetched = fetch_wanted(&pool, &prefetch, &**source) => fetched,
        };
        match fetched {
            Ok(Some(deliveries)) => {
                pause.reset();
                add(&pool, &prefetch, deliveries, permit);
            }
            Ok(None) => release_prefetched(&pool, &prefetch).await,
            Err(error) => {
                open_source = None;
                pool.pause_after(&error, &mut pause).await;
            }
        }
    }
    release_prefetched(&pool, &prefetch).await;
    close(&mut open_source).await;
}

/// Fetches as soon as the prefetch has room. None if prefetched messages have waited for too long.
async fn fetch_wanted(
    pool: &Pool,
    prefetch: &Prefetch,
    source: &dyn Source,
) -> Result<Option<Vec<Delivery>>, BrokerError> {
    let Some(wanted) = prefetch.wanted().await else { return Ok(None) };
    let count = pool.limiter.admit(wanted as usize).await;
    if count == 0 {
        return Ok(Some(Vec::new())); // a breaker opened, or a handler asked for a pause
    }
    let mut unused = UnusedAdmissions { pool, count };
    let deliveries = source.fetch(count, pool.settings.fetch_wait).await?;
    unused.count -= count.min(deliveries.len() as u32);
    Ok(Some(deliveries))
}

/// Returns admissions to the limiter that no message has used.
struct UnusedAdmissions<'a> {
    pool: &'a Pool,
    count: u32,
}

impl Drop for UnusedAdmissions<'_> {
    fn drop(&mut self) {
        self.pool.limiter.return_unused(self.count);
    }
}

fn add(
    pool: &Arc<Pool>,
    prefetch: &Arc<Prefetch>,
    deliveries: Vec<Delivery>,
    permit: &FetchPermit,
) {
    if deliveries.iter().any(|delivery| pool.was_lost(delivery)) {
        prefetch.assume_slow_handlers();
    }
    let locks = pool.locks.guard_all(deliveries.iter().map(|delivery| delivery.lease));
    let mut messages = Vec::with_capacity(deliveries.len());
    for (delivery, lock) in deliveries.into_iter().zip(locks) {
        if pool.needs_isolation(&delivery) {
            prefetch.count_running();
            pool.tasks.spawn(handle_isolated(pool.clone(), prefetch.clone(), delivery, lock));
            continue;
        }
        let batch = pool.routes.batch_index(&delivery);
        messages.push((batch, PrefetchedMessage { delivery, lock, permit: permit.clone() }));
    }
    for _ in 0..prefetch.add(messages) {
        pool.tasks.spawn(slot(pool.clone(), prefetch.clone()));
    }
}

async fn close(open_source: &mut Option<OpenSource>) {
    if let Some((source, _permit)) = open_source.take()
        && let Err(error) = source.close().await
    {
        tracing::debug!(%error, "a source was not closed; its messages return when their locks expire");
    }
}

/// Returns messages to the queue that no slot has started, in order and uncounted.
async fn release_prefetched(pool: &Pool, prefetch: &Prefetch) {
    for PrefetchedMessage { delivery, lock, permit: _permit } in prefetch.clear() {
        pool.limiter.return_unused(1);
        let (settle, lost) = (Settle::release(delivery.lease), lock.lost().clone());
        let released = PendingSettlement { settle, count: Count::released, lost, open: None };
        pool.settlements.settle(released).await;
    }
}

pub(super) async fn slot(pool: Arc<Pool>, prefetch: Arc<Prefetch>) {
    while let Some(item) = prefetch.next(&pool.phases.stop_fetching).await {
        let _busy = pool.counts.busy();
        let started = Instant::now();
        let messages = match item {
            WorkItem::Single(PrefetchedMessage { delivery, lock, permit: _permit }) => {
                if let Some(settlement) = pool.handle(delivery, None, lock.lock()).await {
                    pool.settlements.settle(settlement).await;
                }
                1
            }
            WorkItem::Batch(batch, messages) => {
                let count = messages.len();
                pool.handle_independent(batch, messages).await;
                count
            }
        };
        prefetch.finished(messages, started.elapsed());
    }
}

async fn handle_isolated(
    pool: Arc<Pool>,
    prefetch: Arc<Prefetch>,
    delivery: Delivery,
    lock: LockGuard,
) {
    let _busy = pool.counts.busy();
    let started = Instant::now();
    let request = pool.isolation.request();
    let isolated = match &request {
        Some(request) => pool.isolate(request).await,
        None => None,
    };
    let settlement = match &isolated {
        Some(_) => pool.handle(delivery, None, lock.lock()).await,
        None => Some(pool.retry_isolation(&delivery, &lock)),
    };
    if let Some(settlement) = settlement {
        pool.settlements.settle(settlement).await;
    }
    if isolated.is_some() {
        pool.flushed().await; // it must be settled before other messages are fetched
    }
    prefetch.finished(1, started.elapsed());
}
