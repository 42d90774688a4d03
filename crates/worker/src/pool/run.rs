//! Runs one handler for one message, whatever it does: return, fail, panic, take too long, ignore that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use malote_connectors::{Delivery, Held, NewState, Settle};
use malote_model::{Changes, Properties, Settlement, Value, limits};
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::settle::Decided;
use super::{Count, Lock, Pool};
use crate::clock::wall_ms;
use crate::incoming::{ATTEMPTS, HISTORY, Incoming};
use crate::outcome::{Failed, Outcome};
use crate::stderr;

/// Attempts that a message's history tells of, newest last, and how much each may say.
const HISTORY_MAX: usize = 16;
const ERROR_BYTES_MAX: usize = 1024;
/// A word for programs.
const REASON_BYTES_MAX: usize = 256;

/// How the task of a handler ended.
pub(super) enum Task<T> {
    /// By itself, or it panicked.
    Ended(Result<T, JoinError>),
    /// Its lock was lost: there is nothing to tell the broker.
    Lost,
    /// The worker must end.
    Stopped,
    TooLong,
}

impl Pool {
    /// Runs the handler of a message. None if its lock was lost: somebody else has it.
    pub(super) async fn handle(
        &self,
        delivery: Delivery,
        held: Option<&Held>,
        lock: &Arc<Lock>,
    ) -> Option<Decided> {
        let lost = lock.lost();
        let incoming = self.incoming(delivery, held, lock, lost.child_token());
        let begun = Instant::now();
        let outcome = match self.refused(&incoming) {
            Some(outcome) => outcome,
            None => self.run(&incoming, lost).await?,
        };
        Some(self.decided(&incoming, outcome, held, begun.elapsed(), lost))
    }

    pub(super) fn incoming(
        &self,
        delivery: Delivery,
        held: Option<&Held>,
        lock: &Arc<Lock>,
        cancelled: CancellationToken,
    ) -> Arc<Incoming> {
        Arc::new(Incoming {
            queue: self.queue.clone(),
            held: held.cloned(),
            broker: self.broker.clone(),
            shared: self.shared.clone(),
            cancelled,
            lock: lock.clone(),
            #[cfg(feature = "once")]
            effect: Mutex::new(None),
            new_state: Mutex::new(None),
            step: OnceLock::new(),
            delivery,
        })
    }

    pub(super) fn decided(
        &self,
        incoming: &Incoming,
        outcome: Outcome,
        held: Option<&Held>,
        took: Duration,
        lost: &CancellationToken,
    ) -> Decided {
        let change = incoming.new_state.lock().take();
        let said = change.as_ref().and_then(|change| change.of_step.as_ref());
        self.gate.ended(said.unwrap_or(&outcome));
        let comes_again = said.is_some();
        let (settlement, count) = self.settlement(incoming, outcome, took);
        let changes = match settlement {
            Settlement::Complete => true,
            Settlement::Release { .. } => comes_again,
            _ => false,
        };
        let state = match (held, change) {
            (Some(held), Some(change)) if changes => {
                Some(NewState { hold: held.hold, state: change.state })
            }
            _ => None,
        };
        let settle = Settle { lease: incoming.delivery.lease, settlement, state };
        Decided { settle, count, lost: lost.clone(), open: None }
    }

    pub(super) fn log(&self, incoming: &Incoming, what: &str) {
        let (queue, message) = (&self.queue, incoming.message());
        let session = message.session.as_ref().map(tracing::field::display);
        let (message_id, attempt) = (message.message_id.as_deref(), incoming.attempt());
        tracing::warn!(%queue, session, message_id, seq = incoming.delivery.seq.0, attempt, "{what}");
        stderr::print_about(incoming, what);
    }

    /// What is not run at all: a message that takes workers with it must not take another, and one that was on its way
    /// when a breaker opened goes back.
    pub(super) fn refused(&self, incoming: &Incoming) -> Option<Outcome> {
        let lost = incoming.lost();
        if lost < self.settings.retry.lost {
            let closed = self.gate.is_limited() && self.gate.closed_for().is_some();
            return closed.then_some(Outcome::Release);
        }
        let text = format!("{lost} workers vanished while they had it");
        Some(Outcome::Dead { reason: "WorkerLost".into(), text })
    }

    /// None if the lock was lost.
    async fn run(&self, incoming: &Arc<Incoming>, lost: &CancellationToken) -> Option<Outcome> {
        if let Some(batching) = self.routes.batching_of(&incoming.delivery) {
            // It is to be alone.
            return self.run_all(batching, vec![incoming.clone()], lost).await?.pop();
        }
        let handler = match self.routes.of(&incoming.delivery) {
            Ok(handler) => handler,
            Err(outcome) => return Some(outcome),
        };
        // It may have waited for longer than its lock, or the process was frozen.
        if !incoming.lock.holds() {
            self.lost(incoming);
            return None;
        }
        self.counts.add(Count::started);
        let begun = Instant::now();
        let task = tokio::spawn(handler(incoming.clone()).instrument(self.span(incoming)));
        let ended = self.watched(task, incoming, lost).await;
        self.counts.times.add(begun.elapsed(), 1);
        Some(match ended {
            Task::Ended(Ok(outcome)) => outcome,
            Task::Ended(Err(error)) => self.panicked(incoming, error),
            Task::TooLong => self.too_long(),
            Task::Stopped => Outcome::Release,
            Task::Lost => {
                self.lost(incoming);
                return None;
            }
        })
    }

    /// Around a handler: a part of the trace that the message came with.
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

    pub(super) fn lost(&self, incoming: &Incoming) {
        self.counts.add(Count::lost);
        self.log(incoming, "the lock was lost: another worker may have the message");
    }

    /// Waits for a handler. It has a task of its own: its panic is its own, and whoever blocks in it does not block
    /// this slot for ever.
    pub(super) async fn watched<T>(
        &self,
        mut task: JoinHandle<T>,
        incoming: &Incoming,
        lost: &CancellationToken,
    ) -> Task<T> {
        let too_late = tokio::time::sleep(self.settings.timeout);
        tokio::pin!(too_late);
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                ended = &mut task => return Task::Ended(ended),
                () = lost.cancelled() => {
                    self.drop_task(task, incoming).await;
                    return Task::Lost;
                }
                () = self.phases.stop.cancelled() => {
                    incoming.cancelled.cancel();
                    task.abort();
                    return Task::Stopped;
                }
                () = self.phases.cancel.cancelled(), if !told => {
                    incoming.cancelled.cancel();
                    told = true;
                }
                () = &mut too_late => {
                    self.counts.add(Count::timed_out);
                    self.drop_task(task, incoming).await;
                    return Task::TooLong;
                }
            }
        }
    }

    pub(super) fn too_long(&self) -> Outcome {
        let error = format!("it took longer than {:?}", self.settings.timeout);
        Outcome::Retry(Failed { error, ..Failed::default() })
    }

    pub(super) fn panicked(&self, incoming: &Incoming, error: JoinError) -> Outcome {
        self.counts.add(Count::panicked);
        self.log(incoming, "the handler panicked");
        let said = error.try_into_panic().ok().and_then(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
        });
        let error = format!("it panicked: {}", said.as_deref().unwrap_or("without a word"));
        Outcome::Retry(Failed { error, ..Failed::default() })
    }

    /// Drops a handler at its next `.await`. One that has none is left behind, and counted.
    async fn drop_task<T>(&self, task: JoinHandle<T>, incoming: &Incoming) {
        incoming.cancelled.cancel();
        task.abort();
        let gone = tokio::time::timeout(self.settings.stuck_after, task);
        if self.phases.stop.run_until_cancelled(gone).await.is_none_or(|gone| gone.is_ok()) {
            return;
        }
        let stuck = self.counts.stuck.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        self.log(incoming, "the handler ignores that it was cancelled, and is left behind");
        if stuck >= self.settings.slots.max {
            self.hopeless.cancel();
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
            Outcome::Snooze(delay) => (Settlement::Release { delay_ms: ms(delay) }, Count::snoozed),
            Outcome::Dead { reason, text } => {
                self.dead(incoming, reason, &text, Changes::default())
            }
            Outcome::Retry(failed) => self.failed(incoming, failed, took),
        }
    }

    fn dead(
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
        let text = clip(text, limits::DEAD_LETTER_TEXT_BYTES_MAX / 2);
        let reason = clip(&reason, REASON_BYTES_MAX);
        (Settlement::DeadLetter { reason, text, changes }, Count::dead)
    }

    fn failed(&self, incoming: &Incoming, failed: Failed, took: Duration) -> (Settlement, Count) {
        let attempt = incoming.attempt();
        let changes = if self.broker.capabilities().changes {
            self.history(incoming, &failed.error, took)
        } else {
            Changes::default()
        };
        let retry = &self.settings.retry;
        let delay = match failed.after {
            Some(after) => Some(after),
            None => retry.backoff.delay(attempt, incoming.origin_id()),
        };
        let Some(delay) = delay.filter(|_| attempt < retry.attempts) else {
            let text = format!("attempt {attempt} of {} failed: {}", retry.attempts, failed.error);
            return self.dead(incoming, "MaxAttempts".into(), &text, changes);
        };
        let (queue, message) = (&self.queue, incoming.message());
        let session = message.session.as_ref().map(tracing::field::display);
        let (message_id, error) = (message.message_id.as_deref(), &failed.error);
        tracing::warn!(%queue, session, message_id, attempt, error, again_ms = ms(delay), "the handler failed");
        stderr::print_about(
            incoming,
            match delay.is_zero() {
                true => format!("the handler failed, next attempt at once: {error}"),
                false => format!("the handler failed, next attempt in {delay:.1?}: {error}"),
            },
        );
        (Settlement::Abandon { delay_ms: ms(delay), changes }, Count::retried)
    }

    /// The attempts so far and this one, to be laid over the message.
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
            ("error".into(), Value::String(clip(error, ERROR_BYTES_MAX))),
        ]));
        let mut properties = Properties::new();
        properties.set(ATTEMPTS, Value::I64(attempt));
        properties.set(HISTORY, Value::List(all));
        Changes { properties }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(limits::DELAY_MS_MAX)
}

fn clip(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}
