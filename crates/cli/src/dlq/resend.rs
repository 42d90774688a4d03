//! Correcting a dead letter and sending it again, in one step.

use std::path::PathBuf;

use malote_model::{Properties, QueueName, SessionId, Value};
use malote_wire_native::PropertyMap;
use malote_wire_native::dead_letter::ResendRequest;
use malote_wire_native::message::NewMessage;

use super::inspect::find;
use crate::api::Api;
use crate::args::{queue_name, session_id};
use crate::files;
use crate::output::Output;
use crate::send::property;

/// Correct a dead letter and send it again; other fields stay as they are
#[derive(clap::Args)]
pub(crate) struct Resend {
    /// Queue that dead-lettered it
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Sequence number, as shown by `malote dlq ls`
    seq: u64,
    /// New body
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    body: Option<String>,
    /// Read the new body from this file; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Set a property: NAME=TEXT, or NAME:=JSON
    #[arg(long = "prop", value_name = "NAME=VALUE", value_parser = property)]
    props: Vec<(String, Value)>,
    /// Delete a property
    #[arg(long, value_name = "NAME")]
    no_prop: Vec<String>,
    /// New session
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// New message id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Send it to this queue instead of the one it came from
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    to: Option<QueueName>,
}

impl Resend {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let mut message = NewMessage::from(find(api, &self.queue, self.seq).await?);
        let body = match (&self.body, &self.file) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(path)) => Some(files::read(path)?),
            (None, None) => None,
        };
        if let Some(bytes) = body {
            message.set_body(&bytes);
        }
        let properties = message.properties.take().unwrap_or_default().0;
        let kept = properties.iter().filter(|(name, _)| !self.no_prop.iter().any(|no| no == name));
        let mut kept: Properties =
            kept.map(|(name, value)| (name.to_owned(), value.clone())).collect();
        for (name, value) in self.props {
            kept.set(name, value);
        }
        message.properties = Some(PropertyMap(kept));
        if let Some(session) = self.session {
            message.session = Some(session.as_str().to_owned());
        }
        message.id = self.id.or(message.id);
        let to = self.to.map(|to| to.as_str().to_owned());
        let sent = api.resend(&self.queue, self.seq, &ResendRequest { message, to }).await?;
        let said = format!("dead letter {} sent again with sequence number {}", self.seq, sent.seq);
        out.changed(&sent, said)
    }
}
