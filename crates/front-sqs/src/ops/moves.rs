//! Dead-letter queues: whose they are, and tasks that move their messages on.
//!
//! A task lives in memory: it ends with the process, and what it had not moved stays where it is. What it moved, it
//! moved durably, a batch at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use malote_engine::{EngineError, MessageState, MoveItem, Peek};
use malote_model::{
    Action, DeadLetterTarget, Denied, Principal, QueueName, Refusal, Seq, Timestamp,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::queues::{LOOK, page};
use super::{Found, ranged};
use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name::of_arn;
use crate::wire::shapes::{
    CancelMoveIn, CancelledOut, ListMovesIn, MoveTaskOut, MoveTasksOut, SourcesIn, SourcesOut,
    StartMoveIn, StartedOut,
};

/// Tasks that are remembered, those that are over included.
const TASKS_MAX: usize = 1000;
/// Messages that are moved at once.
const STEP: usize = 50;

/// The tasks of this process, oldest first.
#[derive(Default)]
pub struct Moves {
    tasks: Mutex<Vec<Arc<Task>>>,
}

struct Task {
    id: String,
    queue: QueueName,
    source_arn: String,
    destination_arn: Option<String>,
    /// Who started it: each message goes only where this caller may send.
    caller: Principal,
    per_second: Option<u64>,
    started_at: Timestamp,
    to_move: u64,
    moved: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Cancelling,
    Cancelled,
    Completed,
    Failed(&'static str),
}

impl State {
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

impl Task {
    fn state(&self) -> State {
        *self.state.lock()
    }

    fn handle(&self) -> String {
        STANDARD.encode(json!({ "taskId": self.id, "sourceArn": self.source_arn }).to_string())
    }

    fn is_active(&self) -> bool {
        matches!(self.state(), State::Running | State::Cancelling)
    }
}

/// `ListDeadLetterSourceQueues`.
pub async fn sources(sqs: &Sqs, call: &Call, asked: SourcesIn) -> Result<SourcesOut, SqsError> {
    let found = call.queue(sqs, asked.queue_url.as_deref(), Action::Manage).await?;
    let sources = sources_of(sqs, found.name()).await?;
    let names = sources.iter().map(|name| name.as_str().to_owned()).collect();
    let (names, next_token) = page(names, asked.max_results, asked.next_token.as_deref())?;
    Ok(SourcesOut {
        queue_urls: names.iter().map(|name| call.place.url(name)).collect(),
        next_token,
    })
}

async fn sources_of(sqs: &Sqs, queue: &QueueName) -> Result<Vec<QueueName>, SqsError> {
    let target = DeadLetterTarget::Queue(queue.clone());
    let all = sqs.0.engine.list().await?.into_iter();
    let sources = all.filter(|facts| facts.spec.dead_letter == target);
    let mut names: Vec<QueueName> = sources.map(|facts| facts.name).collect();
    names.sort();
    Ok(names)
}

async fn by_arn(
    sqs: &Sqs,
    call: &Call,
    arn: &str,
    parameter: &str,
    action: Action,
) -> Result<Found, SqsError> {
    let missing = || {
        let text =
            format!("The resource that you specified for the {parameter} parameter doesn't exist.");
        SqsError::new(Code::ResourceNotFound, text)
    };
    match call.named(sqs, of_arn(arn).ok_or_else(missing)?, &[action]).await {
        Err(error) if error.code == Code::QueueDoesNotExist => Err(missing()),
        found => found,
    }
}

/// `StartMessageMoveTask`.
pub async fn start(sqs: &Sqs, call: &Call, asked: StartMoveIn) -> Result<StartedOut, SqsError> {
    let source_arn = asked.source_arn.ok_or_else(|| SqsError::missing("SourceArn"))?;
    let rule = "Must be between 1 and 500.";
    let parameter = "MaxNumberOfMessagesPerSecond";
    let per_second = ranged(asked.max_number_of_messages_per_second, parameter, 1..=500, rule)?;
    let source = by_arn(sqs, call, &source_arn, "SourceArn", Action::Manage).await?;
    let sources = sources_of(sqs, source.name()).await?;
    if sources.is_empty() {
        let text = "Source queue must be configured as a Dead Letter Queue.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    let to = match &asked.destination_arn {
        Some(arn) => Some(by_arn(sqs, call, arn, "DestinationArn", Action::Send).await?.facts.name),
        // They go back to the queues that they came from.
        None => {
            for source in &sources {
                call.allow(sqs, source, &[Action::Send])?;
            }
            None
        }
    };
    let task = Arc::new(Task {
        id: sqs.new_id(),
        queue: source.facts.name,
        source_arn,
        destination_arn: asked.destination_arn,
        caller: call.caller.clone(),
        per_second,
        started_at: sqs.0.engine.now(),
        to_move: source.facts.ready,
        moved: AtomicU64::new(0),
        state: Mutex::new(State::Running),
    });
    {
        let mut tasks = sqs.0.moves.tasks.lock();
        if tasks.iter().any(|other| other.queue == task.queue && other.is_active()) {
            let text = "There is already a task running. Only one active task is allowed for a source queue \
                        arn at a given time.";
            return Err(SqsError::new(Code::InvalidParameterValue, text));
        }
        if tasks.len() >= TASKS_MAX {
            let Some(over) = tasks.iter().position(|task| !task.is_active()) else {
                return Err(SqsError::new(
                    Code::RequestThrottled,
                    "too many move tasks are running",
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

/// Moves what is ready now, oldest first, until nothing is left or the task is called off.
async fn run(sqs: &Sqs, task: &Task, to: Option<QueueName>) {
    let step = task.per_second.map_or(STEP, |n| STEP.min(n as usize));
    let mut next = Seq(0);
    let end = loop {
        if sqs.0.shutdown.is_cancelled() || task.state() == State::Cancelling {
            break State::Cancelled;
        }
        match move_some(sqs, task, to.as_ref(), next, step).await {
            Ok((moved, more)) => {
                task.moved.fetch_add(moved, Ordering::Relaxed);
                let Some(more) = more else { break State::Completed };
                next = more;
                if let Some(rate) = task.per_second {
                    let pause = Duration::from_secs_f64(moved as f64 / rate as f64);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = sqs.0.shutdown.cancelled() => {}
                    }
                }
            }
            Err(Stopped::Denied(denied)) => {
                tracing::warn!(queue = %task.queue, %denied, "a message move task was stopped");
                break State::Failed(Code::AccessDenied.query());
            }
            Err(Stopped::Engine(EngineError::Refused(Refusal::QueueNotFound { .. }))) => {
                break State::Failed(Code::QueueDoesNotExist.query());
            }
            Err(Stopped::Engine(error)) => {
                tracing::warn!(queue = %task.queue, %error, "a message move task failed");
                break State::Failed(Code::InternalFailure.query());
            }
        }
    };
    *task.state.lock() = end;
}

/// Why a task cannot go on.
enum Stopped {
    Denied(Denied),
    Engine(EngineError),
}

impl From<EngineError> for Stopped {
    fn from(error: EngineError) -> Self {
        Stopped::Engine(error)
    }
}

async fn move_some(
    sqs: &Sqs,
    task: &Task,
    to: Option<&QueueName>,
    from: Seq,
    max: usize,
) -> Result<(u64, Option<Seq>), Stopped> {
    let state = Some(MessageState::Ready);
    let peek = Peek { queue: task.queue.clone(), from, max, session: None, state };
    let (seen, next) = sqs.0.engine.peek(peek).await?;
    let items = seen.iter().filter_map(|seen| {
        let home = || seen.dead().map(|dead| dead.from.clone());
        // What is moved is a new message to whoever receives it.
        let message_id = Some(sqs.new_id());
        Some(MoveItem { seq: seen.seq, to: to.cloned().or_else(home)?, message_id })
    });
    let items: Vec<_> = items.collect();
    if items.is_empty() {
        return Ok((0, next));
    }
    // Each time: grants may change while it runs, and messages may come from queues that no longer name this one.
    for item in &items {
        let checked = sqs.0.access.check(&task.caller, Action::Send, (&item.to).into());
        checked.map_err(Stopped::Denied)?;
    }
    match sqs.0.engine.move_ready(task.queue.clone(), items.clone()).await {
        Ok(moved) => Ok((moved, next)),
        // Somebody received one of them meanwhile: the others go one by one.
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

/// `ListMessageMoveTasks`: the newest first.
pub async fn list(sqs: &Sqs, call: &Call, asked: ListMovesIn) -> Result<MoveTasksOut, SqsError> {
    let arn = asked.source_arn.ok_or_else(|| SqsError::missing("SourceArn"))?;
    let max =
        ranged(asked.max_results, "MaxResults", 1..=10, "Must be between 1 and 10, if provided.")?;
    let found = match call.named(sqs, of_arn(&arn).unwrap_or(""), LOOK).await {
        Err(error) if error.code == Code::QueueDoesNotExist => {
            return Err(by_arn(sqs, call, "", "SourceArn", Action::Manage)
                .await
                .err()
                .unwrap_or(error));
        }
        found => found?,
    };
    let tasks = sqs.0.moves.tasks.lock();
    let own = tasks.iter().rev().filter(|task| task.queue == *found.name());
    let results = own.take(max.unwrap_or(1) as usize).map(|task| {
        let state = task.state();
        MoveTaskOut {
            task_handle: (state == State::Running).then(|| task.handle()),
            status: state.word(),
            source_arn: task.source_arn.clone(),
            destination_arn: task.destination_arn.clone(),
            max_number_of_messages_per_second: task.per_second,
            approximate_number_of_messages_moved: task.moved.load(Ordering::Relaxed),
            approximate_number_of_messages_to_move: task.to_move,
            failure_reason: match state {
                State::Failed(why) => Some(why.to_owned()),
                _ => None,
            },
            started_timestamp: task.started_at.0,
        }
    });
    Ok(MoveTasksOut { results: results.collect() })
}

/// `CancelMessageMoveTask`.
pub async fn cancel(sqs: &Sqs, call: &Call, asked: CancelMoveIn) -> Result<CancelledOut, SqsError> {
    let text = asked.task_handle.ok_or_else(|| SqsError::missing("TaskHandle"))?;
    let invalid =
        || SqsError::new(Code::InvalidParameterValue, "Value for parameter TaskHandle is invalid.");
    let decoded = STANDARD.decode(&text).map_err(|_| invalid())?;
    let handle: Value = serde_json::from_slice(&decoded).map_err(|_| invalid())?;
    let id = handle.get("taskId").and_then(Value::as_str).ok_or_else(invalid)?;
    let arn = handle.get("sourceArn").and_then(Value::as_str).ok_or_else(invalid)?;
    let source = by_arn(sqs, call, arn, "SourceArn", Action::Manage).await?;
    let missing = || SqsError::new(Code::ResourceNotFound, "Task does not exist.");
    let tasks = sqs.0.moves.tasks.lock();
    // The caller wrote the handle: the task must be one of the queue that was just checked.
    let is_it = |task: &&Arc<Task>| task.id == id && task.queue == *source.name();
    let task = tasks.iter().find(is_it).ok_or_else(missing)?;
    let mut state = task.state.lock();
    if *state != State::Running {
        let text = "Only active tasks can be cancelled.";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    *state = State::Cancelling;
    let moved = task.moved.load(Ordering::Relaxed);
    Ok(CancelledOut { approximate_number_of_messages_moved: moved })
}
