//! Limits the send rate and draws the progress bar.

use std::fmt::Write;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tokio::time::Instant;

use crate::when::grouped;

/// A rate limit is applied in this many steps per second.
const STEPS_PER_SECOND: u32 = 20;

/// Counts messages sent and applies the rate limit.
pub(super) struct Pace {
    started: Instant,
    rate: Option<NonZeroU32>,
    bar: ProgressBar,
    pub sent: u64,
    pub requests: u64,
}

impl Pace {
    /// Starts the clock. The bar is drawn on a terminal only.
    pub(super) fn start(total: Option<u64>, rate: Option<NonZeroU32>) -> Self {
        let bar = match total {
            Some(0..=1) => ProgressBar::hidden(),
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        bar.set_draw_target(match std::io::stderr().is_terminal() {
            true if total != Some(1) => ProgressDrawTarget::stderr_with_hz(10),
            _ => ProgressDrawTarget::hidden(),
        });
        let shape = match total {
            Some(_) => "{bar:40} {human_pos}/{human_len} {rate} {eta}",
            None => "{spinner} {human_pos} {rate}",
        };
        if let Ok(style) = ProgressStyle::with_template(shape) {
            let rate = |state: &ProgressState, out: &mut dyn Write| {
                let _ = write!(out, "{}/s", grouped(state.per_sec() as u64));
            };
            bar.set_style(style.with_key("rate", rate));
        }
        Self { started: Instant::now(), rate, bar, sent: 0, requests: 0 }
    }

    /// The batch size: the requested one, or less if the rate is low.
    pub(super) fn batch(&self, asked: u32) -> u32 {
        match self.rate {
            Some(rate) => asked.min((rate.get() / STEPS_PER_SECOND).max(1)),
            None => asked,
        }
    }

    /// Waits until the rate allows the next batch.
    pub(super) async fn wait(&self) {
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(self.sent as f64 / f64::from(rate.get()));
            tokio::time::sleep_until(self.started + due).await;
        }
    }

    /// Counts one request.
    pub(super) fn count(&mut self, sent: u64) {
        self.sent += sent;
        self.requests += 1;
        self.bar.inc(sent);
    }

    /// Removes the bar, so that other text can be printed.
    pub(super) fn stop(&self) {
        self.bar.finish_and_clear();
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
