//! `malote dlq …`: dead letters.

mod look;
mod redrive;
mod resend;

use clap::Subcommand;

use crate::args::Remote;

/// Look at dead letters, send them back, correct them or drop them
#[derive(clap::Args)]
pub(crate) struct Dlq {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Ls(look::Ls),
    Show(look::Show),
    Redrive(redrive::Redrive),
    Resend(Box<resend::Resend>),
    Export(look::Export),
    Purge(redrive::Purge),
}

impl Dlq {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, verb } = self;
        remote.run(|api, out| async move {
            match verb {
                Verb::Ls(verb) => verb.run(&api, out).await,
                Verb::Show(verb) => verb.run(&api, out).await,
                Verb::Redrive(verb) => verb.run(&api, out).await,
                Verb::Resend(verb) => verb.run(&api, out).await,
                Verb::Export(verb) => verb.run(&api, out).await,
                Verb::Purge(verb) => verb.run(&api, out).await,
            }
        })
    }
}
