//! Slots of a queue without sessions: who fetches takes as many messages as slots are free.

use std::sync::Arc;

use malote_connectors::{Delivery, Source};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::alone::InHand;
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
    let mut source: Option<Open> = None;
    let mut pause = PAUSE_FIRST;
    while !pool.phases.quiet.is_cancelled() {
        if let Some(wait) = pool.gate.closed_for() {
            // What was fetched ahead goes back: somebody else may be able to work on it.
            let_go(&mut source).await;
            let _ = pool.phases.quiet.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        if pool.alone.is_wanted() {
            let_go(&mut source).await;
        }
        let admitted = tokio::select! {
            biased;
            // What wants to be alone may have the last slot.
            () = pool.alone.wanted(), if source.is_some() => continue,
            admitted = admitted(&pool, &slots, share) => admitted,
        };
        let Some((mut free, count)) = admitted else { break };
        if count == 0 {
            continue; // it closed meanwhile
        }
        let fetched = match &source {
            Some((open, in_hand)) => {
                let fetch = open.fetch(count, pool.settings.fetch_wait);
                tokio::select! {
                    biased;
                    () = pool.phases.quiet.cancelled() => break,
                    () = pool.alone.wanted() => {
                        pool.gate.not_used(count);
                        continue;
                    }
                    fetched = fetch => fetched.map(|deliveries| (deliveries, in_hand.clone())),
                }
            }
            None => {
                pool.gate.not_used(count);
                let in_hand = pool.phases.quiet.run_until_cancelled(pool.alone.share()).await;
                let Some(in_hand) = in_hand else { break };
                match pool.broker.open(&pool.queue, pool.settings.lock).await {
                    Ok(open) => source = Some((open, in_hand)),
                    Err(error) => pool.wait_after(&error, &mut pause).await,
                }
                continue;
            }
        };
        match fetched {
            Ok((deliveries, in_hand)) => {
                pause = PAUSE_FIRST;
                pool.gate.not_used(count.saturating_sub(deliveries.len() as u32));
                for delivery in deliveries {
                    if let Some(slot) = free.split(1) {
                        let slot = (slot, pool.counts.busy());
                        if pool.is_last_life(&delivery) {
                            pool.tasks.spawn(alone(pool.clone(), delivery, slot));
                        } else {
                            pool.tasks.spawn(one(pool.clone(), delivery, slot, in_hand.clone()));
                        }
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

/// Where messages come from, and the right to take them.
type Open = (Box<dyn Source>, InHand);
type Slot = (OwnedSemaphorePermit, Counted);

async fn let_go(source: &mut Option<Open>) {
    if let Some((open, _in_hand)) = source.take()
        && let Err(error) = open.close().await
    {
        tracing::debug!(%error, "what was fetched ahead was not given back; its lock ends it");
    }
}

/// Free slots, and how many of them may be used now; zero if the gate closed meanwhile. None once nothing new is to be
/// taken.
async fn admitted(
    pool: &Pool,
    slots: &Arc<Semaphore>,
    share: usize,
) -> Option<(OwnedSemaphorePermit, u32)> {
    let free = take_slots(pool, slots, share).await?;
    let admit = pool.gate.admit(free.num_permits());
    let count = pool.phases.quiet.run_until_cancelled(admit).await?;
    Some((free, count))
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

async fn one(pool: Arc<Pool>, delivery: Delivery, slot: Slot, in_hand: InHand) {
    let watch = pool.locks.watch(delivery.lease);
    if let Some(decided) = pool.handle(delivery, None, watch.lock()).await {
        pool.settler.settle(decided).await;
    }
    drop((slot, in_hand));
}

/// A message that one more loss would kill.
async fn alone(pool: Arc<Pool>, delivery: Delivery, slot: Slot) {
    let watch = pool.locks.watch(delivery.lease);
    let turn = pool.alone.ask();
    let room = match &turn {
        Some(turn) => pool.be_alone(turn).await,
        None => None,
    };
    let decided = match &room {
        Some(_) => pool.handle(delivery, None, watch.lock()).await,
        None => Some(pool.later(&delivery, &watch)),
    };
    if let Some(decided) = decided {
        pool.settler.settle(decided).await;
    }
    if room.is_some() {
        pool.flushed().await; // it must be out of hand before others are in
    }
    drop(slot);
}
