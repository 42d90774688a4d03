//! A running worker: its control, its metrics and its shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::metrics::Metrics;
use crate::pool::{Counts, Pool, Report};
use crate::worker::Shutdown;

/// A running worker. Dropping it stops the worker at once, like [`Running::stop_now`].
pub struct Running {
    pool: Arc<Pool>,
    stop: CancellationToken,
    stop_now: CancellationToken,
    supervisor: JoinHandle<Result<Report, Error>>,
}

impl Running {
    pub(crate) fn new(pool: Arc<Pool>, shutdown: Shutdown) -> Self {
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let supervise = supervise(pool.clone(), shutdown, stop.clone(), stop_now.clone());
        Self { pool, stop, stop_now, supervisor: tokio::spawn(supervise) }
    }

    /// Starts the shutdown. The worker fetches no more messages, and running handlers may finish.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Drops running handlers. Their messages return to the queue uncounted.
    pub fn stop_now(&self) {
        self.stop_now.cancel();
    }

    /// Whether the worker has ended.
    pub fn is_over(&self) -> bool {
        self.supervisor.is_finished()
    }

    /// Waits until the worker has ended.
    pub async fn ended(mut self) -> Result<Report, Error> {
        self.supervised().await
    }

    /// Waits until the worker has ended. It must not be called again after that.
    pub(crate) async fn supervised(&mut self) -> Result<Report, Error> {
        let report = (&mut self.supervisor).await;
        report.unwrap_or_else(|error| Err(Error::Settings(format!("the worker failed: {error}"))))
    }

    /// Messages by outcome so far.
    pub fn counts(&self) -> Counts {
        self.pool.counts.read()
    }

    /// The current metrics: counts, slots, handler durations, breakers.
    pub fn metrics(&self) -> Metrics {
        self.pool.metrics()
    }

    /// A function that returns the current metrics, for your own HTTP server.
    pub fn observer(&self) -> impl Fn() -> Metrics + Send + Sync + use<> {
        let pool = self.pool.clone();
        move || pool.metrics()
    }

    /// Number of handlers that may run at a time now.
    pub fn slots(&self) -> usize {
        self.pool.metrics().slots
    }

    /// Number of slots that handle messages now.
    pub fn busy(&self) -> usize {
        self.pool.counts.busy_and_idle().0
    }

    /// Number of slots that hold a session without messages.
    pub fn idle(&self) -> usize {
        self.pool.counts.busy_and_idle().1
    }

    /// Waits until the broker has answered all settlements so far.
    pub async fn flushed(&self) {
        self.pool.flushed().await;
    }

    /// Whether the worker fetches messages. It does not while it stops, a breaker is open or a handler asked for a pause.
    pub fn is_fetching(&self) -> bool {
        self.pool.is_fetching()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_now.cancel();
    }
}

/// Waits until the worker must stop, and goes through the phases of the shutdown.
async fn supervise(
    pool: Arc<Pool>,
    shutdown: Shutdown,
    stop: CancellationToken,
    stop_now: CancellationToken,
) -> Result<Report, Error> {
    tokio::select! {
        () = stop.cancelled() => {}
        () = stop_now.cancelled() => {}
        () = pool.all_stuck.cancelled() => stop_now.cancel(),
    }
    pool.phases.stop_fetching.cancel();
    let slots_ended = async |time: Duration| {
        let ended = tokio::time::timeout(time, pool.slots_ended());
        matches!(stop_now.run_until_cancelled(ended).await, Some(Ok(())))
    };
    if !slots_ended(shutdown.drain).await {
        pool.phases.cancel_handlers.cancel();
        if !slots_ended(shutdown.cancel).await {
            pool.phases.drop_handlers.cancel();
            let _ = tokio::time::timeout(shutdown.release, pool.slots_ended()).await;
        }
    }
    if tokio::time::timeout(shutdown.flush, pool.flushed()).await.is_err() {
        tracing::warn!(queue = %pool.queue, "the broker did not answer all settlements in time; their messages are delivered again");
    }
    let report = Report { counts: pool.counts.read(), stuck: pool.counts.stuck() };
    if pool.all_stuck.is_cancelled() {
        return Err(Error::Stuck { stuck: report.stuck });
    }
    Ok(report)
}
