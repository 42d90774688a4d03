//! Slots of a queue with sessions: take the next session, drain it in order, take another.
//!
//! A session keeps its slot while nobody else needs it. After its quantum the slot looks whether another session is
//! ready; only then it lets go, and the session stands at the end of the line. An idle session is waited for only
//! while no other one is ready: both are waited for at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{BrokerError, Delivery, Source};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::batch::goes_back;
use super::{Counted, Gathers, Pool, SessionSettings};

/// How long the first message of a session in hand is waited for before another session may be taken instead.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) async fn slot(pool: Arc<Pool>, settings: SessionSettings) {
    let mut next = None;
    while !pool.phases.quiet.is_cancelled() {
        if let Some(wait) = pool.gate.closed_for() {
            if let Some(source) = next.take() {
                pool.settler.close(source, TaskTracker::new()).await;
            }
            let _ = pool.phases.quiet.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        let source = match next.take() {
            Some(source) => source,
            None => match pool.accept(settings.accept_wait).await {
                Some(source) => source,
                None => continue,
            },
        };
        next = drain(&pool, &settings, source).await;
    }
    if let Some(source) = next {
        pool.settler.close(source, TaskTracker::new()).await;
    }
}

/// What there is to do next in a session.
enum Step {
    /// The first of those that are here.
    Handle,
    /// Another session is ready, and in hand.
    Switch(Box<dyn Source>),
    LetGo,
}

/// Works on a session until it makes way. The next session, if it made way for one.
async fn drain(
    pool: &Pool,
    settings: &SessionSettings,
    source: Box<dyn Source>,
) -> Option<Box<dyn Source>> {
    let held = source.held().cloned()?;
    let watch = pool.locks.watch(held.hold);
    let settled = TaskTracker::new();
    let mut here = VecDeque::new();
    let mut busy = pool.counts.busy();
    let mut quantum = Quantum::new(settings);
    // It was given because it has something: that may still be on its way, however far the broker is.
    let mut first_wait = settings.receive_wait.min(FIRST_WAIT_MAX);
    let next = loop {
        let handled;
        let wait = std::mem::take(&mut first_wait);
        match step(pool, settings, &*source, watch.lost(), &mut here, &mut busy, wait).await {
            Step::Handle => {
                let batch = here.front().and_then(|first| pool.routes.batch_of(first));
                let (all, back) = match batch {
                    Some(batch) => {
                        let some = gather(pool, &*source, watch.lost(), &mut here, batch).await;
                        handled = some.len();
                        if some.is_empty() {
                            break None;
                        }
                        match pool.handle_in_order(batch, some, &held, watch.lost()).await {
                            Some(decided) => decided,
                            None => break None,
                        }
                    }
                    None => {
                        let Some(first) = here.pop_front() else { continue };
                        handled = 1;
                        match pool.handle(first, Some(&held), watch.lost()).await {
                            Some(decided) => {
                                let back = goes_back(&decided.settle.settlement);
                                (vec![decided], back)
                            }
                            None => break None,
                        }
                    }
                };
                for mut decided in all {
                    decided.open = Some(settled.token());
                    pool.settler.settle(decided).await;
                }
                // What goes back to its place must be the next to be delivered: what was fetched behind it goes, too.
                if back {
                    break None;
                }
            }
            Step::Switch(other) => break Some(other),
            Step::LetGo => break None,
        }
        if quantum.is_over_after(handled) {
            if let Some(other) = pool.accept(Duration::ZERO).await {
                break Some(other);
            }
            quantum = Quantum::new(settings);
        }
    };
    drop(watch);
    pool.settler.close(source, settled).await;
    next
}

/// The first of those that are here and others behind it for the same batch handler, as many as it takes; waits for
/// more of them, but not for long. The first has been admitted.
async fn gather(
    pool: &Pool,
    source: &dyn Source,
    lost: &CancellationToken,
    here: &mut VecDeque<Delivery>,
    batch: usize,
) -> Vec<Delivery> {
    let Some(Gathers { max, wait }) = pool.routes.batching(batch).map(|batch| batch.gathers) else {
        return Vec::new();
    };
    let until = Instant::now() + wait;
    loop {
        let same = here.iter().take_while(|one| pool.routes.batch_of(one) == Some(batch)).count();
        let left = until.saturating_duration_since(Instant::now());
        if same >= max || same < here.len() || left.is_zero() {
            let mut count = same.min(max);
            if count > 1 && pool.gate.is_limited() {
                count = 1 + pool.gate.admit_now(count - 1) as usize;
            }
            return here.drain(..count).collect();
        }
        let missing = u32::try_from(max - same).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            // They go back with the session.
            () = pool.phases.quiet.cancelled() => return Vec::new(),
            () = lost.cancelled() => return Vec::new(),
            // Its own clock: the broker's may be another.
            more = tokio::time::timeout(left, source.fetch(missing, left)) => match more {
                Ok(Ok(some)) => here.extend(some),
                Err(_) => {}
                Ok(Err(_)) => return here.drain(..same).collect(), // it is told when there is nothing left to do
            },
        }
    }
}

async fn step(
    pool: &Pool,
    settings: &SessionSettings,
    source: &dyn Source,
    lost: &CancellationToken,
    here: &mut VecDeque<Delivery>,
    busy: &mut Counted,
    mut wait: Duration,
) -> Step {
    let idle_since = Instant::now();
    let mut empty = 0;
    loop {
        if pool.phases.quiet.is_cancelled() || lost.is_cancelled() {
            return Step::LetGo;
        }
        if !here.is_empty() {
            if pool.gate.closed_for().is_some() {
                return Step::LetGo;
            }
            let admit = pool.phases.quiet.run_until_cancelled(pool.gate.admit(1));
            if admit.await.is_none_or(|count| count == 0) {
                return Step::LetGo;
            }
            return Step::Handle;
        }
        match fetch(pool, source, settings.prefetch, std::mem::take(&mut wait)).await {
            Ok(some) if !some.is_empty() => {
                here.extend(some);
                continue;
            }
            Ok(_) => {}
            Err(error) => return let_go(pool, &error),
        }
        *busy = pool.counts.idle();
        // Nothing here: whatever comes first, more of this session or another one that is ready.
        tokio::select! {
            biased;
            () = pool.phases.quiet.cancelled() => return Step::LetGo,
            () = lost.cancelled() => return Step::LetGo,
            fetched = source.fetch(settings.prefetch, settings.receive_wait) => match fetched {
                Ok(some) if some.is_empty() => {
                    empty += 1;
                    if empty >= settings.empty_receives || idle_since.elapsed() >= settings.idle {
                        return Step::LetGo;
                    }
                }
                Ok(some) => here.extend(some),
                Err(error) => return let_go(pool, &error),
            },
            Some(other) = pool.accept(settings.receive_wait) => return Step::Switch(other),
        }
        *busy = pool.counts.busy();
    }
}

/// What is there now or, if it is to wait, within so long: by the worker's own clock, the broker's may be another.
async fn fetch(
    pool: &Pool,
    source: &dyn Source,
    max: u32,
    wait: Duration,
) -> Result<Vec<Delivery>, BrokerError> {
    let fetched = source.fetch(max, wait);
    if wait.is_zero() {
        return fetched.await;
    }
    let fetched = tokio::time::timeout(wait, fetched);
    match pool.phases.quiet.run_until_cancelled(fetched).await {
        Some(Ok(fetched)) => fetched,
        Some(Err(_)) | None => Ok(Vec::new()),
    }
}

fn let_go(pool: &Pool, error: &BrokerError) -> Step {
    tracing::debug!(queue = %pool.queue, %error, "a session is over");
    Step::LetGo
}

/// How long a session may go on while others wait.
struct Quantum {
    left: u32,
    until: Instant,
}

impl Quantum {
    fn new(settings: &SessionSettings) -> Self {
        Self { left: settings.quantum, until: Instant::now() + settings.quantum_time }
    }

    /// So many more were handled.
    fn is_over_after(&mut self, handled: usize) -> bool {
        self.left = self.left.saturating_sub(u32::try_from(handled).unwrap_or(u32::MAX));
        self.left == 0 || Instant::now() >= self.until
    }
}
