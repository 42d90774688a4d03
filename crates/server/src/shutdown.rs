//! Orderly shutdown: not ready → no new connections → drain with a deadline → stop.
//!
//! The first SIGTERM or SIGINT starts the drain; a second one ends it. All tasks that must be waited for are spawned on
//! one tracker.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Controls the shutdown of the process. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: ShutdownToken,
    tasks: TaskTracker,
    ready: Arc<AtomicBool>,
}

/// The shutdown as connections and long-lived tasks see it.
#[derive(Debug, Clone, Default)]
pub struct ShutdownToken {
    draining: CancellationToken,
    stopped: CancellationToken,
}

impl ShutdownToken {
    /// Resolves when the drain begins: finish current work, begin no new work, and close.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Cancelled when the drain begins.
    pub fn draining_token(&self) -> CancellationToken {
        self.draining.clone()
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Resolves when the drain ends by deadline or by a second signal: drop everything.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }
}

/// How the drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All tasks ended.
    All,
    /// The deadline passed; the remaining tasks were dropped.
    Deadline { left: usize },
    /// A second signal came; the remaining tasks were dropped.
    Forced { left: usize },
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn token(&self) -> ShutdownToken {
        self.token.clone()
    }

    /// Spawns a task that the drain waits for. It is dropped when the drain ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let stopped = self.token.stopped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stopped.cancelled() => {}
                () = task => {}
            }
        })
    }

    /// Marks the start as complete: recovery done, listeners open.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// The state that `/readyz` reports: started and not draining.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.token.is_draining()
    }

    /// Begins the drain: not ready, no new connections. [`Shutdown::drain`] waits for the tasks.
    pub fn begin(&self) {
        self.ready.store(false, Ordering::Release);
        self.token.draining.cancel();
        self.tasks.close();
    }

    /// Drops all running tasks.
    pub fn stop_now(&self) {
        self.begin();
        self.token.stopped.cancel();
    }

    /// Runs until a signal comes, then drains.
    pub async fn run(&self, mut signals: StopSignals, drain_timeout: Duration) -> Drained {
        tokio::select! {
            _ = signals.next() => {}
            () = self.token.draining() => {}
        }
        self.drain(&mut signals, drain_timeout).await
    }

    /// Begins the drain if necessary, and waits until all tasks have ended, the deadline has passed, or another signal
    /// comes.
    pub async fn drain(&self, signals: &mut StopSignals, drain_timeout: Duration) -> Drained {
        self.begin();
        crate::systemd::stopping();
        tracing::info!(tasks = self.tasks.len(), "draining; a second signal stops immediately");
        let drained = tokio::select! {
            biased;
            () = self.tasks.wait() => Drained::All,
            _ = signals.next() => Drained::Forced { left: self.tasks.len() },
            () = tokio::time::sleep(drain_timeout) => Drained::Deadline { left: self.tasks.len() },
        };
        match drained {
            Drained::All => tracing::info!("drained"),
            Drained::Forced { left } => tracing::warn!(left, "stopped by a second signal"),
            Drained::Deadline { left } => tracing::warn!(left, "the drain deadline has passed"),
        }
        self.stop_now();
        // Dropping is quick, but a task that never yields cannot be waited for.
        let _ = tokio::time::timeout(DROP_WAIT, self.tasks.wait()).await;
        drained
    }
}

/// Time for the destructors of dropped tasks.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// The signals that end the process.
#[derive(Debug)]
pub struct StopSignals(SignalSource);

#[derive(Debug)]
enum SignalSource {
    Process { terminate: Signal, interrupt: Signal },
    Manual(mpsc::Receiver<()>),
}

impl StopSignals {
    /// SIGTERM and SIGINT of this process; replaces their default action.
    pub fn of_process() -> std::io::Result<StopSignals> {
        Ok(StopSignals(SignalSource::Process {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        }))
    }

    /// Signals sent by a program, for tests and for embedded servers.
    pub fn manual() -> (mpsc::Sender<()>, StopSignals) {
        let (sender, receiver) = mpsc::channel(4);
        (sender, StopSignals(SignalSource::Manual(receiver)))
    }

    /// Waits for the next signal; forever if none can come.
    pub async fn next(&mut self) {
        let came = match &mut self.0 {
            SignalSource::Process { terminate, interrupt } => tokio::select! {
                came = terminate.recv() => came,
                came = interrupt.recv() => came,
            },
            SignalSource::Manual(receiver) => receiver.recv().await,
        };
        if came.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_signal_drains_what_runs_and_readiness_goes_first() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_ready());
        shutdown.set_ready();
        assert!(shutdown.is_ready());
        let token = shutdown.token();
        shutdown.spawn(async move {
            token.draining().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
        });
        let (signal, signals) = StopSignals::manual();
        signal.send(()).await.unwrap();
        let watched = shutdown.clone();
        let run = tokio::spawn(async move { watched.run(signals, DRAIN).await });
        shutdown.token().draining().await;
        assert!(!shutdown.is_ready());
        assert_eq!(run.await.unwrap(), Drained::All);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_ends_the_wait() {
        let shutdown = Shutdown::new();
        shutdown.spawn(std::future::pending());
        let (signal, signals) = StopSignals::manual();
        signal.send(()).await.unwrap();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::Deadline { left: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_stops_at_once() {
        let shutdown = Shutdown::new();
        shutdown.spawn(std::future::pending());
        let (signal, signals) = StopSignals::manual();
        signal.send(()).await.unwrap();
        signal.send(()).await.unwrap();
        let begun = tokio::time::Instant::now();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::Forced { left: 1 });
        assert!(begun.elapsed() < DRAIN);
    }

    #[tokio::test]
    async fn sigterm_and_sigint_are_signals() {
        use rustix::process::{Signal, getpid, kill_process};
        let mut signals = StopSignals::of_process().unwrap();
        for signal in [Signal::TERM, Signal::INT] {
            kill_process(getpid(), signal).unwrap();
            signals.next().await;
        }
    }

    #[tokio::test]
    async fn a_program_can_begin_the_shutdown_without_a_signal() {
        let shutdown = Shutdown::new();
        shutdown.begin();
        let (_signal, signals) = StopSignals::manual();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::All);
    }
}
