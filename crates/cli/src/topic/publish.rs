//! Sending to a topic.

use std::path::PathBuf;

use malote_model::{TopicName, limits};
use malote_wire_native::message::{MessageBatch, SentMessage};

use crate::api::Api;
use crate::args::topic_name;
use crate::failure::Failure;
use crate::output::{Format, Output, Row};
use crate::send::MessageArgs;
use crate::send::source::MessageSource;

/// Send messages to a topic: from an argument, a file or standard input
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote topic publish sales '{\"total\": 12}' --key eu.paid --prop total:=12
  malote topic publish sales --ndjson orders.ndjson")]
pub(crate) struct Publish {
    /// Topic to send to
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Message body; `-` or no body reads standard input
    #[arg(group = "what")]
    body: Option<String>,
    /// Read the body from this file
    #[arg(long, value_name = "FILE", group = "what")]
    file: Option<PathBuf>,
    /// Read one message per line as JSON: {"body": …, "key": …}; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "what")]
    ndjson: Option<PathBuf>,
    #[command(flatten)]
    message: MessageArgs,
}

/// What was published, with the copies made.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct Published(SentMessage);

impl Row for Published {
    const HEAD: &'static [&'static str] = &["ID", "COPIES"];

    fn row(&self) -> Vec<String> {
        let copies = match (self.0.copies, self.0.duplicate) {
            (_, true) => "duplicate".to_owned(),
            (Some(copies), _) => copies.to_string(),
            (None, _) => format!("scheduled as {}", self.0.seq),
        };
        vec![self.0.id.clone(), copies]
    }

    fn name(&self) -> String {
        self.0.id.clone()
    }
}

impl Publish {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let mut source = self.source()?;
        let mut all = Vec::new();
        loop {
            let batch = source.take(limits::SEND_BATCH_MAX.min(100))?;
            if batch.is_empty() {
                break;
            }
            let sent = api.publish(&self.topic, &MessageBatch { messages: batch }).await?;
            let sent: Vec<Published> = sent.into_iter().map(Published).collect();
            match out.format() {
                // One document has to wait for its end.
                Format::Json => all.extend(sent),
                _ => out.more(&sent)?,
            }
        }
        match out.format() {
            Format::Json => out.list(&all),
            _ => Ok(()),
        }
    }

    fn source(&self) -> anyhow::Result<MessageSource> {
        let message = self.message.message();
        if let Some(path) = &self.ndjson {
            if serde_json::to_string(&message).is_ok_and(|text| text != "{}") {
                let why = "with --ndjson each line describes a whole message: remove the other message flags";
                return Err(Failure::Usage(why.into()).into());
            }
            return MessageSource::lines(path);
        }
        let bytes = match (self.body.as_deref(), &self.file) {
            (Some("-"), _) => crate::files::read("-".as_ref())?,
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(path)) => crate::files::read(path)?,
            (None, None) => crate::send::piped_body()?,
        };
        MessageSource::body(message, &bytes, None)
    }
}
