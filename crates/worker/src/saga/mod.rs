//! Sagas: several steps that are all done or, when one cannot be, taken back.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use malote::testing::TestBroker;
//! use malote::{Failure, Saga, SagaStatus, Step, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { seat: Option<u32>, cents: u64 }
//!
//! /// A step takes the saga's data and gives it back, changed or not.
//! async fn reserve(mut order: Order) -> Result<Order, Failure> {
//!     order.seat = Some(7);
//!     Ok(order)
//! }
//! /// It may find nothing to take back.
//! async fn free(_order: Order) {}
//! /// The key is the same at every attempt: give it to whoever must not do a thing twice.
//! async fn charge(order: Order, step: Step) -> Result<Order, Failure> {
//!     assert_eq!(step.key(), "order:17:charge");
//!     Err(Failure::dead("Declined", "the card is not good for it"))
//! }
//!
//! let broker = TestBroker::new()?;
//! let malote = broker.malote();
//! let order = Saga::named("order").step("reserve", reserve).compensate(free).step("charge", charge).pivot();
//! malote.start_saga("order", "17", &Order { seat: None, cents: 900 }).await?;
//! broker.drain(Worker::of_saga(malote, order)).await?;
//! let saga = malote.saga("order", "17").await?.expect("it is kept for a week");
//! assert_eq!(saga.status, SagaStatus::Compensated);
//! # Ok::<(), malote::Error>(()) }).unwrap();
//! ```
//!
//! Where a saga stands is the state of a session that has its id, in the queue `saga.<name>`; one message of that
//! session drives it. Each step ends with a settlement that writes the new state and brings the message again, in one:
//! a crash at any point loses nothing but the attempt that was under way, and a step whose effect is known by its key
//! has it once.
//!
//! `progress.rs` says what follows from what; it does no I/O. `run.rs` runs one step for one delivery. `step.rs` has
//! what a step can ask for, `client.rs` how sagas are started and looked at.

mod client;
#[cfg(feature = "once")]
pub(crate) mod database;
mod progress;
mod run;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod step;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use malote_connectors::Capabilities;
use malote_model::{Dedup, QueueSpec, Sessions};
use malote_wire_native::saga::{QUEUE_PREFIX, STEP_NAME_BYTES_MAX, STEPS_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handler::{Boxed, Handler};
use crate::incoming::FindMissing;
use crate::outcome::IntoOutcome;
use crate::retry::Retry;
use step::{BoxedStep, BoxedUndo};

pub use client::Sagas;
#[cfg(feature = "once")]
pub(crate) use client::start;
#[cfg(feature = "once")]
pub use database::SagaTable;
pub use malote_wire_native::saga::{SagaState, SagaStatus, SagaStep, SagaSummary, StepStatus};
pub use step::{FromStep, IntoData, Step};

/// How long one attempt may take unless it is said.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a saga that is over can be looked at, and is known not to be started again.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// A start that is sent again within this time is not even stored.
const DEDUP_MS: u64 = 10 * 60 * 1000;

/// Steps, in order, with what takes them back. `T` is the data that they hand to one another.
///
/// What is said before the first step holds for every step; after a step it holds for that step.
#[must_use]
pub struct Saga<T> {
    plan: Plan,
    /// What holds for steps to come.
    all: StepSettings,
    /// Finds values that its steps need and its worker was not given.
    required: Vec<FindMissing>,
    /// The first thing that was wrong with what it was told.
    wrong: Option<String>,
    of: PhantomData<fn(T) -> T>,
}

#[derive(Clone)]
struct StepSettings {
    retry: Retry,
    timeout: Duration,
}

/// A saga, checked and complete.
pub(crate) struct Plan {
    name: String,
    deadline: Option<Duration>,
    keep: Duration,
    steps: Vec<PlannedStep>,
}

struct PlannedStep {
    name: String,
    run: BoxedStep,
    undo: Option<BoxedUndo>,
    pivot: bool,
    deadline: Option<Duration>,
    settings: StepSettings,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Saga<T> {
    /// A saga without steps.
    pub fn named(name: &str) -> Self {
        let (name, steps) = (name.to_owned(), Vec::new());
        let plan = Plan { name, deadline: None, keep: KEEP, steps };
        let all = StepSettings { retry: Retry::default(), timeout: TIMEOUT };
        Self { plan, all, required: Vec::new(), wrong: None, of: PhantomData }
    }

    fn check(mut self, right: bool, wrong: impl FnOnce() -> String) -> Self {
        if !right && self.wrong.is_none() {
            self.wrong = Some(wrong());
        }
        self
    }

    /// Changes the last step.
    fn last(mut self, what: &str, change: impl FnOnce(&mut PlannedStep)) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => {
                change(step);
                self
            }
            None => self.check(false, || format!("{what} belongs behind a step")),
        }
    }

    /// The next step: an `async fn` that takes the data, and whatever else a handler can ask for, and gives it back.
    ///
    /// `?` means "try again"; [`crate::Failure::dead`] means that it did nothing and never will: what was done before
    /// is taken back.
    pub fn step<Arguments, H>(mut self, name: &str, step: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoData<T>> + Send + 'static>,
        Arguments: FromStep<T>,
    {
        self.required.push(Arguments::missing);
        let twice = self.plan.steps.iter().any(|step| step.name == name);
        let count = self.plan.steps.len();
        self.plan.steps.push(PlannedStep {
            name: name.to_owned(),
            run: step::boxed::<T, Arguments, H>(step),
            undo: None,
            pivot: false,
            deadline: None,
            settings: self.all.clone(),
        });
        self.check(!twice, || format!("there are two steps `{name}`"))
            .check(!name.is_empty() && name.len() <= STEP_NAME_BYTES_MAX, || {
                format!("a step's name has from 1 to {STEP_NAME_BYTES_MAX} bytes: `{name}`")
            })
            .check(count < STEPS_MAX, || format!("a saga has at most {STEPS_MAX} steps"))
    }

    /// What takes the last step back: an `async fn` that takes the data. It is tried until it succeeds.
    ///
    /// A step that ran out of attempts or time may have had its effect or not: its compensation runs, too, and must do
    /// no harm where there is nothing to take back.
    pub fn compensate<Arguments, H>(mut self, undo: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: FromStep<T>,
    {
        self.required.push(Arguments::missing);
        self.last("a compensation", |step| {
            step.undo = Some(step::boxed_undo::<T, Arguments, H>(undo))
        })
    }

    /// Once the last step is done there is no way back: what follows is tried until it succeeds.
    ///
    /// While nobody knows whether it is done, there is a way back only if it has a compensation. Without one it is
    /// tried until it says yes or, with [`crate::Failure::dead`], no.
    pub fn pivot(self) -> Self {
        self.last("a pivot", |step| step.pivot = true)
    }

    /// How failures of the last step are followed; of every step if it is said before the first one.
    pub fn retry(mut self, retry: Retry) -> Self {
        let attempts = retry.attempts;
        match self.plan.steps.last_mut() {
            Some(step) => step.settings.retry = retry,
            None => self.all.retry = retry,
        }
        self.check(attempts > 0, || "a step needs at least one attempt".into())
    }

    /// How long one attempt of the last step, or of its compensation, may take; of every step if it is said before the
    /// first one. A minute unless it is said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => step.settings.timeout = timeout,
            None => self.all.timeout = timeout,
        }
        self.check(!timeout.is_zero(), || "an attempt needs some time".into())
    }

    /// The last step must be done within so long of its turn, all its attempts included; said before the first step,
    /// the whole saga within so long of its start. What is late is taken back, unless a pivot is done.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => step.deadline = Some(deadline),
            None => self.plan.deadline = Some(deadline),
        }
        self.check(!deadline.is_zero(), || "a deadline must be in the future".into())
    }

    /// How long a saga that is over can be looked at, and is not started again by the same id: a week unless it is
    /// said.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.plan.keep = keep;
        self
    }

    pub(crate) fn required(&self) -> Vec<FindMissing> {
        self.required.clone()
    }

    pub(crate) fn queue(&self) -> String {
        prefixed(&self.plan.name)
    }

    /// What handles its messages, or what is wrong with it.
    pub(crate) fn into_handler(self) -> Result<Boxed, String> {
        let plan = self.into_plan()?;
        Ok(Arc::new(move |incoming| Box::pin(run::drive(plan.clone(), incoming))))
    }

    /// The same, with sagas in a database.
    #[cfg(feature = "once")]
    pub(crate) fn into_handler_in(self, table: SagaTable) -> Result<Boxed, String> {
        let plan = self.into_plan()?;
        Ok(Arc::new(move |incoming| {
            Box::pin(database::drive(plan.clone(), table.clone(), incoming))
        }))
    }

    fn into_plan(self) -> Result<Arc<Plan>, String> {
        let name = &self.plan.name;
        if let Some(wrong) = self.wrong {
            return Err(format!("saga `{name}`: {wrong}"));
        }
        if self.plan.steps.is_empty() {
            return Err(format!("saga `{name}` has no steps"));
        }
        if let Some(pivot) = self.plan.steps.iter().position(|step| step.pivot)
            && let Some(after) = self.plan.steps[pivot + 1..].iter().find(|s| s.undo.is_some())
        {
            let (step, pivot) = (&after.name, &self.plan.steps[pivot].name);
            return Err(format!(
                "saga `{name}`: step `{step}` can never be compensated: it follows the pivot `{pivot}`"
            ));
        }
        Ok(Arc::new(self.plan))
    }
}

/// The queue of a saga, as far as the broker can: a session for each, and no limit that would take the message that
/// drives one away.
pub(crate) fn spec(can: &Capabilities) -> QueueSpec {
    let dedup = Dedup { window_ms: DEDUP_MS, per_session: false, content: false };
    QueueSpec {
        sessions: if can.sessions { Sessions::Dynamic } else { Sessions::None },
        failed_max: None,
        dedup: can.dedup.then_some(dedup),
        ..QueueSpec::default()
    }
}

/// The queue of sagas of this name.
pub(crate) fn prefixed(name: &str) -> String {
    format!("{QUEUE_PREFIX}{name}")
}
