//! Sagas, as they are shown: what workers wrote into the states of their sessions, and what the sessions tell.

use malote_engine::SessionFacts;
use malote_wire_native::saga::{SagaState, SagaStep, SagaSummary};
use serde::Serialize;
use serde_json::value::RawValue;

/// Some sagas; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct SagasOut {
    /// In no order that means anything.
    pub sagas: Vec<SagaSummary>,
    /// Where to go on.
    pub next: Option<String>,
}

/// A saga with its steps and its data.
#[derive(Debug, Serialize)]
pub struct SagaInFull {
    #[serde(flatten)]
    short: SagaSummary,
    steps: Vec<SagaStep>,
    data: Option<Box<RawValue>>,
}

/// One that may have a state and a session, or only one of them.
pub fn summary(id: &str, state: Option<&SagaState>, session: Option<&SessionFacts>) -> SagaSummary {
    SagaSummary {
        held_until: session.and_then(|session| session.held_until).map(|at| at.0),
        delayed_until: session.and_then(|session| session.delayed_until).map(|at| at.0),
        ..SagaSummary::new(id, state)
    }
}

impl SagaInFull {
    /// All of it.
    pub fn new(id: &str, state: Option<SagaState>, session: Option<&SessionFacts>) -> Self {
        let short = summary(id, state.as_ref(), session);
        let (steps, data) = match state {
            Some(state) => (state.steps, Some(state.data)),
            None => (Vec::new(), None),
        };
        Self { short, steps, data }
    }
}
