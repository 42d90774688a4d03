//! Worker processes, and what happens to them: SIGKILL, SIGSTOP, and an order that ends them.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::checks::Books;
use crate::worker::LOCK;

/// Time between two troubles: long enough for work to be under way again.
pub const CALM: Duration = Duration::from_millis(700);
/// If nothing moves for so long, something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Worker processes, and what was done to them.
pub struct Workers {
    all: Vec<Child>,
    url: String,
    db: PathBuf,
    killed: usize,
    frozen: usize,
    aborted: usize,
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { killed, frozen, aborted, .. } = self;
        write!(
            f,
            "{killed} workers were killed with SIGKILL, {frozen} frozen with SIGSTOP for longer than their locks, \
             {aborted} ended by an order"
        )
    }
}

impl Workers {
    /// Starts so many.
    pub fn start(count: usize, url: &str, db: &Path) -> anyhow::Result<Self> {
        let (url, db) = (url.to_owned(), db.to_owned());
        let mut workers = Self { all: Vec::new(), url, db, killed: 0, frozen: 0, aborted: 0 };
        for _ in 0..count.max(1) {
            workers.all.push(workers.spawn()?);
        }
        Ok(workers)
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(&self.url).arg(&self.db).kill_on_drop(true);
        command.spawn().context("a worker does not start")
    }

    /// What any supervisor does: whoever ended is started again.
    fn restart(&mut self) -> anyhow::Result<()> {
        for nth in 0..self.all.len() {
            if self.all[nth].try_wait()?.is_some() {
                self.aborted += 1;
                self.all[nth] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Kills and freezes in turn, one worker after the other, while orders are applied.
    pub async fn trouble(
        &mut self,
        kills: usize,
        freezes: usize,
        books: &Books,
    ) -> anyhow::Result<()> {
        let mut nth = 0;
        while (self.killed < kills || self.frozen < freezes) && !books.are_complete().await? {
            tokio::time::sleep(CALM).await;
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
        // An order may have been faster.
        if status.signal() == Some(Signal::KILL.as_raw()) {
            self.killed += 1;
        } else {
            self.aborted += 1;
        }
        self.all[at] = self.spawn()?;
        Ok(())
    }

    /// For longer than its lock: its customers are somebody else's by the time it wakes up.
    async fn freeze(&mut self, at: usize) -> anyhow::Result<()> {
        signal(&self.all[at], Signal::STOP)?;
        tokio::time::sleep(LOCK + LOCK / 3).await;
        signal(&self.all[at], Signal::CONT)?;
        self.frozen += 1;
        Ok(())
    }

    /// Waits until every order is applied or dead, and stops the workers in order.
    pub async fn finish(&mut self, books: &Books) -> anyhow::Result<()> {
        let (mut before, mut moved) = ((0, 0), Instant::now());
        while !books.are_complete().await? {
            self.restart()?;
            let now = books.progress().await?;
            if now != before {
                (before, moved) = (now, Instant::now());
            }
            let (applied, dead) = now;
            ensure!(moved.elapsed() < PATIENCE, "it stands still: {applied} applied, {dead} dead");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for mut worker in self.all.drain(..) {
            signal(&worker, Signal::TERM)?;
            let status = worker.wait().await?;
            // The order that ends workers is a dead letter when it has ended its last one: that may be all that was missing.
            if status.signal() == Some(Signal::ABORT.as_raw()) {
                self.aborted += 1;
                continue;
            }
            // One that was started a moment ago does not listen yet, and has taken nothing.
            let unready = status.signal() == Some(Signal::TERM.as_raw());
            ensure!(
                status.success() || unready,
                "a worker that was asked to stop failed: {status}"
            );
        }
        Ok(())
    }
}

/// To a process of ours.
pub fn signal(worker: &Child, signal: Signal) -> anyhow::Result<()> {
    let id = worker.id().and_then(|id| i32::try_from(id).ok());
    let pid = id.and_then(Pid::from_raw).context("a worker is gone")?;
    Ok(kill_process(pid, signal)?)
}
