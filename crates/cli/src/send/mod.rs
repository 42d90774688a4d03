//! `malote send`: one message, copies of it, a file of messages, or generated messages.

mod load;
mod pace;
pub(crate) mod source;

use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use malote_model::{QueueName, SessionId, Timestamp, Value, limits};
use malote_wire_native::PropertyMap;
use malote_wire_native::message::{MessageBatch, Moment, NewMessage, SentMessage};
use malote_wire_native::settings::{QueueSettings, SessionsWord};
use malote_wire_native::value::from_json;
use serde::Serialize;

use crate::api::{Api, ApiError};
use crate::args::{Remote, interrupted, queue_name, session_id};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::when;
use pace::Pace;
use source::MessageSource;

/// Send messages: from an argument, a file, standard input, or generated ones
///
/// Without BODY, --file or --ndjson, the body is read from standard input and sent as one message.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote send orders '{\"total\": 12}' --create
  echo hello | malote send orders
  malote send orders --file order.json --content-type application/json --prop tenant=acme
  malote send orders 'wake up' --session customer-7 --delay 30s
  malote send orders --generate --sessions 100 --per-session 10 --rate 500
  malote dlq export orders | malote send orders --ndjson -")]
pub(crate) struct Send {
    #[command(flatten)]
    remote: Remote,
    /// Queue to send to
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Message body; `-` or no body reads standard input
    #[arg(group = "what")]
    body: Option<String>,
    /// Read the body from this file
    #[arg(long, value_name = "FILE", group = "what")]
    file: Option<PathBuf>,
    /// Read one message per line as JSON: {"body": …, "session": …}; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "what")]
    ndjson: Option<PathBuf>,
    /// Send generated messages: 100 sessions with 10 messages each, or --count messages without sessions
    #[arg(long, group = "what")]
    generate: bool,
    #[command(flatten)]
    message: MessageArgs,
    /// Create the queue if it does not exist, with sessions if the messages have them
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// Everything in a message except its body.
#[derive(clap::Args)]
pub(crate) struct MessageArgs {
    /// Session id
    #[arg(long, value_name = "ID", value_parser = session_id, help_heading = "Message")]
    session: Option<SessionId>,
    /// Routing key of a topic; in a queue with fixed sessions it selects the session unless --session is given
    #[arg(long, value_name = "TEXT", help_heading = "Message")]
    key: Option<String>,
    /// De-duplication id [default: the message id]
    #[arg(long, value_name = "ID", help_heading = "Message")]
    dedup_id: Option<String>,
    /// Message id; with --count, a number is appended
    #[arg(long, value_name = "ID", help_heading = "Message")]
    id: Option<String>,
    /// Property: NAME=TEXT, or NAME:=JSON for a number or a boolean; may be repeated
    #[arg(long = "prop", value_name = "NAME=VALUE", value_parser = property, help_heading = "Message")]
    props: Vec<(String, Value)>,
    /// Subject, which workers use as the message type
    #[arg(long, value_name = "TEXT", help_heading = "Message")]
    subject: Option<String>,
    /// Media type of the body
    #[arg(long, value_name = "TYPE", help_heading = "Message")]
    content_type: Option<String>,
    /// Id of the request that this message replies to
    #[arg(long, value_name = "ID", help_heading = "Message")]
    correlation_id: Option<String>,
    /// Queue for replies
    #[arg(long, value_name = "QUEUE", help_heading = "Message")]
    reply_to: Option<String>,
    /// Deliver after this time; the message keeps its place in the queue
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with = "at", help_heading = "Message")]
    delay: Option<Duration>,
    /// Enqueue at this time: RFC 3339 or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = when::moment, help_heading = "Message")]
    at: Option<u64>,
    /// Expire if not delivered within this time
    #[arg(long, value_name = "TIME", value_parser = when::duration, help_heading = "Message")]
    ttl: Option<Duration>,
    /// Priority; higher values are delivered first
    #[arg(long, value_name = "0-255", help_heading = "Message")]
    priority: Option<u8>,
}

/// How many messages to send, and how fast.
#[derive(clap::Args)]
struct LoadArgs {
    /// Send the message this many times
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    count: Option<u64>,
    /// With --generate: number of sessions [default: 100]
    #[arg(long, value_name = "COUNT", requires = "generate", conflicts_with_all = ["body", "file", "ndjson", "count", "session"], help_heading = "Load")]
    sessions: Option<NonZeroU32>,
    /// With --generate: messages in each session [default: 10]
    #[arg(long, value_name = "COUNT", requires = "generate", conflicts_with_all = ["body", "file", "ndjson", "count", "session"], help_heading = "Load")]
    per_session: Option<NonZeroU32>,
    /// With --generate: size of each body
    #[arg(long, value_name = "SIZE", value_parser = when::size, requires = "generate", conflicts_with_all = ["body", "file", "ndjson"], help_heading = "Load")]
    size: Option<u64>,
    /// Messages per request; a request is stored completely or not at all
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=limits::SEND_BATCH_MAX as i64), help_heading = "Load")]
    batch: u32,
    /// Maximum number of messages per second
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    rate: Option<NonZeroU32>,
}

impl MessageArgs {
    /// For a queue, where a key selects the session.
    fn template(&self) -> NewMessage {
        let from_key = self.key.is_some() && self.session.is_none();
        NewMessage { session_from_key: from_key, ..self.message() }
    }

    /// For a topic, where a key is the routing key.
    pub(crate) fn message(&self) -> NewMessage {
        NewMessage {
            session: self.session.as_ref().map(|id| id.as_str().to_owned()),
            dedup_id: self.dedup_id.clone(),
            key: self.key.clone(),
            id: self.id.clone(),
            subject: self.subject.clone(),
            content_type: self.content_type.clone(),
            correlation_id: self.correlation_id.clone(),
            reply_to: self.reply_to.clone(),
            delay_ms: self.delay.map(when::ms),
            at: self.at.map(|at| Moment(Timestamp(at))),
            ttl_ms: self.ttl.map(when::ms),
            priority: self.priority,
            properties: (!self.props.is_empty())
                .then(|| PropertyMap(self.props.iter().cloned().collect())),
            ..NewMessage::default()
        }
    }
}

/// `NAME=TEXT` or `NAME:=JSON`.
pub(crate) fn property(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=TEXT or NAME:=JSON")?;
    let (name, value) = match name.strip_suffix(':') {
        Some(name) => (name, from_json(value).map_err(|e| format!("not JSON: {e}"))?),
        None => (name, Value::String(value.to_owned())),
    };
    if name.is_empty() {
        return Err("expected a name before the =".to_owned());
    }
    Ok((name.to_owned(), value))
}

/// Totals of one run.
#[derive(Serialize)]
struct Summary<'a> {
    queue: &'a str,
    sent: u64,
    requests: u64,
    seconds: f64,
    per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seq: Option<u64>,
}

impl Send {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let remote = self.remote.clone();
        remote.run_to_the_end(|api, out| self.send(api, out))
    }

    async fn send(self, api: Api, mut out: Output) -> anyhow::Result<()> {
        let mut source = self.source()?;
        if self.create {
            create(&api, &self.queue, source.has_sessions()).await?;
        }
        let mut pace = Pace::start(source.total(), self.load.rate);
        let mut last: Vec<SentMessage> = Vec::new();
        let mut first_seq = None;
        let mut interrupt = std::pin::pin!(interrupted());
        let mut stopped = false;
        loop {
            // A low rate uses smaller batches, so that messages do not go out in bursts.
            let batch = source.take(pace.batch(self.load.batch) as usize)?;
            if batch.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                () = &mut interrupt => {
                    stopped = true;
                    break;
                }
                () = pace.wait() => {}
            }
            let sent = match api.send(&self.queue, &MessageBatch { messages: batch }).await {
                Ok(sent) => sent,
                Err(error) => {
                    pace.stop();
                    if pace.sent > 0 {
                        out.note(format_args!(
                            "{} sent before this error",
                            when::count(pace.sent, "message")
                        ));
                    }
                    return Err(error.into());
                }
            };
            pace.count(sent.len() as u64);
            first_seq = first_seq.or_else(|| sent.first().map(|one| one.seq));
            if matches!(out.format(), Format::Ndjson | Format::Name) {
                out.more(&sent)?;
            }
            last = sent;
        }
        pace.stop();
        let seconds = pace.seconds();
        let summary = Summary {
            queue: self.queue.as_str(),
            sent: pace.sent,
            requests: pace.requests,
            seconds,
            per_second: if seconds > 0.0 { (pace.sent as f64 / seconds).round() } else { 0.0 },
            first_seq,
            last_seq: last.last().map(|one| one.seq),
        };
        match out.format() {
            Format::Json if summary.sent == 1 => out.json(&last[0])?,
            Format::Json => out.json(&summary)?,
            Format::Table if summary.sent == 1 => out.list(&last)?,
            _ => {}
        }
        if source.total() == Some(1) {
            out.note(format_args!("sent 1 message to `{}`", self.queue));
        } else {
            out.note(format_args!(
                "sent {} to `{}` in {:.2} s ({} per second, {})",
                when::count(summary.sent, "message"),
                self.queue,
                seconds,
                when::grouped(summary.per_second as u64),
                when::count(summary.requests, "request"),
            ));
        }
        if stopped { Err(Failure::Interrupted.into()) } else { Ok(()) }
    }

    fn source(&self) -> anyhow::Result<MessageSource> {
        let template = self.message.template();
        if let Some(path) = &self.ndjson {
            let alone = serde_json::to_string(&template).is_ok_and(|text| text == "{}");
            if !alone || self.load.count.is_some() {
                let why = "with --ndjson each line describes a whole message: remove the other message flags";
                return Err(Failure::Usage(why.into()).into());
            }
            return MessageSource::lines(path);
        }
        let count = self.load.count;
        match (self.body.as_deref(), &self.file) {
            (Some("-"), _) => {
                MessageSource::body(template, &crate::files::read("-".as_ref())?, count)
            }
            (Some(text), _) => MessageSource::body(template, text.as_bytes(), count),
            (None, Some(path)) => MessageSource::body(template, &crate::files::read(path)?, count),
            (None, None) if !self.generate => MessageSource::body(template, &piped_body()?, count),
            (None, None) => {
                let plain = count.is_some() || template.session.is_some() || template.key.is_some();
                let sessions = (!plain).then(|| self.load.sessions.map_or(100, NonZeroU32::get));
                let per_session = self.load.per_session.map_or(10, NonZeroU32::get);
                Ok(MessageSource::generated(template, sessions, per_session, count, self.load.size))
            }
        }
    }
}

/// The body from standard input. A terminal or an empty input usually means that a shell variable was unset.
pub(crate) fn piped_body() -> anyhow::Result<Vec<u8>> {
    if std::io::stdin().is_terminal() {
        let why = "no message body: give BODY, --file FILE or --ndjson FILE, or pipe the body to standard input; \
                   --generate sends generated messages";
        return Err(Failure::Usage(why.into()).into());
    }
    let bytes = crate::files::read("-".as_ref())?;
    if bytes.is_empty() {
        let why = "no message body: standard input is empty; '' as BODY sends an empty body";
        return Err(Failure::Usage(why.into()).into());
    }
    Ok(bytes)
}

/// Creates the queue if it does not exist. An existing queue may have any settings.
async fn create(api: &Api, queue: &QueueName, sessions: bool) -> Result<(), ApiError> {
    let missing =
        |error: &ApiError| matches!(error, ApiError::Refused(problem) if problem.status == 404);
    match api.queue(queue).await {
        Err(error) if missing(&error) => {}
        other => return other.map(drop),
    }
    let word = if sessions { SessionsWord::Dynamic } else { SessionsWord::None };
    let spec = QueueSettings { sessions: Some(word.into()), ..QueueSettings::default() };
    api.declare(queue, &spec).await?;
    crate::output::note(format_args!("queue `{queue}` created"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_text_or_json() {
        let read = property;
        assert_eq!(read("a=b=c"), Ok(("a".into(), Value::String("b=c".into()))));
        assert_eq!(read("n:=1.50"), Ok(("n".into(), Value::F64(1.5))));
        assert_eq!(read("n:=3"), Ok(("n".into(), Value::I64(3))));
        assert_eq!(read("empty="), Ok(("empty".into(), Value::String(String::new()))));
        for bad in ["a", "=b", ":=1", "n:=one"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
