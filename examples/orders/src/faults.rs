//! The worker processes and their faults: SIGKILL, SIGSTOP, and an order that crashes them.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::checks::Results;
use crate::worker::LOCK;

/// The pause between two faults, so that workers handle orders in between.
pub const PAUSE: Duration = Duration::from_millis(700);
/// The example fails after this time without progress.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The worker processes, and the number of faults.
pub struct Workers {
    all: Vec<Child>,
    url: String,
    db: PathBuf,
    killed: usize,
    frozen: usize,
    crashed: usize,
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { killed, frozen, crashed, .. } = self;
        write!(
            f,
            "{killed} workers were killed with SIGKILL, {frozen} frozen with SIGSTOP for longer than their locks, \
             {crashed} crashed by an order"
        )
    }
}

impl Workers {
    /// Starts this many workers.
    pub fn start(count: usize, url: &str, db: &Path) -> anyhow::Result<Self> {
        let (url, db) = (url.to_owned(), db.to_owned());
        let mut workers = Self { all: Vec::new(), url, db, killed: 0, frozen: 0, crashed: 0 };
        for _ in 0..count.max(1) {
            workers.all.push(workers.spawn()?);
        }
        Ok(workers)
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(&self.url).arg(&self.db).kill_on_drop(true);
        command.spawn().context("cannot start a worker")
    }

    /// Starts crashed workers again, like a supervisor.
    fn restart(&mut self) -> anyhow::Result<()> {
        for nth in 0..self.all.len() {
            if self.all[nth].try_wait()?.is_some() {
                self.crashed += 1;
                self.all[nth] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Kills and freezes workers in turn while orders are applied.
    pub async fn inject_faults(
        &mut self,
        kills: usize,
        freezes: usize,
        results: &Results,
    ) -> anyhow::Result<()> {
        let mut nth = 0;
        while (self.killed < kills || self.frozen < freezes) && !results.are_complete().await? {
            tokio::time::sleep(PAUSE).await;
            self.restart()?;
            let at = nth % self.all.len();
            nth += 1;
            if self.frozen < freezes && (nth % 2 == 0 || self.killed == kills) {
                self.freeze(at).await?;
            } else {
                self.kill(at).await?;
            }
        }
        Ok(())
    }

    async fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        self.all[at].start_kill()?;
        let status = self.all[at].wait().await?;
        // An order may have crashed it before.
        if status.signal() == Some(Signal::KILL.as_raw()) {
            self.killed += 1;
        } else {
            self.crashed += 1;
        }
        self.all[at] = self.spawn()?;
        Ok(())
    }

    /// Freezes a worker for longer than its lock, so that other workers get its sessions.
    async fn freeze(&mut self, at: usize) -> anyhow::Result<()> {
        signal(&self.all[at], Signal::STOP)?;
        tokio::time::sleep(LOCK + LOCK / 3).await;
        signal(&self.all[at], Signal::CONT)?;
        self.frozen += 1;
        Ok(())
    }

    /// Waits until every order is applied or dead-lettered, and stops the workers.
    pub async fn finish(&mut self, results: &Results) -> anyhow::Result<()> {
        let (mut before, mut progress_at) = ((0, 0), Instant::now());
        while !results.are_complete().await? {
            self.restart()?;
            let now = results.progress().await?;
            if now != before {
                (before, progress_at) = (now, Instant::now());
            }
            let (applied, dead) = now;
            ensure!(
                progress_at.elapsed() < STALL_TIMEOUT,
                "no progress: {applied} orders applied, {dead} dead-lettered"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for mut worker in self.all.drain(..) {
            signal(&worker, Signal::TERM)?;
            let status = worker.wait().await?;
            // The order that crashes workers may be the last one to be dead-lettered.
            if status.signal() == Some(Signal::ABORT.as_raw()) {
                self.crashed += 1;
                continue;
            }
            // SIGTERM ended a worker that had just started, before it installed its signal handlers.
            let unready = status.signal() == Some(Signal::TERM.as_raw());
            ensure!(status.success() || unready, "a worker failed during its shutdown: {status}");
        }
        Ok(())
    }
}

/// Sends a signal to a child process.
pub fn signal(worker: &Child, signal: Signal) -> anyhow::Result<()> {
    let id = worker.id().and_then(|id| i32::try_from(id).ok());
    let pid = id.and_then(Pid::from_raw).context("the worker has ended")?;
    Ok(kill_process(pid, signal)?)
}
