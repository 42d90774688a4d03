//! Runs one handler for several messages.
//!
//! Without sessions each message has its own outcome and its own lock. Of a session they stay in order: what stands
//! behind a message that comes again must come again, too, whatever the handler says of it.

use std::sync::Arc;

use malote_connectors::{Delivery, Held};
use malote_model::Settlement;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::run::Task;
use super::settle::Decided;
use super::shelf::Ahead;
use super::{Count, Lock, Pool};
use crate::dispatch::Batching;
use crate::incoming::Incoming;
use crate::outcome::Outcome;

impl Pool {
    /// Handles messages that have nothing to do with each other, and settles them.
    pub(super) async fn handle_apart(&self, batch: usize, items: Vec<Ahead>) {
        // One lost lock is no reason to stop what is done for the others.
        let whole = CancellationToken::new();
        let cancelled = whole.child_token();
        let (mut all, mut watches) = (Vec::with_capacity(items.len()), Vec::new());
        for Ahead { delivery, watch, in_hand } in items {
            let incoming = self.incoming(delivery, None, watch.lock(), cancelled.clone());
            match watch.lock().holds() {
                true => {
                    all.push(incoming);
                    watches.push((watch, in_hand));
                }
                // They may have waited for longer than their locks, or the process was frozen.
                false => self.lost(&incoming),
            }
        }
        let Some(all) = self.handle_all(batch, all, None, &whole).await else { return };
        for (mut decided, (watch, _in_hand)) in all.into_iter().zip(watches) {
            decided.lost = watch.lost().clone();
            self.settler.settle(decided).await;
        }
    }

    /// Handles messages of a session in hand. What is to be settled, in order, and whether the rest comes again; none
    /// if the session was lost.
    pub(super) async fn handle_in_order(
        &self,
        batch: usize,
        deliveries: Vec<Delivery>,
        held: &Held,
        lock: &Arc<Lock>,
    ) -> Option<(Vec<Decided>, bool)> {
        let cancelled = lock.lost().child_token();
        let each = deliveries.into_iter();
        let all: Vec<_> =
            each.map(|one| self.incoming(one, Some(held), lock, cancelled.clone())).collect();
        if !lock.holds() {
            all.iter().for_each(|one| self.lost(one));
            return None;
        }
        let mut all = self.handle_all(batch, all, Some(held), lock.lost()).await?;
        let back = all.iter().position(|decided| goes_back(&decided.settle.settlement));
        if let Some(first) = back {
            // They go back with the session, behind the one that is to be next.
            all.drain(first + 1..).for_each(|_| self.counts.add(Count::released));
        }
        Some((all, back.is_some()))
    }

    async fn handle_all(
        &self,
        batch: usize,
        all: Vec<Arc<Incoming>>,
        held: Option<&Held>,
        lost: &CancellationToken,
    ) -> Option<Vec<Decided>> {
        let begun = Instant::now();
        let refused: Vec<Option<Outcome>> = all.iter().map(|one| self.refused(one)).collect();
        let run = all.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let run: Vec<_> = run.map(|(incoming, _)| incoming.clone()).collect();
        let mut outcomes = match self.routes.batching(batch) {
            Some(batching) if !run.is_empty() => self.run_all(batching, run, lost).await?,
            _ => Vec::new(),
        }
        .into_iter();
        let decided = all.iter().zip(refused).map(|(incoming, refused)| {
            let outcome = refused.or_else(|| outcomes.next()).unwrap_or(Outcome::Release);
            self.decided(incoming, outcome, held, begun.elapsed(), lost)
        });
        Some(decided.collect())
    }

    /// None if the lock of all was lost.
    pub(super) async fn run_all(
        &self,
        batching: &Batching,
        all: Vec<Arc<Incoming>>,
        lost: &CancellationToken,
    ) -> Option<Vec<Outcome>> {
        let (count, first) = (all.len(), all.first()?.clone());
        let each = all.clone();
        (0..count).for_each(|_| self.counts.add(Count::started));
        let span = tracing::info_span!("process", otel.kind = "consumer", queue = %self.queue, messages = count);
        let begun = Instant::now();
        let task = tokio::spawn((batching.run)(all).instrument(span));
        let ended = self.watched(task, &first, lost).await;
        self.counts.times.add(begun.elapsed(), count);
        let outcome = match ended {
            Task::Ended(Ok(outcomes)) => return Some(outcomes),
            Task::Ended(Err(error)) => self.panicked(&first, error),
            Task::TooLong => self.too_long(),
            Task::Stopped => Outcome::Release,
            Task::Lost => {
                each.iter().for_each(|one| self.lost(one));
                return None;
            }
        };
        Some(vec![outcome; count])
    }
}

/// Whether a message is to be the next of its session again.
pub(super) fn goes_back(settlement: &Settlement) -> bool {
    matches!(
        settlement,
        Settlement::Abandon { .. } | Settlement::Release { .. } | Settlement::Defer { .. }
    )
}
