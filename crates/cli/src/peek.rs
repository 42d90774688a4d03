//! `malote peek`: shows messages without receiving them.

use clap::ValueEnum;
use malote_model::{QueueName, SessionId, limits};

use crate::api::PeekFilter;
use crate::args::{Remote, queue_name, session_id};
use crate::message::Raw;

/// Show messages without receiving or locking them
#[derive(clap::Args)]
pub(crate) struct Peek {
    #[command(flatten)]
    remote: Remote,
    /// Queue to read
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Start at this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
    /// Maximum number of messages
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max: u64,
    /// Only messages of this session
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// Only messages in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    #[command(flatten)]
    raw: Raw,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    /// Waiting for a receiver
    Ready,
    /// Locked by a receiver
    Locked,
    /// Waiting for its delay
    Delayed,
    /// Scheduled for a later time
    Scheduled,
    /// Deferred by a receiver
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
            let mut filter = PeekFilter { from, max: 0, session, state: state.map(State::word) };
            let mut seen = Vec::new();
            let mut left = max;
            while left > 0 {
                filter.max = left.min(limits::RECEIVE_BATCH_MAX as u64);
                let page = api.peek(&queue, &filter).await?;
                left = left.saturating_sub(page.messages.len() as u64);
                seen.extend(page.messages);
                match page.next {
                    Some(next) => filter.from = next,
                    None => break,
                }
            }
            if seen.is_empty() {
                out.note("no messages");
            }
            raw.list(&mut out, &seen)
        })
    }
}
