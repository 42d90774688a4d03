//! Certificates and credentials change without a restart: at once on SIGHUP, within a second when
//! a file is replaced.

use crate::shutdown::ShutdownToken;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often files are looked at. Looking costs a `stat`.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
