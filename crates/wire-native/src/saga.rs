//! How far a saga came, as JSON: written by workers, read by whoever looks.
//!
//! It is the state of the session that has the saga's id, in the queue `saga.<name>`, or a column of a database. A plan
//! is written down when a saga starts: a worker that was deployed meanwhile, with another plan, follows the old one.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Queues of sagas are named so.
pub const QUEUE_PREFIX: &str = "saga.";
/// The version of this format.
pub const FORMAT: u32 = 1;
/// Steps of one saga.
pub const STEPS_MAX: usize = 64;
/// Characters of a step's name.
pub const STEP_NAME_BYTES_MAX: usize = 64;
/// Data of one saga, as JSON: with 64 steps and their errors it stays below what a session's state may have.
pub const DATA_BYTES_MAX: usize = 128 << 10;
/// What is kept of an error.
pub const ERROR_BYTES_MAX: usize = 512;

/// Where a saga stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum SagaStatus {
    /// Steps are done one after the other.
    Running,
    /// A step failed: what was done is compensated, the newest first.
    Compensating,
    /// All steps are done.
    Done,
    /// What was done is compensated.
    Compensated,
}

impl SagaStatus {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Compensating => "compensating",
            Self::Done => "done",
            Self::Compensated => "compensated",
        }
    }
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum StepStatus {
    /// Not done yet, or being tried.
    Waiting,
    /// Done.
    Done,
    /// Given up, and it had no effect, or nothing can be done about it.
    Failed,
    /// Given up, and nobody knows whether it had an effect: it is compensated with the others.
    Unsure,
    /// Its compensation is done.
    Compensated,
}

impl StepStatus {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unsure => "unsure",
            Self::Compensated => "compensated",
        }
    }
}

/// One step of a saga.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SagaStep {
    /// Its name, once in a saga.
    pub name: String,
    /// Where it stands.
    pub status: StepStatus,
    /// Whether it has a compensation.
    #[serde(default)]
    pub undo: bool,
    /// Whether there is no way back once it is done.
    #[serde(default)]
    pub pivot: bool,
    /// Attempts that failed: of the step or, once that has begun, of its compensation.
    #[serde(default)]
    pub attempts: u32,
    /// Workers that vanished meanwhile.
    #[serde(default)]
    pub lost: u32,
    /// An attempt may have had an effect, and nobody lived or knew to tell.
    #[serde(default)]
    pub in_doubt: bool,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// It must be done by then, milliseconds since 1970; set when its turn comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// When its status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// The step of this number.
    Step(usize),
    /// The compensation of the step of this number.
    Undo(usize),
    /// It is over.
    Nothing,
}

/// All that is known about a saga.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SagaState {
    /// The version of this format.
    pub malote_saga: u32,
    /// Grows with every change.
    pub version: u64,
    /// Where it stands.
    pub status: SagaStatus,
    /// Milliseconds since 1970.
    pub started_at: u64,
    /// When it last changed.
    pub changed_at: u64,
    /// All of it must be done by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// Which step failed, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In their order.
    pub steps: Vec<SagaStep>,
    /// What steps hand to one another.
    pub data: Box<RawValue>,
    /// How often the message that drives it had been received when this was written: if it was received more than once
    /// since, a worker may have had an effect and not lived to tell.
    #[serde(default)]
    pub receives: u32,
    /// How often it had been lost.
    #[serde(default)]
    pub failed: u32,
    /// It is over, and a message that clears it is on its way.
    #[serde(default)]
    pub swept: bool,
}

impl SagaState {
    /// Reads one. Any bytes will do.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let state: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if state.malote_saga != FORMAT {
            return Err(format!("format {} is not known here", state.malote_saga));
        }
        if state.steps.len() > STEPS_MAX {
            return Err(format!("it has more than {STEPS_MAX} steps"));
        }
        Ok(state)
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        matches!(self.status, SagaStatus::Done | SagaStatus::Compensated)
    }

    /// Whether a pivot is done: there is no way back.
    pub fn is_forward_only(&self) -> bool {
        self.steps.iter().any(|step| step.pivot && step.status == StepStatus::Done)
    }

    /// What is to be done next.
    pub fn todo(&self) -> Todo {
        let nth = match self.status {
            SagaStatus::Running => {
                self.steps.iter().position(|step| step.status == StepStatus::Waiting)
            }
            SagaStatus::Compensating => self.steps.iter().rposition(|step| {
                step.undo && matches!(step.status, StepStatus::Done | StepStatus::Unsure)
            }),
            SagaStatus::Done | SagaStatus::Compensated => None,
        };
        match (nth, self.status) {
            (Some(nth), SagaStatus::Running) => Todo::Step(nth),
            (Some(nth), _) => Todo::Undo(nth),
            (None, _) => Todo::Nothing,
        }
    }

    /// The step whose turn it is, or whose compensation's.
    pub fn current(&self) -> Option<&SagaStep> {
        match self.todo() {
            Todo::Step(nth) | Todo::Undo(nth) => self.steps.get(nth),
            Todo::Nothing => None,
        }
    }
}

/// A saga as it stands in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Saga"))]
pub struct SagaSummary {
    /// Its id.
    pub id: String,
    /// `waiting` until a worker starts it, then the status of its state
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["waiting", "running", "compensating", "done", "compensated"])))]
    pub status: String,
    /// Grows with every change.
    pub version: u64,
    /// The step whose turn it is, or whose compensation's.
    pub step: Option<String>,
    /// Failed attempts at it.
    pub attempts: u32,
    /// The last error of it, or why the saga is compensated.
    pub error: Option<String>,
    /// Milliseconds since 1970.
    pub started_at: Option<u64>,
    /// When it last changed.
    pub changed_at: Option<u64>,
    /// The step must be done by then.
    pub deadline: Option<u64>,
    /// A worker has it until then, unless it asks for longer; a database does not know.
    pub held_until: Option<u64>,
    /// It goes on then; a database does not know.
    pub delayed_until: Option<u64>,
}

impl SagaSummary {
    /// Of one that nobody holds and that waits for nothing, as far as its state tells.
    pub fn new(id: &str, state: Option<&SagaState>) -> Self {
        let step = state.and_then(SagaState::current);
        Self {
            id: id.to_owned(),
            status: state.map_or("waiting", |state| state.status.word()).to_owned(),
            version: state.map_or(0, |state| state.version),
            step: step.map(|step| step.name.clone()),
            attempts: step.map_or(0, |step| step.attempts),
            error: step
                .and_then(|step| step.error.clone())
                .or_else(|| state.and_then(|state| state.error.clone())),
            started_at: state.map(|state| state.started_at),
            changed_at: state.map(|state| state.changed_at),
            deadline: step.and_then(|step| step.deadline),
            held_until: None,
            delayed_until: None,
        }
    }
}

/// A list of sagas, in no particular order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Sagas"))]
pub struct SagaList {
    /// The sagas
    pub sagas: Vec<SagaSummary>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// A saga with its steps and its data.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SagaInFull"))]
pub struct SagaDetails {
    /// The summary
    #[serde(flatten)]
    pub summary: SagaSummary,
    /// The steps, in order
    pub steps: Vec<SagaStep>,
    /// The data that steps pass to each other
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub data: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: &str, steps: &[(&str, bool, bool)]) -> SagaState {
        let steps: Vec<String> = steps
            .iter()
            .enumerate()
            .map(|(n, (status, undo, pivot))| {
                format!(r#"{{"name":"s{n}","status":"{status}","undo":{undo},"pivot":{pivot}}}"#)
            })
            .collect();
        let text = format!(
            r#"{{"malote_saga":1,"version":1,"status":"{status}","started_at":1,"changed_at":1,
                "steps":[{}],"data":{{"a":1.50}}}}"#,
            steps.join(",")
        );
        SagaState::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_next_follows_from_what_is_done() {
        let state = read("running", &[("done", true, false), ("waiting", true, false)]);
        assert_eq!(state.todo(), Todo::Step(1));
        let done = [("done", true, false), ("done", false, true), ("unsure", true, false)];
        let mut state = read("compensating", &done);
        assert_eq!(state.todo(), Todo::Undo(2));
        assert!(state.is_forward_only());
        state.steps[2].status = StepStatus::Compensated;
        // The second has no compensation.
        assert_eq!(state.todo(), Todo::Undo(0));
        assert_eq!(read("done", &done).todo(), Todo::Nothing);
    }

    #[test]
    fn data_stays_as_it_was_written() {
        let state = read("running", &[("waiting", true, false)]);
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains(r#""data":{"a":1.50}"#), "{text}");
    }

    #[test]
    fn what_is_no_saga_is_said_so() {
        for bad in ["", "[]", "{}", r#"{"malote_saga":2}"#] {
            assert!(SagaState::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
