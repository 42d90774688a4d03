//! Certificates and credentials change without a restart: at once on SIGHUP, within a second when
//! a file is replaced.

use crate::shutdown::ShutdownToken;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often files are looked at. Looking costs a `stat`; a revoked permission must have ended within a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Something read from files that can be read again while the server runs.
///
/// A reload that fails leaves what was there before in force.
pub trait Reload: Send + Sync {
    /// What it is, for the log.
    fn name(&self) -> &'static str;

    /// Reads the files again if they have changed, or in any case with `force`. Says whether
    /// something new is in force.
    fn reload(&self, force: bool) -> Result<bool, String>;
}

/// Keeps `parts` current until the server drains.
pub async fn keep_current(
    parts: Vec<Arc<dyn Reload>>,
    shutdown: ShutdownToken,
) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told = vec![None; parts.len()];
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
        for ((part, result), told) in parts.iter().zip(results).zip(&mut told) {
            let part = part.name();
            match result {
                Ok(false) => *told = None,
                Ok(true) => {
                    *told = None;
                    tracing::info!(part, "reloaded");
                }
                // The same complaint once, not once a second.
                Err(error) if told.as_ref() == Some(&error) && !force => {}
                Err(error) => {
                    tracing::warn!(part, %error, "not reloaded; what was there stays in force");
                    *told = Some(error);
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

    /// Says how it was called, and fails when it is forced.
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
    async fn files_are_looked_at_and_a_hangup_forces() {
        use rustix::process::{Signal, getpid, kill_process};
        let (sender, mut calls) = mpsc::unbounded_channel();
        let shutdown = Shutdown::new();
        let parts: Vec<Arc<dyn Reload>> = vec![Arc::new(Part(sender))];
        let task = tokio::spawn(keep_current(parts, shutdown.token()));
        // The first look shows that the signal is caught, or sending it would end the tests.
        assert_eq!(calls.recv().await, Some(false));
        kill_process(getpid(), Signal::HUP).unwrap();
        while calls.recv().await != Some(true) {}
        // A failed reload does not end the watch.
        assert_eq!(calls.recv().await, Some(false));
        shutdown.begin();
        task.await.unwrap().unwrap();
    }
}
