//! Looking at sessions, and taking one from its holder.

use malote_model::{QueueName, SessionId, limits};

use crate::api::Api;
use crate::api::words::Session;
use crate::args::{queue_name, session_id};
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::when;

/// List sessions that have messages, a holder or state
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    max: u64,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let mut found: Vec<Session> = Vec::new();
        let mut after = self.after;
        while (found.len() as u64) < self.max {
            let max = (self.max - found.len() as u64).min(limits::RECEIVE_BATCH_MAX as u64);
            let page = api.sessions(&self.queue, after.as_deref(), max).await?;
            found.extend(page.sessions);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        match (found.is_empty(), after) {
            (true, _) => out.note(format_args!("queue `{}` has no sessions at work", self.queue)),
            (false, Some(after)) => {
                out.note(format_args!("there may be more: go on with --after '{after}'"));
            }
            (false, None) => {}
        }
        out.list(&found)
    }
}

fn time(at: Option<u64>) -> String {
    at.map_or_else(|| "-".to_owned(), when::shown)
}

impl Row for Session {
    const HEAD: &'static [&'static str] =
        &["SESSION", "MESSAGES", "LOCKED", "FIRST", "STATE BYTES", "HELD UNTIL", "DELAYED UNTIL"];

    fn row(&self) -> Vec<String> {
        vec![
            self.session.clone(),
            self.messages.to_string(),
            self.locked.to_string(),
            self.first.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
            self.state_bytes.to_string(),
            time(self.held_until),
            time(self.delayed_until),
        ]
    }

    fn name(&self) -> String {
        self.session.clone()
    }
}

impl Facts for Session {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let names = [
            "session",
            "messages",
            "locked",
            "first",
            "state bytes",
            "held until",
            "delayed until",
        ];
        names.into_iter().zip(self.row()).collect()
    }

    fn name(&self) -> String {
        self.session.clone()
    }
}

/// Show one session
#[derive(clap::Args)]
pub(crate) struct Show {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// The session
    #[arg(value_parser = session_id)]
    session: SessionId,
}

impl Show {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.session(&self.queue, &self.session).await?)
    }
}

/// Take a session from its holder, whose messages come again
#[derive(clap::Args)]
pub(crate) struct Break {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// The session
    #[arg(value_parser = session_id)]
    session: SessionId,
    #[command(flatten)]
    yes: Yes,
}

impl Break {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        self.yes.confirm(format_args!(
            "Whoever holds session `{}` loses it and can settle nothing of it.",
            self.session
        ))?;
        api.break_hold(&self.queue, &self.session).await?;
        out.note(format_args!("session `{}` is free", self.session));
        Ok(())
    }
}
