//! How fast messages go out, and the bar that shows it.

use std::fmt::Write;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tokio::time::Instant;

use crate::when::grouped;

/// A rate is kept in steps of this many in a second.
const STEPS_PER_SECOND: u32 = 20;

/// Counts what was sent, and holds it back where a rate is asked for.
pub(super) struct Pace {
    started: Instant,
    rate: Option<NonZeroU32>,
    bar: ProgressBar,
    /// Messages sent.
    pub sent: u64,
    /// Requests made.
    pub requests: u64,
}

impl Pace {
    /// Begins now; the bar shows on a terminal only.
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

    /// How many to send at once: what was asked for, less where the rate is slow.
    pub(super) fn batch(&self, asked: u32) -> u32 {
        match self.rate {
            Some(rate) => asked.min((rate.get() / STEPS_PER_SECOND).max(1)),
            None => asked,
        }
    }

    /// Until the next may go out.
    pub(super) async fn wait(&self) {
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(self.sent as f64 / f64::from(rate.get()));
            tokio::time::sleep_until(self.started + due).await;
        }
    }

    /// So many went out.
    pub(super) fn count(&mut self, sent: u64) {
        self.sent += sent;
        self.requests += 1;
        self.bar.inc(sent);
    }

    /// The bar goes, so that other words can stand there.
    pub(super) fn stop(&self) {
        self.bar.finish_and_clear();
    }

    /// Since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
