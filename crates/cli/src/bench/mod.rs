//! `malote bench …`: each figure beside what the machine itself can do, in the same run.

mod bare;
mod engine;
mod measure;
mod report;

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
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Engine(args) => engine::run(args),
        }
    }
}

/// What the machine was doing when the run began.
#[allow(clippy::disallowed_methods)] // a line for people, read once
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
