//! The stored state of a saga, as JSON. Workers write it; the API, the CLI and the dashboard read it.
//!
//! In Malote it is the state of the session whose id is the saga's id, in the queue `saga.<name>`. In a database it is
//! a column. The plan is stored when a saga starts. A worker deployed later with another plan follows the stored one.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The prefix of the names of saga queues.
pub const QUEUE_PREFIX: &str = "saga.";
/// The version of this format.
pub const FORMAT: u32 = 1;
/// Maximum number of steps of one saga.
pub const STEPS_MAX: usize = 64;
/// Maximum length of the name of a step, in bytes.
pub const STEP_NAME_BYTES_MAX: usize = 64;
/// Maximum size of the data of one saga, as JSON. Together with 64 steps and their errors it fits into a session state.
pub const DATA_BYTES_MAX: usize = 128 << 10;
/// An error text is truncated to this length, in bytes.
pub const ERROR_BYTES_MAX: usize = 512;

/// The status of a saga.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum SagaStatus {
    /// Steps run one after the other.
    Running,
    /// A step failed. Completed steps are compensated in reverse order.
    Compensating,
    /// All steps are done.
    Done,
    /// All compensations are done.
    Compensated,
}

impl SagaStatus {
    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Compensating => "compensating",
            Self::Done => "done",
            Self::Compensated => "compensated",
        }
    }
}

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum StepStatus {
    /// Not completed yet; it may be running.
    Waiting,
    /// The step succeeded.
    Done,
    /// Failed for good. It had no effect, or it has no compensation.
    Failed,
    /// Failed for good, and it may have had an effect. It is compensated like a completed step.
    Unsure,
    /// Its compensation is done.
    Compensated,
}

impl StepStatus {
    /// The word in JSON.
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
    /// The name of the step, unique in the saga
    pub name: String,
    /// The status of the step
    pub status: StepStatus,
    /// Whether the step has a compensation
    #[serde(default)]
    pub undo: bool,
    /// Whether the saga can no longer be compensated after this step
    #[serde(default)]
    pub pivot: bool,
    /// Number of failed attempts of the step or, once compensation has begun, of its compensation
    #[serde(default)]
    pub attempts: u32,
    /// Number of attempts during which the worker disappeared
    #[serde(default)]
    pub lost: u32,
    /// An attempt ended without a known result and may have had an effect
    #[serde(default)]
    pub in_doubt: bool,
    /// The last error
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The deadline of the step, in milliseconds since 1970; set when the step becomes the current one
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// When the status of the step last changed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

/// The next action of a saga.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Run the step with this index.
    Step(usize),
    /// Run the compensation of the step with this index.
    Undo(usize),
    /// The saga has ended.
    Nothing,
}

/// The stored state of a saga.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SagaState {
    /// The version of this format.
    pub malote_saga: u32,
    /// Incremented by every change.
    pub version: u64,
    /// The status of the saga.
    pub status: SagaStatus,
    /// Start time in milliseconds since 1970.
    pub started_at: u64,
    /// Time of the last change in milliseconds since 1970.
    pub changed_at: u64,
    /// The deadline of the whole saga.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// Which step failed, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The steps, in order.
    pub steps: Vec<SagaStep>,
    /// The data that steps pass to each other.
    pub data: Box<RawValue>,
    /// The delivery count of the saga's message when this state was written. If the message was delivered more than
    /// once since, a worker may have crashed after a step had an effect.
    #[serde(default)]
    pub receives: u32,
    /// The failed count of the saga's message when this state was written.
    #[serde(default)]
    pub failed: u32,
    /// The saga has ended, and the message that will delete its state has been sent.
    #[serde(default)]
    pub swept: bool,
}

impl SagaState {
    /// Reads a state. The bytes need not be trusted.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let state: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if state.malote_saga != FORMAT {
            return Err(format!("unknown format {}", state.malote_saga));
        }
        if state.steps.len() > STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} steps"));
        }
        Ok(state)
    }

    /// Whether the saga has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.status, SagaStatus::Done | SagaStatus::Compensated)
    }

    /// Whether a pivot step is done: the saga can no longer be compensated.
    pub fn is_forward_only(&self) -> bool {
        self.steps.iter().any(|step| step.pivot && step.status == StepStatus::Done)
    }

    /// The next action.
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

    /// The step that runs or is compensated next.
    pub fn current(&self) -> Option<&SagaStep> {
        match self.todo() {
            Todo::Step(nth) | Todo::Undo(nth) => self.steps.get(nth),
            Todo::Nothing => None,
        }
    }
}

/// A saga in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Saga"))]
pub struct SagaSummary {
    /// The id of the saga
    pub id: String,
    /// `waiting` until a worker starts the saga
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["waiting", "running", "compensating", "done", "compensated"])))]
    pub status: String,
    /// Incremented by every change
    pub version: u64,
    /// The step that runs or is compensated next
    pub step: Option<String>,
    /// Number of failed attempts of this step
    pub attempts: u32,
    /// The last error of this step, or why the saga is compensated
    pub error: Option<String>,
    /// Start time in milliseconds since 1970
    pub started_at: Option<u64>,
    /// Time of the last change in milliseconds since 1970
    pub changed_at: Option<u64>,
    /// The deadline of this step
    pub deadline: Option<u64>,
    /// When the lease of the worker that runs the saga ends; null if the state is in a database
    pub held_until: Option<u64>,
    /// When the saga continues; null if the state is in a database
    pub delayed_until: Option<u64>,
}

impl SagaSummary {
    /// Summarizes a state, without `held_until` and `delayed_until`.
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
    /// The sagas of this page
    pub sagas: Vec<SagaSummary>,
    /// `after` of the next page
    #[serde(default)]
    pub next: Option<String>,
}

/// A saga with its steps and its data.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SagaInFull"))]
pub struct SagaDetails {
    /// The fields that a list of sagas shows as well
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
    fn the_next_action_follows_from_the_status_of_the_steps() {
        let state = read("running", &[("done", true, false), ("waiting", true, false)]);
        assert_eq!(state.todo(), Todo::Step(1));
        let done = [("done", true, false), ("done", false, true), ("unsure", true, false)];
        let mut state = read("compensating", &done);
        assert_eq!(state.todo(), Todo::Undo(2));
        assert!(state.is_forward_only());
        state.steps[2].status = StepStatus::Compensated;
        // The second step has no compensation.
        assert_eq!(state.todo(), Todo::Undo(0));
        assert_eq!(read("done", &done).todo(), Todo::Nothing);
    }

    #[test]
    fn the_digits_of_data_are_kept() {
        let state = read("running", &[("waiting", true, false)]);
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains(r#""data":{"a":1.50}"#), "{text}");
    }

    #[test]
    fn other_bytes_are_refused() {
        for bad in ["", "[]", "{}", r#"{"malote_saga":2}"#] {
            assert!(SagaState::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
