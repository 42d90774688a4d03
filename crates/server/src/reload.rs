//! Reloads certificates and credentials without a restart: immediately on SIGHUP, and within a second after a file is
//! replaced.

use crate::shutdown::ShutdownToken;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Interval of the check for changed files, which costs a `stat`. A revoked permission must end within a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Something that is read from files and can be read again while the server runs.
///
/// A failed reload keeps the previous state.
pub trait Reload: Send + Sync {
    /// Name for the log.
    fn name(&self) -> &'static str;

    /// Reads the files again if they have changed, or always with `force`. Returns whether the new content is in use.
    fn reload(&self, force: bool) -> Result<bool, String>;
}

/// Reloads `parts` when they change, until the server drains.
pub async fn keep_current(
    parts: Vec<Arc<dyn Reload>>,
    shutdown: ShutdownToken,
) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reported = vec![None; parts.len()];
    loop {
        let force = tokio::select! {
            () = shutdown.draining() => return Ok(()),
            _ = hangup.recv() => true,
            _ = tick.tick() => false,
        };
        let looked = parts.clone();
        let results = tokio::task::spawn_blocking(move || {
            looked.iter().map(|part| part.reload(force)).collect::<Vec<_>>()
        });
        let Ok(results) = results.await else { continue };
        for ((part, result), reported) in parts.iter().zip(results).zip(&mut reported) {
            let part = part.name();
            match result {
                Ok(false) => *reported = None,
                Ok(true) => {
                    *reported = None;
                    tracing::info!(part, "reloaded");
                }
                // Logs the same error once, not on every check.
                Err(error) if reported.as_ref() == Some(&error) && !force => {}
                Err(error) => {
                    tracing::warn!(part, %error, "reload failed; keeping the previous state");
                    *reported = Some(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::Shutdown;
    use tokio::sync::mpsc;

    /// Reports how it was called, and fails when it is forced.
    struct Part(mpsc::UnboundedSender<bool>);

    impl Reload for Part {
        fn name(&self) -> &'static str {
            "part"
        }

        fn reload(&self, force: bool) -> Result<bool, String> {
            let _ = self.0.send(force);
            if force { Err("broken".to_owned()) } else { Ok(true) }
        }
    }

    #[tokio::test]
    async fn files_are_checked_and_sighup_forces_a_reload() {
        use rustix::process::{Signal, getpid, kill_process};
        let (sender, mut calls) = mpsc::unbounded_channel();
        let shutdown = Shutdown::new();
        let parts: Vec<Arc<dyn Reload>> = vec![Arc::new(Part(sender))];
        let task = tokio::spawn(keep_current(parts, shutdown.token()));
        // The first check shows that the signal handler is installed; otherwise the signal would end the test process.
        assert_eq!(calls.recv().await, Some(false));
        kill_process(getpid(), Signal::HUP).unwrap();
        while calls.recv().await != Some(true) {}
        // A failed reload does not end the loop.
        assert_eq!(calls.recv().await, Some(false));
        shutdown.begin();
        task.await.unwrap().unwrap();
    }
}
