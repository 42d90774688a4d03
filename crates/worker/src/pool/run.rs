//! Calls a handler with one message and turns the result into a settlement: return value, error, panic, time-out.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use malote_connectors::{Delivery, NewState, SessionHold, Settle};
use malote_model::{Changes, Properties, Settlement, Value, limits};
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::settle::PendingSettlement;
use super::{Count, Lock, Pool};
use crate::clock::{delay_millis, wall_ms};
use crate::incoming::{ATTEMPTS, HISTORY, Incoming};
use crate::outcome::{FailedAttempt, Outcome};
use crate::stderr;
use crate::text::{self, clip};

/// Attempts in the history of a message; the oldest are dropped.
const HISTORY_MAX: usize = 16;
const ERROR_BYTES_MAX: usize = 1024;
const REASON_BYTES_MAX: usize = 256;

/// How the task of a handler ended.
pub(super) enum TaskEnd<T> {
    /// The handler returned or panicked.
    Finished(Result<T, JoinError>),
    /// The lock was lost, so that no settlement is possible.
    LockLost,
    /// The worker stops and dropped the handler.
    Stopped,
    TimedOut,
}

impl Pool {
    /// Runs the handler of a message. None if the lock was lost.
    pub(super) async fn handle(
        &self,
        delivery: Delivery,
        held: Option<&SessionHold>,
        lock: &Arc<Lock>,
    ) -> Option<PendingSettlement> {
        let lost = lock.lost();
        let incoming = self.incoming(delivery, held, lock, lost.child_token());
        let started = Instant::now();
        let outcome = match self.outcome_unhandled(&incoming) {
            Some(outcome) => outcome,
            None => self.run(&incoming, lost).await?,
        };
        Some(self.settlement_of(&incoming, outcome, held, started.elapsed(), lost))
    }

    pub(super) fn incoming(
        &self,
        delivery: Delivery,
        held: Option<&SessionHold>,
        lock: &Arc<Lock>,
        cancelled: CancellationToken,
    ) -> Arc<Incoming> {
        Arc::new(Incoming {
            queue: self.queue.clone(),
            held: held.cloned(),
            broker: self.broker.clone(),
            states: self.states.clone(),
            cancelled,
            lock: lock.clone(),
            #[cfg(feature = "once")]
            transaction: Mutex::new(None),
            new_state: Mutex::new(None),
            step: OnceLock::new(),
            delivery,
        })
    }

    pub(super) fn settlement_of(
        &self,
        incoming: &Incoming,
        outcome: Outcome,
        held: Option<&SessionHold>,
        took: Duration,
        lost: &CancellationToken,
    ) -> PendingSettlement {
        let change = incoming.new_state.lock().take();
        let step_outcome = change.as_ref().and_then(|change| change.step_outcome.as_ref());
        self.limiter.record_outcome(step_outcome.unwrap_or(&outcome));
        let is_saga_step = step_outcome.is_some();
        let (settlement, count) = self.settlement(incoming, outcome, took);
        let changes_state = match settlement {
            Settlement::Complete => true,
            Settlement::Release { .. } => is_saga_step,
            _ => false,
        };
        let state = match (held, change) {
            (Some(held), Some(change)) if changes_state => {
                Some(NewState { hold: held.hold, state: change.state })
            }
            _ => None,
        };
        let settle = Settle { lease: incoming.delivery.lease, settlement, state };
        PendingSettlement { settle, count, lost: lost.clone(), open: None }
    }

    pub(super) fn log(&self, incoming: &Incoming, what: &str) {
        let (queue, message) = (&self.queue, incoming.message());
        let session = message.session.as_ref().map(tracing::field::display);
        let (message_id, attempt) = (message.message_id.as_deref(), incoming.attempt());
        tracing::warn!(%queue, session, message_id, seq = incoming.delivery.seq.0, attempt, "{what}");
        stderr::print_about(incoming, what);
    }

    /// The outcome of a message that no handler may get. A message that was lost with too many workers is
    /// dead-lettered. A message that arrives after a breaker opened is released.
    pub(super) fn outcome_unhandled(&self, incoming: &Incoming) -> Option<Outcome> {
        let lost = incoming.lost();
        if lost < self.settings.retry.lost {
            let blocked = self.limiter.has_limits() && self.limiter.blocked_for().is_some();
            return blocked.then_some(Outcome::Release);
        }
        let text = format!("{lost} workers were lost while they handled this message");
        Some(Outcome::Dead { reason: "WorkerLost".into(), text })
    }

    /// None if the lock was lost.
    async fn run(&self, incoming: &Arc<Incoming>, lost: &CancellationToken) -> Option<Outcome> {
        if let Some(handler) = self.routes.batch_handler_of(&incoming.delivery) {
            // An isolated message is a batch of one.
            return self.run_batch(handler, vec![incoming.clone()], lost).await?.pop();
        }
        let handler = match self.routes.handler_of(&incoming.delivery) {
            Ok(handler) => handler,
            Err(outcome) => return Some(outcome),
        };
        // The message may have waited longer than its lock, or the process was frozen.
        if !incoming.lock.is_valid() {
            self.record_lost(incoming);
            return None;
        }
        self.counts.add(Count::started);
        let started = Instant::now();
        let task = tokio::spawn(handler(incoming.clone()).instrument(self.span(incoming)));
        let end = self.wait_for_handler(task, incoming, lost).await;
        self.counts.durations.add(started.elapsed(), 1);
        Some(match end {
            TaskEnd::Finished(Ok(outcome)) => outcome,
            TaskEnd::Finished(Err(error)) => self.outcome_of_panic(incoming, error),
            TaskEnd::TimedOut => self.outcome_of_timeout(),
            TaskEnd::Stopped => Outcome::Release,
            TaskEnd::LockLost => {
                self.record_lost(incoming);
                return None;
            }
        })
    }

    /// The span around a handler. It has the `traceparent` of the message.
    pub(super) fn span(&self, incoming: &Incoming) -> tracing::Span {
        let message = incoming.message();
        tracing::info_span!(
            "process",
            otel.kind = "consumer",
            queue = %self.queue,
            session = message.session.as_ref().map(tracing::field::display),
            message_id = message.message_id.as_deref(),
            seq = incoming.delivery.seq.0,
            attempt = incoming.attempt(),
            traceparent = incoming.traceparent(),
        )
    }

    pub(super) fn record_lost(&self, incoming: &Incoming) {
        self.counts.add(Count::lost);
        self.log(incoming, "the lock was lost; another worker may have the message");
    }

    /// Waits for a handler. The handler has its own task, so that a panic or a blocked thread does not end this slot.
    pub(super) async fn wait_for_handler<T>(
        &self,
        mut task: JoinHandle<T>,
        incoming: &Incoming,
        lost: &CancellationToken,
    ) -> TaskEnd<T> {
        let timeout = tokio::time::sleep(self.settings.timeout);
        tokio::pin!(timeout);
        let mut cancelled = false;
        loop {
            tokio::select! {
                biased;
                result = &mut task => return TaskEnd::Finished(result),
                () = lost.cancelled() => {
                    self.abort_handler(task, incoming).await;
                    return TaskEnd::LockLost;
                }
                () = self.phases.drop_handlers.cancelled() => {
                    incoming.cancelled.cancel();
                    task.abort();
                    return TaskEnd::Stopped;
                }
                () = self.phases.cancel_handlers.cancelled(), if !cancelled => {
                    incoming.cancelled.cancel();
                    cancelled = true;
                }
                () = &mut timeout => {
                    self.counts.add(Count::timed_out);
                    self.abort_handler(task, incoming).await;
                    return TaskEnd::TimedOut;
                }
            }
        }
    }

    pub(super) fn outcome_of_timeout(&self) -> Outcome {
        let error = format!("the handler took longer than {:?}", self.settings.timeout);
        Outcome::Retry(FailedAttempt { error, ..FailedAttempt::default() })
    }

    pub(super) fn outcome_of_panic(&self, incoming: &Incoming, error: JoinError) -> Outcome {
        self.counts.add(Count::panicked);
        self.log(incoming, "the handler panicked");
        let error = text::of_panic(error.try_into_panic().ok());
        Outcome::Retry(FailedAttempt { error, ..FailedAttempt::default() })
    }

    /// Drops a handler at its next `.await`. A handler without one is abandoned and counted as stuck.
    async fn abort_handler<T>(&self, task: JoinHandle<T>, incoming: &Incoming) {
        incoming.cancelled.cancel();
        task.abort();
        let dropped = tokio::time::timeout(self.settings.stuck_after, task);
        let dropped = self.phases.drop_handlers.run_until_cancelled(dropped).await;
        if dropped.is_none_or(|dropped| dropped.is_ok()) {
            return;
        }
        let stuck = self.counts.stuck.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        self.log(incoming, "the handler ignores its cancellation and was abandoned");
        if stuck >= self.settings.slots.max {
            self.all_stuck.cancel();
        }
    }

    fn settlement(
        &self,
        incoming: &Incoming,
        outcome: Outcome,
        took: Duration,
    ) -> (Settlement, Count) {
        match outcome {
            Outcome::Done => (Settlement::Complete, Count::done),
            Outcome::Release | Outcome::RateLimited(_) => {
                (Settlement::Release { delay_ms: 0 }, Count::released)
            }
            Outcome::Snooze(delay) => {
                (Settlement::Release { delay_ms: delay_millis(delay) }, Count::snoozed)
            }
            Outcome::Dead { reason, text } => {
                self.dead_letter(incoming, reason, &text, Changes::default())
            }
            Outcome::Retry(failed) => self.retry_or_dead_letter(incoming, failed, took),
        }
    }

    fn dead_letter(
        &self,
        incoming: &Incoming,
        reason: String,
        text: &str,
        changes: Changes,
    ) -> (Settlement, Count) {
        let (queue, message) = (&self.queue, incoming.message());
        let session = message.session.as_ref().map(tracing::field::display);
        let (message_id, attempt) = (message.message_id.as_deref(), incoming.attempt());
        tracing::warn!(%queue, session, message_id, attempt, reason, error = text, "dead-lettered");
        stderr::print_about(incoming, format_args!("dead-lettered as {reason}: {text}"));
        let text = clip(text, limits::DEAD_LETTER_TEXT_BYTES_MAX / 2).to_owned();
        let reason = clip(&reason, REASON_BYTES_MAX).to_owned();
        (Settlement::DeadLetter { reason, text, changes }, Count::dead)
    }

    fn retry_or_dead_letter(
        &self,
        incoming: &Incoming,
        failed: FailedAttempt,
        took: Duration,
    ) -> (Settlement, Count) {
        let attempt = incoming.attempt();
        let changes = if self.broker.capabilities().changes {
            self.history(incoming, &failed.error, took)
        } else {
            Changes::default()
        };
        let retry = &self.settings.retry;
        let delay = match failed.retry_after {
            Some(delay) => Some(delay),
            None => retry.backoff.delay(attempt, incoming.origin_id()),
        };
        let Some(delay) = delay.filter(|_| attempt < retry.attempts) else {
            let text = format!("attempt {attempt} of {} failed: {}", retry.attempts, failed.error);
            return self.dead_letter(incoming, "MaxAttempts".into(), &text, changes);
        };
        let (queue, message) = (&self.queue, incoming.message());
        let session = message.session.as_ref().map(tracing::field::display);
        let (message_id, error) = (message.message_id.as_deref(), &failed.error);
        tracing::warn!(%queue, session, message_id, attempt, error, retry_ms = delay_millis(delay), "the handler failed; retrying");
        stderr::print_about(
            incoming,
            match delay.is_zero() {
                true => format!("the handler failed, next attempt at once: {error}"),
                false => format!("the handler failed, next attempt in {delay:.1?}: {error}"),
            },
        );
        (Settlement::Abandon { delay_ms: delay_millis(delay), changes }, Count::retried)
    }

    /// The attempt count and the history of the message, including this attempt.
    fn history(&self, incoming: &Incoming, error: &str, took: Duration) -> Changes {
        let attempt = i64::from(incoming.attempt());
        let mut all = match incoming.message().properties.get(HISTORY) {
            Some(Value::List(all)) => all.clone(),
            _ => Vec::new(),
        };
        if all.len() >= HISTORY_MAX {
            all.drain(..=all.len() - HISTORY_MAX);
        }
        all.push(Value::Map(vec![
            ("attempt".into(), Value::I64(attempt)),
            ("at".into(), Value::Time(wall_ms())),
            ("took_ms".into(), Value::I64(i64::try_from(took.as_millis()).unwrap_or(i64::MAX))),
            ("worker".into(), Value::String(self.settings.worker_name.clone())),
            ("error".into(), Value::String(clip(error, ERROR_BYTES_MAX).to_owned())),
        ]));
        let mut properties = Properties::new();
        properties.set(ATTEMPTS, Value::I64(attempt));
        properties.set(HISTORY, Value::List(all));
        Changes { properties }
    }
}
