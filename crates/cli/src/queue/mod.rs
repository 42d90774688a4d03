//! `malote queue …`: making, changing and looking at queues.

mod ls;
mod manage;
mod spec;

use crate::args::noun;

noun! {
    /// Make, change and look at queues
    Queue {
        Ls(ls::Ls),
        Get(ls::Get),
        Create(manage::Create),
        Update(manage::Update),
        Rm(manage::Rm),
        Purge(manage::Purge),
        Pause(manage::Pause),
        Resume(manage::Resume),
    }
}
