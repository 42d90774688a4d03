//! `malote subscription …`: queues that belong to topics, and their rules.

mod manage;
mod rules;

use crate::args::noun;

noun! {
    /// Make and look at subscriptions of topics, and at their rules
    Subscription {
        Ls(manage::Ls),
        Get(manage::Get),
        Create(manage::Create),
        Rm(manage::Rm),
        Rule(rules::Rules),
    }
}
