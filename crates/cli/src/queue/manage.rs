//! Creating, changing, purging and deleting queues.

use malote_model::QueueName;

use super::spec::SpecArgs;
use crate::api::Api;
use crate::args::queue_name;
use crate::ask::Yes;
use crate::failure::Failure;
use crate::output::Output;
use crate::when::count;

/// Create a queue
///
/// If the queue exists with the same settings, nothing changes. Other settings are refused.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    spec: SpecArgs,
}

impl Create {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let (created, queue) = api.declare(&self.queue, &self.spec.spec()).await?;
        let said = if created { "created" } else { "already exists with these settings" };
        out.changed(&queue, format_args!("queue `{}` {said}", queue.name))
    }
}

/// Change settings of a queue; other settings stay as they are
#[derive(clap::Args)]
pub(crate) struct Update {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    spec: SpecArgs,
}

impl Update {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        if self.spec.is_empty() {
            let why = "nothing to change: give a setting, such as --lock 1m";
            return Err(Failure::Usage(why.into()).into());
        }
        let queue = api.update(&self.queue, &self.spec.spec()).await?;
        out.changed(&queue, format_args!("queue `{}` changed", queue.name))
    }
}

/// Delete a queue with all its messages and dead letters
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// Name of the queue
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
            "This deletes queue `{}` with {} and {}.",
            self.queue,
            count(messages, "message"),
            count(counts.dead_lettered, "dead letter"),
        ))?;
        api.delete(&self.queue).await?;
        out.removed("queue", &self.queue)
    }
}

/// Delete all messages of a queue except locked ones
#[derive(clap::Args)]
pub(crate) struct Purge {
    /// Name of the queue
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
            "This deletes {} of queue `{}`.",
            count(messages, "message"),
            self.queue
        ))?;
        let removed = api.purge(&self.queue).await?;
        let said = format!("{} deleted", count(removed.removed, "message"));
        out.changed(&removed, said)
    }
}

/// Stop delivery; sending and settling continue
#[derive(clap::Args)]
pub(crate) struct Pause {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
}

impl Pause {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        api.pause(&self.queue, true).await?;
        let queue = api.queue(&self.queue).await?;
        out.changed(
            &queue,
            format_args!("queue `{0}` paused; `malote queue resume {0}` resumes it", queue.name),
        )
    }
}

/// Resume delivery
#[derive(clap::Args)]
pub(crate) struct Resume {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
}

impl Resume {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        api.pause(&self.queue, false).await?;
        let queue = api.queue(&self.queue).await?;
        out.changed(&queue, format_args!("queue `{}` resumed", queue.name))
    }
}
