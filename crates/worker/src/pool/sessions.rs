//! Slots of a queue with sessions: take the next session, drain it in order, take another.
//!
//! A session keeps its slot while nobody else needs it. After its quantum the slot looks whether another session is
//! ready; only then it lets go, and the session stands at the end of the line. An idle session is waited for only
//! while no other one is ready: both are waited for at once.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_connectors::{BrokerError, Delivery, Source};
use malote_model::SessionId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::batch::goes_back;
use super::{Counted, Gathers, Pool, SessionSettings};

/// How long the first message of a session in hand is waited for before another session may be taken instead.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(5);

/// Handlers that take longer get one message at a time.
const SLOW: Duration = Duration::from_millis(50);

pub(super) async fn slot(pool: Arc<Pool>, settings: SessionSettings) {
    let mut next = None;
    while !pool.phases.quiet.is_cancelled() {
        if pool.slots.is_too_many() {
            break;
        }
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

/// Messages of a session that are here, in order.
#[derive(Default)]
struct Here {
    all: VecDeque<Delivery>,
    /// The broker said that nothing was ready behind the newest of them: it need not be asked for what is there now.
    was_last: bool,
}

impl Here {
    fn take(&mut self, some: Vec<Delivery>) {
        if let Some(newest) = some.last() {
            self.was_last = newest.last;
        }
        self.all.extend(some);
    }
}

impl Deref for Here {
    type Target = VecDeque<Delivery>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl DerefMut for Here {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
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
    let mut here = Here::default();
    let mut busy = pool.counts.busy();
    let mut quantum = Quantum::new(settings);
    // It was given because it has something: that may still be on its way, however far the broker is.
    let mut first_wait = settings.receive_wait.min(FIRST_WAIT_MAX);
    let drained = loop {
        let handled;
        let wait = std::mem::take(&mut first_wait);
        match step(pool, settings, &*source, watch.lost(), &mut here, &mut busy, wait).await {
            Step::Handle => {
                let Some(first) = here.front() else { continue };
                if pool.is_last_life(first) {
                    // With all that was fetched behind it, which must not be in hand.
                    pool.gate.not_used(1);
                    break Drained::LastLife(held.session);
                }
                let batch = pool.routes.batch_of(first);
                let begun = Instant::now();
                let (all, back) = match batch {
                    Some(batch) => {
                        let some = gather(pool, &*source, watch.lost(), &mut here, batch).await;
                        handled = some.len();
                        if some.is_empty() {
                            break Drained::Next(None);
                        }
                        match pool.handle_in_order(batch, some, &held, watch.lock()).await {
                            Some(decided) => decided,
                            None => break Drained::Next(None),
                        }
                    }
                    None => {
                        let Some(first) = here.pop_front() else { continue };
                        handled = 1;
                        match pool.handle(first, Some(&held), watch.lock()).await {
                            Some(decided) => {
                                let back = goes_back(&decided.settle.settlement);
                                (vec![decided], back)
                            }
                            None => break Drained::Next(None),
                        }
                    }
                };
                let each = u32::try_from(handled).unwrap_or(u32::MAX).max(1);
                pool.note_handling(begun.elapsed() / each);
                for mut decided in all {
                    decided.open = Some(settled.token());
                    pool.settler.settle(decided).await;
                }
                // What goes back to its place must be the next to be delivered: what was fetched behind it goes, too.
                if back {
                    break Drained::Next(None);
                }
            }
            Step::Switch(other) => break Drained::Next(Some(other)),
            Step::LetGo => break Drained::Next(None),
        }
        if quantum.is_over_after(handled) {
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

/// The first of those that are here and others behind it for the same batch handler, as many as it takes; waits for
/// more of them, but not for long. The first has been admitted.
async fn gather(
    pool: &Pool,
    source: &dyn Source,
    lost: &CancellationToken,
    here: &mut Here,
    batch: usize,
) -> Vec<Delivery> {
    let Some(Gathers { max, wait }) = pool.routes.batching(batch).map(|batch| batch.gathers) else {
        return Vec::new();
    };
    let until = Instant::now() + wait;
    loop {
        // One that must be alone is the next one's first.
        let fits =
            |one: &&Delivery| pool.routes.batch_of(one) == Some(batch) && !pool.is_last_life(one);
        let same = here.iter().take_while(fits).count();
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
            () = pool.alone.wanted() => return Vec::new(),
            // Its own clock: the broker's may be another.
            more = tokio::time::timeout(left, source.fetch(missing, left)) => match more {
                Ok(Ok(some)) => here.take(some),
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
    here: &mut Here,
    busy: &mut Counted,
    mut wait: Duration,
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
        if !here.was_last {
            match fetch(pool, source, prefetch, std::mem::take(&mut wait)).await {
                Ok(some) if !some.is_empty() => {
                    here.take(some);
                    continue;
                }
                Ok(_) => {}
                Err(error) => return let_go(pool, &error),
            }
        }
        *busy = pool.counts.idle();
        // Nothing here: whatever comes first, more of this session or another one that is ready.
        tokio::select! {
            biased;
            () = pool.phases.quiet.cancelled() => return Step::LetGo,
            () = lost.cancelled() => return Step::LetGo,
            () = pool.alone.wanted() => return Step::LetGo,
            () = pool.slots.too_many() => return Step::LetGo,
            fetched = source.fetch(prefetch, settings.receive_wait) => match fetched {
                Ok(some) if some.is_empty() => {
                    empty += 1;
                    if empty >= settings.empty_receives || idle_since.elapsed() >= settings.idle {
                        return Step::LetGo;
                    }
                }
                Ok(some) => here.take(some),
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
    tokio::select! {
        biased;
        () = pool.phases.quiet.cancelled() => Ok(Vec::new()),
        () = pool.alone.wanted() => Ok(Vec::new()),
        fetched = fetched => fetched.unwrap_or_else(|_| Ok(Vec::new())),
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

    /// So many more were handled.
    fn is_over_after(&mut self, handled: usize) -> bool {
        self.left = self.left.saturating_sub(u32::try_from(handled).unwrap_or(u32::MAX));
        self.left == 0 || Instant::now() >= self.until
    }
}
