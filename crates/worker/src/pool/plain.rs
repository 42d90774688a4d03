//! A queue without sessions: one task fetches onto the shelf, slots take from it and handle.

use std::sync::Arc;

use malote_connectors::{Settle, Source};
use tokio::time::Instant;

use super::settle::Decided;
use super::shelf::{Ahead, Shelf, Unit};
use super::{Count, PAUSE_FIRST, Pool};

pub(super) fn start(pool: &Arc<Pool>) {
    let ahead = !pool.gate.is_limited();
    let gathers = pool.routes.batches().map(|batch| batch.gathers).collect();
    let shelf = Shelf::new(pool.settings.slots, pool.settings.lock, ahead, gathers);
    pool.tasks.spawn(fetch(pool.clone(), Arc::new(shelf)));
}

async fn fetch(pool: Arc<Pool>, shelf: Arc<Shelf>) {
    let mut source: Option<Box<dyn Source>> = None;
    let mut pause = PAUSE_FIRST;
    let quiet = &pool.phases.quiet;
    while !quiet.is_cancelled() {
        if let Some(wait) = pool.gate.closed_for() {
            // What was fetched ahead goes back: somebody else may be able to work on it.
            let_go(&mut source).await;
            give_back(&pool, &shelf).await;
            let _ = quiet.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        let Some(wanted) = quiet.run_until_cancelled(shelf.wanted()).await else { break };
        let Some(wanted) = wanted else {
            give_back(&pool, &shelf).await;
            continue;
        };
        let admit = pool.gate.admit(wanted as usize);
        let Some(count) = quiet.run_until_cancelled(admit).await else { break };
        if count == 0 {
            continue; // it closed meanwhile
        }
        let fetched = match &source {
            Some(open) => {
                let fetch = open.fetch(count, pool.settings.fetch_wait);
                tokio::select! {
                    biased;
                    () = quiet.cancelled() => break,
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
                let watches = pool.locks.watch_all(deliveries.iter().map(|d| d.lease));
                let items = deliveries.into_iter().zip(watches).map(|(delivery, watch)| {
                    (pool.routes.batch_of(&delivery), Ahead { delivery, watch })
                });
                for _ in 0..shelf.put(items) {
                    pool.tasks.spawn(slot(pool.clone(), shelf.clone()));
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
    give_back(&pool, &shelf).await;
}

async fn let_go(source: &mut Option<Box<dyn Source>>) {
    if let Some(open) = source.take()
        && let Err(error) = open.close().await
    {
        tracing::debug!(%error, "what was fetched ahead was not given back; its lock ends it");
    }
}

/// What no slot has begun goes back, uncounted, in order.
async fn give_back(pool: &Pool, shelf: &Shelf) {
    for Ahead { delivery, watch } in shelf.clear() {
        let (settle, lost) = (Settle::release(delivery.lease), watch.lost().clone());
        pool.settler.settle(Decided { settle, count: Count::released, lost, open: None }).await;
    }
}

async fn slot(pool: Arc<Pool>, shelf: Arc<Shelf>) {
    while let Some(unit) = shelf.next(&pool.phases.quiet).await {
        let _busy = pool.counts.busy();
        let begun = Instant::now();
        let messages = match unit {
            Unit::One(Ahead { delivery, watch }) => {
                if let Some(decided) = pool.handle(delivery, None, watch.lost()).await {
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
