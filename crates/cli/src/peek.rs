//! `malote peek`: looks at messages and touches nothing.

use clap::ValueEnum;
use malote_model::{QueueName, SessionId, limits};

use crate::api::Look;
use crate::args::{Remote, queue_name, session_id};
use crate::message::Raw;

/// Look at messages without taking them
#[derive(clap::Args)]
pub(crate) struct Peek {
    #[command(flatten)]
    remote: Remote,
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Begin at this sequence
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max: u64,
    /// Only of this session
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// Only in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    #[command(flatten)]
    raw: Raw,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    /// Waiting for a receiver
    Ready,
    /// Out to a receiver
    Locked,
    /// In its place, not yet due
    Delayed,
    /// To be sent later
    Scheduled,
    /// Set aside
    Deferred,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Locked => "locked",
            Self::Delayed => "delayed",
            Self::Scheduled => "scheduled",
            Self::Deferred => "deferred",
        }
    }
}

impl Peek {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, queue, from, max, session, state, raw } = self;
        remote.run(|api, mut out| async move {
            let mut look = Look { from, max: 0, session, state: state.map(State::word) };
            let mut seen = Vec::new();
            let mut left = max;
            while left > 0 {
                look.max = left.min(limits::RECEIVE_BATCH_MAX as u64);
                let page = api.peek(&queue, &look).await?;
                left = left.saturating_sub(page.messages.len() as u64);
                seen.extend(page.messages);
                match page.next {
                    Some(next) => look.from = next,
                    None => break,
                }
            }
            if seen.is_empty() {
                out.note("nothing to see");
            }
            raw.list(&mut out, &seen)
        })
    }
}
