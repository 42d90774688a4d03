//! Reading the state of a session, and setting it.

use std::path::PathBuf;

use bytes::Bytes;
use malote_model::{QueueName, SessionId};
use malote_wire_native::session::AcceptRequest;

use crate::api::Api;
use crate::args::{queue_name, session_id};
use crate::failure::Failure;
use crate::files;
use crate::output::Output;

/// Show the state of a session, or set it
///
/// Setting it locks the session for a moment, and is refused while a receiver holds the session.
#[derive(clap::Args)]
pub(crate) struct State {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Session id
    #[arg(value_parser = session_id)]
    session: SessionId,
    #[command(flatten)]
    change: Change,
}

#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct Change {
    /// Set the state to this text
    #[arg(long, value_name = "TEXT")]
    set: Option<String>,
    /// Set the state to the contents of this file; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Clear the state
    #[arg(long)]
    clear: bool,
}

impl State {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let state = match &self.change {
            Change { set: Some(text), .. } => Some(Bytes::from(text.clone())),
            Change { file: Some(path), .. } => Some(files::read(path)?.into()),
            Change { clear: true, .. } => None,
            _ => {
                return match api.state(&self.queue, &self.session).await? {
                    Some(state) => out.bytes(&state),
                    None => {
                        out.note(format_args!("session `{}` has no state", self.session));
                        Ok(())
                    }
                };
            }
        };
        let asked = AcceptRequest {
            session: Some(self.session.as_str().to_owned()),
            ..AcceptRequest::default()
        };
        let held = api.accept(&self.queue, &asked).await?.ok_or_else(|| {
            Failure::NotFound(format!("session `{}` cannot be locked now", self.session))
        })?;
        let done = if state.is_some() { "set" } else { "cleared" };
        let set = api.set_state(&self.queue, &held, state).await;
        api.release(&self.queue, &held).await?;
        set?;
        out.note(format_args!("state of session `{}` {done}", self.session));
        Ok(())
    }
}
