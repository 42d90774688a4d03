//! Tells a service manager how we are, if one listens (`Type=notify`). Without `$NOTIFY_SOCKET`
//! every call does nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// Recovery is done and the listeners are open.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What we are doing, for `systemctl status`.
pub fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// We were asked to stop and are draining.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Asks for more time, for a long recovery: call again before `more` is over.
pub fn extend_start(more: Duration) {
    let more_us = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(more_us)]);
}

/// How often [`alive`] must be called, when a watchdog is set: twice per its period.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|period| period / 2)
}

/// The event loop turns.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
