//! Stopping in order: not ready → no new connections → drain with a deadline → stop.
//!
//! The first SIGTERM or SIGINT starts it; a second ends it at once. Every task that must be
//! waited for is spawned on the one tracker here, so nothing outlives the process's last words.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The process's end, as seen by whoever owns it. Clones share one end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: ShutdownToken,
    tasks: TaskTracker,
    ready: Arc<AtomicBool>,
}

/// The process's end, as seen by a connection or a long-lived task.
#[derive(Debug, Clone, Default)]
pub struct ShutdownToken {
    draining: CancellationToken,
    stopped: CancellationToken,
}

impl ShutdownToken {
    /// Resolves when no new work should be begun: finish what is under way and close.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Cancelled when draining begins.
    pub fn draining_token(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Whether draining has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Resolves when the deadline has passed or a second signal came: drop everything.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Whether everything should be dropped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }
}

/// How the drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every task ended by itself.
    All,
    /// The deadline passed with this many tasks left; they were dropped.
    Deadline {
        /// Tasks that had not ended.
        left: usize,
    },
    /// A second signal came with this many tasks left; they were dropped.
    Forced {
        /// Tasks that had not ended.
        left: usize,
    },
}

impl Shutdown {
    /// Nothing stops yet; not ready yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What tasks and connections watch.
    pub fn token(&self) -> ShutdownToken {
        self.token.clone()
    }

    /// Spawns a task that the drain waits for. It is dropped where it stands once stopping is
    /// final.
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

    /// Declares the start complete: recovery done, listeners open.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// What `/readyz` answers: started, and not draining.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.token.is_draining()
    }

    /// Starts draining: not ready, no new connections. [`Shutdown::drain`] waits for the rest.
    pub fn begin(&self) {
        self.ready.store(false, Ordering::Release);
        self.token.draining.cancel();
        self.tasks.close();
    }

    /// Drops everything that still runs.
    pub fn stop_now(&self) {
        self.begin();
        self.token.stopped.cancel();
    }

    /// Runs until a signal comes, then drains: the body of a server's main task.
    pub async fn run(&self, mut signals: Signals, drain_timeout: Duration) -> Drained {
        tokio::select! {
            _ = signals.next() => {}
            () = self.token.draining() => {}
        }
        self.drain(&mut signals, drain_timeout).await
    }

    /// Begins if that has not happened, and waits until every task has ended, the deadline has
    /// passed, or a further signal comes.
    pub async fn drain(&self, signals: &mut Signals, drain_timeout: Duration) -> Drained {
        self.begin();
        crate::systemd::stopping();
        tracing::info!(tasks = self.tasks.len(), "draining; a second signal stops at once");
        let drained = tokio::select! {
            biased;
            () = self.tasks.wait() => Drained::All,
            _ = signals.next() => Drained::Forced { left: self.tasks.len() },
            () = tokio::time::sleep(drain_timeout) => Drained::Deadline { left: self.tasks.len() },
        };
        match drained {
            Drained::All => tracing::info!("drained"),
            Drained::Forced { left } => tracing::warn!(left, "stopped at once by a second signal"),
            Drained::Deadline { left } => tracing::warn!(left, "the drain deadline has passed"),
        }
        self.stop_now();
        // Dropping is quick, but a task that computes without a pause cannot be waited for.
        let _ = tokio::time::timeout(DROP_WAIT, self.tasks.wait()).await;
        drained
    }
}

/// How long dropped tasks get to run their destructors.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// The signals that end the process, one after the other.
#[derive(Debug)]
pub struct Signals(Source);

#[derive(Debug)]
enum Source {
    Process { terminate: Signal, interrupt: Signal },
    Manual(mpsc::Receiver<()>),
}

impl Signals {
    /// SIGTERM and SIGINT of this process, which from now on do nothing else.
    pub fn of_process() -> std::io::Result<Signals> {
        Ok(Signals(Source::Process {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        }))
    }

    /// Signals sent by a program: for tests, and for a server inside another process.
    pub fn manual() -> (mpsc::Sender<()>, Signals) {
        let (sender, receiver) = mpsc::channel(4);
        (sender, Signals(Source::Manual(receiver)))
    }

    /// Waits for the next signal; for ever when no more can come.
    pub async fn next(&mut self) {
        let came = match &mut self.0 {
            Source::Process { terminate, interrupt } => tokio::select! {
                came = terminate.recv() => came,
                came = interrupt.recv() => came,
            },
            Source::Manual(receiver) => receiver.recv().await,
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
        let (signal, signals) = Signals::manual();
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
        let (signal, signals) = Signals::manual();
        signal.send(()).await.unwrap();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::Deadline { left: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_stops_at_once() {
        let shutdown = Shutdown::new();
        shutdown.spawn(std::future::pending());
        let (signal, signals) = Signals::manual();
        signal.send(()).await.unwrap();
        signal.send(()).await.unwrap();
        let begun = tokio::time::Instant::now();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::Forced { left: 1 });
        assert!(begun.elapsed() < DRAIN);
    }

    #[tokio::test]
    async fn sigterm_and_sigint_are_signals() {
        use rustix::process::{Signal, getpid, kill_process};
        let mut signals = Signals::of_process().unwrap();
        for signal in [Signal::TERM, Signal::INT] {
            kill_process(getpid(), signal).unwrap();
            signals.next().await;
        }
    }

    #[tokio::test]
    async fn a_program_can_begin_the_end_without_a_signal() {
        let shutdown = Shutdown::new();
        shutdown.begin();
        let (_signal, signals) = Signals::manual();
        assert_eq!(shutdown.run(signals, DRAIN).await, Drained::All);
    }
}
