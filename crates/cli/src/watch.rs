//! `--watch`: shows something again and again.

use std::time::Duration;

use crate::output::Output;
use crate::when;

/// The flag of commands that show a state.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// Refresh until Ctrl-C, every 2s or every TIME as in --watch=5s
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = when::duration
    )]
    watch: Option<Duration>,
}

/// The shortest time between two requests.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

impl WatchArgs {
    /// Shows it once, or until the command is interrupted.
    pub(crate) async fn run(
        self,
        out: &mut Output,
        mut show: impl AsyncFnMut(&mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(interval) = self.watch else { return show(out).await };
        loop {
            out.restart()?;
            show(out).await?;
            tokio::time::sleep(interval.max(INTERVAL_MIN)).await;
        }
    }
}
