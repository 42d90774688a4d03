//! `malote user …`: users and their permissions. Works on the credential file in the data directory; a running server
//! applies changes within a second.

mod grants;
mod manage;
mod permissions;
mod store;

pub(crate) use grants::{HolderArgs, holder_of};
pub(crate) use store::StoreArgs;

use clap::Subcommand;

use crate::args::GlobalArgs;

/// Manage users and their permissions
///
/// Works on the data directory, not over the network. A running server applies changes within a second.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote user add ana --grant 'send,receive orders-*'
  malote user add root --admin
  malote user grant ana manage 'orders-*'
  malote user tags ana management
  malote user permit ana --vhost dev '.*' '.*' '.*'")]
pub(crate) struct User {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Add(manage::Add),
    #[command(visible_alias = "delete")]
    Rm(manage::Rm),
    Passwd(manage::Passwd),
    Grant(grants::Grant),
    Revoke(grants::Revoke),
    Tags(permissions::Tags),
    Permit(permissions::Permit),
    Forbid(permissions::Forbid),
    #[command(visible_alias = "list")]
    Ls(manage::Ls),
    Open(manage::Open),
}

impl User {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, out) = (self.store.open()?, self.global.open_output());
        match self.verb {
            Verb::Add(verb) => verb.run(&store, out),
            Verb::Rm(verb) => verb.run(&store, out),
            Verb::Passwd(verb) => verb.run(&store, out),
            Verb::Grant(verb) => verb.run(&store, out),
            Verb::Revoke(verb) => verb.run(&store, out),
            Verb::Tags(verb) => verb.run(&store, out),
            Verb::Permit(verb) => verb.run(&store, out),
            Verb::Forbid(verb) => verb.run(&store, out),
            Verb::Ls(verb) => verb.run(&store, out),
            Verb::Open(verb) => verb.run(&store, out),
        }
    }
}
