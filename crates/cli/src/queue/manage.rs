//! Making, changing, emptying and removing queues.

use malote_model::QueueName;

use super::spec::SpecArgs;
use crate::api::Api;
use crate::args::queue_name;
use crate::ask::Yes;
use crate::failure::Failure;
use crate::output::Output;
use crate::when::count;

/// Make a queue, or find it just as asked
///
/// Making it again with the same settings changes nothing; other settings are refused, naming the field.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    spec: SpecArgs,
}

impl Create {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let (created, queue) = api.declare(&self.queue, &self.spec.spec()).await?;
        let said = if created { "created" } else { "was there already, just so" };
        out.changed(&queue, format_args!("queue `{}` {said}", queue.name))
    }
}

/// Change settings of a queue; what is not named stays
#[derive(clap::Args)]
pub(crate) struct Update {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    spec: SpecArgs,
}

impl Update {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        if self.spec.is_empty() {
            let why = "nothing to change: name a setting, such as --lock 1m";
            return Err(Failure::Usage(why.into()).into());
        }
        let queue = api.update(&self.queue, &self.spec.spec()).await?;
        out.changed(&queue, format_args!("queue `{}` changed", queue.name))
    }
}

/// Remove a queue with all it holds, dead letters too
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    yes: Yes,
}

impl Rm {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        let counts = api.queue(&self.queue).await?.counts;
        let messages =
            counts.ready + counts.locked + counts.delayed + counts.scheduled + counts.deferred;
        self.yes.confirm(format_args!(
            "Queue `{}` has {} and {}, which are gone with it.",
            self.queue,
            count(messages, "message"),
            count(counts.dead_lettered, "dead letter"),
        ))?;
        api.delete(&self.queue).await?;
        out.removed("queue", &self.queue)
    }
}

/// Drop every message of a queue that is not out to a receiver
#[derive(clap::Args)]
pub(crate) struct Purge {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    yes: Yes,
}

impl Purge {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let counts = api.queue(&self.queue).await?.counts;
        let messages = counts.ready + counts.delayed + counts.scheduled + counts.deferred;
        self.yes.confirm(format_args!(
            "Queue `{}` loses {}.",
            self.queue,
            count(messages, "message")
        ))?;
        let removed = api.purge(&self.queue).await?;
        let said = format!("{} dropped", count(removed.removed, "message"));
        out.changed(&removed, said)
    }
}

/// Stop delivery; sending and settling go on
#[derive(clap::Args)]
pub(crate) struct Pause {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
}

impl Pause {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        api.pause(&self.queue, true).await?;
        let queue = api.queue(&self.queue).await?;
        out.changed(
            &queue,
            format_args!("queue `{}` delivers nothing until it is resumed", queue.name),
        )
    }
}

/// Go on with delivery
#[derive(clap::Args)]
pub(crate) struct Resume {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
}

impl Resume {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        api.pause(&self.queue, false).await?;
        let queue = api.queue(&self.queue).await?;
        out.changed(&queue, format_args!("queue `{}` delivers", queue.name))
    }
}
