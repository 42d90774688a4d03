//! `malote bench …`: each figure beside what the machine itself can do, in the same run.

mod backlog;
mod bare;
mod engine;
mod measure;
mod report;
mod routes;
mod server;
mod servicebus;
mod space;
mod sqs;
mod worker;

use clap::Subcommand;

/// Measure, each figure beside the raw disk's own
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Engine(engine::Args),
    Sqs(sqs::Args),
    Servicebus(servicebus::Args),
    Worker(worker::Args),
    #[command(hide = true)]
    Backlog(backlog::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Engine(args) => engine::run(args),
            Verb::Sqs(args) => sqs::run(args),
            Verb::Servicebus(args) => servicebus::run(args),
            Verb::Worker(args) => worker::run(args),
            Verb::Backlog(args) => backlog::run(args),
        }
    }
}

/// What the machine was doing when the run began.
#[allow(clippy::disallowed_methods)] // a line for people, read once
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
