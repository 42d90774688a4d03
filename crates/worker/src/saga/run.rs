//! Handles one delivery of the message that drives a saga: runs one step, and settles with the new state.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::BrokerError;
use malote_model::{Address, Message, Value, When};
use malote_wire_native::saga::{SagaState, SagaStatus, Todo};
use serde_json::value::RawValue;
use tokio_util::task::AbortOnDropHandle;

use super::progress::{self, ALARM_ATTEMPTS, AttemptResult, NextRun};
use super::step::{Step, check_size};
use super::{PlannedStep, SagaPlan};
use crate::clock::delay_millis;
use crate::incoming::{Incoming, NewSessionState};
use crate::outcome::{FailedAttempt, Outcome};
use crate::stderr;
use crate::text;

/// The subject of the message that clears the state of a finished saga.
pub(super) const SWEEP: &str = "sweep";
/// The property with the version of the state that the message is for.
pub(super) const VERSION: &str = "version";
/// The delay after an error outside of a step.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The delay if this worker does not have the next step. Another worker may have it.
pub(super) const UNKNOWN_STEP_DELAY: Duration = Duration::from_secs(30);
/// How long a step may ignore its cancellation before it is abandoned.
const STUCK_AFTER: Duration = Duration::from_secs(10);

impl SagaPlan {
    pub(super) fn find(&self, name: &str) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// Returns the outcome of the message, and stores the new state in `incoming`.
pub(super) async fn drive(plan: Arc<SagaPlan>, incoming: Arc<Incoming>) -> Outcome {
    let Some(held) = incoming.held() else {
        let text = "a worker of a saga needs sessions".to_owned();
        return Outcome::Dead { reason: "NoSession".into(), text };
    };
    let state = match incoming.broker.state(incoming.queue(), held).await {
        Ok(state) => state,
        Err(BrokerError::LockLost) => return Outcome::Release,
        Err(_) => return Outcome::Snooze(RETRY_DELAY), // not a failure of the step
    };
    let state = match state.as_deref().map(SagaState::read).transpose() {
        Ok(state) => state,
        Err(error) => {
            let text = format!("the state of this session is not the state of a saga: {error}");
            return Outcome::Dead { reason: "BadState".into(), text };
        }
    };
    if incoming.message().subject.as_deref() == Some(SWEEP) {
        return sweep(&incoming, state.as_ref());
    }
    let state = match state {
        Some(state) if state.is_over() => return finish(&plan, &incoming, state).await,
        Some(state) => state,
        None => match begin(&plan, &incoming) {
            Ok(state) => state,
            Err(outcome) => return outcome,
        },
    };
    advance(&plan, &incoming, state).await
}

pub(super) fn begin(plan: &SagaPlan, incoming: &Incoming) -> Result<SagaState, Outcome> {
    let dead = |text| Outcome::Dead { reason: "Undecodable".into(), text };
    let bytes = &incoming.message().body.bytes;
    check_size(bytes.len()).map_err(dead)?;
    let data: Box<RawValue> = serde_json::from_slice(bytes)
        .map_err(|error| dead(format!("the data of the saga is not JSON: {error}")))?;
    Ok(progress::begin(plan, data, incoming.broker.now().0))
}

/// Clears the state of a finished saga, unless it has another version than the message: the id was used again.
fn sweep(incoming: &Incoming, state: Option<&SagaState>) -> Outcome {
    let version = match incoming.message().properties.get(VERSION) {
        Some(Value::I64(version)) => u64::try_from(*version).ok(),
        _ => None,
    };
    let is_old = |state: &SagaState| state.is_over() && Some(state.version) == version;
    if state.is_some_and(is_old) {
        *incoming.new_state.lock() = Some(NewSessionState { state: None, step_outcome: None });
    }
    Outcome::Done
}

/// Ends a saga. Its state is kept for some time; a delayed message, which is sent now, clears it then.
async fn finish(plan: &SagaPlan, incoming: &Incoming, mut state: SagaState) -> Outcome {
    if state.swept {
        return Outcome::Done; // a duplicate start of a finished saga
    }
    if plan.keep.is_zero() {
        *incoming.new_state.lock() = Some(NewSessionState { state: None, step_outcome: None });
        return Outcome::Done;
    }
    state.swept = true;
    state.version += 1;
    if let Err(error) = send_sweep(plan, incoming, &state).await {
        tracing::warn!(saga = plan.name, %error, "cannot end the saga; retrying");
        return Outcome::Snooze(RETRY_DELAY);
    }
    set_state(incoming, &state, None);
    Outcome::Done
}

/// Sends the message that clears the state later. It is sent before the state records it, so it may be sent twice but
/// is never missing.
async fn send_sweep(
    plan: &SagaPlan,
    incoming: &Incoming,
    state: &SagaState,
) -> Result<(), BrokerError> {
    let due = incoming.broker.now().0.saturating_add(delay_millis(plan.keep));
    let id = incoming.session().map_or("", |session| session.as_str());
    let mut message = Message {
        message_id: Some(format!("sweep:{}:{id}", state.version)),
        session: incoming.session().cloned(),
        subject: Some(SWEEP.into()),
        when: When::At(malote_model::Timestamp(due)),
        ..Message::default()
    };
    let version = i64::try_from(state.version).unwrap_or(i64::MAX);
    message.properties.set(VERSION, Value::I64(version));
    let to = Address::Queue(incoming.queue().clone());
    incoming.broker.send(vec![(to, message)]).await.map(drop)
}

/// Stores the state in `incoming`, to be written with the settlement.
fn set_state(incoming: &Incoming, state: &SagaState, step_outcome: Option<Outcome>) {
    let bytes = match serde_json::to_vec(state) {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) => {
            // Cannot happen: the state consists of texts, numbers and JSON.
            tracing::error!(%error, "the state of a saga cannot be encoded");
            return;
        }
    };
    *incoming.new_state.lock() = Some(NewSessionState { state: Some(bytes), step_outcome });
}

/// The step or compensation to run next.
pub(super) struct NextStep<'a> {
    plan: &'a SagaPlan,
    id: &'a str,
    pub planned: &'a PlannedStep,
    pub nth: usize,
    /// Whether to run the compensation of the step.
    pub undo: bool,
}

/// None if this worker does not have the next step, or the saga is over.
pub(super) fn next_step<'a>(
    plan: &'a SagaPlan,
    id: &'a str,
    state: &SagaState,
) -> Option<NextStep<'a>> {
    let (nth, undo) = match state.todo() {
        Todo::Step(nth) => (nth, false),
        Todo::Undo(nth) => (nth, true),
        Todo::Nothing => return None,
    };
    let step = &state.steps[nth].name;
    let planned = plan.find(step).filter(|planned| !undo || planned.undo.is_some());
    if planned.is_none() {
        tracing::warn!(
            saga = plan.name,
            id,
            step,
            undo,
            "this worker does not have the next step of the saga"
        );
    }
    Some(NextStep { plan, id, planned: planned?, nth, undo })
}

/// Runs the next step and stores the new state.
async fn advance(plan: &SagaPlan, incoming: &Arc<Incoming>, mut state: SagaState) -> Outcome {
    let id = incoming.session().map_or("", |session| session.as_str());
    let Some(next_step) = next_step(plan, id, &state) else {
        return Outcome::Snooze(UNKNOWN_STEP_DELAY);
    };
    let delivery = &incoming.delivery;
    let lost = delivery.failed.saturating_sub(state.failed);
    let step = &mut state.steps[next_step.nth];
    step.lost = step.lost.saturating_add(lost);
    // If this is not the first receive since the state was written, an earlier attempt may have had an effect.
    step.in_doubt |= lost > 0 || delivery.receives != state.receives.saturating_add(1);
    let lost = if lost > 0 { step.lost } else { 0 };
    let Some(attempt) = next_step.attempt(incoming, &state, lost, None).await else {
        return Outcome::Release;
    };
    let step_outcome = match &attempt {
        AttemptResult::NotDone(outcome) => outcome.clone(),
        _ => Outcome::Done,
    };
    let after = next_step.record_attempt(&mut state, attempt, incoming.broker.now().0);
    (state.receives, state.failed) = (delivery.receives, delivery.failed);
    set_state(incoming, &state, Some(step_outcome));
    Outcome::Snooze(match after {
        NextRun::Now => Duration::ZERO,
        NextRun::After(delay) => delay,
    })
}

impl NextStep<'_> {
    fn key(&self) -> String {
        format!("{}:{}:{}", self.plan.name, self.id, self.planned.name)
    }

    /// Runs an attempt, unless the deadline has passed or too many workers were lost. None if the worker stops.
    pub(super) async fn attempt(
        &self,
        incoming: &Arc<Incoming>,
        state: &SagaState,
        lost: u32,
        database: Option<&'static str>,
    ) -> Option<AttemptResult> {
        let Self { planned, nth, undo, .. } = *self;
        let now = incoming.broker.now().0;
        let deadline = progress::deadline(state);
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Some(AttemptResult::DeadlinePassed);
        }
        if lost > 0 && lost >= planned.settings.retry.lost {
            return Some(AttemptResult::WorkerLost(lost));
        }
        let key = self.key();
        let step = Step {
            saga: self.id.to_owned(),
            name: planned.name.clone(),
            key: if undo { format!("{key}:undo") } else { key.clone() },
            undoes: undo.then_some(key),
            attempt: state.steps[nth].attempts.saturating_add(1),
            database,
        };
        let _ = incoming.step.set(step); // each `Incoming` runs one step
        let left = deadline.map(|deadline| Duration::from_millis(deadline.saturating_sub(now)));
        let limit = left.unwrap_or(Duration::MAX).min(planned.settings.timeout);
        run(planned, incoming, undo, state.data.clone(), limit).await
    }

    /// Records the result of the attempt in the state.
    pub(super) fn record_attempt(
        &self,
        state: &mut SagaState,
        attempt: AttemptResult,
        now: u64,
    ) -> NextRun {
        let (before, retry) = (state.status, &self.planned.settings.retry);
        let after = progress::record_attempt(state, self.plan, retry, attempt, &self.key(), now);
        log(self.plan, self.id, state, self.nth, before);
        after
    }
}

/// Runs a step in its own task, so that a panic is a failed attempt. None if the worker stops.
async fn run(
    planned: &PlannedStep,
    incoming: &Arc<Incoming>,
    undo: bool,
    data: Box<RawValue>,
    limit: Duration,
) -> Option<AttemptResult> {
    let task = {
        let incoming = incoming.clone();
        match planned.undo.as_ref().filter(|_| undo) {
            Some(undo) => {
                let compensation = undo(incoming, data);
                tokio::spawn(async move {
                    match compensation.await {
                        Outcome::Done => AttemptResult::Done(None),
                        outcome => AttemptResult::NotDone(outcome),
                    }
                })
            }
            None => {
                let step = (planned.run)(incoming, data);
                tokio::spawn(async move {
                    match step.await {
                        Ok(data) => AttemptResult::Done(Some(data)),
                        // The inbox shows that the step was done before.
                        Err(Outcome::Done) => AttemptResult::Done(None),
                        Err(outcome) => AttemptResult::NotDone(outcome),
                    }
                })
            }
        }
    };
    let mut task = AbortOnDropHandle::new(task);
    let retry = |error| {
        AttemptResult::NotDone(Outcome::Retry(FailedAttempt { error, ..FailedAttempt::default() }))
    };
    match tokio::time::timeout(limit, &mut task).await {
        Ok(Ok(attempt)) => Some(attempt),
        Ok(Err(error)) => {
            let panic = error.try_into_panic().ok()?;
            Some(retry(text::of_panic(Some(panic))))
        }
        Err(_) => {
            incoming.cancelled().cancel();
            task.abort();
            if tokio::time::timeout(STUCK_AFTER, task).await.is_err() {
                tracing::warn!(
                    step = planned.name,
                    "a step ignores its cancellation and was abandoned"
                );
            }
            Some(retry(format!("the step took longer than {limit:?}")))
        }
    }
}

fn log(plan: &SagaPlan, id: &str, state: &SagaState, nth: usize, before: SagaStatus) {
    let (saga, step) = (&plan.name, &state.steps[nth]);
    let (name, attempts, error) = (&step.name, step.attempts, step.error.as_deref());
    if state.status != before {
        let status = state.status.word();
        tracing::info!(
            saga,
            id,
            step = name,
            status,
            error = state.error.as_deref(),
            "the status of a saga changed"
        );
    }
    let is_retried_forever = state.status == SagaStatus::Compensating || state.is_forward_only();
    if is_retried_forever && error.is_some() && attempts >= ALARM_ATTEMPTS {
        tracing::warn!(
            saga,
            id,
            step = name,
            attempts,
            error,
            "a step of a saga fails repeatedly; the saga cannot continue"
        );
        let error = error.unwrap_or_default();
        stderr::print(format_args!(
            "saga {saga} {id}: step {name} failed {attempts} times: {error}"
        ));
    } else if error.is_some() {
        tracing::info!(saga, id, step = name, attempts, error, "a step of a saga failed");
        let error = error.unwrap_or_default();
        stderr::print(format_args!("saga {saga} {id}: step {name} failed: {error}"));
    }
}
