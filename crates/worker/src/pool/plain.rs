//! Slots of a queue without sessions: who fetches takes as many messages as slots are free.

use std::sync::Arc;

use malote_connectors::{Delivery, Source};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Counted, PAUSE_FIRST, Pool};

/// Fetches at once: one is under way while another one's messages begin.
const FETCHERS: usize = 2;

pub(super) fn start(pool: &Arc<Pool>) {
    let slots = Arc::new(Semaphore::new(pool.settings.slots));
    for _ in 0..FETCHERS.min(pool.settings.slots) {
        pool.tasks.spawn(fetch(pool.clone(), slots.clone()));
    }
}

async fn fetch(pool: Arc<Pool>, slots: Arc<Semaphore>) {
    let share = pool.settings.slots.div_ceil(FETCHERS);
    let mut source: Option<Box<dyn Source>> = None;
    let mut pause = PAUSE_FIRST;
    while !pool.phases.quiet.is_cancelled() {
        if let Some(wait) = pool.gate.closed_for() {
            // What was fetched ahead goes back: somebody else may be able to work on it.
            let_go(&mut source).await;
            let _ = pool.phases.quiet.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        let Some(mut free) = take_slots(&pool, &slots, share).await else { break };
        let admit = pool.gate.admit(free.num_permits());
        let Some(count) = pool.phases.quiet.run_until_cancelled(admit).await else { break };
        if count == 0 {
            continue; // it closed meanwhile
        }
        let fetched = match &source {
            Some(open) => {
                let fetch = open.fetch(count, pool.settings.fetch_wait);
                tokio::select! {
                    biased;
                    () = pool.phases.quiet.cancelled() => break,
                    fetched = fetch => fetched,
                }
            }
            None => match pool.broker.open(&pool.queue, pool.settings.lock).await {
                Ok(open) => {
                    source = Some(open);
                    pool.gate.not_used(count);
                    continue;
                }
                Err(error) => Err(error),
            },
        };
        match fetched {
            Ok(deliveries) => {
                pause = PAUSE_FIRST;
                pool.gate.not_used(count.saturating_sub(deliveries.len() as u32));
                for delivery in deliveries {
                    if let Some(slot) = free.split(1) {
                        let busy = pool.counts.busy();
                        pool.tasks.spawn(one(pool.clone(), delivery, (slot, busy)));
                    }
                }
            }
            Err(error) => {
                pool.gate.not_used(count);
                source = None;
                pool.wait_after(&error, &mut pause).await;
            }
        }
    }
    let_go(&mut source).await;
}

async fn let_go(source: &mut Option<Box<dyn Source>>) {
    if let Some(open) = source.take()
        && let Err(error) = open.close().await
    {
        tracing::debug!(%error, "what was fetched ahead was not given back; its lock ends it");
    }
}

/// At least one free slot, at most a share of all. None once nothing new is to be taken.
async fn take_slots(
    pool: &Pool,
    slots: &Arc<Semaphore>,
    share: usize,
) -> Option<OwnedSemaphorePermit> {
    let first = slots.clone().acquire_owned();
    let mut free = pool.phases.quiet.run_until_cancelled(first).await?.ok()?;
    let more = u32::try_from(slots.available_permits().min(share - 1)).unwrap_or(u32::MAX);
    if let Ok(more) = slots.clone().try_acquire_many_owned(more) {
        free.merge(more);
    }
    Some(free)
}

async fn one(pool: Arc<Pool>, delivery: Delivery, slot: (OwnedSemaphorePermit, Counted)) {
    let watch = pool.locks.watch(delivery.lease);
    if let Some(decided) = pool.handle(delivery, None, watch.lost()).await {
        pool.settler.settle(decided).await;
    }
    drop(slot);
}
