//! Runs a worker: slots that fetch messages, call handlers and settle.
//!
//! | file | contains |
//! |---|---|
//! | `sessionless.rs`, `prefetch.rs` | slots of a queue without sessions, and the messages fetched for them |
//! | `sessions.rs` | slots of a queue with sessions |
//! | `run.rs`, `batch.rs` | calls a handler with one message or with several |
//! | `settle.rs` | sends settlements to the broker, in batches |
//! | `lock_renewal.rs` | renews locks, on its own thread |
//! | `isolation.rs` | handles a message alone that may have crashed workers |
//! | `autoscale.rs` | adapts the number of slots to the load |
//!
//! These are bounded: running handlers (slots), fetched messages (a batch and a few more for each slot, or a prefetch
//! for each session), pending settlements, and handlers that ignore their cancellation (as many as slots; then the
//! worker ends).

mod autoscale;
mod batch;
mod isolation;
mod lock_renewal;
mod prefetch;
mod run;
mod sessionless;
mod sessions;
mod settle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Source};
use malote_model::QueueName;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{DoublingPause, millis};
use crate::incoming::StateMap;
use crate::limiter::Limiter;
use crate::metrics::{BreakerMetrics, DurationRecorder, Metrics};
use crate::retry::Retry;
use crate::routes::Routes;
use crate::scale::{Bounds, Scale};
use crate::stderr;
use crate::worker::SessionOptions;
use autoscale::SlotCount;
use isolation::Isolation;
pub(crate) use lock_renewal::Lock;
use lock_renewal::LockRenewal;
pub(crate) use prefetch::BatchLimits;
use settle::SettlementQueue;

/// Pauses after a call of the broker failed.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) fn broker_pause() -> DoublingPause {
    DoublingPause::new(PAUSE_FIRST, PAUSE_MAX)
}

/// The settings of a worker, checked and complete.
pub(crate) struct PoolSettings {
    pub slots: Bounds,
    pub scale: Scale,
    pub lock: Duration,
    pub timeout: Duration,
    pub stuck_after: Duration,
    pub fetch_wait: Duration,
    pub retry: Retry,
    pub sessions: Option<SessionOptions>,
    pub worker_name: String,
}

/// The phases of a shutdown, in this order.
#[derive(Default)]
pub(crate) struct ShutdownPhases {
    /// No message is fetched any more.
    pub stop_fetching: CancellationToken,
    /// `Cancelled` fires in running handlers.
    pub cancel_handlers: CancellationToken,
    /// Running handlers are dropped.
    pub drop_handlers: CancellationToken,
}

/// State shared by all slots of a worker.
pub(crate) struct Pool {
    pub broker: Arc<dyn Broker>,
    pub queue: QueueName,
    pub settings: PoolSettings,
    pub routes: Routes,
    pub states: Arc<StateMap>,
    pub phases: ShutdownPhases,
    pub limiter: Limiter,
    pub counts: Counters,
    /// Every slot, and every isolated message of a queue without sessions.
    pub tasks: TaskTracker,
    /// Fires when every slot has a handler that ignores its cancellation.
    pub all_stuck: CancellationToken,
    slots: SlotCount,
    locks: LockRenewal,
    settlements: SettlementQueue,
    isolation: Isolation,
    /// Moving average of the time that handlers take for a message of a session.
    handling_us: AtomicU64,
}

impl Pool {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        settings: PoolSettings,
        routes: Routes,
        states: StateMap,
        limiter: Limiter,
    ) -> std::io::Result<Arc<Self>> {
        let counts = Counters::default();
        let locks =
            LockRenewal::start(broker.clone(), queue.clone(), settings.lock, counts.clone())?;
        let settlements =
            SettlementQueue::start(broker.clone(), queue.clone(), settings.lock, counts.clone());
        let slots = settings.slots;
        let pool = Arc::new(Self {
            broker,
            queue,
            settings,
            routes,
            states: Arc::new(states),
            phases: ShutdownPhases::default(),
            limiter,
            counts,
            tasks: TaskTracker::new(),
            all_stuck: CancellationToken::new(),
            slots: SlotCount::new(slots.min),
            locks,
            settlements,
            isolation: Isolation::new(),
            handling_us: AtomicU64::new(0),
        });
        let prefetch = match &pool.settings.sessions {
            Some(_) => {
                pool.start_session_slots();
                None
            }
            None => Some(sessionless::start(&pool)),
        };
        if !slots.is_fixed() {
            pool.tasks.spawn(autoscale::run(pool.clone(), prefetch));
        }
        Ok(pool)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let (busy, idle) = self.counts.busy_and_idle();
        let breakers = self
            .limiter
            .breakers()
            .into_iter()
            .map(|(dependency, state)| BreakerMetrics { dependency: dependency.to_owned(), state });
        Metrics {
            queue: self.queue.as_str().to_owned(),
            counts: self.counts.read(),
            times: self.counts.durations.read(),
            renewed: self.counts.renewed.load(Ordering::Relaxed),
            slots: self.slots.wanted(),
            busy,
            idle,
            stuck: self.counts.stuck(),
            taking: self.is_fetching(),
            breakers: breakers.collect(),
            hold: self.limiter.scale_blocker(),
            scaled: self.slots.target(),
        }
    }

    pub(crate) fn is_fetching(&self) -> bool {
        !self.phases.stop_fetching.is_cancelled() && self.limiter.blocked_for().is_none()
    }

    /// Waits until every slot has ended.
    pub(crate) async fn slots_ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits until the settlements so far are sent, and their sessions released.
    pub(crate) async fn flushed(&self) {
        self.settlements.flushed().await;
    }

    /// The next session that becomes ready within `wait`. Retries while the broker fails. Returns none, too, when a
    /// message needs isolation.
    async fn accept(&self, wait: Duration) -> Option<Box<dyn Source>> {
        let mut pause = broker_pause();
        loop {
            let accept = self.broker.accept(&self.queue, None, self.settings.lock, wait);
            let accepted = tokio::select! {
                biased;
                () = self.phases.stop_fetching.cancelled() => return None,
                () = self.isolation.requested() => return None,
                accepted = accept => accepted,
            };
            match accepted {
                Ok(source) => return source,
                Err(error) => self.pause_after(&error, &mut pause).await,
            }
            if wait.is_zero() {
                return None;
            }
        }
    }

    async fn pause_after(&self, error: &BrokerError, pause: &mut DoublingPause) {
        let pause = pause.next();
        tracing::warn!(queue = %self.queue, %error, retry_ms = millis(pause), "fetch failed; retrying");
        stderr::print(format_args!("{}: fetch failed, retrying in {pause:?}: {error}", self.queue));
        let _ = self.phases.stop_fetching.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Numbers of messages by outcome, since the worker started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct Counts { $($(#[$doc])+ pub $name: u64,)+ }

        impl Counts {
            /// Adds the counts of another worker.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }

        #[derive(Default)]
        struct AtomicCounts { $($name: AtomicU64,)+ }

        impl AtomicCounts {
            fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        /// Names one of the counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types)]
        pub(crate) enum Count { $($name,)+ }

        impl Counters {
            pub(crate) fn add(&self, what: Count) {
                match what { $(Count::$name => self.numbers.$name.fetch_add(1, Ordering::Relaxed),)+ };
            }
        }
    };
}

counts! {
    /// Messages for which a handler was started.
    started,
    /// Number of messages that were completed.
    done,
    /// Failed attempts that will be retried.
    retried,
    /// Messages delivered again later at the request of a handler, or because this worker has no handler for their
    /// type.
    snoozed,
    /// Messages returned to the queue unhandled.
    released,
    /// Number of messages that were dead-lettered.
    dead,
    /// Locks lost while a handler ran, or before its outcome reached the broker.
    lost,
    /// Handlers that panicked.
    panicked,
    /// Handlers that exceeded their time-out.
    timed_out,
}

/// Counts shared by all slots.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    numbers: Arc<AtomicCounts>,
    stuck: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
    idle: Arc<AtomicUsize>,
    durations: Arc<DurationRecorder>,
    renewed: Arc<AtomicU64>,
}

/// Adds one to a count until it is dropped.
pub(crate) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counters {
    /// Counts a slot as busy.
    pub(crate) fn busy(&self) -> CountGuard {
        CountGuard::new(&self.busy)
    }

    /// Counts a slot as holding a session without messages.
    pub(crate) fn idle(&self) -> CountGuard {
        CountGuard::new(&self.idle)
    }

    pub(crate) fn busy_and_idle(&self) -> (usize, usize) {
        (self.busy.load(Ordering::SeqCst), self.idle.load(Ordering::SeqCst))
    }

    pub(crate) fn read(&self) -> Counts {
        self.numbers.read()
    }

    pub(crate) fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }
}

/// The result of a worker that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages by outcome.
    pub counts: Counts,
    /// Handlers that ignored their cancellation and were abandoned.
    pub stuck: usize,
}
