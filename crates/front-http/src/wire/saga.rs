//! Sagas, as they are shown: what workers wrote into the states of their sessions, and what the sessions tell.

use malote_engine::SessionFacts;
use malote_wire_native::saga::{SagaState, SagaStep};
use serde::Serialize;
use serde_json::value::RawValue;

/// Some sagas; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct SagasOut {
    /// In no order that means anything.
    pub sagas: Vec<SagaOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// Where a saga stands.
#[derive(Debug, Serialize)]
pub struct SagaOut {
    id: String,
    /// `waiting` until a worker has begun it.
    status: &'static str,
    version: u64,
    /// The step whose turn it is, or whose compensation's.
    step: Option<String>,
    /// Failed attempts at it.
    attempts: u32,
    /// The last error of it, or why the saga is compensated.
    error: Option<String>,
    started_at: Option<u64>,
    changed_at: Option<u64>,
    /// The step must be done by then.
    deadline: Option<u64>,
    /// A worker has it until then, unless it asks for longer.
    held_until: Option<u64>,
    /// It goes on then.
    delayed_until: Option<u64>,
}

/// A saga with its steps and its data.
#[derive(Debug, Serialize)]
pub struct SagaInFull {
    #[serde(flatten)]
    short: SagaOut,
    steps: Vec<SagaStep>,
    data: Option<Box<RawValue>>,
}

impl SagaOut {
    /// One that may have a state and a session, or only one of them.
    pub fn new(id: &str, state: Option<&SagaState>, session: Option<&SessionFacts>) -> Self {
        let step = state.and_then(SagaState::current);
        Self {
            id: id.to_owned(),
            status: state.map_or("waiting", |state| state.status.word()),
            version: state.map_or(0, |state| state.version),
            step: step.map(|step| step.name.clone()),
            attempts: step.map_or(0, |step| step.attempts),
            error: step
                .and_then(|step| step.error.clone())
                .or_else(|| state.and_then(|state| state.error.clone())),
            started_at: state.map(|state| state.started_at),
            changed_at: state.map(|state| state.changed_at),
            deadline: step.and_then(|step| step.deadline),
            held_until: session.and_then(|session| session.held_until).map(|at| at.0),
            delayed_until: session.and_then(|session| session.delayed_until).map(|at| at.0),
        }
    }
}

impl SagaInFull {
    /// All of it.
    pub fn new(id: &str, state: Option<SagaState>, session: Option<&SessionFacts>) -> Self {
        let short = SagaOut::new(id, state.as_ref(), session);
        let (steps, data) = match state {
            Some(state) => (state.steps, Some(state.data)),
            None => (Vec::new(), None),
        };
        Self { short, steps, data }
    }
}
