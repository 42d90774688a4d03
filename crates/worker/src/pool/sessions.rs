//! Slots of a queue with sessions: take the next session, drain it in order, take another.
//!
//! A session keeps its slot while nobody else needs it. After its quantum the slot looks whether another session is
//! ready; only then it lets go, and the session stands at the end of the line. An idle session is waited for only
//! while no other one is ready: both are waited for at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_connectors::{BrokerError, Delivery, Source};
use malote_model::Settlement;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Counted, Pool, SessionSettings};

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
    let next = loop {
        match step(pool, settings, &*source, watch.lost(), &mut here, &mut busy).await {
            Step::Handle => {
                let Some(delivery) = here.pop_front() else { continue };
                let Some(mut decided) = pool.handle(delivery, Some(&held), watch.lost()).await
                else {
                    break None;
                };
                // What goes back to its place must be the next to be delivered: what was fetched behind it goes, too.
                let back = matches!(
                    decided.settle.settlement,
                    Settlement::Abandon { .. }
                        | Settlement::Release { .. }
                        | Settlement::Defer { .. }
                );
                decided.open = Some(settled.token());
                pool.settler.settle(decided).await;
                if back {
                    break None;
                }
            }
            Step::Switch(other) => break Some(other),
            Step::LetGo => break None,
        }
        if quantum.is_over() {
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

async fn step(
    pool: &Pool,
    settings: &SessionSettings,
    source: &dyn Source,
    lost: &CancellationToken,
    here: &mut VecDeque<Delivery>,
    busy: &mut Counted,
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
        match source.fetch(settings.prefetch, Duration::ZERO).await {
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

    /// One more was handled.
    fn is_over(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0 || Instant::now() >= self.until
    }
}
