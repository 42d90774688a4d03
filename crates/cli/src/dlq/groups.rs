//! Grouping dead letters by their reasons.

use malote_model::QueueName;
use malote_wire_native::overview::DeadLetterGroup;

use crate::api::Api;
use crate::args::queue_name;
use crate::output::{Output, Row};
use crate::watch::WatchArgs;
use crate::when;

/// Group the dead letters of all queues, or of one, by reason and error
#[derive(clap::Args)]
pub(crate) struct Groups {
    /// Only dead letters of this queue
    #[arg(value_parser = queue_name)]
    queue: Option<QueueName>,
    #[command(flatten)]
    watch: WatchArgs,
}

impl Groups {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let Self { queue, watch } = self;
        let show = async |out: &mut Output| {
            let found = api.dead_letter_groups(queue.as_ref()).await?;
            if found.total == 0 {
                out.note("no dead letters");
            } else if found.read < found.total {
                out.note(format_args!("{} of {} were read", found.read, found.total));
            }
            if found.hidden_queues > 0 {
                let queues = when::count(found.hidden_queues, "queue");
                out.note(format_args!("{queues} with dead letters need permission to receive"));
            }
            out.list(&found.groups)
        };
        watch.run(&mut out, show).await
    }
}

impl Row for DeadLetterGroup {
    const NOUN: &'static str = "group";
    const HEAD: &'static [&'static str] = &["QUEUE", "REASON", "COUNT", "NEWEST", "ERROR"];

    fn row(&self) -> Vec<String> {
        vec![
            self.queue.clone(),
            self.reason.clone(),
            self.seqs.len().to_string(),
            when::age(self.last_at),
            self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect(),
        ]
    }

    fn name(&self) -> String {
        format!("{} {}", self.queue, self.reason)
    }
}
