//! `malote bench …`: figures, each beside the raw disk's own of the same run.

mod engine;

use clap::Subcommand;

/// Measure
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure the engine on this machine's disk
    Engine(engine::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Engine(args) => engine::run(args),
        }
    }
}
