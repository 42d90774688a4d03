//! The state of a session: reading it, and setting it under a hold of our own.

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
/// Setting needs the session: it is held for that moment, and refused while somebody else holds it.
#[derive(clap::Args)]
pub(crate) struct State {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// The session
    #[arg(value_parser = session_id)]
    session: SessionId,
    #[command(flatten)]
    change: Change,
}

#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct Change {
    /// Set it to this
    #[arg(long, value_name = "TEXT")]
    set: Option<String>,
    /// Set it to what is in this file; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take it away
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
            Failure::NotFound(format!("session `{}` cannot be held now", self.session))
        })?;
        let set = api.set_state(&self.queue, &held, state).await;
        api.release(&self.queue, &held).await?;
        set?;
        out.note(format_args!("state of session `{}` set", self.session));
        Ok(())
    }
}
