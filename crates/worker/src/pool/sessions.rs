//! Slots of a queue with sessions: take the next session, drain it in order, take another.
//!
//! A session keeps its slot while nobody else needs it. After its quantum the slot looks whether another session is
//! ready; only then it lets go, and the session stands at the end of the line. An idle session is waited for only
//! while no other one is ready: both are waited for at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_connectors::{BrokerError, Delivery, Source};
use malote_model::{SessionId, Settlement};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Counted, Pool, SessionSettings};

/// Handlers that take longer get one message at a time.
const SLOW: Duration = Duration::from_millis(50);

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
        if pool.alone.is_wanted()
            && let Some(source) = next.take()
        {
            pool.settler.close(source, TaskTracker::new()).await;
        }
        let in_hand = pool.phases.quiet.run_until_cancelled(pool.alone.share()).await;
        let Some(in_hand) = in_hand else { break };
        let source = match next.take() {
            Some(source) => source,
            None => match pool.accept(settings.accept_wait).await {
                Some(source) => source,
                None => continue,
            },
        };
        match drain(&pool, &settings, source).await {
            Drained::Next(other) => next = other,
            Drained::LastLife(session) => {
                drop(in_hand);
                alone(&pool, &settings, session).await;
            }
        }
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

/// How work on a session ended.
enum Drained {
    /// It made way; for this one, if there is one in hand.
    Next(Option<Box<dyn Source>>),
    /// One more loss would kill its first message.
    LastLife(SessionId),
}

/// Works on a session until it makes way.
async fn drain(pool: &Pool, settings: &SessionSettings, source: Box<dyn Source>) -> Drained {
    let Some(held) = source.held().cloned() else { return Drained::Next(None) };
    let watch = pool.locks.watch(held.hold);
    let settled = TaskTracker::new();
    let mut here = VecDeque::new();
    let mut busy = pool.counts.busy();
    let mut quantum = Quantum::new(settings);
    let drained = loop {
        match step(pool, settings, &*source, watch.lost(), &mut here, &mut busy).await {
            Step::Handle => {
                let Some(delivery) = here.pop_front() else { continue };
                if pool.is_last_life(&delivery) {
                    // With all that was fetched behind it, which must not be in hand.
                    pool.gate.not_used(1);
                    break Drained::LastLife(held.session);
                }
                let begun = Instant::now();
                let Some(mut decided) = pool.handle(delivery, Some(&held), watch.lock()).await
                else {
                    break Drained::Next(None);
                };
                pool.note_handling(begun.elapsed());
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
                    break Drained::Next(None);
                }
            }
            Step::Switch(other) => break Drained::Next(Some(other)),
            Step::LetGo => break Drained::Next(None),
        }
        if quantum.is_over() {
            if let Some(other) = pool.accept(Duration::ZERO).await {
                break Drained::Next(Some(other));
            }
            quantum = Quantum::new(settings);
        }
    };
    drop(watch);
    pool.settler.close(source, settled).await;
    drained
}

/// Handles the first message of a session, with nothing else in hand: not even what stands behind it.
async fn alone(pool: &Pool, settings: &SessionSettings, session: SessionId) {
    let _busy = pool.counts.busy();
    let Some(turn) = pool.alone.ask() else { return }; // the session is ready still, for whoever comes next
    let Some(_room) = pool.be_alone(&turn).await else { return };
    let lock = pool.settings.lock;
    let accepted = pool.broker.accept(&pool.queue, Some(session), lock, Duration::ZERO).await;
    let Ok(Some(source)) = accepted else { return }; // another worker has it by now
    let Some(held) = source.held().cloned() else { return };
    let watch = pool.locks.watch(held.hold);
    let settled = TaskTracker::new();
    let fetched = source.fetch(1, settings.receive_wait).await.unwrap_or_default();
    let quiet = &pool.phases.quiet;
    if let Some(delivery) = fetched.into_iter().next()
        && quiet.run_until_cancelled(pool.gate.admit(1)).await.is_some_and(|count| count > 0)
        && let Some(mut decided) = pool.handle(delivery, Some(&held), watch.lock()).await
    {
        decided.open = Some(settled.token());
        pool.settler.settle(decided).await;
    }
    drop(watch);
    pool.settler.close(source, settled).await;
    pool.flushed().await; // it must be out of hand before others are in
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
        let wanted = pool.alone.is_wanted();
        if pool.phases.quiet.is_cancelled() || lost.is_cancelled() || wanted {
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
        let prefetch = pool.prefetch(settings);
        match source.fetch(prefetch, Duration::ZERO).await {
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
            () = pool.alone.wanted() => return Step::LetGo,
            fetched = source.fetch(prefetch, settings.receive_wait) => match fetched {
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

impl Pool {
    fn note_handling(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mean = self.handling_us.load(Ordering::Relaxed);
        // Of two that write at once one is forgotten: it is a mean.
        self.handling_us.store(mean - mean / 8 + took / 8, Ordering::Relaxed);
    }

    /// How many messages of a session to take at once. Few of slow ones: what is in hand waits for nobody else, and is
    /// counted when the worker dies.
    fn prefetch(&self, settings: &SessionSettings) -> u32 {
        let mean = Duration::from_micros(self.handling_us.load(Ordering::Relaxed));
        if mean > SLOW {
            return 1;
        }
        let half_a_lock = self.settings.lock.as_micros() / 2 / mean.as_micros().max(1);
        settings.prefetch.min(u32::try_from(half_a_lock).unwrap_or(u32::MAX)).max(1)
    }
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
