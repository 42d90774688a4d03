//! A queue without sessions: one task fetches onto the shelf, slots take from it and handle.

use std::sync::Arc;

use malote_connectors::{BrokerError, Delivery, Settle, Source};
use tokio::time::Instant;

use super::alone::InHand;
use super::locks::Watch;
use super::settle::Decided;
use super::shelf::{Ahead, Shelf, Unit};
use super::{Count, PAUSE_FIRST, Pool};

/// Where messages come from, and the right to take them.
type Open = (Box<dyn Source>, InHand);

pub(super) fn start(pool: &Arc<Pool>) -> Arc<Shelf> {
    let ahead = !pool.gate.is_limited();
    let gathers = pool.routes.batches().map(|batch| batch.gathers).collect();
    let shelf = Shelf::new(pool.settings.slots.min, pool.settings.lock, ahead, gathers);
    let shelf = Arc::new(shelf);
    pool.tasks.spawn(fetch(pool.clone(), shelf.clone()));
    shelf
}

async fn fetch(pool: Arc<Pool>, shelf: Arc<Shelf>) {
    let mut source: Option<Open> = None;
    let mut pause = PAUSE_FIRST;
    let quiet = &pool.phases.quiet;
    while !quiet.is_cancelled() {
        let closed = pool.gate.closed_for();
        if closed.is_some() || pool.alone.is_wanted() {
            // What was fetched ahead goes back: somebody else may be able to work on it.
            give_back(&pool, &shelf).await;
            let_go(&mut source).await;
        }
        if let Some(wait) = closed {
            let _ = quiet.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        let Some((open, in_hand)) = &source else {
            let Some(in_hand) = quiet.run_until_cancelled(pool.alone.share()).await else { break };
            match pool.broker.open(&pool.queue, pool.settings.lock).await {
                Ok(open) => source = Some((open, in_hand)),
                Err(error) => pool.wait_after(&error, &mut pause).await,
            }
            continue;
        };
        let fetched = tokio::select! {
            biased;
            () = quiet.cancelled() => break,
            // What wants to be alone may have the last slot.
            () = pool.alone.wanted() => continue,
            fetched = more(&pool, &shelf, &**open) => fetched,
        };
        match fetched {
            Ok(Some(deliveries)) => {
                pause = PAUSE_FIRST;
                put(&pool, &shelf, deliveries, in_hand);
            }
            Ok(None) => give_back(&pool, &shelf).await,
            Err(error) => {
                source = None;
                pool.wait_after(&error, &mut pause).await;
            }
        }
    }
    give_back(&pool, &shelf).await;
    let_go(&mut source).await;
}

/// Messages, as soon as there is room for them. None if what is on the shelf has been there for too long.
async fn more(
    pool: &Pool,
    shelf: &Shelf,
    source: &dyn Source,
) -> Result<Option<Vec<Delivery>>, BrokerError> {
    let Some(wanted) = shelf.wanted().await else { return Ok(None) };
    let count = pool.gate.admit(wanted as usize).await;
    if count == 0 {
        return Ok(Some(Vec::new())); // it closed meanwhile
    }
    let mut admitted = Admitted { pool, count };
    let deliveries = source.fetch(count, pool.settings.fetch_wait).await?;
    admitted.count -= count.min(deliveries.len() as u32);
    Ok(Some(deliveries))
}

/// Those that may begin, and did not if this is dropped.
struct Admitted<'a> {
    pool: &'a Pool,
    count: u32,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.pool.gate.not_used(self.count);
    }
}

fn put(pool: &Arc<Pool>, shelf: &Arc<Shelf>, deliveries: Vec<Delivery>, in_hand: &InHand) {
    if deliveries.iter().any(|delivery| pool.was_lost(delivery)) {
        shelf.be_careful();
    }
    let watches = pool.locks.watch_all(deliveries.iter().map(|delivery| delivery.lease));
    let mut all = Vec::with_capacity(deliveries.len());
    for (delivery, watch) in deliveries.into_iter().zip(watches) {
        if pool.is_last_life(&delivery) {
            shelf.begun();
            pool.tasks.spawn(alone(pool.clone(), shelf.clone(), delivery, watch));
            continue;
        }
        let batch = pool.routes.batch_of(&delivery);
        all.push((batch, Ahead { delivery, watch, in_hand: in_hand.clone() }));
    }
    for _ in 0..shelf.put(all) {
        pool.tasks.spawn(slot(pool.clone(), shelf.clone()));
    }
}

async fn let_go(source: &mut Option<Open>) {
    if let Some((open, _in_hand)) = source.take()
        && let Err(error) = open.close().await
    {
        tracing::debug!(%error, "what was fetched ahead was not given back; its lock ends it");
    }
}

/// What no slot has begun goes back, uncounted, in order.
async fn give_back(pool: &Pool, shelf: &Shelf) {
    for Ahead { delivery, watch, in_hand: _in_hand } in shelf.clear() {
        pool.gate.not_used(1);
        let (settle, lost) = (Settle::release(delivery.lease), watch.lost().clone());
        pool.settler.settle(Decided { settle, count: Count::released, lost, open: None }).await;
    }
}

pub(super) async fn slot(pool: Arc<Pool>, shelf: Arc<Shelf>) {
    while let Some(unit) = shelf.next(&pool.phases.quiet).await {
        let _busy = pool.counts.busy();
        let begun = Instant::now();
        let messages = match unit {
            Unit::One(Ahead { delivery, watch, in_hand: _in_hand }) => {
                if let Some(decided) = pool.handle(delivery, None, watch.lock()).await {
                    pool.settler.settle(decided).await;
                }
                1
            }
            Unit::Batch(batch, items) => {
                let messages = items.len();
                pool.handle_apart(batch, items).await;
                messages
            }
        };
        shelf.done(messages, begun.elapsed());
    }
}

/// A message that one more loss would kill.
async fn alone(pool: Arc<Pool>, shelf: Arc<Shelf>, delivery: Delivery, watch: Watch) {
    let _busy = pool.counts.busy();
    let begun = Instant::now();
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
    shelf.done(1, begun.elapsed());
}
