//! Calls a handler with several messages.
//!
//! Without sessions, each message has its own outcome and its own lock. The messages of a session stay in order: if one
//! is delivered again, all later ones are delivered again too, and their own outcomes are ignored.

use std::sync::Arc;

use malote_connectors::{Delivery, SessionHold};
use malote_model::Settlement;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::prefetch::PrefetchedMessage;
use super::run::TaskEnd;
use super::settle::PendingSettlement;
use super::{Count, Lock, Pool};
use crate::incoming::Incoming;
use crate::outcome::Outcome;
use crate::routes::BatchHandler;

impl Pool {
    /// Handles and settles messages of a queue without sessions.
    pub(super) async fn handle_independent(&self, batch: usize, messages: Vec<PrefetchedMessage>) {
        // One lost lock must not cancel the work on the other messages.
        let whole_batch = CancellationToken::new();
        let cancelled = whole_batch.child_token();
        let (mut incoming, mut locks) = (Vec::with_capacity(messages.len()), Vec::new());
        for PrefetchedMessage { delivery, lock, permit } in messages {
            let one = self.incoming(delivery, None, lock.lock(), cancelled.clone());
            match lock.lock().is_valid() {
                true => {
                    incoming.push(one);
                    locks.push((lock, permit));
                }
                // It waited longer than its lock, or the process was frozen.
                false => self.record_lost(&one),
            }
        }
        let handled = self.handle_batch(batch, incoming, None, &whole_batch).await;
        let Some(settlements) = handled else { return };
        for (mut settlement, (lock, _permit)) in settlements.into_iter().zip(locks) {
            settlement.lost = lock.lost().clone();
            self.settlements.settle(settlement).await;
        }
    }

    /// Handles messages of a held session. Returns the settlements in order, and whether later messages of the session
    /// must be delivered again. None if the session was lost.
    pub(super) async fn handle_in_order(
        &self,
        batch: usize,
        deliveries: Vec<Delivery>,
        held: &SessionHold,
        lock: &Arc<Lock>,
    ) -> Option<(Vec<PendingSettlement>, bool)> {
        let cancelled = lock.lost().child_token();
        let incoming: Vec<_> = deliveries
            .into_iter()
            .map(|delivery| self.incoming(delivery, Some(held), lock, cancelled.clone()))
            .collect();
        if !lock.is_valid() {
            incoming.iter().for_each(|one| self.record_lost(one));
            return None;
        }
        let handled = self.handle_batch(batch, incoming, Some(held), lock.lost()).await;
        let mut settlements = handled?;
        let returned = settlements.iter().position(|one| is_returned(&one.settle.settlement));
        if let Some(first) = returned {
            // Later messages are released with the session, and follow the returned message.
            settlements.drain(first + 1..).for_each(|_| self.counts.add(Count::released));
        }
        Some((settlements, returned.is_some()))
    }

    async fn handle_batch(
        &self,
        batch: usize,
        incoming: Vec<Arc<Incoming>>,
        held: Option<&SessionHold>,
        lost: &CancellationToken,
    ) -> Option<Vec<PendingSettlement>> {
        let started = Instant::now();
        let unhandled: Vec<_> = incoming.iter().map(|one| self.outcome_unhandled(one)).collect();
        let run = incoming.iter().zip(&unhandled).filter(|(_, unhandled)| unhandled.is_none());
        let run: Vec<_> = run.map(|(incoming, _)| incoming.clone()).collect();
        let mut outcomes = match self.routes.batch_handler(batch) {
            Some(handler) if !run.is_empty() => self.run_batch(handler, run, lost).await?,
            _ => Vec::new(),
        }
        .into_iter();
        let settlements = incoming.iter().zip(unhandled).map(|(incoming, unhandled)| {
            let outcome = unhandled.or_else(|| outcomes.next()).unwrap_or(Outcome::Release);
            self.settlement_of(incoming, outcome, held, started.elapsed(), lost)
        });
        Some(settlements.collect())
    }

    /// Runs a batch handler. None if the lock of the batch was lost.
    pub(super) async fn run_batch(
        &self,
        handler: &BatchHandler,
        incoming: Vec<Arc<Incoming>>,
        lost: &CancellationToken,
    ) -> Option<Vec<Outcome>> {
        let (count, first) = (incoming.len(), incoming.first()?.clone());
        let messages = incoming.clone();
        (0..count).for_each(|_| self.counts.add(Count::started));
        let span = tracing::info_span!("process", otel.kind = "consumer", queue = %self.queue, messages = count);
        let started = Instant::now();
        let task = tokio::spawn((handler.run)(incoming).instrument(span));
        let end = self.wait_for_handler(task, &first, lost).await;
        self.counts.durations.add(started.elapsed(), count);
        let outcome = match end {
            TaskEnd::Finished(Ok(outcomes)) => return Some(outcomes),
            TaskEnd::Finished(Err(error)) => self.outcome_of_panic(&first, error),
            TaskEnd::TimedOut => self.outcome_of_timeout(),
            TaskEnd::Stopped => Outcome::Release,
            TaskEnd::LockLost => {
                messages.iter().for_each(|one| self.record_lost(one));
                return None;
            }
        };
        Some(vec![outcome; count])
    }
}

/// Whether the message returns to its place at the head of its session.
pub(super) fn is_returned(settlement: &Settlement) -> bool {
    matches!(
        settlement,
        Settlement::Abandon { .. } | Settlement::Release { .. } | Settlement::Defer { .. }
    )
}
