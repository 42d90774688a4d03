//! `malote subscription …`: queues that belong to topics, and their rules.

mod manage;
mod rules;

use crate::args::noun;

noun! {
    /// Create and show subscriptions of topics, and their rules
    Subscription {
        #[command(visible_alias = "list")]
        Ls(manage::Ls),
        #[command(visible_alias = "show")]
        Get(manage::Get),
        Create(manage::Create),
        #[command(visible_alias = "delete")]
        Rm(manage::Rm),
        Rule(rules::Rules),
    }
}
