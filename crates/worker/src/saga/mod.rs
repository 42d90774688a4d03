//! Sagas: steps that are all done or, if one cannot be done, compensated.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # #[cfg(feature = "embedded")] {
//! use malote::testing::TestBroker;
//! use malote::{Failure, Saga, SagaStatus, Step, Worker};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { seat: Option<u32>, cents: u64 }
//!
//! /// A step takes the data of the saga and returns it.
//! async fn reserve(mut order: Order) -> Result<Order, Failure> {
//!     order.seat = Some(7);
//!     Ok(order)
//! }
//! /// A compensation undoes a step. There may be nothing to undo.
//! async fn free(_order: Order) {}
//! /// The key is the same at every attempt. Pass it to services that must not do the same thing twice.
//! async fn charge(order: Order, step: Step) -> Result<Order, Failure> {
//!     assert_eq!(step.key(), "order:17:charge");
//!     Err(Failure::dead("Declined", "the card was declined"))
//! }
//!
//! let broker = TestBroker::new()?;
//! let malote = broker.malote();
//! let order = Saga::named("order").step("reserve", reserve).compensate(free).step("charge", charge).pivot();
//! malote.start_saga("order", "17", &Order { seat: None, cents: 900 }).await?;
//! broker.drain(Worker::of_saga(malote, order)).await?;
//! let saga = malote.saga("order", "17").await?.expect("finished sagas are kept for a week");
//! assert_eq!(saga.status, SagaStatus::Compensated);
//! # }
//! # Ok::<(), malote::Error>(()) }).unwrap();
//! ```
//!
//! The progress of a saga is the state of a session in the queue `saga.<name>`; the session id is the id of the saga.
//! One message of that session drives the saga. Each step ends with one settlement, which writes the new state and
//! delivers the message again. A crash therefore loses only the running attempt. A step whose effect is identified by
//! its key has the effect once.
//!
//! | file | contains |
//! |---|---|
//! | `progress.rs` | the transitions of the state, without I/O |
//! | `run.rs` | runs one step for one delivery |
//! | `step.rs` | the arguments and results of a step |
//! | `client.rs` | starts sagas and reads their state |
//! | `database.rs` | sagas in your own database |

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

use crate::handler::{BoxedHandler, Handler};
use crate::incoming::MissingState;
use crate::outcome::IntoOutcome;
use crate::retry::Retry;
use step::{BoxedCompensation, BoxedStep};

pub use client::SagaPage;
#[cfg(feature = "once")]
pub(crate) use client::start;
#[cfg(feature = "once")]
pub use database::SagaDatabase;
pub use malote_wire_native::saga::{SagaState, SagaStatus, SagaStep, SagaSummary, StepStatus};
pub use step::{FromStep, IntoData, Step};

/// The default time-out of one attempt.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a finished saga is kept by default.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// The de-duplication window for start messages.
const DEDUP_MS: u64 = 10 * 60 * 1000;

/// The steps of a saga, in order, with their compensations. `T` is the data that the steps pass on.
///
/// Settings before the first step apply to every step. Settings after a step apply to that step.
#[must_use]
pub struct Saga<T> {
    plan: SagaPlan,
    /// The settings of further steps.
    defaults: StepSettings,
    /// Each returns a type that a step needs and the worker does not have.
    required: Vec<MissingState>,
    /// The first invalid setting.
    invalid: Option<String>,
    data: PhantomData<fn(T) -> T>,
}

#[derive(Clone)]
struct StepSettings {
    retry: Retry,
    timeout: Duration,
}

/// The steps and settings of a saga.
pub(crate) struct SagaPlan {
    name: String,
    deadline: Option<Duration>,
    keep: Duration,
    steps: Vec<PlannedStep>,
}

struct PlannedStep {
    name: String,
    run: BoxedStep,
    undo: Option<BoxedCompensation>,
    pivot: bool,
    deadline: Option<Duration>,
    settings: StepSettings,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Saga<T> {
    /// A saga with this name and without steps.
    pub fn named(name: &str) -> Self {
        let (name, steps) = (name.to_owned(), Vec::new());
        let plan = SagaPlan { name, deadline: None, keep: KEEP, steps };
        let defaults = StepSettings { retry: Retry::default(), timeout: TIMEOUT };
        Self { plan, defaults, required: Vec::new(), invalid: None, data: PhantomData }
    }

    /// Remembers the first invalid setting, which the start of the worker reports.
    fn check(mut self, is_valid: bool, invalid: impl FnOnce() -> String) -> Self {
        if !is_valid && self.invalid.is_none() {
            self.invalid = Some(invalid());
        }
        self
    }

    fn change_last_step(mut self, method: &str, change: impl FnOnce(&mut PlannedStep)) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => {
                change(step);
                self
            }
            None => self.check(false, || format!("`{method}` must follow a step")),
        }
    }

    /// Adds a step: an `async fn` that takes the data, and further arguments like a handler, and returns the data.
    ///
    /// An error from `?` is retried. [`crate::Failure::dead`] means that the step had no effect and never will. Then
    /// the earlier steps are compensated.
    pub fn step<Arguments, H>(mut self, name: &str, step: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoData<T>> + Send + 'static>,
        Arguments: FromStep<T>,
    {
        self.required.push(Arguments::missing);
        let exists = self.plan.steps.iter().any(|step| step.name == name);
        let count = self.plan.steps.len();
        self.plan.steps.push(PlannedStep {
            name: name.to_owned(),
            run: step::boxed::<T, Arguments, H>(step),
            undo: None,
            pivot: false,
            deadline: None,
            settings: self.defaults.clone(),
        });
        self.check(!exists, || format!("there are two steps `{name}`: rename one"))
            .check(!name.is_empty() && name.len() <= STEP_NAME_BYTES_MAX, || {
                format!("the name of step `{name}` must have from 1 to {STEP_NAME_BYTES_MAX} bytes")
            })
            .check(count < STEPS_MAX, || format!("there are more than {STEPS_MAX} steps"))
    }

    /// The compensation of the last step: an `async fn` that takes the data. It is retried until it succeeds.
    ///
    /// A step that ran out of attempts or time may have had its effect. Its compensation runs too, and must do no harm
    /// if there is nothing to undo.
    pub fn compensate<Arguments, H>(mut self, undo: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: FromStep<T>,
    {
        self.required.push(Arguments::missing);
        self.change_last_step("compensate", |step| {
            step.undo = Some(step::boxed_compensation::<T, Arguments, H>(undo))
        })
    }

    /// Makes the last step the point of no return. Once it is done, the later steps are retried until they succeed.
    ///
    /// If an attempt at the pivot fails, its effect may be unknown. The saga then goes back only if the pivot has a
    /// compensation. Otherwise the pivot is retried until it succeeds or returns [`crate::Failure::dead`].
    pub fn pivot(self) -> Self {
        self.change_last_step("pivot", |step| step.pivot = true)
    }

    /// How often and when the last step is retried or, before the first step, every step.
    pub fn retry(mut self, retry: Retry) -> Self {
        let attempts = retry.attempts;
        match self.plan.steps.last_mut() {
            Some(step) => step.settings.retry = retry,
            None => self.defaults.retry = retry,
        }
        self.check(attempts > 0, || "the number of attempts is 0: it must be at least 1".into())
    }

    /// The time-out of one attempt of the last step or its compensation or, before the first step, of every step
    /// (default 60 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => step.settings.timeout = timeout,
            None => self.defaults.timeout = timeout,
        }
        self.check(!timeout.is_zero(), || "the time-out is 0: it must be longer".into())
    }

    /// The time limit of all attempts of the last step or, before the first step, of the whole saga. After it, the saga
    /// is compensated, unless a pivot is done.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        match self.plan.steps.last_mut() {
            Some(step) => step.deadline = Some(deadline),
            None => self.plan.deadline = Some(deadline),
        }
        self.check(!deadline.is_zero(), || "the deadline is 0: it must be longer".into())
    }

    /// How long a finished saga is kept (default one week). During this time its state can be read, and its id cannot
    /// be started again.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.plan.keep = keep;
        self
    }

    pub(crate) fn required(&self) -> Vec<MissingState> {
        self.required.clone()
    }

    pub(crate) fn queue(&self) -> String {
        queue_of(&self.plan.name)
    }

    /// The handler of the messages of the saga, or the first invalid setting.
    pub(crate) fn into_handler(self) -> Result<BoxedHandler, String> {
        let plan = self.into_plan()?;
        Ok(Arc::new(move |incoming| Box::pin(run::drive(plan.clone(), incoming))))
    }

    /// Like [`Self::into_handler`], with the sagas in a database.
    #[cfg(feature = "once")]
    pub(crate) fn into_handler_in(self, database: SagaDatabase) -> Result<BoxedHandler, String> {
        let plan = self.into_plan()?;
        Ok(Arc::new(move |incoming| {
            Box::pin(database::drive(plan.clone(), database.clone(), incoming))
        }))
    }

    fn into_plan(self) -> Result<Arc<SagaPlan>, String> {
        let name = &self.plan.name;
        if let Some(invalid) = self.invalid {
            return Err(format!("saga `{name}`: {invalid}"));
        }
        if self.plan.steps.is_empty() {
            return Err(format!("saga `{name}` has no steps: add one with `step`"));
        }
        if let Some(pivot) = self.plan.steps.iter().position(|step| step.pivot)
            && let Some(after) = self.plan.steps[pivot + 1..].iter().find(|s| s.undo.is_some())
        {
            let (step, pivot) = (&after.name, &self.plan.steps[pivot].name);
            return Err(format!(
                "saga `{name}`: step `{step}` has a compensation that never runs, because it follows the pivot \
                 `{pivot}`: remove the compensation"
            ));
        }
        Ok(Arc::new(self.plan))
    }
}

/// The specification of the queue of a saga, as far as the broker supports it. No limit may remove the message that
/// drives a saga.
pub(crate) fn queue_spec(can: &Capabilities) -> QueueSpec {
    let dedup = Dedup { window_ms: DEDUP_MS, per_session: false, content: false };
    QueueSpec {
        sessions: if can.sessions { Sessions::Dynamic } else { Sessions::None },
        failed_max: None,
        dedup: can.dedup.then_some(dedup),
        ..QueueSpec::default()
    }
}

/// The name of the queue of a saga.
pub(crate) fn queue_of(name: &str) -> String {
    format!("{QUEUE_PREFIX}{name}")
}
