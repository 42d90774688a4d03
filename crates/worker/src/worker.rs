//! How a worker is made, run and stopped.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{Broker, Capability};
use malote_model::limits::RECEIVE_BATCH_MAX;
use malote_model::{QueueName, QueueSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::batch::{self, FromBatch, IntoOutcomes};
use crate::breaker::Breaker;
use crate::client::{Malote, name};
use crate::dispatch::{Batching, Route, Routes, Unknown};
use crate::fleet::Fleet;
use crate::gate::{Gate, Rate};
use crate::handler::{self, Boxed, FromDeliveryAll, Handler};
use crate::incoming::{FindMissing, Shared};
use crate::metrics::Metrics;
use crate::outcome::IntoOutcome;
use crate::pool::{Counts, Gathers, Pool, Report, SessionSettings, Settings};
use crate::retry::{Backoff, Retry};
#[cfg(feature = "once")]
use crate::saga::SagaTable;
use crate::saga::{self, Saga};
use crate::scale::{Bounds, Scale};

/// Handlers at once unless it is said otherwise.
const SLOTS: usize = 100;
const SLOTS_MAX: usize = 100_000;
const LOCK: Duration = Duration::from_secs(30);
const LOCK_MIN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);
const STUCK_AFTER: Duration = Duration::from_secs(10);
const FETCH_WAIT: Duration = Duration::from_secs(20);
/// Steps of a saga have limits of their own, which are never longer.
const STEP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// What goes wrong around a step, and is no failure of it, is tried again after so long.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long each phase of an end may take; together they stay below the 30 seconds of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Running handlers finish; nothing new is taken.
    pub drain: Duration,
    /// Handlers are told, by [`crate::Cancelled`], and may still finish.
    pub cancel: Duration,
    /// What still runs is dropped, and its messages go back uncounted.
    pub release: Duration,
    /// What was decided is told to the broker.
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
/// In a program, [`Worker::run_until_signal`] runs it until Ctrl-C or SIGTERM. A worker that cannot work is refused
/// when it starts: without a handler, without its queue, or without a value that a handler takes as
/// [`crate::State`].
pub struct Worker {
    broker: Arc<dyn Broker>,
    queue: Result<QueueName, Error>,
    settings: Settings,
    shutdown: Shutdown,
    routes: Routes,
    shared: Shared,
    /// Finds values that its handlers need and `shared` does not have.
    required: Vec<FindMissing>,
    rate: Option<Rate>,
    breakers: Vec<Breaker>,
    /// It runs a saga: its queue, which is made where it is missing.
    saga: Option<QueueSpec>,
    /// Where its sagas are, unless they are in the broker.
    #[cfg(feature = "once")]
    table: Option<SagaTable>,
    /// The first thing that was wrong with what it was told.
    wrong: Option<String>,
}

impl Worker {
    /// For this queue, which must exist when it starts.
    pub fn new(malote: &Malote, queue: &str) -> Self {
        let settings = Settings {
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
            queue: name(queue),
            settings,
            shutdown: Shutdown::default(),
            routes: Routes::default(),
            shared: Shared::default(),
            required: Vec::new(),
            rate: None,
            breakers: Vec::new(),
            saga: None,
            #[cfg(feature = "once")]
            table: None,
            wrong: None,
        }
    }

    /// Runs the steps of a saga. Its queue, `saga.<name>`, is made where it is missing; how steps are retried and how
    /// long they may take is said with the [`Saga`].
    pub fn of_saga<T>(malote: &Malote, saga: Saga<T>) -> Self
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (queue, required) = (saga.queue(), saga.required());
        Self::of_saga_with(malote, &queue, saga.into_handler(), required)
    }

    /// The same with sagas in a database of yours: for brokers whose sessions have no state, and for steps that ask for
    /// a [`crate::Tx`] of it. The worker publishes the outbox of that database, which wakes sagas that wait.
    #[cfg(feature = "once")]
    pub fn of_saga_in<T, D>(malote: &Malote, saga: Saga<T>, database: &D) -> Self
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        D: Clone + Send + Sync + 'static,
        SagaTable: for<'a> From<&'a D>,
    {
        let (queue, table) = (saga.queue(), SagaTable::from(database));
        let required = saga.required();
        let handler = saga.into_handler_in(table.clone());
        let mut worker =
            Self::of_saga_with(malote, &queue, handler, required).state(database.clone());
        worker.table = Some(table);
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
        handler: Result<Boxed, String>,
        required: Vec<FindMissing>,
    ) -> Self {
        let mut worker = Self::new(malote, queue).sessions(SLOTS);
        worker.required = required;
        // What fails is written into the saga's state and put off, never counted on its message.
        worker.settings.retry =
            Retry { attempts: u32::MAX, lost: u32::MAX, backoff: Backoff::Fixed(RETRY_DELAY) };
        worker.settings.timeout = STEP_MAX;
        match handler {
            Ok(handler) => {
                worker.routes.any(Route::One(handler));
                worker.saga = Some(saga::spec(malote.broker().capabilities()));
                worker
            }
            Err(wrong) => worker.check(false, || wrong),
        }
    }

    /// Whether its sagas are in the broker.
    fn has_saga_in_broker(&self) -> bool {
        #[cfg(feature = "once")]
        if self.table.is_some() {
            return false;
        }
        self.saga.is_some()
    }

    fn not_of_saga(self, what: &str) -> Self {
        let right = self.saga.is_none();
        self.check(right, || format!("{what} of a saga is said with the saga, not with its worker"))
    }

    fn check(mut self, right: bool, wrong: impl FnOnce() -> String) -> Self {
        if !right && self.wrong.is_none() {
            self.wrong = Some(wrong());
        }
        self
    }

    /// A handler for every message that has no handler of its own.
    #[must_use]
    pub fn handle<Arguments, H>(mut self, handler: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: FromDeliveryAll,
    {
        self.required.push(Arguments::missing);
        self.for_all(Route::One(handler::boxed(handler)))
    }

    /// The same, for up to `max` messages at once. Once one is there, others are waited for, but not for longer than
    /// `wait`.
    #[must_use]
    pub fn handle_batch<Arguments, H>(mut self, handler: H, max: usize, wait: Duration) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
        Arguments: FromBatch,
    {
        self.required.push(Arguments::missing);
        let (run, gathers) = (batch::boxed(handler), Gathers { max, wait });
        self.for_all(Route::Batch(Batching { run, gathers }))
    }

    fn for_all(mut self, route: Route) -> Self {
        self = self.not_of_saga("what is done with a message");
        let first = self.routes.any(route);
        self.check(first, || "a worker has one handler for all: give others a subject".into())
    }

    /// A handler for messages of this type: their subject, or the property `type`.
    #[must_use]
    pub fn on<Arguments, H>(mut self, kind: &str, handler: H) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
        Arguments: FromDeliveryAll,
    {
        self.required.push(Arguments::missing);
        self.for_type(kind, Route::One(handler::boxed(handler)))
    }

    /// The same, for up to `max` messages at once. Once one is there, others are waited for, but not for longer than
    /// `wait`.
    #[must_use]
    pub fn on_batch<Arguments, H>(
        mut self,
        kind: &str,
        handler: H,
        max: usize,
        wait: Duration,
    ) -> Self
    where
        H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
        Arguments: FromBatch,
    {
        self.required.push(Arguments::missing);
        let (run, gathers) = (batch::boxed(handler), Gathers { max, wait });
        self.for_type(kind, Route::Batch(Batching { run, gathers }))
    }

    fn for_type(mut self, kind: &str, route: Route) -> Self {
        self = self.not_of_saga("what is done with a message");
        let first = self.routes.on(kind.to_owned(), route);
        self.check(first, || format!("there are two handlers for `{kind}`"))
    }

    /// What becomes of messages whose type no handler knows.
    #[must_use]
    pub fn unknown(mut self, unknown: Unknown) -> Self {
        self.routes.unknown = unknown;
        self
    }

    /// A value that handlers can ask for as [`crate::State`].
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.shared.insert(value);
        self
    }

    /// Handlers at once; 100 unless it is said. From how many to how many, as in `slots(2..=64)`, lets them follow
    /// what there is to do; see [`Worker::scale`].
    #[must_use]
    pub fn slots(mut self, slots: impl Into<Bounds>) -> Self {
        let slots = slots.into();
        self.settings.slots = slots;
        self.check(1 <= slots.min && slots.min <= slots.max && slots.max <= SLOTS_MAX, || {
            format!("slots must be from 1 to {SLOTS_MAX}, not {slots}")
        })
    }

    /// When slots become more and when fewer, if there is anything to choose.
    #[must_use]
    pub fn scale(mut self, scale: Scale) -> Self {
        self.settings.scale = scale;
        self
    }

    /// Sessions at once, each in order: for queues with sessions. A number, or from how many to how many.
    #[must_use]
    pub fn sessions(self, sessions: impl Into<Bounds>) -> Self {
        let bounds = sessions.into();
        self.with_sessions(Sessions { max: bounds.max, ..Sessions::default() }).slots(bounds)
    }

    /// The same, with every knob.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Sessions) -> Self {
        let Sessions {
            max,
            quantum,
            quantum_time,
            receive_wait,
            empty_receives,
            idle,
            accept_wait,
            prefetch,
        } = sessions;
        self.settings.sessions = Some(SessionSettings {
            quantum: quantum.max(1),
            quantum_time,
            receive_wait,
            empty_receives: empty_receives.max(1),
            idle,
            accept_wait,
            prefetch: prefetch.clamp(1, 1024),
        });
        self.slots(max)
    }

    /// How failures are followed.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        let attempts = retry.attempts;
        self = self.not_of_saga("how a step is retried");
        self.settings.retry = retry;
        self.check(attempts > 0, || "a message needs at least one attempt".into())
    }

    /// How long one attempt may take; a minute unless it is said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self = self.not_of_saga("how long a step may take");
        self.settings.timeout = timeout;
        self.check(!timeout.is_zero(), || "an attempt needs some time".into())
    }

    /// How long a handler may ignore that it was cancelled before its slot goes on without it.
    #[must_use]
    pub fn stuck_after(mut self, time: Duration) -> Self {
        self.settings.stuck_after = time;
        self
    }

    /// How long a lock lasts unless it is renewed, which happens by itself; half a minute unless it is said.
    #[must_use]
    pub fn lock(mut self, lock: Duration) -> Self {
        self.settings.lock = lock;
        self.check(lock >= LOCK_MIN, || "a lock must last at least a second".into())
    }

    /// At most so many messages begin in a time, in this worker.
    #[must_use]
    pub fn rate(mut self, max: u32, per: Duration) -> Self {
        self.rate = Some(Rate::new(max, per));
        self.check(max > 0 && !per.is_zero(), || "a rate needs a number and a time".into())
    }

    /// Takes no messages while this dependency is down.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breakers.push(breaker);
        self
    }

    /// How long each phase of an end may take.
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// How it calls itself in a message's history; the number of its process unless it is said.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.worker_name = name.into();
        self
    }

    /// Whose messages it handles.
    #[cfg(feature = "embedded")]
    pub(crate) fn queue(&self) -> Result<QueueName, Error> {
        self.queue.clone()
    }

    /// What it needs of its broker.
    fn needs(&self) -> Vec<Capability> {
        let mut needs = vec![Capability::DeadLetter];
        if self.has_saga_in_broker() {
            let of_saga = [
                Capability::SessionState,
                Capability::StateWithSettle,
                Capability::Release,
                Capability::Schedule,
            ];
            needs.extend(of_saga);
        }
        if self.settings.sessions.is_some() {
            needs.push(Capability::Sessions);
        }
        let waits = self.routes.may_wait() || !matches!(self.settings.retry.backoff, Backoff::None);
        if waits {
            needs.push(Capability::Delay);
        }
        if self.settings.timeout + self.settings.stuck_after > self.settings.lock {
            needs.push(Capability::Renew);
        }
        needs
    }

    /// Starts it. What cannot work is refused now, with what to change.
    pub async fn start(self) -> Result<Running, Error> {
        if let Some(wrong) = self.wrong {
            return Err(Error::Settings(wrong));
        }
        let queue = self.queue.clone()?;
        if self.routes.is_empty() {
            return Err(Error::Settings(format!("the worker of `{queue}` has no handler")));
        }
        for batch in self.routes.batches() {
            let Gathers { max, wait } = batch.gathers;
            if !(1..=RECEIVE_BATCH_MAX).contains(&max) {
                let wrong =
                    format!("a batch has from 1 to {RECEIVE_BATCH_MAX} messages, not {max}");
                return Err(Error::Settings(wrong));
            }
            if wait > self.settings.lock / 4 {
                let most = self.settings.lock / 4;
                let wrong = format!(
                    "a batch waits for at most a quarter of the lock, {most:?}, not {wait:?}"
                );
                return Err(Error::Settings(wrong));
            }
        }
        if let Some(name) = self.required.iter().find_map(|missing| missing(&self.shared)) {
            let short = name.rsplit("::").next().unwrap_or(name);
            return Err(Error::Settings(format!(
                "a handler of the worker of `{queue}` needs a value of type `{name}`, and the worker has none: \
                 give it one with `.state({})`",
                short.to_lowercase()
            )));
        }
        let can = self.broker.capabilities();
        can.require(&self.needs())?;
        if self.settings.sessions.is_some() {
            // Other sessions may wait, too: whoever runs it should know.
            let (broker, retry_hold_scope) = (can.broker, can.retry_hold);
            tracing::info!(%queue, broker, %retry_hold_scope, "a delayed retry holds back {retry_hold_scope}");
        }
        if let Some(spec) = self.saga.as_ref().filter(|_| can.declare) {
            self.broker.declare(&queue, spec.clone()).await?;
        }
        // A queue that is not there, or has no sessions, is found now and not in a log.
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
        let fleet = match self.breakers.is_empty() {
            true => None,
            false => {
                let try_max = self.settings.timeout + self.settings.stuck_after;
                Fleet::of(&self.broker, try_max)
            }
        };
        let gate = Gate::new(self.rate, self.breakers, fleet);
        let (broker, settings) = (self.broker, self.settings);
        let pool = Pool::start(broker, queue, settings, self.routes, self.shared, gate)
            .map_err(|error| Error::Settings(format!("a thread cannot be started: {error}")))?;
        #[cfg(feature = "once")]
        if let Some(SagaTable(table)) = self.table {
            let (malote, quiet) = (Malote::over(pool.broker.clone()), pool.phases.quiet.clone());
            tokio::spawn(async move {
                let stop = Box::pin(quiet.cancelled_owned());
                if let Err(error) = table.relay(malote, stop).await {
                    tracing::error!(%error, "sagas that wait are not woken: the outbox is not published");
                }
            });
        }
        let (stop, now) = (CancellationToken::new(), CancellationToken::new());
        let ended = tokio::spawn(supervise(pool.clone(), self.shutdown, stop.clone(), now.clone()));
        Ok(Running { pool, stop, now, ended })
    }

    /// Runs until `stop` is over, then ends in order.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Report, Error> {
        let mut running = self.start().await?;
        tokio::select! {
            () = stop => running.stop(),
            ended = &mut running.ended => return joined(ended),
        }
        running.ended().await
    }

    /// Runs until SIGINT or SIGTERM, then ends in order; a second signal ends it at once.
    pub async fn run_until_signal(self) -> Result<Report, Error> {
        let mut running = self.start().await?;
        let signals = |error: std::io::Error| Error::Settings(format!("no signals: {error}"));
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
        let mut asked = false;
        loop {
            tokio::select! {
                ended = &mut running.ended => return joined(ended),
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if asked {
                running.stop_now();
            }
            running.stop();
            asked = true;
        }
    }
}

/// How sessions are taken and let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// So many at once; [`Worker::slots`] after it says from how many to how many.
    pub max: usize,
    /// A session that has had so many messages handled …
    pub quantum: u32,
    /// … or so much time makes way, if another one is ready.
    pub quantum_time: Duration,
    /// How long one receive of a session without messages waits.
    pub receive_wait: Duration,
    /// After so many of them in a row …
    pub empty_receives: u32,
    /// … or so long without a message it is let go.
    pub idle: Duration,
    /// How long one accept waits while no session is ready.
    pub accept_wait: Duration,
    /// Messages of a session fetched at once.
    pub prefetch: u32,
}

impl Default for Sessions {
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

/// A worker that runs. Dropping it stops it without waiting.
pub struct Running {
    pool: Arc<Pool>,
    stop: CancellationToken,
    now: CancellationToken,
    ended: JoinHandle<Result<Report, Error>>,
}

impl Running {
    /// Begins its end: nothing new is taken.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Does not wait for handlers: they are dropped, and their messages go back uncounted.
    pub fn stop_now(&self) {
        self.now.cancel();
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.ended.is_finished()
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> Result<Report, Error> {
        joined((&mut self.ended).await)
    }

    /// What became of messages so far.
    pub fn counts(&self) -> Counts {
        self.pool.counts.read()
    }

    /// How it does, as numbers: counts, slots, times, breakers.
    pub fn metrics(&self) -> Metrics {
        self.pool.metrics()
    }

    /// A way to the same numbers, for whoever serves them.
    pub fn observer(&self) -> impl Fn() -> Metrics + Send + Sync + use<> {
        let pool = self.pool.clone();
        move || pool.metrics()
    }

    /// Handlers that may run at once now.
    pub fn slots(&self) -> usize {
        self.pool.metrics().slots
    }

    /// Slots that have something to do now.
    pub fn busy(&self) -> usize {
        self.pool.counts.busy_and_idle().0
    }

    /// Slots that hold a session without messages.
    pub fn idle(&self) -> usize {
        self.pool.counts.busy_and_idle().1
    }

    /// Waits until the broker has heard of all that was decided so far.
    pub async fn flushed(&self) {
        self.pool.flushed().await;
    }

    /// Whether it takes messages: not while it ends, a breaker is open or it was asked to slow down.
    pub fn is_taking(&self) -> bool {
        !self.pool.phases.quiet.is_cancelled() && self.pool.gate.closed_for().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.now.cancel();
    }
}

fn joined(ended: Result<Result<Report, Error>, tokio::task::JoinError>) -> Result<Report, Error> {
    ended.unwrap_or_else(|error| Err(Error::Settings(format!("the worker broke: {error}"))))
}

/// Quiet, drain, cancel, release, flush.
async fn supervise(
    pool: Arc<Pool>,
    shutdown: Shutdown,
    stop: CancellationToken,
    now: CancellationToken,
) -> Result<Report, Error> {
    tokio::select! {
        () = stop.cancelled() => {}
        () = now.cancelled() => {}
        () = pool.hopeless.cancelled() => now.cancel(),
    }
    pool.phases.quiet.cancel();
    let drained = async |time: Duration| {
        let done = now.run_until_cancelled(tokio::time::timeout(time, pool.done())).await;
        matches!(done, Some(Ok(())))
    };
    if !drained(shutdown.drain).await {
        pool.phases.cancel.cancel();
        if !drained(shutdown.cancel).await {
            pool.phases.stop.cancel();
            let _ = tokio::time::timeout(shutdown.release, pool.done()).await;
        }
    }
    if tokio::time::timeout(shutdown.flush, pool.flushed()).await.is_err() {
        tracing::warn!(queue = %pool.queue, "the broker did not take all outcomes in time: those messages come again");
    }
    let report = Report { counts: pool.counts.read(), stuck: pool.counts.stuck() };
    if pool.hopeless.is_cancelled() {
        return Err(Error::Stuck { stuck: report.stuck });
    }
    Ok(report)
}
