//! `malote bench engine`: the engine compared with the raw disk, in the same run.

mod backlog;
mod bare_log;
mod engine;
mod process;
mod routes;
mod rows;
mod space;

use clap::Subcommand;

/// Measure the engine on this machine
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Engine(engine::Args),
    #[command(hide = true)]
    Backlog(backlog::Args),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Engine(args) => engine::run(args),
            Verb::Backlog(args) => backlog::run(args),
        }
    }
}
