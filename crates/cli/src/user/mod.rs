//! `malote user …`: who may come in and what they may do. Works on the file in the data directory; a running server
//! takes changes up within a second.

mod grants;
mod manage;
mod store;

pub(crate) use grants::{HolderArgs, holder_of};
pub(crate) use store::StoreArgs;

use clap::Subcommand;

use crate::output::OutputArgs;

/// Add users and say what they may do
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote user add ana --grant 'send,receive orders-*'
  malote user add root --admin
  malote user grant ana manage 'orders-*'")]
pub(crate) struct User {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Add(manage::Add),
    Rm(manage::Rm),
    Passwd(manage::Passwd),
    Grant(grants::Grant),
    Revoke(grants::Revoke),
    Ls(manage::Ls),
    Open(manage::Open),
}

impl User {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, out) = (self.store.open()?, self.output.open());
        match self.verb {
            Verb::Add(verb) => verb.run(&store, out),
            Verb::Rm(verb) => verb.run(&store, out),
            Verb::Passwd(verb) => verb.run(&store, out),
            Verb::Grant(verb) => verb.run(&store, out),
            Verb::Revoke(verb) => verb.run(&store, out),
            Verb::Ls(verb) => verb.run(&store, out),
            Verb::Open(verb) => verb.run(&store, out),
        }
    }
}
