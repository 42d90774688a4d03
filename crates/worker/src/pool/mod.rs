//! How a worker runs: slots that fetch, handle and settle.
//!
//! `sessions.rs` has the slots of a queue with sessions, `plain.rs` those of one without, which take from the shelf of
//! `shelf.rs`; both hand each message to `run.rs`, which runs one handler whatever it does, or several to `batch.rs`,
//! and outcomes to `settle.rs`. `locks.rs` renews what is in hand, on a thread of its own. `alone.rs` gives a message
//! that took workers with it the process for itself; `elastic.rs` changes how many slots there are.
//!
//! Bounds: handlers at once (slots, at most as many as it was told), messages in hand (a batch and a few more for each slot, or a prefetch for each
//! session), settlements under way, handlers that ignore their cancellation (as many as slots, then the worker gives
//! up).

mod alone;
mod batch;
mod elastic;
mod locks;
mod plain;
mod run;
mod sessions;
mod settle;
mod shelf;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Source};
use malote_model::QueueName;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::Routes;
use crate::gate::Gate;
use crate::incoming::Shared;
use crate::metrics::{BreakerMetrics, Metrics, Times};
use crate::retry::Retry;
use crate::scale::{Bounds, Scale};
use crate::stderr;
use alone::Alone;
use elastic::Slots;
pub(crate) use locks::Lock;
use locks::Locks;
use settle::Settler;
pub(crate) use shelf::Gathers;

/// How long to wait before a broker that did not answer is asked again; doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a worker was told, checked and complete.
pub(crate) struct Settings {
    pub slots: Bounds,
    pub scale: Scale,
    pub lock: Duration,
    pub timeout: Duration,
    pub stuck_after: Duration,
    pub fetch_wait: Duration,
    pub retry: Retry,
    pub sessions: Option<SessionSettings>,
    pub worker_name: String,
}

/// How sessions are taken and let go.
#[derive(Clone, Debug)]
pub(crate) struct SessionSettings {
    /// A session that has had so many messages handled, or so much time, makes way if another one waits.
    pub quantum: u32,
    pub quantum_time: Duration,
    /// How long one receive of an idle session waits, and after how many of them, or how long, it is let go.
    pub receive_wait: Duration,
    pub empty_receives: u32,
    pub idle: Duration,
    /// How long one accept waits for a session.
    pub accept_wait: Duration,
    pub prefetch: u32,
}

/// The phases of an end, one after the other.
#[derive(Default)]
pub(crate) struct Phases {
    /// Nothing new is taken.
    pub quiet: CancellationToken,
    /// Handlers are told.
    pub cancel: CancellationToken,
    /// Handlers are dropped.
    pub stop: CancellationToken,
}

/// All that slots share.
pub(crate) struct Pool {
    pub broker: Arc<dyn Broker>,
    pub queue: QueueName,
    pub settings: Settings,
    pub routes: Routes,
    pub shared: Arc<Shared>,
    pub phases: Phases,
    pub gate: Gate,
    pub counts: Counters,
    /// Every slot, and every message of a queue without sessions.
    pub tasks: TaskTracker,
    /// Handlers that ignore their cancellation hold every slot.
    pub hopeless: CancellationToken,
    slots: Slots,
    locks: Locks,
    settler: Settler,
    alone: Alone,
    /// How long handlers of sessions take of late.
    handling_us: AtomicU64,
}

impl Pool {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn start(
        broker: Arc<dyn Broker>,
        queue: QueueName,
        settings: Settings,
        routes: Routes,
        shared: Shared,
        gate: Gate,
    ) -> std::io::Result<Arc<Self>> {
        let counts = Counters::default();
        let locks = Locks::start(broker.clone(), queue.clone(), settings.lock, counts.clone())?;
        let settler = Settler::start(broker.clone(), queue.clone(), settings.lock, counts.clone());
        let slots = settings.slots;
        let pool = Arc::new(Self {
            broker,
            queue,
            settings,
            routes,
            shared: Arc::new(shared),
            phases: Phases::default(),
            gate,
            counts,
            tasks: TaskTracker::new(),
            hopeless: CancellationToken::new(),
            slots: Slots::new(slots.min),
            locks,
            settler,
            alone: Alone::new(),
            handling_us: AtomicU64::new(0),
        });
        let shelf = match &pool.settings.sessions {
            Some(_) => {
                pool.begin_slots();
                None
            }
            None => Some(plain::start(&pool)),
        };
        if !slots.is_fixed() {
            pool.tasks.spawn(elastic::follow(pool.clone(), shelf));
        }
        Ok(pool)
    }

    /// How it does.
    pub(crate) fn metrics(&self) -> Metrics {
        let (busy, idle) = self.counts.busy_and_idle();
        let breakers = self
            .gate
            .breakers()
            .into_iter()
            .map(|(dependency, state)| BreakerMetrics { dependency: dependency.to_owned(), state });
        Metrics {
            queue: self.queue.as_str().to_owned(),
            counts: self.counts.read(),
            times: self.counts.times.read(),
            renewed: self.counts.renewed.load(Ordering::Relaxed),
            slots: self.slots.now(),
            busy,
            idle,
            stuck: self.counts.stuck(),
            taking: !self.phases.quiet.is_cancelled() && self.gate.closed_for().is_none(),
            breakers: breakers.collect(),
            hold: self.gate.hold(),
            scaled: self.slots.scaled(),
        }
    }

    /// Waits until every slot is done.
    pub(crate) async fn done(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits until all that was decided is settled, and sessions are let go.
    pub(crate) async fn flushed(&self) {
        self.settler.flushed().await;
    }

    /// The next session that is ready within `wait`. A broker that does not answer is asked again, later. None, too,
    /// when a message wants to be alone.
    async fn accept(&self, wait: Duration) -> Option<Box<dyn Source>> {
        let mut pause = PAUSE_FIRST;
        loop {
            let accept = self.broker.accept(&self.queue, None, self.settings.lock, wait);
            let accepted = tokio::select! {
                biased;
                () = self.phases.quiet.cancelled() => return None,
                () = self.alone.wanted() => return None,
                accepted = accept => accepted,
            };
            match accepted {
                Ok(source) => return source,
                Err(error) => self.wait_after(&error, &mut pause).await,
            }
            if wait.is_zero() {
                return None;
            }
        }
    }

    async fn wait_after(&self, error: &BrokerError, pause: &mut Duration) {
        tracing::warn!(queue = %self.queue, %error, again_ms = pause.as_millis() as u64, "fetch failed");
        stderr::print(format_args!("{}: fetch failed, next try in {pause:?}: {error}", self.queue));
        let _ = self.phases.quiet.run_until_cancelled(tokio::time::sleep(*pause)).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What became of messages since the worker began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct Counts { $($(#[$doc])+ pub $name: u64,)+ }

        impl Counts {
            /// Those of another worker as well.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }

        #[derive(Default)]
        struct Numbers { $($name: AtomicU64,)+ }

        impl Numbers {
            fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        /// One of the counts.
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
    /// Handlers that began.
    started,
    /// Messages done.
    done,
    /// Attempts that failed and come again.
    retried,
    /// Put off by a handler's word, or because nobody here knows the type.
    snoozed,
    /// Given back untried.
    released,
    /// Moved to the dead letters.
    dead,
    /// Locks lost while a handler ran or before its outcome was told.
    lost,
    /// Handlers that panicked.
    panicked,
    /// Handlers that took too long.
    timed_out,
}

/// Counts that slots share.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    numbers: Arc<Numbers>,
    stuck: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
    idle: Arc<AtomicUsize>,
    /// How long handlers took.
    times: Arc<Times>,
    /// Locks that were prolonged.
    renewed: Arc<AtomicU64>,
}

/// One more of those that are counted, until this is dropped.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counters {
    /// A slot has something to do.
    pub(crate) fn busy(&self) -> Counted {
        Counted::of(&self.busy)
    }

    /// A slot holds a session that has nothing to do.
    pub(crate) fn idle(&self) -> Counted {
        Counted::of(&self.idle)
    }

    /// Slots that have something to do, and slots that hold a session without.
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

/// How a worker ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What became of messages.
    pub counts: Counts,
    /// Handlers that were still running when the worker gave up on them.
    pub stuck: usize,
}
