//! `malote topic …`: creating and showing topics, and sending to them.

mod manage;
mod publish;

use crate::args::noun;

noun! {
    /// Create, show and send to topics
    Topic {
        #[command(visible_alias = "list")]
        Ls(manage::Ls),
        #[command(visible_alias = "show")]
        Get(manage::Get),
        Create(manage::Create),
        #[command(visible_alias = "delete")]
        Rm(manage::Rm),
        Publish(publish::Publish),
    }
}
