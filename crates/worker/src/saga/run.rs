//! One delivery of the message that drives a saga: one step, and the settlement that writes what it came to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::BrokerError;
use malote_model::{Address, Message, Value, When};
use malote_wire_native::saga::{SagaState, SagaStatus, Todo};
use serde_json::value::RawValue;
use tokio_util::task::AbortOnDropHandle;

use super::progress::{self, ALARM_ATTEMPTS, After, Attempt};
use super::step::{Step, check_size};
use super::{Plan, PlannedStep};
use crate::incoming::{Incoming, StateChange};
use crate::outcome::{Failed, Outcome};
use crate::stderr;

/// The subject of the message that clears a saga's state, and the property that says which state.
pub(super) const SWEEP: &str = "sweep";
pub(super) const VERSION: &str = "version";
/// How soon something is tried again that has nothing to do with the step.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// A step that no worker's plan has is looked at so often.
pub(super) const UNKNOWN_PAUSE: Duration = Duration::from_secs(30);
/// How long a step may ignore that its time is over before it is left behind.
const STUCK_AFTER: Duration = Duration::from_secs(10);

impl Plan {
    pub(super) fn find(&self, name: &str) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// What becomes of the message, and the state that changes with it.
pub(super) async fn drive(plan: Arc<Plan>, incoming: Arc<Incoming>) -> Outcome {
    let Some(held) = incoming.held() else {
        let text = "a saga is driven by a worker with sessions".to_owned();
        return Outcome::Dead { reason: "NoSession".into(), text };
    };
    let state = match incoming.broker.state(incoming.queue(), held).await {
        Ok(state) => state,
        Err(BrokerError::LockLost) => return Outcome::Release,
        Err(_) => return Outcome::Snooze(PAUSE), // uncounted: it is not the step's fault
    };
    let state = match state.as_deref().map(SagaState::read).transpose() {
        Ok(state) => state,
        Err(error) => {
            let text = format!("the state of this session is no saga's: {error}");
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

pub(super) fn begin(plan: &Plan, incoming: &Incoming) -> Result<SagaState, Outcome> {
    let dead = |text| Outcome::Dead { reason: "Undecodable".into(), text };
    let bytes = &incoming.message().body.bytes;
    check_size(bytes.len()).map_err(dead)?;
    let data: Box<RawValue> = serde_json::from_slice(bytes)
        .map_err(|error| dead(format!("a saga's data is JSON: {error}")))?;
    Ok(progress::begin(plan, data, incoming.broker.now().0))
}

/// Clears the state that the message was sent for, and no other: of a saga that came to its end in the same way.
fn sweep(incoming: &Incoming, state: Option<&SagaState>) -> Outcome {
    let version = match incoming.message().properties.get(VERSION) {
        Some(Value::I64(version)) => u64::try_from(*version).ok(),
        _ => None,
    };
    let is_old = |state: &SagaState| state.is_over() && Some(state.version) == version;
    if state.is_some_and(is_old) {
        *incoming.new_state.lock() = Some(StateChange { state: None, of_step: None });
    }
    Outcome::Done
}

/// It is over. Its state stays for a while; then a message clears it that is sent now.
async fn finish(plan: &Plan, incoming: &Incoming, mut state: SagaState) -> Outcome {
    if state.swept {
        return Outcome::Done; // it was started once more
    }
    if plan.keep.is_zero() {
        *incoming.new_state.lock() = Some(StateChange { state: None, of_step: None });
        return Outcome::Done;
    }
    state.swept = true;
    state.version += 1;
    if let Err(error) = send_sweep(plan, incoming, &state).await {
        tracing::warn!(saga = plan.name, %error, "a saga's end cannot be written: tried again");
        return Outcome::Snooze(PAUSE);
    }
    write(incoming, &state, None);
    Outcome::Done
}

/// Sent before the state says so: it may be sent twice, never not at all.
async fn send_sweep(
    plan: &Plan,
    incoming: &Incoming,
    state: &SagaState,
) -> Result<(), BrokerError> {
    let due = incoming.broker.now().0.saturating_add(
        u64::try_from(plan.keep.as_millis())
            .unwrap_or(u64::MAX)
            .min(malote_model::limits::DELAY_MS_MAX),
    );
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

/// To be written with the settlement.
fn write(incoming: &Incoming, state: &SagaState, said: Option<Outcome>) {
    let bytes = match serde_json::to_vec(state) {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) => {
            // It holds texts, numbers and JSON that was read before.
            tracing::error!(%error, "a saga's state cannot be written");
            return;
        }
    };
    *incoming.new_state.lock() = Some(StateChange { state: Some(bytes), of_step: said });
}

/// What is next.
pub(super) struct Turn<'a> {
    plan: &'a Plan,
    id: &'a str,
    pub planned: &'a PlannedStep,
    pub nth: usize,
    /// Its compensation, and not the step.
    pub undo: bool,
}

/// What is next; none if this worker's plan has no such step, or nothing is left.
pub(super) fn turn<'a>(plan: &'a Plan, id: &'a str, state: &SagaState) -> Option<Turn<'a>> {
    let (nth, undo) = match state.todo() {
        Todo::Step(nth) => (nth, false),
        Todo::Undo(nth) => (nth, true),
        Todo::Nothing => return None,
    };
    let step = &state.steps[nth].name;
    let planned = plan.find(step).filter(|planned| !undo || planned.undo.is_some());
    if planned.is_none() {
        tracing::warn!(saga = plan.name, id, step, undo, "no such step in this worker's plan");
    }
    Some(Turn { plan, id, planned: planned?, nth, undo })
}

/// Runs what is next, and writes what it came to.
async fn advance(plan: &Plan, incoming: &Arc<Incoming>, mut state: SagaState) -> Outcome {
    let id = incoming.session().map_or("", |session| session.as_str());
    let Some(turn) = turn(plan, id, &state) else { return Outcome::Snooze(UNKNOWN_PAUSE) };
    let delivery = &incoming.delivery;
    let lost = delivery.failed.saturating_sub(state.failed);
    let step = &mut state.steps[turn.nth];
    step.lost = step.lost.saturating_add(lost);
    // Received once since the state was written, and that is now: nobody can have tried it before and not told.
    step.in_doubt |= lost > 0 || delivery.receives != state.receives.saturating_add(1);
    let lost = if lost > 0 { step.lost } else { 0 };
    let Some(attempt) = turn.attempt(incoming, &state, lost, None).await else {
        return Outcome::Release;
    };
    let said = match &attempt {
        Attempt::Said(outcome) => outcome.clone(),
        _ => Outcome::Done,
    };
    let after = turn.follow(&mut state, attempt, incoming.broker.now().0);
    (state.receives, state.failed) = (delivery.receives, delivery.failed);
    write(incoming, &state, Some(said));
    Outcome::Snooze(match after {
        After::Now => Duration::ZERO,
        After::Delay(delay) => delay,
    })
}

impl Turn<'_> {
    fn key(&self) -> String {
        format!("{}:{}:{}", self.plan.name, self.id, self.planned.name)
    }

    /// What an attempt comes to, if it is to be made at all. None if the process ends.
    pub(super) async fn attempt(
        &self,
        incoming: &Arc<Incoming>,
        state: &SagaState,
        lost: u32,
        database: Option<&'static str>,
    ) -> Option<Attempt> {
        let Self { planned, nth, undo, .. } = *self;
        let now = incoming.broker.now().0;
        let deadline = progress::deadline(state);
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Attempt::TooLate);
        }
        if lost > 0 && lost >= planned.settings.retry.lost {
            return Some(Attempt::WorkerLost(lost));
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
        let _ = incoming.step.set(step); // one of these is one step
        let left = deadline.map(|deadline| Duration::from_millis(deadline.saturating_sub(now)));
        let limit = left.unwrap_or(Duration::MAX).min(planned.settings.timeout);
        run(planned, incoming, undo, state.data.clone(), limit).await
    }

    /// Writes down what it came to.
    pub(super) fn follow(&self, state: &mut SagaState, attempt: Attempt, now: u64) -> After {
        let (before, retry) = (state.status, &self.planned.settings.retry);
        let after = progress::follow(state, self.plan, retry, attempt, &self.key(), now);
        log(self.plan, self.id, state, self.nth, before);
        after
    }
}

/// Runs a step in a task of its own: its panic is its own. None if the process ends.
async fn run(
    planned: &PlannedStep,
    incoming: &Arc<Incoming>,
    undo: bool,
    data: Box<RawValue>,
    limit: Duration,
) -> Option<Attempt> {
    let doing = {
        let incoming = incoming.clone();
        match planned.undo.as_ref().filter(|_| undo) {
            Some(undo) => {
                let undoing = undo(incoming, data);
                tokio::spawn(async move {
                    match undoing.await {
                        Outcome::Done => Attempt::Done(None),
                        said => Attempt::Said(said),
                    }
                })
            }
            None => {
                let stepping = (planned.run)(incoming, data);
                tokio::spawn(async move {
                    match stepping.await {
                        Ok(data) => Attempt::Done(Some(data)),
                        // Its transaction found that it was done before.
                        Err(Outcome::Done) => Attempt::Done(None),
                        Err(said) => Attempt::Said(said),
                    }
                })
            }
        }
    };
    let mut doing = AbortOnDropHandle::new(doing);
    let retry = |error| Attempt::Said(Outcome::Retry(Failed { error, ..Failed::default() }));
    match tokio::time::timeout(limit, &mut doing).await {
        Ok(Ok(attempt)) => Some(attempt),
        Ok(Err(error)) => {
            let panic = error.try_into_panic().ok()?;
            let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            let said = said.unwrap_or_else(|| "without a word".into());
            Some(retry(format!("it panicked: {said}")))
        }
        Err(_) => {
            incoming.cancelled().cancel();
            doing.abort();
            if tokio::time::timeout(STUCK_AFTER, doing).await.is_err() {
                tracing::warn!(step = planned.name, "a step ignores that its time is over");
            }
            Some(retry(format!("it took longer than {limit:?}")))
        }
    }
}

fn log(plan: &Plan, id: &str, state: &SagaState, nth: usize, before: SagaStatus) {
    let (saga, step) = (&plan.name, &state.steps[nth]);
    let (name, attempts, error) = (&step.name, step.attempts, step.error.as_deref());
    if state.status != before {
        let status = state.status.word();
        tracing::info!(saga, id, step = name, status, error = state.error.as_deref(), "a saga");
    }
    let limitless = state.status == SagaStatus::Compensating || state.is_forward_only();
    if limitless && error.is_some() && attempts >= ALARM_ATTEMPTS {
        tracing::warn!(saga, id, step = name, attempts, error, "a saga cannot go on");
        let error = error.unwrap_or_default();
        stderr::print(format_args!(
            "saga {saga} {id}: step {name} failed {attempts} times: {error}"
        ));
    } else if error.is_some() {
        tracing::info!(saga, id, step = name, attempts, error, "a step failed");
        let error = error.unwrap_or_default();
        stderr::print(format_args!("saga {saga} {id}: step {name} failed: {error}"));
    }
}
