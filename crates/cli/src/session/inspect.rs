//! Showing sessions, and breaking the lock of one.

use malote_model::{QueueName, SessionId};
use malote_wire_native::session::SessionInfo;

use crate::api::Api;
use crate::args::{queue_name, session_id};
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::pages::Pages;
use crate::when;

/// List sessions that have messages, a lock or a state
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    pages: Pages,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let nothing =
            format!("queue `{}` has no sessions with messages, a lock or a state", self.queue);
        let page = async |after: Option<String>, max| {
            let page = api.sessions(&self.queue, after.as_deref(), max).await?;
            Ok((page.sessions, page.next))
        };
        self.pages.list(&mut out, nothing, page).await
    }
}

impl Row for SessionInfo {
    const NOUN: &'static str = "session";
    const HEAD: &'static [&'static str] =
        &["SESSION", "MESSAGES", "LOCKED", "FIRST", "STATE BYTES", "HELD UNTIL", "DELAYED UNTIL"];

    fn row(&self) -> Vec<String> {
        vec![
            self.session.clone(),
            self.messages.to_string(),
            self.locked.to_string(),
            self.first.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
            self.state_bytes.to_string(),
            when::time_or_dash(self.held_until),
            when::time_or_dash(self.delayed_until),
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

/// Show a session
#[derive(clap::Args)]
pub(crate) struct Show {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Session id
    #[arg(value_parser = session_id)]
    session: SessionId,
}

impl Show {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.session(&self.queue, &self.session).await?)
    }
}

/// Break the lock of a session; its locked messages are delivered again
#[derive(clap::Args)]
pub(crate) struct Break {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Session id
    #[arg(value_parser = session_id)]
    session: SessionId,
    #[command(flatten)]
    yes: Yes,
}

impl Break {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        self.yes.confirm(format_args!(
            "The receiver that holds session `{}` loses it and cannot settle its messages.",
            self.session
        ))?;
        api.break_hold(&self.queue, &self.session).await?;
        out.note(format_args!("session `{}` unlocked", self.session));
        Ok(())
    }
}
