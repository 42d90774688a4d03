//! Redriving and deleting dead letters.

use malote_model::QueueName;
use malote_wire_native::dead_letter::RedriveRequest;

use crate::api::Api;
use crate::args::queue_name;
use crate::ask::Yes;
use crate::output::Output;
use crate::when::{count, grouped};

/// Move dead letters back to the queue they came from
#[derive(clap::Args)]
pub(crate) struct Redrive {
    /// Queue that dead-lettered them
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Move only the dead letters with these sequence numbers
    #[arg(long, value_name = "SEQ,…", value_delimiter = ',', conflicts_with = "limit")]
    seq: Vec<u64>,
    /// Maximum number to move, the oldest first
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    limit: u64,
    /// Move them to this queue instead
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    to: Option<QueueName>,
    /// Count the dead letters that would be moved, without moving them
    #[arg(long)]
    dry_run: bool,
}

impl Redrive {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let all = self.seq.is_empty();
        let asked = RedriveRequest {
            limit: all.then_some(self.limit),
            seqs: (!all).then_some(self.seq),
            to: self.to.map(|to| to.as_str().to_owned()),
            dry_run: self.dry_run,
        };
        let moved = api.redrive(&self.queue, &asked).await?;
        let verb = if self.dry_run { "would be moved" } else { "moved" };
        out.changed(
            &moved,
            format_args!(
                "{} {verb}, {} left",
                count(moved.moved, "dead letter"),
                grouped(moved.left)
            ),
        )?;
        if moved.left > 0 && all && !self.dry_run {
            out.note("hint: raise --limit to move more");
        }
        Ok(())
    }
}

/// Delete all dead letters of a queue
#[derive(clap::Args)]
pub(crate) struct Purge {
    /// Queue that dead-lettered them
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    yes: Yes,
}

impl Purge {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let there = api.queue(&self.queue).await?.counts.dead_lettered;
        self.yes.confirm(format_args!(
            "This deletes {} of queue `{}`.",
            count(there, "dead letter"),
            self.queue
        ))?;
        let removed = api.purge_dead_letters(&self.queue).await?;
        let said = format!("{} deleted", count(removed.removed, "dead letter"));
        out.changed(&removed, said)
    }
}
