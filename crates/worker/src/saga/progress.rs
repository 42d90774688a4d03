//! The transitions of the state of a saga. Plain functions, without I/O and without a clock.

use std::time::Duration;

use malote_wire_native::saga::{
    ERROR_BYTES_MAX, FORMAT, SagaState, SagaStatus, SagaStep, StepStatus, Todo,
};
use serde_json::value::RawValue;

use super::SagaPlan;
use crate::clock::millis;
use crate::outcome::{FailedAttempt, Outcome};
use crate::retry::Retry;
use crate::text::clip;

/// From this number of failed attempts on, each failure of a step that is retried forever is a warning.
pub(super) const ALARM_ATTEMPTS: u32 = 10;
/// The minimum delay after that number of attempts, because there may be many more.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The delay of a step that is retried forever if its backoff gives up.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// The result of an attempt at a step or a compensation.
#[derive(Debug)]
pub(super) enum AttemptResult {
    /// Done, with the new data. A compensation has none.
    Done(Option<Box<RawValue>>),
    /// Not done, with the outcome that the step returned.
    NotDone(Outcome),
    /// Not started, because the deadline has passed.
    DeadlinePassed,
    /// Not started, because this many workers were lost at this step.
    WorkerLost(u32),
}

/// When the saga continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRun {
    /// The next step runs at once.
    Now,
    /// After this delay.
    After(Duration),
}

/// The state of a saga that has just been started.
pub(super) fn begin(plan: &SagaPlan, data: Box<RawValue>, now: u64) -> SagaState {
    let steps = plan.steps.iter().map(|step| SagaStep {
        name: step.name.clone(),
        status: StepStatus::Waiting,
        undo: step.undo.is_some(),
        pivot: step.pivot,
        attempts: 0,
        lost: 0,
        in_doubt: false,
        error: None,
        deadline: None,
        at: None,
    });
    let mut state = SagaState {
        malote_saga: FORMAT,
        version: 0,
        status: SagaStatus::Running,
        started_at: now,
        changed_at: now,
        deadline: plan.deadline.map(|deadline| now.saturating_add(millis(deadline))),
        error: None,
        steps: steps.collect(),
        data,
        receives: 0,
        failed: 0,
        swept: false,
    };
    set_deadline(&mut state, plan, now);
    state
}

/// Sets the deadline of the current step.
fn set_deadline(state: &mut SagaState, plan: &SagaPlan, now: u64) {
    let Todo::Step(nth) = state.todo() else { return };
    let all = state.deadline;
    let step = &mut state.steps[nth];
    let own = plan.find(&step.name).and_then(|step| step.deadline);
    let own = own.map(|own| now.saturating_add(millis(own)));
    step.deadline = match (own, all) {
        (Some(own), Some(all)) => Some(own.min(all)),
        (own, all) => own.or(all),
    };
}

/// The deadline of the current step. A pivot without a compensation has none once it may have had its effect: only
/// further attempts can find out.
pub(super) fn deadline(state: &SagaState) -> Option<u64> {
    match state.todo() {
        Todo::Step(nth) if !state.is_forward_only() => {
            state.steps[nth].deadline.filter(|_| !may_be_irreversible(&state.steps[nth]))
        }
        _ => None,
    }
}

/// Whether a step may have had an effect that no compensation undoes.
fn may_be_irreversible(step: &SagaStep) -> bool {
    step.pivot && !step.undo && step.in_doubt
}

/// Records the result of an attempt in the state.
pub(super) fn record_attempt(
    state: &mut SagaState,
    plan: &SagaPlan,
    retry: &Retry,
    attempt: AttemptResult,
    key: &str,
    now: u64,
) -> NextRun {
    let after = match (state.todo(), attempt) {
        (Todo::Nothing, _) => NextRun::Now,
        (Todo::Step(nth), AttemptResult::Done(data)) => {
            if let Some(data) = data {
                state.data = data;
            }
            let step = &mut state.steps[nth];
            (step.status, step.error, step.at) = (StepStatus::Done, None, Some(now));
            if state.todo() == Todo::Nothing {
                state.status = SagaStatus::Done;
            }
            set_deadline(state, plan, now);
            NextRun::Now
        }
        (Todo::Undo(nth), AttemptResult::Done(_)) => {
            let step = &mut state.steps[nth];
            (step.status, step.error, step.at) = (StepStatus::Compensated, None, Some(now));
            next_compensation(state);
            NextRun::Now
        }
        (_, AttemptResult::NotDone(Outcome::Snooze(delay) | Outcome::RateLimited(delay))) => {
            NextRun::After(until_deadline(state, delay, now))
        }
        (_, AttemptResult::NotDone(Outcome::Release)) => NextRun::Now,
        (Todo::Step(nth), attempt) if !state.is_forward_only() => {
            forward_failed(state, retry, nth, attempt, key, now)
        }
        (Todo::Step(nth) | Todo::Undo(nth), attempt) => {
            let (text, failed) = failure_of(attempt);
            try_again(&mut state.steps[nth], retry, &text, failed.retry_after, key)
        }
    };
    state.version += 1;
    state.changed_at = now;
    after
}

/// The error text and the details of a failed attempt.
fn failure_of(attempt: AttemptResult) -> (String, FailedAttempt) {
    match attempt {
        AttemptResult::NotDone(Outcome::Retry(failed)) => (failed.error.clone(), failed),
        AttemptResult::NotDone(Outcome::Dead { reason, text }) => {
            (format!("{reason}: {text}"), FailedAttempt::default())
        }
        AttemptResult::WorkerLost(lost) => {
            let text = format!("WorkerLost: {lost} workers were lost during this step");
            (text, FailedAttempt::default())
        }
        AttemptResult::DeadlinePassed => {
            ("TimedOut: the deadline has passed".into(), FailedAttempt::default())
        }
        // These are not failures and do not get here.
        AttemptResult::Done(_) | AttemptResult::NotDone(_) => {
            (String::new(), FailedAttempt::default())
        }
    }
}

/// Records a failed step of a saga that can still be compensated.
fn forward_failed(
    state: &mut SagaState,
    retry: &Retry,
    nth: usize,
    attempt: AttemptResult,
    key: &str,
    now: u64,
) -> NextRun {
    // `Failure::dead` means that this attempt had no effect.
    let refused = matches!(attempt, AttemptResult::NotDone(Outcome::Dead { .. }));
    let tried = matches!(attempt, AttemptResult::NotDone(_));
    let gives_up = !matches!(attempt, AttemptResult::NotDone(Outcome::Retry(_)));
    let (text, failed) = failure_of(attempt);
    let step = &mut state.steps[nth];
    step.attempts = step.attempts.saturating_add(u32::from(tried));
    step.in_doubt |= tried && !refused;
    step.error = Some(error_text(&text));
    let delay = failed.retry_after.or_else(|| retry.backoff.delay(step.attempts, key));
    if !gives_up && let Some(delay) = delay.filter(|_| step.attempts < retry.attempts) {
        return NextRun::After(until_deadline(state, delay, now));
    }
    if may_be_irreversible(step) && !refused {
        return retry_forever(step, delay); // only the step itself can report the result
    }
    step.status = match step.in_doubt && step.undo {
        true => StepStatus::Unsure,
        false => StepStatus::Failed,
    };
    step.at = Some(now);
    state.error = Some(error_text(&format!("{}: {text}", step.name)));
    state.status = SagaStatus::Compensating;
    next_compensation(state);
    NextRun::Now
}

/// Records a failure of a step or compensation that is retried forever.
fn try_again(
    step: &mut SagaStep,
    retry: &Retry,
    text: &str,
    after: Option<Duration>,
    key: &str,
) -> NextRun {
    step.attempts = step.attempts.saturating_add(1);
    step.error = Some(error_text(text));
    let delay = after.or_else(|| retry.backoff.delay(step.attempts, key));
    retry_forever(step, delay)
}

fn retry_forever(step: &SagaStep, delay: Option<Duration>) -> NextRun {
    let least = if step.attempts < ALARM_ATTEMPTS { Duration::ZERO } else { PAUSE_MIN };
    NextRun::After(delay.unwrap_or(PAUSE_MAX).max(least))
}

/// Starts the next compensation with its own attempts, or ends the saga.
fn next_compensation(state: &mut SagaState) {
    match state.todo() {
        Todo::Undo(nth) => {
            let step = &mut state.steps[nth];
            (step.attempts, step.lost) = (0, 0);
        }
        _ => state.status = SagaStatus::Compensated,
    }
}

/// Shortens a delay to the deadline, so that the saga notices the deadline when it passes.
fn until_deadline(state: &SagaState, delay: Duration, now: u64) -> Duration {
    match deadline(state) {
        Some(deadline) => delay.min(Duration::from_millis(deadline.saturating_sub(now))),
        None => delay,
    }
}

/// An error as it is stored. A control character would take six bytes in JSON.
fn error_text(text: &str) -> String {
    clip(text, ERROR_BYTES_MAX).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
