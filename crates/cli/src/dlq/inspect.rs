//! Showing and exporting dead letters.

use std::io::Write;
use std::path::PathBuf;

use malote_model::{QueueName, limits};
use malote_wire_native::received::ReceivedMessage;
use serde::{Serialize, Serializer};

use crate::api::{Api, PeekFilter};
use crate::args::queue_name;
use crate::failure::Failure;
use crate::output::{Output, Row};
use crate::watch::WatchArgs;
use crate::{files, when};

/// List dead letters with their reasons
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Queue that dead-lettered them
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Start at this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
    /// Maximum number of dead letters
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    max: u64,
    #[command(flatten)]
    watch: WatchArgs,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        self.watch.run(&mut out, async |out| self.list(api, out).await).await
    }

    async fn list(&self, api: &Api, out: &mut Output) -> anyhow::Result<()> {
        let mut found = Vec::new();
        let mut from = Some(self.from);
        while let Some(next) = from
            && (found.len() as u64) < self.max
        {
            let max = (self.max - found.len() as u64).min(limits::RECEIVE_BATCH_MAX as u64);
            let page = api
                .dead_letters(&self.queue, &PeekFilter { from: next, max, ..PeekFilter::default() })
                .await?;
            found.extend(page.messages.into_iter().map(DeadLetterRow));
            from = page.next;
        }
        match (found.is_empty(), from) {
            (true, _) => out.note(format_args!("queue `{}` has no dead letters", self.queue)),
            (false, Some(next)) => {
                out.note(format_args!("there are more: continue with --from {next}"));
            }
            (false, None) => {}
        }
        out.list(&found)
    }
}

/// A dead letter in a list.
struct DeadLetterRow(ReceivedMessage);

impl Serialize for DeadLetterRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Row for DeadLetterRow {
    const NOUN: &'static str = "dead letter";
    const HEAD: &'static [&'static str] =
        &["SEQ", "ID", "SESSION", "REASON", "FAILED", "DEAD FOR", "ERROR"];

    fn row(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let dead = self.0.dead_letter.clone().unwrap_or_default();
        vec![
            self.0.seq.to_string(),
            or_dash(&self.0.id),
            or_dash(&self.0.session),
            dead.reason,
            dead.failed.to_string(),
            when::age(dead.at),
            dead.text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect(),
        ]
    }

    fn name(&self) -> String {
        self.0.seq.to_string()
    }
}

/// Show a dead letter: its reason, attempts, properties and body
#[derive(clap::Args)]
pub(crate) struct Show {
    /// Queue that dead-lettered it
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Sequence number, as shown by `malote dlq ls`
    seq: u64,
}

impl Show {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&find(api, &self.queue, self.seq).await?)
    }
}

pub(super) async fn find(
    api: &Api,
    queue: &QueueName,
    seq: u64,
) -> anyhow::Result<ReceivedMessage> {
    let page =
        api.dead_letters(queue, &PeekFilter { from: seq, max: 1, ..PeekFilter::default() }).await?;
    let found = page.messages.into_iter().find(|message| message.seq == seq);
    found.ok_or_else(|| {
        let why =
            format!("queue `{queue}` has no dead letter {seq}; `malote dlq ls {queue}` lists them");
        Failure::NotFound(why).into()
    })
}

/// Export all dead letters as lines of JSON, which `malote send --ndjson` reads
#[derive(clap::Args)]
pub(crate) struct Export {
    /// Queue that dead-lettered them
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Write to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Export {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let mut file = self.file.as_deref().map(files::create).transpose()?;
        let mut filter =
            PeekFilter { max: limits::RECEIVE_BATCH_MAX as u64, ..PeekFilter::default() };
        let mut count = 0;
        loop {
            let page = api.dead_letters(&self.queue, &filter).await?;
            count += page.messages.len() as u64;
            for message in &page.messages {
                match &mut file {
                    Some(file) => writeln!(file, "{}", serde_json::to_string(message)?)?,
                    None => out.line(message)?,
                }
            }
            match page.next {
                Some(next) => filter.from = next,
                None => break,
            }
        }
        if let Some(file) = &mut file {
            file.flush()?;
        }
        out.note(format_args!("{} exported; none were deleted", when::count(count, "dead letter")));
        Ok(())
    }
}
