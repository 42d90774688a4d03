//! Message move tasks: `StartMessageMoveTask`, `ListMessageMoveTasks`, `CancelMessageMoveTask`.
//!
//! Tasks exist in memory only and end with the process. Messages are moved durably, one batch at a time; the others
//! stay in the source queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use malote_engine::{EngineError, MessageState, MoveItem, Peek};
use malote_model::{Action, Denied, Principal, QueueName, Refusal, Seq, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::VIEW_ACTIONS;
use super::dead_letter_sources::sources_of;
use super::{SqsQueue, check_range};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name::of_arn;
use crate::wire::shapes::{
    CancelMoveIn, CancelledOut, ListMovesIn, MoveTaskOut, MoveTasksOut, StartMoveIn, StartedOut,
};

/// Tasks kept in memory, including finished ones.
const TASKS_MAX: usize = 1000;
/// Messages moved at once.
const MOVE_BATCH_MAX: usize = 50;

/// The tasks of this process, oldest first.
#[derive(Default)]
pub struct MoveTasks {
    tasks: Mutex<Vec<Arc<MoveTask>>>,
}

struct MoveTask {
    id: String,
    queue: QueueName,
    source_arn: String,
    destination_arn: Option<String>,
    /// The caller that started it. Messages are moved only to queues that it may send to.
    caller: Principal,
    per_second: Option<u64>,
    started_at: Timestamp,
    to_move: u64,
    moved: AtomicU64,
    state: Mutex<MoveState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MoveState {
    Running,
    Cancelling,
    Cancelled,
    Completed,
    Failed(&'static str),
}

impl MoveState {
    fn word(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Cancelling => "CANCELLING",
            Self::Cancelled => "CANCELLED",
            Self::Completed => "COMPLETED",
            Self::Failed(_) => "FAILED",
        }
    }
}

impl MoveTask {
    fn state(&self) -> MoveState {
        *self.state.lock()
    }

    fn handle(&self) -> String {
        STANDARD.encode(json!({ "taskId": self.id, "sourceArn": self.source_arn }).to_string())
    }

    fn is_active(&self) -> bool {
        matches!(self.state(), MoveState::Running | MoveState::Cancelling)
    }
}

async fn by_arn(
    sqs: &Sqs,
    call: &Call,
    arn: &str,
    parameter: &str,
    action: Action,
) -> Result<SqsQueue, SqsError> {
    let missing = || {
        let text =
            format!("The resource that you specified for the {parameter} parameter doesn't exist.");
        SqsError::new(Code::ResourceNotFound, text)
    };
    match call.queue_by_name(sqs, of_arn(arn).ok_or_else(missing)?, &[action]).await {
        Err(error) if error.code == Code::QueueDoesNotExist => Err(missing()),
        found => found,
    }
}

pub async fn start(sqs: &Sqs, call: &Call, request: StartMoveIn) -> Result<StartedOut, SqsError> {
    let source_arn = request.source_arn.ok_or_else(|| SqsError::missing("SourceArn"))?;
    let rule = "Must be between 1 and 500.";
    let parameter = "MaxNumberOfMessagesPerSecond";
    let per_second =
        check_range(request.max_number_of_messages_per_second, parameter, 1..=500, rule)?;
    let source = by_arn(sqs, call, &source_arn, "SourceArn", Action::Manage).await?;
    let sources = sources_of(sqs, source.name()).await?;
    if sources.is_empty() {
        let text = "Source queue must be configured as a Dead Letter Queue.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    let to = match &request.destination_arn {
        Some(arn) => Some(by_arn(sqs, call, arn, "DestinationArn", Action::Send).await?.facts.name),
        // Messages return to the queues they came from.
        None => {
            for source in &sources {
                call.check_permission(sqs, source, &[Action::Send])?;
            }
            None
        }
    };
    let task = Arc::new(MoveTask {
        id: sqs.new_id(),
        queue: source.facts.name,
        source_arn,
        destination_arn: request.destination_arn,
        caller: call.caller.clone(),
        per_second,
        started_at: sqs.0.engine.now(),
        to_move: source.facts.ready,
        moved: AtomicU64::new(0),
        state: Mutex::new(MoveState::Running),
    });
    {
        let mut tasks = sqs.0.move_tasks.tasks.lock();
        if tasks.iter().any(|other| other.queue == task.queue && other.is_active()) {
            let text = "There is already a task running. Only one active task is allowed for a source queue \
                        arn at a given time.";
            return Err(SqsError::new(Code::InvalidParameterValue, text));
        }
        if tasks.len() >= TASKS_MAX {
            let Some(over) = tasks.iter().position(|task| !task.is_active()) else {
                return Err(SqsError::new(
                    Code::RequestThrottled,
                    "too many message move tasks are running; retry later",
                ));
            };
            tasks.remove(over);
        }
        tasks.push(task.clone());
    }
    let handle = task.handle();
    let worker = sqs.clone();
    sqs.0.tasks.spawn(async move { run(&worker, &task, to).await });
    Ok(StartedOut { task_handle: handle })
}

/// Moves the messages that are ready now, oldest first, until none is left or the task is cancelled.
async fn run(sqs: &Sqs, task: &MoveTask, to: Option<QueueName>) {
    let step = task.per_second.map_or(MOVE_BATCH_MAX, |n| MOVE_BATCH_MAX.min(n as usize));
    let mut next = Seq(0);
    let end = loop {
        if sqs.0.shutdown.is_cancelled() || task.state() == MoveState::Cancelling {
            break MoveState::Cancelled;
        }
        match move_batch(sqs, task, to.as_ref(), next, step).await {
            Ok((moved, more)) => {
                task.moved.fetch_add(moved, Ordering::Relaxed);
                let Some(more) = more else { break MoveState::Completed };
                next = more;
                if let Some(rate) = task.per_second {
                    let pause = Duration::from_secs_f64(moved as f64 / rate as f64);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = sqs.0.shutdown.cancelled() => {}
                    }
                }
            }
            Err(MoveError::Denied(denied)) => {
                tracing::warn!(queue = %task.queue, %denied, "message move task stopped: permission denied");
                break MoveState::Failed(Code::AccessDenied.query());
            }
            Err(MoveError::Engine(EngineError::Refused(Refusal::QueueNotFound { .. }))) => {
                break MoveState::Failed(Code::QueueDoesNotExist.query());
            }
            Err(MoveError::Engine(error)) => {
                tracing::warn!(queue = %task.queue, %error, "message move task failed");
                break MoveState::Failed(Code::InternalFailure.query());
            }
        }
    };
    *task.state.lock() = end;
}

enum MoveError {
    Denied(Denied),
    Engine(EngineError),
}

impl From<EngineError> for MoveError {
    fn from(error: EngineError) -> Self {
        MoveError::Engine(error)
    }
}

async fn move_batch(
    sqs: &Sqs,
    task: &MoveTask,
    to: Option<&QueueName>,
    from: Seq,
    max: usize,
) -> Result<(u64, Option<Seq>), MoveError> {
    let state = Some(MessageState::Ready);
    let peek = Peek { queue: task.queue.clone(), from, max, session: None, state };
    let (seen, next) = sqs.0.engine.peek(peek).await?;
    let items = seen.iter().filter_map(|seen| {
        let home = || seen.dead().map(|dead| dead.from.clone());
        // For its receivers, a moved message is a new message.
        let message_id = Some(sqs.new_id());
        Some(MoveItem { seq: seen.seq, to: to.cloned().or_else(home)?, message_id })
    });
    let items: Vec<_> = items.collect();
    if items.is_empty() {
        return Ok((0, next));
    }
    // Checked for every batch: permissions may change while the task runs, and messages may come from queues that no
    // longer use this one.
    for item in &items {
        let checked = sqs.0.access.check(&task.caller, Action::Send, (&item.to).into());
        checked.map_err(MoveError::Denied)?;
    }
    match sqs.0.engine.move_ready(task.queue.clone(), items.clone()).await {
        Ok(moved) => Ok((moved, next)),
        // One of them was received in the meantime, so they are moved one by one.
        Err(EngineError::Refused(Refusal::MessageNotFound { .. })) => {
            let mut moved = 0;
            for item in items {
                match sqs.0.engine.move_ready(task.queue.clone(), vec![item]).await {
                    Ok(n) => moved += n,
                    Err(EngineError::Refused(Refusal::MessageNotFound { .. })) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok((moved, next))
        }
        Err(error) => Err(error.into()),
    }
}

/// Lists tasks, the newest first.
pub async fn list(sqs: &Sqs, call: &Call, request: ListMovesIn) -> Result<MoveTasksOut, SqsError> {
    let arn = request.source_arn.ok_or_else(|| SqsError::missing("SourceArn"))?;
    let max = check_range(
        request.max_results,
        "MaxResults",
        1..=10,
        "Must be between 1 and 10, if provided.",
    )?;
    let found = match call.queue_by_name(sqs, of_arn(&arn).unwrap_or(""), VIEW_ACTIONS).await {
        Err(error) if error.code == Code::QueueDoesNotExist => {
            return Err(by_arn(sqs, call, "", "SourceArn", Action::Manage)
                .await
                .err()
                .unwrap_or(error));
        }
        found => found?,
    };
    let tasks = sqs.0.move_tasks.tasks.lock();
    let own = tasks.iter().rev().filter(|task| task.queue == *found.name());
    let results = own.take(max.unwrap_or(1) as usize).map(|task| {
        let state = task.state();
        MoveTaskOut {
            task_handle: (state == MoveState::Running).then(|| task.handle()),
            status: state.word(),
            source_arn: task.source_arn.clone(),
            destination_arn: task.destination_arn.clone(),
            max_number_of_messages_per_second: task.per_second,
            approximate_number_of_messages_moved: task.moved.load(Ordering::Relaxed),
            approximate_number_of_messages_to_move: task.to_move,
            failure_reason: match state {
                MoveState::Failed(why) => Some(why.to_owned()),
                _ => None,
            },
            started_timestamp: task.started_at.0,
        }
    });
    Ok(MoveTasksOut { results: results.collect() })
}

pub async fn cancel(
    sqs: &Sqs,
    call: &Call,
    request: CancelMoveIn,
) -> Result<CancelledOut, SqsError> {
    let text = request.task_handle.ok_or_else(|| SqsError::missing("TaskHandle"))?;
    let invalid =
        || SqsError::new(Code::InvalidParameterValue, "Value for parameter TaskHandle is invalid.");
    let decoded = STANDARD.decode(&text).map_err(|_| invalid())?;
    let handle: Value = serde_json::from_slice(&decoded).map_err(|_| invalid())?;
    let id = handle.get("taskId").and_then(Value::as_str).ok_or_else(invalid)?;
    let arn = handle.get("sourceArn").and_then(Value::as_str).ok_or_else(invalid)?;
    let source = by_arn(sqs, call, arn, "SourceArn", Action::Manage).await?;
    let missing = || SqsError::new(Code::ResourceNotFound, "MoveTask does not exist.");
    let tasks = sqs.0.move_tasks.tasks.lock();
    // The caller controls the content of the handle: the task must belong to the queue that was checked.
    let is_it = |task: &&Arc<MoveTask>| task.id == id && task.queue == *source.name();
    let task = tasks.iter().find(is_it).ok_or_else(missing)?;
    let mut state = task.state.lock();
    if *state != MoveState::Running {
        let text = "Only active tasks can be cancelled.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    *state = MoveState::Cancelling;
    let moved = task.moved.load(Ordering::Relaxed);
    Ok(CancelledOut { approximate_number_of_messages_moved: moved })
}
