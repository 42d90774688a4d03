//! `malote session …`: the sessions of a queue, their state and their holders.

mod look;
mod state;

use clap::Subcommand;

use crate::args::Remote;

/// Look at sessions, their state and their holders
#[derive(clap::Args)]
pub(crate) struct Session {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Ls(look::Ls),
    Show(look::Show),
    State(state::State),
    Break(look::Break),
}

impl Session {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, verb } = self;
        remote.run(|api, out| async move {
            match verb {
                Verb::Ls(verb) => verb.run(&api, out).await,
                Verb::Show(verb) => verb.run(&api, out).await,
                Verb::State(verb) => verb.run(&api, out).await,
                Verb::Break(verb) => verb.run(&api, out).await,
            }
        })
    }
}
