//! Correcting a dead letter and sending it again, in one step.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use malote_model::{QueueName, SessionId};
use serde_json::value::RawValue;

use super::look::find;
use crate::api::Api;
use crate::api::words::{NewMessage, Resend as Asked, raw_text};
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
    props: Vec<(String, Box<RawValue>)>,
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
            let text = std::str::from_utf8(&bytes).ok();
            message.body = text.map(raw_text);
            message.body_base64 = text.is_none().then(|| STANDARD.encode(&bytes));
        }
        let properties = message.properties.get_or_insert_default();
        properties.0.retain(|(name, _)| !self.no_prop.contains(name));
        for (name, value) in self.props {
            properties.set(&name, value);
        }
        if let Some(session) = self.session {
            message.session = Some(session.as_str().to_owned());
        }
        message.id = self.id.or(message.id);
        let to = self.to.map(|to| to.as_str().to_owned());
        let sent = api.resend(&self.queue, self.seq, &Asked { message, to }).await?;
        let said = format!("dead letter {} sent again with sequence number {}", self.seq, sent.seq);
        out.changed(&sent, said)
    }
}
