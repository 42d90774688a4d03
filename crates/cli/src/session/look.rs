//! Looking at sessions, and taking one from its holder.

use malote_model::{QueueName, SessionId};
use malote_wire_native::session::SessionInfo;

use crate::api::Api;
use crate::args::{queue_name, session_id};
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::pages::Pages;
use crate::when;

/// List sessions that have messages, a holder or state
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    pages: Pages,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let nothing = format!("queue `{}` has no sessions at work", self.queue);
        let page = async |after: Option<String>, max| {
            let page = api.sessions(&self.queue, after.as_deref(), max).await?;
            Ok((page.sessions, page.next))
        };
        self.pages.list(&mut out, nothing, page).await
    }
}

impl Row for SessionInfo {
    const HEAD: &'static [&'static str] =
        &["SESSION", "MESSAGES", "LOCKED", "FIRST", "STATE BYTES", "HELD UNTIL", "DELAYED UNTIL"];

    fn row(&self) -> Vec<String> {
        vec![
            self.session.clone(),
            self.messages.to_string(),
            self.locked.to_string(),
            self.first.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
            self.state_bytes.to_string(),
            when::shown_or_dash(self.held_until),
            when::shown_or_dash(self.delayed_until),
        ]
    }

    fn name(&self) -> String {
        self.session.clone()
    }
}

impl Facts for SessionInfo {
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
