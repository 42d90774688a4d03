//! What follows from what in a saga. Plain functions on its state: no I/O, no clock.

use std::time::Duration;

use malote_wire_native::saga::{
    ERROR_BYTES_MAX, FORMAT, SagaState, SagaStatus, SagaStep, StepStatus, Todo,
};
use serde_json::value::RawValue;

use super::Plan;
use crate::outcome::{Failed, Outcome};
use crate::retry::Retry;

/// From so many failed attempts on at what is tried without limit, somebody should look.
pub(super) const ALARM_ATTEMPTS: u32 = 10;
/// From then on it waits at least so long, whatever its backoff says: it might go on for ever.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// How long what is tried without limit waits when its backoff gives up.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// What an attempt came to.
#[derive(Debug)]
pub(super) enum Attempt {
    /// It is done, with this data; a compensation changes none.
    Done(Option<Box<RawValue>>),
    /// It said why not.
    Said(Outcome),
    /// It was not begun: it is too late.
    TooLate,
    /// It was not begun: it takes workers with it.
    WorkerLost(u32),
}

/// When the saga goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// At once.
    Now,
    /// After so long.
    Delay(Duration),
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A saga that has just been started.
pub(super) fn begin(plan: &Plan, data: Box<RawValue>, now: u64) -> SagaState {
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
        deadline: plan.deadline.map(|deadline| now.saturating_add(ms(deadline))),
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

/// The deadline of the step whose turn has come.
fn set_deadline(state: &mut SagaState, plan: &Plan, now: u64) {
    let Todo::Step(nth) = state.todo() else { return };
    let all = state.deadline;
    let step = &mut state.steps[nth];
    let own = plan.find(&step.name).and_then(|step| step.deadline);
    let own = own.map(|own| now.saturating_add(ms(own)));
    step.deadline = match (own, all) {
        (Some(own), Some(all)) => Some(own.min(all)),
        (own, all) => own.or(all),
    };
}

/// By when the step whose turn it is must be done. What cannot be taken back has no deadline once somebody may have
/// done it: it is found out, however late.
pub(super) fn deadline(state: &SagaState) -> Option<u64> {
    match state.todo() {
        Todo::Step(nth) if !state.is_forward_only() => {
            state.steps[nth].deadline.filter(|_| !is_beyond(&state.steps[nth]))
        }
        _ => None,
    }
}

/// Whether a step may have done what nothing takes back.
fn is_beyond(step: &SagaStep) -> bool {
    step.pivot && !step.undo && step.in_doubt
}

/// Writes down what an attempt came to.
pub(super) fn follow(
    state: &mut SagaState,
    plan: &Plan,
    retry: &Retry,
    attempt: Attempt,
    key: &str,
    now: u64,
) -> After {
    let after = match (state.todo(), attempt) {
        (Todo::Nothing, _) => After::Now,
        (Todo::Step(nth), Attempt::Done(data)) => {
            if let Some(data) = data {
                state.data = data;
            }
            let step = &mut state.steps[nth];
            (step.status, step.error, step.at) = (StepStatus::Done, None, Some(now));
            if state.todo() == Todo::Nothing {
                state.status = SagaStatus::Done;
            }
            set_deadline(state, plan, now);
            After::Now
        }
        (Todo::Undo(nth), Attempt::Done(_)) => {
            let step = &mut state.steps[nth];
            (step.status, step.error, step.at) = (StepStatus::Compensated, None, Some(now));
            go_back(state);
            After::Now
        }
        (_, Attempt::Said(Outcome::Snooze(delay) | Outcome::RateLimited(delay))) => {
            After::Delay(until_deadline(state, delay, now))
        }
        (_, Attempt::Said(Outcome::Release)) => After::Now,
        (Todo::Step(nth), attempt) if !state.is_forward_only() => {
            forward_failed(state, retry, nth, attempt, key, now)
        }
        (Todo::Step(nth) | Todo::Undo(nth), attempt) => {
            let (text, failed) = told(attempt);
            try_again(&mut state.steps[nth], retry, &text, failed.after, key)
        }
    };
    state.version += 1;
    state.changed_at = now;
    after
}

/// What an attempt says of its failure.
fn told(attempt: Attempt) -> (String, Failed) {
    match attempt {
        Attempt::Said(Outcome::Retry(failed)) => (failed.error.clone(), failed),
        Attempt::Said(Outcome::Dead { reason, text }) => {
            (format!("{reason}: {text}"), Failed::default())
        }
        Attempt::WorkerLost(lost) => {
            (format!("WorkerLost: {lost} workers vanished while they had it"), Failed::default())
        }
        Attempt::TooLate => ("TimedOut: its deadline is over".into(), Failed::default()),
        // These are no failures, and are followed elsewhere.
        Attempt::Done(_) | Attempt::Said(_) => (String::new(), Failed::default()),
    }
}

/// A step failed, and there is a way back.
fn forward_failed(
    state: &mut SagaState,
    retry: &Retry,
    nth: usize,
    attempt: Attempt,
    key: &str,
    now: u64,
) -> After {
    // One that says so has done nothing, this time.
    let refused = matches!(attempt, Attempt::Said(Outcome::Dead { .. }));
    let tried = matches!(attempt, Attempt::Said(_));
    let gives_up = !matches!(attempt, Attempt::Said(Outcome::Retry(_)));
    let (text, failed) = told(attempt);
    let step = &mut state.steps[nth];
    step.attempts = step.attempts.saturating_add(u32::from(tried));
    step.in_doubt |= tried && !refused;
    step.error = Some(clip(&text));
    let delay = failed.after.or_else(|| retry.backoff.delay(step.attempts, key));
    if !gives_up && let Some(delay) = delay.filter(|_| step.attempts < retry.attempts) {
        return After::Delay(until_deadline(state, delay, now));
    }
    if is_beyond(step) && !refused {
        return limitless(step, delay); // only its own word decides
    }
    step.status = match step.in_doubt && step.undo {
        true => StepStatus::Unsure,
        false => StepStatus::Failed,
    };
    step.at = Some(now);
    state.error = Some(clip(&format!("{}: {text}", step.name)));
    state.status = SagaStatus::Compensating;
    go_back(state);
    After::Now
}

/// What is tried without limit failed.
fn try_again(
    step: &mut SagaStep,
    retry: &Retry,
    text: &str,
    after: Option<Duration>,
    key: &str,
) -> After {
    step.attempts = step.attempts.saturating_add(1);
    step.error = Some(clip(text));
    let delay = after.or_else(|| retry.backoff.delay(step.attempts, key));
    limitless(step, delay)
}

fn limitless(step: &SagaStep, delay: Option<Duration>) -> After {
    let least = if step.attempts < ALARM_ATTEMPTS { Duration::ZERO } else { PAUSE_MIN };
    After::Delay(delay.unwrap_or(PAUSE_MAX).max(least))
}

/// The next compensation has its turn, with attempts of its own; or there is none left.
fn go_back(state: &mut SagaState) {
    match state.todo() {
        Todo::Undo(nth) => {
            let step = &mut state.steps[nth];
            (step.attempts, step.lost) = (0, 0);
        }
        _ => state.status = SagaStatus::Compensated,
    }
}

/// A wait that ends when the deadline does: what waits for longer would be late without knowing.
fn until_deadline(state: &SagaState, delay: Duration, now: u64) -> Duration {
    match deadline(state) {
        Some(deadline) => delay.min(Duration::from_millis(deadline.saturating_sub(now))),
        None => delay,
    }
}

/// As much of an error as is kept. Control characters would be six in JSON.
fn clip(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(ERROR_BYTES_MAX)];
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
