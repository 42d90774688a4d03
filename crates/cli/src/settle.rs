//! `malote settle`: ends leases by hand.

use std::time::Duration;

use malote_model::{QueueName, limits};
use malote_wire_native::settle::{SettleOutcome, SettleRequest};

use crate::api::{Api, ApiError};
use crate::args::{Remote, queue_name};
use crate::when;

/// End leases of messages received with --keep
#[derive(clap::Args)]
pub(crate) struct Settle {
    #[command(flatten)]
    remote: Remote,
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// The leases, as `malote receive --keep -o json` shows them
    #[arg(required = true, value_name = "LEASE")]
    leases: Vec<String>,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    text: ErrorText,
    /// With --abandon or --release: not before so long
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with_all = ["complete", "defer", "dead_letter"])]
    delay: Option<Duration>,
}

#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Outcome {
    /// Done: they are gone
    #[arg(long)]
    complete: bool,
    /// Failed: they come again, and it counts
    #[arg(long)]
    abandon: bool,
    /// Given back: they come again, and it does not count
    #[arg(long)]
    release: bool,
    /// Set aside: they come only when asked for by sequence
    #[arg(long)]
    defer: bool,
    /// Given up, for this reason
    #[arg(long, value_name = "REASON")]
    dead_letter: Option<String>,
}

/// What went wrong, in full.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ErrorText {
    /// With --dead-letter: what went wrong, in full
    #[arg(long, value_name = "TEXT", requires = "dead_letter")]
    error: Option<String>,
}

/// How leases end.
pub(crate) enum How {
    /// Done.
    Complete,
    /// Failed.
    Abandon { delay: Option<Duration> },
    /// Given back.
    Release { delay: Option<Duration> },
    /// Set aside.
    Defer,
    /// Given up.
    DeadLetter { reason: String, text: Option<String> },
}

impl How {
    /// Given up for this reason.
    pub(crate) fn dead_letter(reason: &str, text: &ErrorText) -> Self {
        Self::DeadLetter { reason: reason.to_owned(), text: text.error.clone() }
    }

    fn request(&self, leases: Vec<String>) -> SettleRequest {
        let request = |outcome| SettleRequest {
            leases,
            outcome,
            delay_ms: None,
            reason: None,
            text: None,
            properties: None,
            session_state: None,
        };
        match self {
            Self::Complete => request(SettleOutcome::Complete),
            Self::Abandon { delay } => {
                SettleRequest { delay_ms: delay.map(when::ms), ..request(SettleOutcome::Abandon) }
            }
            Self::Release { delay } => {
                SettleRequest { delay_ms: delay.map(when::ms), ..request(SettleOutcome::Release) }
            }
            Self::Defer => request(SettleOutcome::Defer),
            Self::DeadLetter { reason, text } => SettleRequest {
                reason: Some(reason.clone()),
                text: text.clone(),
                ..request(SettleOutcome::DeadLetter)
            },
        }
    }
}

impl Settle {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, queue, leases, outcome, text, delay } = self;
        let how = match outcome {
            Outcome { abandon: true, .. } => How::Abandon { delay },
            Outcome { release: true, .. } => How::Release { delay },
            Outcome { defer: true, .. } => How::Defer,
            Outcome { dead_letter: Some(reason), .. } => How::dead_letter(&reason, &text),
            _ => How::Complete,
        };
        remote.run(|api, out| async move {
            let count = leases.len();
            settle(&api, &queue, leases, &how).await?;
            out.note(format_args!("{count} settled"));
            Ok(())
        })
    }
}

/// Ends leases; the first that is refused is the error, the others are settled all the same.
pub(crate) async fn settle(
    api: &Api,
    queue: &QueueName,
    leases: Vec<String>,
    how: &How,
) -> anyhow::Result<()> {
    let mut refused = Vec::new();
    for some in leases.chunks(limits::SETTLE_BATCH_MAX) {
        let results = api.settle(queue, &how.request(some.to_vec())).await?.results;
        refused.extend(results.into_iter().filter(|result| !result.ok));
    }
    let count = refused.len();
    let Some(first) = refused.into_iter().next() else { return Ok(()) };
    let mut problem = first.problem.unwrap_or_default();
    if problem.detail.is_empty() {
        problem.detail = format!("lease {} was not settled", first.lease);
    }
    if count > 1 {
        problem.detail.push_str(&format!(" (and {} more like it)", count - 1));
    }
    Err(ApiError::Refused(problem).into())
}
