//! How many slots there are: fixed, or following what there is to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::{BrokerError, Depth, SessionDepth};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::shelf::Shelf;
use super::{Pool, plain, sessions};
use crate::metrics::Scaled;
use crate::scale::{Scaler, Signals};

/// How long a broker may take to tell what waits.
const DEPTH_MAX: Duration = Duration::from_secs(5);

pub(super) struct Slots {
    /// So many there may be.
    wanted: watch::Sender<usize>,
    /// So many hold sessions, or look for some.
    of_sessions: AtomicUsize,
    scaled: Mutex<Option<Scaled>>,
}

impl Slots {
    pub(super) fn new(slots: usize) -> Self {
        let (wanted, of_sessions) = (watch::Sender::new(slots), AtomicUsize::new(0));
        Self { wanted, of_sessions, scaled: Mutex::new(None) }
    }

    pub(super) fn now(&self) -> usize {
        *self.wanted.borrow()
    }

    pub(super) fn scaled(&self) -> Option<Scaled> {
        *self.scaled.lock()
    }

    /// Whether a slot of sessions is one too many, and ends.
    pub(super) fn is_too_many(&self) -> bool {
        let wanted = self.now();
        let fewer = |here: usize| (here > wanted).then(|| here - 1);
        self.of_sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }

    /// Waits until there are too many: who has nothing to do lets go of what it holds.
    pub(super) async fn too_many(&self) {
        let too_many = |wanted: &usize| self.of_sessions.load(Ordering::Relaxed) > *wanted;
        // The sender is ours: it is not gone while this waits.
        let _ = self.wanted.subscribe().wait_for(too_many).await;
    }
}

impl Pool {
    /// Begins as many slots of sessions as are missing.
    pub(super) fn begin_slots(self: &Arc<Self>) {
        let Some(settings) = &self.settings.sessions else { return };
        let wanted = self.slots.now();
        let before = self.slots.of_sessions.fetch_max(wanted, Ordering::Relaxed);
        for _ in before..wanted {
            self.tasks.spawn(sessions::slot(self.clone(), settings.clone()));
        }
    }

    fn signals(&self, mut depth: Option<Depth>) -> Signals {
        let (busy, _) = self.counts.busy_and_idle();
        if let Some(SessionDepth { held, .. }) = depth.as_mut().and_then(|d| d.sessions.as_mut()) {
            // Those of other workers need none of our slots, and those without messages nobody's.
            *held = busy as u64;
        }
        let (ended, took) = self.counts.times.all();
        Signals { depth, slots_each: 1, busy, ended, took, hold: self.gate.hold() }
    }
}

/// Looks what there is to do, and changes how many slots there are, until nothing new is to be begun.
pub(super) async fn follow(pool: Arc<Pool>, shelf: Option<Arc<Shelf>>) {
    let (scale, begun) = (pool.settings.scale, Instant::now());
    let mut scaler = Scaler::new(pool.settings.slots, scale);
    let mut tells = true;
    let look = async {
        loop {
            tokio::time::sleep(scale.look_every()).await;
            let depth = match tells {
                true => timeout(DEPTH_MAX, pool.broker.depth(&pool.queue)).await.ok(),
                false => None,
            };
            tells &= !matches!(depth, Some(Err(BrokerError::Unsupported { .. })));
            let decision = match depth {
                Some(Ok(depth)) => scaler.decide(begun.elapsed(), &pool.signals(Some(depth))),
                _ if !tells => scaler.decide(begun.elapsed(), &pool.signals(None)),
                _ => scaler.unknown(),
            };
            *pool.slots.scaled.lock() =
                Some(Scaled { wanted: decision.wanted, reason: decision.reason });
            if decision.is_change() {
                tracing::info!(queue = %pool.queue, slots = decision.wanted, before = decision.before, reason = decision.reason.word(), "slots");
                pool.slots.wanted.send_replace(decision.wanted);
                match &shelf {
                    Some(shelf) => {
                        for _ in 0..shelf.set_slots(decision.wanted) {
                            pool.tasks.spawn(plain::slot(pool.clone(), shelf.clone()));
                        }
                    }
                    None => pool.begin_slots(),
                }
            }
        }
    };
    let _: Option<()> = pool.phases.quiet.run_until_cancelled(look).await;
}
