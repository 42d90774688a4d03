//! `malote settle`: settles messages that `malote receive --keep` left locked.

use std::time::Duration;

use malote_model::{QueueName, limits};
use malote_wire_native::settle::{SettleOutcome, SettleRequest};

use crate::api::{Api, ApiError};
use crate::args::{Remote, queue_name};
use crate::when;

/// Settle messages received with --keep
#[derive(clap::Args)]
pub(crate) struct Settle {
    #[command(flatten)]
    remote: Remote,
    /// Queue of the messages
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Lease tokens, as shown by `malote receive --keep -o json`
    #[arg(required = true, value_name = "LEASE")]
    leases: Vec<String>,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    text: ErrorText,
    /// With --abandon or --release: deliver again after this time
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with_all = ["complete", "defer", "dead_letter"])]
    delay: Option<Duration>,
}

#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Outcome {
    /// Complete: the messages are done
    #[arg(long)]
    complete: bool,
    /// Abandon: count a failure and deliver again
    #[arg(long)]
    abandon: bool,
    /// Release: deliver again without counting a failure
    #[arg(long)]
    release: bool,
    /// Defer: deliver only on request by sequence number
    #[arg(long)]
    defer: bool,
    /// Dead-letter with this reason
    #[arg(long, value_name = "REASON")]
    dead_letter: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ErrorText {
    /// With --dead-letter: description of the error
    #[arg(long, value_name = "TEXT", requires = "dead_letter")]
    error: Option<String>,
}

/// How messages are settled.
pub(crate) enum SettleAs {
    Complete,
    Abandon { delay: Option<Duration> },
    Release { delay: Option<Duration> },
    Defer,
    DeadLetter { reason: String, text: Option<String> },
}

impl SettleAs {
    pub(crate) fn dead_letter(reason: &str, text: &ErrorText) -> Self {
        Self::DeadLetter { reason: reason.to_owned(), text: text.error.clone() }
    }

    fn done(&self) -> &'static str {
        match self {
            Self::Complete => "completed",
            Self::Abandon { .. } => "abandoned",
            Self::Release { .. } => "released",
            Self::Defer => "deferred",
            Self::DeadLetter { .. } => "dead-lettered",
        }
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
            Outcome { abandon: true, .. } => SettleAs::Abandon { delay },
            Outcome { release: true, .. } => SettleAs::Release { delay },
            Outcome { defer: true, .. } => SettleAs::Defer,
            Outcome { dead_letter: Some(reason), .. } => SettleAs::dead_letter(&reason, &text),
            _ => SettleAs::Complete,
        };
        remote.run(|api, out| async move {
            let count = when::count(leases.len() as u64, "message");
            settle(&api, &queue, leases, &how).await?;
            out.note(format_args!("{count} settled: {}", how.done()));
            Ok(())
        })
    }
}

/// Settles messages. The first refusal is the error; the other messages are settled anyway.
pub(crate) async fn settle(
    api: &Api,
    queue: &QueueName,
    leases: Vec<String>,
    how: &SettleAs,
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
        problem.detail.push_str(&format!(" (and {} more)", count - 1));
    }
    Err(ApiError::Refused(problem).into())
}
