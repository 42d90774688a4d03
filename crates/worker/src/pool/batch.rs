//! Runs one handler for several messages.
//!
//! Without sessions each message has its own outcome and its own lock. Of a session they stay in order: what stands
//! behind a message that comes again must come again, too, whatever the handler says of it.

use std::sync::Arc;

use malote_connectors::{Delivery, Held};
use malote_model::Settlement;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run::Task;
use super::settle::Decided;
use super::shelf::Ahead;
use super::{Count, Pool};
use crate::dispatch::Batching;
use crate::incoming::Incoming;
use crate::outcome::Outcome;

impl Pool {
    /// Handles messages that have nothing to do with each other, and settles them.
    pub(super) async fn handle_apart(&self, batch: usize, items: Vec<Ahead>) {
        let (deliveries, watches): (Vec<_>, Vec<_>) =
            items.into_iter().map(|Ahead { delivery, watch }| (delivery, watch)).unzip();
        // One lost lock is no reason to stop what is done for the others: the broker refuses that outcome.
        let whole = CancellationToken::new();
        let Some(all) = self.handle_all(batch, deliveries, None, &whole).await else { return };
        for (mut decided, watch) in all.into_iter().zip(watches) {
            if watch.lost().is_cancelled() {
                self.counts.add(Count::lost);
                continue;
            }
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
        lost: &CancellationToken,
    ) -> Option<(Vec<Decided>, bool)> {
        let mut all = self.handle_all(batch, deliveries, Some(held), lost).await?;
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
        deliveries: Vec<Delivery>,
        held: Option<&Held>,
        lost: &CancellationToken,
    ) -> Option<Vec<Decided>> {
        let cancelled = lost.child_token();
        let each = deliveries.into_iter();
        let all: Vec<Arc<Incoming>> =
            each.map(|one| self.incoming(one, held, cancelled.clone())).collect();
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
    async fn run_all(
        &self,
        batching: &Batching,
        all: Vec<Arc<Incoming>>,
        lost: &CancellationToken,
    ) -> Option<Vec<Outcome>> {
        let count = all.len();
        let first = all.first()?.clone();
        (0..count).for_each(|_| self.counts.add(Count::started));
        let outcome = match self.watched(tokio::spawn((batching.run)(all)), &first, lost).await {
            Task::Ended(Ok(outcomes)) => return Some(outcomes),
            Task::Ended(Err(error)) => self.panicked(&first, error),
            Task::TooLong => self.too_long(),
            Task::Stopped => Outcome::Release,
            Task::Lost => {
                (0..count).for_each(|_| self.counts.add(Count::lost));
                self.log(&first, "the lock was lost: somebody else may have the messages");
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
