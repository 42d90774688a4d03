//! Creates and configures a worker. `running.rs` runs and stops it.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, Capability};
use malote_model::limits::RECEIVE_BATCH_MAX;
use malote_model::{QueueName, QueueSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::batch::{self, FromBatch, IntoOutcomes};
use crate::breaker::Breaker;
use crate::client::{Malote, queue_name};
use crate::handler::{self, BoxedHandler, Handler, HandlerArguments};
use crate::incoming::{MissingState, StateMap};
use crate::limiter::{Limiter, Rate};
use crate::outcome::IntoOutcome;
use crate::pool::{BatchLimits, Pool, PoolSettings, Report};
use crate::probe_lock::ProbeLock;
use crate::retry::{Backoff, Retry};
use crate::routes::{BatchHandler, Route, Routes, UnknownTypes};
use crate::running::Running;
#[cfg(feature = "once")]
use crate::saga::SagaDatabase;
use crate::saga::{self, Saga};
use crate::scale::{Bounds, Scale};

/// The default number of slots.
const SLOTS: usize = 100;
const SLOTS_MAX: usize = 100_000;
const LOCK: Duration = Duration::from_secs(30);
const LOCK_MIN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);
const STUCK_AFTER: Duration = Duration::from_secs(10);
const FETCH_WAIT: Duration = Duration::from_secs(20);
/// The time-out of a worker for sagas. The steps have their own, shorter time-outs.
const STEP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The delay of a worker for sagas after an error outside of a step.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The time limits of the phases of a shutdown. The defaults fit into the 30 seconds that Kubernetes grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Running handlers finish, and no more messages are fetched (default 24 s).
    pub drain: Duration,
    /// [`crate::Cancelled`] fires in running handlers, and they can still finish (default 3 s).
    pub cancel: Duration,
    /// Running handlers are dropped, and their messages return to the queue uncounted (default 1 s).
    pub release: Duration,
    /// The remaining settlements are sent to the broker (default 1 s).
    pub flush: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { drain: seconds(24), cancel: seconds(3), release: seconds(1), flush: seconds(1) }
    }
}

/// Runs handlers for the messages of one queue.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # #[cfg(feature = "embedded")] {
/// use malote::testing::TestBroker;
/// use malote::{Failure, QueueSpec, State, Worker};
///
/// struct Prices { cents: u64 }
///
/// async fn bill(customer: String, prices: State<Prices>) -> Result<(), Failure> {
///     println!("{customer} owes {} cents", prices.cents);
///     Ok(())
/// }
///
/// let broker = TestBroker::new()?;
/// broker.malote().declare("bills", QueueSpec::default()).await?;
/// broker.malote().send_text("bills", "ana").await?;
/// let worker = Worker::new(broker.malote(), "bills").state(Prices { cents: 900 }).handle(bill);
/// let report = broker.drain(worker).await?;
/// assert_eq!(report.counts.done, 1);
/// # }
/// # Ok::<(), malote::Error>(()) }).unwrap();
/// ```
///
/// In a program, [`Worker::run_until_signal`] runs it until Ctrl-C or SIGTERM.
///
/// A worker checks its settings when it starts. It returns an error if it has no handler, if the queue does not exist,
/// if the broker lacks a capability that it needs, or if a handler takes a [`crate::State`] that the worker does not
/// have.
pub struct Worker {
    broker: Arc<dyn Broker>,
    queue: Result<QueueName, Error>,
    settings: PoolSettings,
    shutdown: Shutdown,
    routes: Routes,
    states: StateMap,
    /// Each returns a type that a handler needs and `states` does not have.
    required: Vec<MissingState>,
    rate: Option<Rate>,
    breakers: Vec<Breaker>,
    /// For a worker of a saga: the specification of its queue, which the worker creates.
    saga: Option<QueueSpec>,
    /// The database of the sagas, if they are not in the broker.
    #[cfg(feature = "once")]
    saga_database: Option<SagaDatabase>,
    /// The first invalid setting.
    invalid: Option<String>,
}

impl Worker {
    /// A worker for this queue. The queue must exist when the worker starts.
    pub fn new(malote: &Malote, queue: &str) -> Self {
        let settings = PoolSettings {
            slots: SLOTS.into(),
            scale: Scale::default(),
            lock: LOCK,
            timeout: TIMEOUT,
            stuck_after: STUCK_AFTER,
            fetch_wait: FETCH_WAIT,
            retry: Retry::default(),
            sessions: None,
            worker_name: format!("{}", std::process::id()),
        };
        Self {
            broker: malote.broker().clone(),
            queue: queue_name(queue),
            settings,
            shutdown: Shutdown::default(),
            routes: Routes::default(),
            states: StateMap::default(),
            required: Vec::new(),
            rate: None,
            breakers: Vec::new(),
            saga: None,
            #[cfg(feature = "once")]
            saga_database: None,
            invalid: None,
        }
    }

    /// A worker that runs the steps of a saga. It creates the queue `saga.<name>` if the queue does not exist. Retries
    /// and time-outs of the steps are settings of the [`Saga`].
    pub fn of_saga<T>(malote: &Malote, saga: Saga<T>) -> Self
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (queue, required) = (saga.queue(), saga.required());
        Self::of_saga_with(malote, &queue, saga.into_handler(), required)
    }

    /// Like [`Worker::of_saga`], with the sagas in your own database. Use it for brokers without session state, and for
    /// steps that take a [`crate::Tx`] of that database. The worker also publishes the outbox of the database, because
    /// its messages wake waiting sagas.
    #[cfg(feature = "once")]
    pub fn of_saga_in<T, D>(malote: &Malote, saga: Saga<T>, database: &D) -> Self
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        D: Clone + Send + Sync + 'static,
        SagaDatabase: for<'a> From<&'a D>,
    {
        let (queue, saga_database) = (saga.queue(), SagaDatabase::from(database));
        let required = saga.required();
        let handler = saga.into_handler_in(saga_database.clone());
        let mut worker =
            Self::of_saga_with(malote, &queue, handler, required).state(database.clone());
        worker.saga_database = Some(saga_database);
        let can = malote.broker().capabilities();
        if !can.delay {
            worker.settings.retry.backoff = Backoff::None;
        }
        if !can.sessions {
            worker.settings.sessions = None;
        }
        worker
    }

    fn of_saga_with(
        malote: &Malote,
        queue: &str,
        handler: Result<BoxedHandler, String>,
        required: Vec<MissingState>,
    ) -> Self {
        let mut worker = Self::new(malote, queue).sessions(SLOTS);
        worker.required = required;
        // Failures of steps are recorded in the state of the saga, not counted for the message.
        worker.settings.retry =
            Retry { attempts: u32::MAX, lost: u32::MAX, backoff: Backoff::Fixed(RETRY_DELAY) };
        worker.settings.timeout = STEP_MAX;
        match handler {
            Ok(handler) => {
                worker.routes.set_default(Route::Single(handler));
                worker.saga = Some(saga::queue_spec(malote.broker().capabilities()));
                worker
            }
            Err(invalid) => worker.check(false, || invalid),
        }
    }

    fn has_saga_in_broker(&self) -> bool {
        #[cfg(feature = "once")]
        if self.saga_database.is_some() {
            return false;
        }
        self.saga.is_some()
    }

    fn check_no_saga(self, setting: &str) -> Self {
        let is_valid = self.saga.is_none();
        self.check(is_valid, || {
            format!("the {setting} of a worker for a saga cannot be set: set it with the `Saga`")
        })
    }

    /// Remembers the first invalid setting, which `start` reports.
    fn check(mut self, is_valid: bool, invalid: impl FnOnce() -> String) -> Self {
        if !is_valid && self.invalid.is_none() {
            self.invalid = Some(invalid());
        }
        self
    }

    /// The handler for all messages whose type has no handler of its own.
    #[must_use]
    pub fn handle<Arguments, H>(mut self, handler: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: HandlerArguments,
    {
        self.required.push(Arguments::missing);
        self.set_default(Route::Single(handler::boxed(handler)))
    }

    /// Like [`Worker::handle`], for up to `max` messages in one call. After the first message, the worker waits at most
    /// `wait` for more.
    #[must_use]
    pub fn handle_batch<Arguments, H>(mut self, handler: H, max: usize, wait: Duration) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
        Arguments: FromBatch,
    {
        self.required.push(Arguments::missing);
        let (run, limits) = (batch::boxed(handler), BatchLimits { max, wait });
        self.set_default(Route::Batch(BatchHandler { run, limits }))
    }

    fn set_default(mut self, route: Route) -> Self {
        self = self.check_no_saga("handler");
        let is_first = self.routes.set_default(route);
        self.check(is_first, || {
            "the worker has more than one handler for all messages: use `on` for further handlers"
                .into()
        })
    }

    /// The handler for messages of this type. The type is the subject or, without one, the property `type`.
    #[must_use]
    pub fn on<Arguments, H>(mut self, message_type: &str, handler: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: HandlerArguments,
    {
        self.required.push(Arguments::missing);
        self.set_for_type(message_type, Route::Single(handler::boxed(handler)))
    }

    /// Like [`Worker::on`], for up to `max` messages in one call. After the first message, the worker waits at most
    /// `wait` for more.
    #[must_use]
    pub fn on_batch<Arguments, H>(
        mut self,
        message_type: &str,
        handler: H,
        max: usize,
        wait: Duration,
    ) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
        Arguments: FromBatch,
    {
        self.required.push(Arguments::missing);
        let (run, limits) = (batch::boxed(handler), BatchLimits { max, wait });
        self.set_for_type(message_type, Route::Batch(BatchHandler { run, limits }))
    }

    fn set_for_type(mut self, message_type: &str, route: Route) -> Self {
        self = self.check_no_saga("handler");
        let is_first = self.routes.set_for_type(message_type.to_owned(), route);
        self.check(is_first, || {
            format!("the worker has more than one handler for messages of type `{message_type}`")
        })
    }

    /// What happens to messages whose type has no handler.
    #[must_use]
    pub fn unknown_types(mut self, unknown_types: UnknownTypes) -> Self {
        self.routes.unknown_types = unknown_types;
        self
    }

    /// A value that handlers can take as [`crate::State`].
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Number of concurrent handlers (default 100). A range such as `slots(2..=64)` adapts the number to the load; see
    /// [`Worker::scale`].
    #[must_use]
    pub fn slots(mut self, slots: impl Into<Bounds>) -> Self {
        let slots = slots.into();
        self.settings.slots = slots;
        self.check(1 <= slots.min && slots.min <= slots.max && slots.max <= SLOTS_MAX, || {
            format!("the number of slots is {slots}: it must be from 1 to {SLOTS_MAX}")
        })
    }

    /// When the number of slots grows and shrinks, if it is a range.
    #[must_use]
    pub fn scale(mut self, scale: Scale) -> Self {
        self.settings.scale = scale;
        self
    }

    /// Number of concurrent sessions, for queues with sessions. The messages of each session are handled in order, one
    /// at a time. A range adapts the number to the load.
    #[must_use]
    pub fn sessions(self, sessions: impl Into<Bounds>) -> Self {
        let bounds = sessions.into();
        let options = SessionOptions { max: bounds.max, ..SessionOptions::default() };
        self.with_sessions(options).slots(bounds)
    }

    /// Like [`Worker::sessions`], with all options.
    #[must_use]
    pub fn with_sessions(mut self, options: SessionOptions) -> Self {
        let max = options.max;
        self.settings.sessions = Some(SessionOptions {
            quantum: options.quantum.max(1),
            empty_receives: options.empty_receives.max(1),
            prefetch: options.prefetch.clamp(1, 1024),
            ..options
        });
        self.slots(max)
    }

    /// How often and when failed messages are retried.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        let attempts = retry.attempts;
        self = self.check_no_saga("retry");
        self.settings.retry = retry;
        self.check(attempts > 0, || "the number of attempts is 0: it must be at least 1".into())
    }

    /// The time-out of one attempt (default 60 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self = self.check_no_saga("time-out");
        self.settings.timeout = timeout;
        self.check(!timeout.is_zero(), || "the time-out is 0: it must be longer".into())
    }

    /// How long a handler may ignore its cancellation before the worker abandons it (default 10 s).
    #[must_use]
    pub fn stuck_after(mut self, time: Duration) -> Self {
        self.settings.stuck_after = time;
        self
    }

    /// The lock time of messages and sessions (default 30 s). The worker renews locks while handlers run. If the worker
    /// dies, its messages are delivered again at the latest after this time.
    #[must_use]
    pub fn lock(mut self, lock: Duration) -> Self {
        self.settings.lock = lock;
        self.check(lock >= LOCK_MIN, || {
            format!("the lock time is {lock:?}: it must be at least {LOCK_MIN:?}")
        })
    }

    /// Starts at most `max` messages in the time `per`. Other workers have their own limits.
    #[must_use]
    pub fn rate(mut self, max: u32, per: Duration) -> Self {
        self.rate = Some(Rate::new(max, per));
        self.check(max > 0 && !per.is_zero(), || {
            format!("the rate is {max} messages in {per:?}: both must be greater than 0")
        })
    }

    /// Fetches no messages while this dependency is down.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breakers.push(breaker);
        self
    }

    /// The time limits of a shutdown.
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// The name of this worker in the history of messages (default: the process id).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.worker_name = name.into();
        self
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn queue(&self) -> Result<QueueName, Error> {
        self.queue.clone()
    }

    /// The capabilities that the broker must have.
    fn needs(&self) -> Vec<Capability> {
        let mut needs = vec![Capability::DeadLetter];
        if self.has_saga_in_broker() {
            let for_sagas = [
                Capability::SessionState,
                Capability::StateWithSettle,
                Capability::Release,
                Capability::Schedule,
            ];
            needs.extend(for_sagas);
        }
        if self.settings.sessions.is_some() {
            needs.push(Capability::Sessions);
        }
        let has_backoff = !matches!(self.settings.retry.backoff, Backoff::None);
        if has_backoff || self.routes.delays_unknown_types() {
            needs.push(Capability::Delay);
        }
        if self.settings.timeout + self.settings.stuck_after > self.settings.lock {
            needs.push(Capability::Renew);
        }
        needs
    }

    /// Starts the worker. Invalid settings are an error that says what to change.
    pub async fn start(self) -> Result<Running, Error> {
        if let Some(invalid) = self.invalid {
            return Err(Error::Settings(invalid));
        }
        let queue = self.queue.clone()?;
        if self.routes.is_empty() {
            return Err(Error::Settings(format!(
                "the worker for queue `{queue}` has no handler: add one with `handle` or `on`"
            )));
        }
        for handler in self.routes.batch_handlers() {
            let BatchLimits { max, wait } = handler.limits;
            if !(1..=RECEIVE_BATCH_MAX).contains(&max) {
                return Err(Error::Settings(format!(
                    "the batch size is {max}: it must be from 1 to {RECEIVE_BATCH_MAX}"
                )));
            }
            let wait_max = self.settings.lock / 4;
            if wait > wait_max {
                return Err(Error::Settings(format!(
                    "the batch wait is {wait:?}: it must be at most {wait_max:?}, a quarter of the lock time"
                )));
            }
        }
        if let Some(name) = self.required.iter().find_map(|missing| missing(&self.states)) {
            let short = name.rsplit("::").next().unwrap_or(name);
            return Err(Error::Settings(format!(
                "a handler of the worker for queue `{queue}` takes a value of type `{name}`, but the worker has none: \
                 add one with `.state({})`",
                short.to_lowercase()
            )));
        }
        let can = self.broker.capabilities();
        can.require(&self.needs())?;
        if self.settings.sessions.is_some() {
            // Operators should know whether a retry also holds back other sessions.
            let (broker, retry_hold_scope) = (can.broker, can.retry_hold);
            tracing::info!(%queue, broker, %retry_hold_scope, "a delayed retry holds back {retry_hold_scope}");
        }
        if let Some(spec) = self.saga.as_ref().filter(|_| can.declare) {
            self.broker.declare(&queue, spec.clone()).await?;
        }
        // A missing queue, or one without sessions, is an error now and not only a line in the log.
        match self.settings.sessions {
            Some(_) => {
                let ready =
                    self.broker.accept(&queue, None, self.settings.lock, Duration::ZERO).await?;
                if let Some(source) = ready {
                    source.close().await?;
                }
            }
            None => self.broker.open(&queue, self.settings.lock).await?.close().await?,
        }
        let probe_lock = match self.breakers.is_empty() {
            true => None,
            false => {
                let probe_max = self.settings.timeout + self.settings.stuck_after;
                ProbeLock::new(&self.broker, probe_max)
            }
        };
        let limiter = Limiter::new(self.rate, self.breakers, probe_lock);
        let (broker, settings) = (self.broker, self.settings);
        let pool = Pool::start(broker, queue, settings, self.routes, self.states, limiter);
        let pool = pool.map_err(|error| {
            Error::Settings(format!("cannot start the thread that renews locks: {error}"))
        })?;
        #[cfg(feature = "once")]
        if let Some(SagaDatabase(database)) = self.saga_database {
            let malote = Malote::with_broker(pool.broker.clone());
            let stop = Box::pin(pool.phases.stop_fetching.clone().cancelled_owned());
            tokio::spawn(async move {
                if let Err(error) = database.relay(malote, stop).await {
                    tracing::error!(%error, "the outbox is not published any more; waiting sagas do not wake up");
                }
            });
        }
        Ok(Running::new(pool, self.shutdown))
    }

    /// Runs until the future `stop` completes, then shuts down.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Report, Error> {
        let mut running = self.start().await?;
        tokio::select! {
            () = stop => running.stop(),
            report = running.supervised() => return report,
        }
        running.ended().await
    }

    /// Runs until SIGINT or SIGTERM, then shuts down. A second signal stops the worker at once.
    pub async fn run_until_signal(self) -> Result<Report, Error> {
        let mut running = self.start().await?;
        let signals = |error: std::io::Error| {
            Error::Settings(format!("cannot install the signal handlers: {error}"))
        };
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
        let mut is_stopping = false;
        loop {
            tokio::select! {
                report = running.supervised() => return report,
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if is_stopping {
                running.stop_now();
            }
            running.stop();
            is_stopping = true;
        }
    }
}

/// How a worker takes and releases sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Number of concurrent sessions (default 100). Call [`Worker::slots`] afterwards to set a range.
    pub max: usize,
    /// Messages after which a session gives its slot to another ready session (default 64).
    pub quantum: u32,
    /// Time after which a session gives its slot to another ready session (default 5 s).
    pub quantum_time: Duration,
    /// How long one receive from a session without messages waits (default 20 s).
    pub receive_wait: Duration,
    /// Number of empty receives after which an idle session is released (default 3).
    pub empty_receives: u32,
    /// Time after which an idle session is released (default 60 s).
    pub idle: Duration,
    /// How long one accept waits for a ready session (default 5 s).
    pub accept_wait: Duration,
    /// Maximum number of messages of a session in one fetch (default 32).
    pub prefetch: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            max: SLOTS,
            quantum: 64,
            quantum_time: Duration::from_secs(5),
            receive_wait: Duration::from_secs(20),
            empty_receives: 3,
            idle: Duration::from_secs(60),
            accept_wait: Duration::from_secs(5),
            prefetch: 32,
        }
    }
}
