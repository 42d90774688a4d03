//! `malote topic …`: making and looking at topics, and sending to them.

mod manage;
mod publish;

use crate::args::noun;

noun! {
    /// Make, look at and send to topics
    Topic {
        Ls(manage::Ls),
        Get(manage::Get),
        Create(manage::Create),
        Rm(manage::Rm),
        Publish(publish::Publish),
    }
}
