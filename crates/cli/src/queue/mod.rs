//! `malote queue …`: making, changing and looking at queues.

mod ls;
mod manage;
mod spec;

use clap::Subcommand;

use crate::args::Remote;

/// Make, change and look at queues
#[derive(clap::Args)]
pub(crate) struct Queue {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Ls(ls::Ls),
    Get(ls::Get),
    Create(manage::Create),
    Update(manage::Update),
    Rm(manage::Rm),
    Purge(manage::Purge),
    Pause(manage::Pause),
    Resume(manage::Resume),
}

impl Queue {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, verb } = self;
        remote.run(|api, out| async move {
            match verb {
                Verb::Ls(verb) => verb.run(&api, out).await,
                Verb::Get(verb) => verb.run(&api, out).await,
                Verb::Create(verb) => verb.run(&api, out).await,
                Verb::Update(verb) => verb.run(&api, out).await,
                Verb::Rm(verb) => verb.run(&api, out).await,
                Verb::Purge(verb) => verb.run(&api, out).await,
                Verb::Pause(verb) => verb.run(&api, out).await,
                Verb::Resume(verb) => verb.run(&api, out).await,
            }
        })
    }
}
