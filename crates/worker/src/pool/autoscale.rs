//! The number of slots: fixed, or adapted to the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::{BrokerError, Depth, SessionDepth};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::prefetch::Prefetch;
use super::{Pool, sessionless, sessions};
use crate::metrics::ScaleTarget;
use crate::scale::{Scaler, Signals};

/// Time-out of a query for the depth of the queue.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct SlotCount {
    wanted: watch::Sender<usize>,
    /// Slots for sessions that are running.
    for_sessions: AtomicUsize,
    target: Mutex<Option<ScaleTarget>>,
}

impl SlotCount {
    pub(super) fn new(slots: usize) -> Self {
        let (wanted, for_sessions) = (watch::Sender::new(slots), AtomicUsize::new(0));
        Self { wanted, for_sessions, target: Mutex::new(None) }
    }

    pub(super) fn wanted(&self) -> usize {
        *self.wanted.borrow()
    }

    pub(super) fn target(&self) -> Option<ScaleTarget> {
        *self.target.lock()
    }

    /// Removes one slot for sessions if there are more than wanted. The caller must end if this returns true.
    pub(super) fn remove_excess(&self) -> bool {
        let wanted = self.wanted();
        let one_fewer = |running: usize| (running > wanted).then(|| running - 1);
        self.for_sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_fewer).is_ok()
    }

    /// Waits until there are more slots for sessions than wanted.
    pub(super) async fn has_excess(&self) {
        let has_excess = |wanted: &usize| self.for_sessions.load(Ordering::Relaxed) > *wanted;
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.wanted.subscribe().wait_for(has_excess).await;
    }
}

impl Pool {
    /// Starts slots for sessions until there are as many as wanted.
    pub(super) fn start_session_slots(self: &Arc<Self>) {
        let Some(options) = &self.settings.sessions else { return };
        let wanted = self.slots.wanted();
        let before = self.slots.for_sessions.fetch_max(wanted, Ordering::Relaxed);
        for _ in before..wanted {
            self.tasks.spawn(sessions::slot(self.clone(), options.clone()));
        }
    }

    fn signals(&self, mut depth: Option<Depth>) -> Signals {
        let (busy, _) = self.counts.busy_and_idle();
        if let Some(SessionDepth { held, .. }) = depth.as_mut().and_then(|d| d.sessions.as_mut()) {
            // Sessions held by other workers, and sessions without messages, need no slot here.
            *held = busy as u64;
        }
        let (ended, took) = self.counts.durations.count_and_sum();
        Signals { depth, slots_each: 1, busy, ended, took, hold: self.limiter.scale_blocker() }
    }
}

/// Measures the load and changes the number of slots, until the worker stops.
pub(super) async fn run(pool: Arc<Pool>, prefetch: Option<Arc<Prefetch>>) {
    let (scale, started) = (pool.settings.scale, Instant::now());
    let mut scaler = Scaler::new(pool.settings.slots, scale);
    let mut reports_depth = true;
    let adapt = async {
        loop {
            tokio::time::sleep(scale.look_every()).await;
            let depth = match reports_depth {
                true => timeout(DEPTH_TIMEOUT, pool.broker.depth(&pool.queue)).await.ok(),
                false => None,
            };
            reports_depth &= !matches!(depth, Some(Err(BrokerError::Unsupported { .. })));
            let decision = match depth {
                Some(Ok(depth)) => scaler.decide(started.elapsed(), &pool.signals(Some(depth))),
                _ if !reports_depth => scaler.decide(started.elapsed(), &pool.signals(None)),
                _ => scaler.unknown(),
            };
            *pool.slots.target.lock() =
                Some(ScaleTarget { wanted: decision.wanted, reason: decision.reason });
            if !decision.is_change() {
                continue;
            }
            tracing::info!(queue = %pool.queue, slots = decision.wanted, before = decision.before, reason = decision.reason.word(), "number of slots changed");
            pool.slots.wanted.send_replace(decision.wanted);
            match &prefetch {
                Some(prefetch) => {
                    for _ in 0..prefetch.set_slots(decision.wanted) {
                        pool.tasks.spawn(sessionless::slot(pool.clone(), prefetch.clone()));
                    }
                }
                None => pool.start_session_slots(),
            }
        }
    };
    let _: Option<()> = pool.phases.stop_fetching.run_until_cancelled(adapt).await;
}
