//! Slots of a queue with sessions: each takes the next ready session, handles its messages in order, and takes another.
//!
//! A session keeps its slot while no other session needs it. After its quantum the slot checks whether another session
//! is ready. If so, it releases its session, which then goes to the end of the line. A slot with an idle session waits
//! for more messages and for another ready session at the same time.

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

use super::batch::is_returned;
use super::{BatchLimits, CountGuard, Pool};
use crate::worker::SessionOptions;

/// How long to wait for the first message of a new session before another session may be taken instead.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(5);

/// Messages are fetched one at a time for handlers that take longer.
const SLOW: Duration = Duration::from_millis(50);

pub(super) async fn slot(pool: Arc<Pool>, options: SessionOptions) {
    let stop_fetching = &pool.phases.stop_fetching;
    let mut next = None;
    while !stop_fetching.is_cancelled() {
        if pool.slots.remove_excess() {
            break;
        }
        if let Some(wait) = pool.limiter.blocked_for() {
            if let Some(source) = next.take() {
                pool.settlements.close(source, TaskTracker::new()).await;
            }
            let _ = stop_fetching.run_until_cancelled(tokio::time::sleep(wait)).await;
            continue;
        }
        if pool.isolation.is_requested()
            && let Some(source) = next.take()
        {
            pool.settlements.close(source, TaskTracker::new()).await;
        }
        let permit = stop_fetching.run_until_cancelled(pool.isolation.fetch_permit()).await;
        let Some(permit) = permit else { break };
        let source = match next.take() {
            Some(source) => source,
            None => match pool.accept(options.accept_wait).await {
                Some(source) => source,
                None => continue,
            },
        };
        match serve(&pool, &options, source).await {
            ServeEnd::Released { next: other } => next = other,
            ServeEnd::NeedsIsolation(session) => {
                drop(permit);
                handle_isolated(&pool, &options, session).await;
            }
        }
    }
    if let Some(source) = next {
        pool.settlements.close(source, TaskTracker::new()).await;
    }
}

/// Fetched messages of a session, in order.
#[derive(Default)]
struct SessionPrefetch {
    messages: VecDeque<Delivery>,
    /// The broker reported that no message was ready after the newest one, so that another fetch would be empty.
    is_last: bool,
}

impl SessionPrefetch {
    fn add(&mut self, deliveries: Vec<Delivery>) {
        if let Some(newest) = deliveries.last() {
            self.is_last = newest.last;
        }
        self.messages.extend(deliveries);
    }
}

impl Deref for SessionPrefetch {
    type Target = VecDeque<Delivery>;

    fn deref(&self) -> &Self::Target {
        &self.messages
    }
}

impl DerefMut for SessionPrefetch {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.messages
    }
}

/// The next action in a session.
enum SessionAction {
    /// Handle the first prefetched message.
    Handle,
    /// Switch to this session, which is ready.
    Switch(Box<dyn Source>),
    Release,
}

/// How the work on a session ended.
enum ServeEnd {
    /// The session was released. `next` is another session that the slot holds already.
    Released { next: Option<Box<dyn Source>> },
    /// The first message of this session must be handled alone.
    NeedsIsolation(SessionId),
}

const RELEASED: ServeEnd = ServeEnd::Released { next: None };

/// Handles messages of a session until the slot releases it.
async fn serve(pool: &Pool, options: &SessionOptions, source: Box<dyn Source>) -> ServeEnd {
    let Some(held) = source.held().cloned() else { return RELEASED };
    let lock = pool.locks.guard(held.hold);
    let settled = TaskTracker::new();
    let mut prefetch = SessionPrefetch::default();
    let mut busy = pool.counts.busy();
    let mut quantum = Quantum::new(options);
    // The session was ready, so it has messages. They may take some time to arrive from a remote broker.
    let mut first_wait = options.receive_wait.min(FIRST_WAIT_MAX);
    let end = loop {
        let handled;
        let wait = std::mem::take(&mut first_wait);
        let action =
            next_action(pool, options, &*source, lock.lost(), &mut prefetch, &mut busy, wait);
        match action.await {
            SessionAction::Handle => {
                let Some(first) = prefetch.front() else { continue };
                if pool.needs_isolation(first) {
                    // Release the session with all its prefetched messages.
                    pool.limiter.return_unused(1);
                    break ServeEnd::NeedsIsolation(held.session);
                }
                let batch = pool.routes.batch_index(first);
                let started = Instant::now();
                let (settlements, returned) = match batch {
                    Some(batch) => {
                        let gathered =
                            gather(pool, &*source, lock.lost(), &mut prefetch, batch).await;
                        handled = gathered.len();
                        if gathered.is_empty() {
                            break RELEASED;
                        }
                        match pool.handle_in_order(batch, gathered, &held, lock.lock()).await {
                            Some(handled) => handled,
                            None => break RELEASED,
                        }
                    }
                    None => {
                        let Some(first) = prefetch.pop_front() else { continue };
                        handled = 1;
                        match pool.handle(first, Some(&held), lock.lock()).await {
                            Some(settlement) => {
                                let returned = is_returned(&settlement.settle.settlement);
                                (vec![settlement], returned)
                            }
                            None => break RELEASED,
                        }
                    }
                };
                let each = u32::try_from(handled).unwrap_or(u32::MAX).max(1);
                pool.record_handling(started.elapsed() / each);
                for mut settlement in settlements {
                    settlement.open = Some(settled.token());
                    pool.settlements.settle(settlement).await;
                }
                // A returned message must be delivered before the prefetched ones: release them too.
                if returned {
                    break RELEASED;
                }
            }
            SessionAction::Switch(other) => break ServeEnd::Released { next: Some(other) },
            SessionAction::Release => break RELEASED,
        }
        if quantum.is_used_up(handled) {
            if let Some(other) = pool.accept(Duration::ZERO).await {
                break ServeEnd::Released { next: Some(other) };
            }
            quantum = Quantum::new(options);
        }
    };
    drop(lock);
    pool.settlements.close(source, settled).await;
    end
}

/// Handles the first message of a session while the worker has no other message, not even of the same session.
async fn handle_isolated(pool: &Pool, options: &SessionOptions, session: SessionId) {
    let _busy = pool.counts.busy();
    let Some(request) = pool.isolation.request() else { return }; // the session stays ready
    let Some(_isolated) = pool.isolate(&request).await else { return };
    let lock = pool.settings.lock;
    let accepted = pool.broker.accept(&pool.queue, Some(session), lock, Duration::ZERO).await;
    let Ok(Some(source)) = accepted else { return }; // another worker has accepted it
    let Some(held) = source.held().cloned() else { return };
    let lock = pool.locks.guard(held.hold);
    let settled = TaskTracker::new();
    let fetched = source.fetch(1, options.receive_wait).await.unwrap_or_default();
    let stop_fetching = &pool.phases.stop_fetching;
    if let Some(delivery) = fetched.into_iter().next()
        && stop_fetching
            .run_until_cancelled(pool.limiter.admit(1))
            .await
            .is_some_and(|count| count > 0)
        && let Some(mut settlement) = pool.handle(delivery, Some(&held), lock.lock()).await
    {
        settlement.open = Some(settled.token());
        pool.settlements.settle(settlement).await;
    }
    drop(lock);
    pool.settlements.close(source, settled).await;
    pool.flushed().await; // it must be settled before other messages are fetched
}

/// Takes the first prefetched message and the following ones for the same batch handler. Waits for more until the batch
/// is full or its time is over. The limiter has admitted the first message already.
async fn gather(
    pool: &Pool,
    source: &dyn Source,
    lost: &CancellationToken,
    prefetch: &mut SessionPrefetch,
    batch: usize,
) -> Vec<Delivery> {
    let Some(handler) = pool.routes.batch_handler(batch) else { return Vec::new() };
    let BatchLimits { max, wait } = handler.limits;
    let until = Instant::now() + wait;
    loop {
        // A message that needs isolation starts the next batch.
        let fits = |delivery: &&Delivery| {
            pool.routes.batch_index(delivery) == Some(batch) && !pool.needs_isolation(delivery)
        };
        let fitting = prefetch.iter().take_while(fits).count();
        let left = until.saturating_duration_since(Instant::now());
        if fitting >= max || fitting < prefetch.len() || left.is_zero() {
            let mut count = fitting.min(max);
            if count > 1 && pool.limiter.has_limits() {
                count = 1 + pool.limiter.admit_now(count - 1) as usize;
            }
            return prefetch.drain(..count).collect();
        }
        let missing = u32::try_from(max - fitting).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            // In these cases the messages are released with the session.
            () = pool.phases.stop_fetching.cancelled() => return Vec::new(),
            () = lost.cancelled() => return Vec::new(),
            () = pool.isolation.requested() => return Vec::new(),
            // The time-out uses the clock of this process; the broker's clock may differ.
            fetched = tokio::time::timeout(left, source.fetch(missing, left)) => match fetched {
                Ok(Ok(deliveries)) => prefetch.add(deliveries),
                Err(_) => {}
                // The next fetch reports the error.
                Ok(Err(_)) => return prefetch.drain(..fitting).collect(),
            },
        }
    }
}

async fn next_action(
    pool: &Pool,
    options: &SessionOptions,
    source: &dyn Source,
    lost: &CancellationToken,
    prefetch: &mut SessionPrefetch,
    busy: &mut CountGuard,
    mut wait: Duration,
) -> SessionAction {
    let stop_fetching = &pool.phases.stop_fetching;
    let idle_since = Instant::now();
    let mut empty_receives = 0;
    loop {
        let isolation = pool.isolation.is_requested();
        if stop_fetching.is_cancelled() || lost.is_cancelled() || isolation {
            return SessionAction::Release;
        }
        if !prefetch.is_empty() {
            if pool.limiter.blocked_for().is_some() {
                return SessionAction::Release;
            }
            let admit = stop_fetching.run_until_cancelled(pool.limiter.admit(1));
            if admit.await.is_none_or(|count| count == 0) {
                return SessionAction::Release;
            }
            return SessionAction::Handle;
        }
        let max = pool.session_prefetch(options);
        if !prefetch.is_last {
            match fetch(pool, source, max, std::mem::take(&mut wait)).await {
                Ok(deliveries) if !deliveries.is_empty() => {
                    prefetch.add(deliveries);
                    continue;
                }
                Ok(_) => {}
                Err(error) => return release_after(pool, &error),
            }
        }
        *busy = pool.counts.idle();
        // The session is empty: wait for more of its messages, or for another session that is ready.
        tokio::select! {
            biased;
            () = stop_fetching.cancelled() => return SessionAction::Release,
            () = lost.cancelled() => return SessionAction::Release,
            () = pool.isolation.requested() => return SessionAction::Release,
            () = pool.slots.has_excess() => return SessionAction::Release,
            fetched = source.fetch(max, options.receive_wait) => match fetched {
                Ok(deliveries) if deliveries.is_empty() => {
                    empty_receives += 1;
                    let is_idle = idle_since.elapsed() >= options.idle;
                    if empty_receives >= options.empty_receives || is_idle {
                        return SessionAction::Release;
                    }
                }
                Ok(deliveries) => prefetch.add(deliveries),
                Err(error) => return release_after(pool, &error),
            },
            Some(other) = pool.accept(options.receive_wait) => return SessionAction::Switch(other),
        }
        *busy = pool.counts.busy();
    }
}

/// Fetches messages that are ready now or, with a wait, within that time. The wait uses the clock of this process; the
/// broker's clock may differ.
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
        () = pool.phases.stop_fetching.cancelled() => Ok(Vec::new()),
        () = pool.isolation.requested() => Ok(Vec::new()),
        fetched = fetched => fetched.unwrap_or_else(|_| Ok(Vec::new())),
    }
}

fn release_after(pool: &Pool, error: &BrokerError) -> SessionAction {
    tracing::debug!(queue = %pool.queue, %error, "a fetch from a session failed; the session is released");
    SessionAction::Release
}

impl Pool {
    fn record_handling(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mean = self.handling_us.load(Ordering::Relaxed);
        // Concurrent updates may overwrite each other; an approximate average is enough.
        self.handling_us.store(mean - mean / 8 + took / 8, Ordering::Relaxed);
    }

    /// How many messages of a session to fetch at once. Slow handlers get few, because a crash counts against every
    /// fetched message.
    fn session_prefetch(&self, options: &SessionOptions) -> u32 {
        let mean = Duration::from_micros(self.handling_us.load(Ordering::Relaxed));
        if mean > SLOW {
            return 1;
        }
        let half_a_lock = self.settings.lock.as_micros() / 2 / mean.as_micros().max(1);
        options.prefetch.min(u32::try_from(half_a_lock).unwrap_or(u32::MAX)).max(1)
    }
}

/// How long a session keeps its slot while other sessions are ready.
struct Quantum {
    messages_left: u32,
    until: Instant,
}

impl Quantum {
    fn new(options: &SessionOptions) -> Self {
        Self { messages_left: options.quantum, until: Instant::now() + options.quantum_time }
    }

    fn is_used_up(&mut self, handled: usize) -> bool {
        let handled = u32::try_from(handled).unwrap_or(u32::MAX);
        self.messages_left = self.messages_left.saturating_sub(handled);
        self.messages_left == 0 || Instant::now() >= self.until
    }
}
