//! Notifies a service manager (`Type=notify`). Without `$NOTIFY_SOCKET`, every call does nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// Recovery is done and the listeners are open.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The status shown by `systemctl status`.
pub fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// The server is draining.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Asks for more time during a long recovery. Call it again before `more` has passed.
pub fn extend_start(more: Duration) {
    let more_us = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(more_us)]);
}

/// How often [`alive`] must be called if a watchdog is configured: twice per period.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|period| period / 2)
}

/// Sends the signal of the watchdog: the process is alive.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
