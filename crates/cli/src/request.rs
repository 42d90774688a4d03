//! `malote request`: sends a message and waits for the reply.

use std::path::PathBuf;
use std::time::Duration;

use malote_model::{QueueName, SessionId};

use crate::api::topics::RequestOptions;
use crate::args::{Remote, queue_name, session_id};
use crate::message::Raw;
use crate::when;

/// Send a message and wait for the reply
///
/// The replying worker sends to the queue in `reply_to` with the `correlation_id` of the request.
#[derive(clap::Args)]
pub(crate) struct Request {
    #[command(flatten)]
    remote: Remote,
    /// Queue to send to
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Message body; `-` or no body reads standard input
    #[arg(conflicts_with = "file")]
    body: Option<String>,
    /// Read the body from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to wait for the reply
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    wait: Duration,
    /// Session id
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// Subject, which workers use as the message type
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Message id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Priority; higher values are delivered first
    #[arg(long, value_name = "0-255")]
    priority: Option<u8>,
    #[command(flatten)]
    raw: Raw,
}

impl Request {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let remote = self.remote.clone();
        remote.run(|api, mut out| async move {
            let bytes = match (self.body.as_deref(), &self.file) {
                (Some("-"), _) => crate::files::read("-".as_ref())?,
                (Some(text), _) => text.as_bytes().to_vec(),
                (None, Some(path)) => crate::files::read(path)?,
                (None, None) => crate::send::piped_body()?,
            };
            let text = std::str::from_utf8(&bytes).is_ok();
            let kind = if text { "text/plain" } else { "application/octet-stream" };
            let said = [
                ("session", self.session.map(|id| id.as_str().to_owned())),
                ("subject", self.subject),
                ("id", self.id),
                ("priority", self.priority.map(|priority| priority.to_string())),
            ];
            let query = said.into_iter().filter_map(|(name, value)| Some((name, value?)));
            let ask = RequestOptions { query: query.collect(), wait_ms: when::ms(self.wait) };
            let answer = api.request(&self.queue, &ask, kind, bytes.into()).await?;
            self.raw.list(&mut out, std::slice::from_ref(&answer))
        })
    }
}
