//! `malote queue …`: creating, changing and showing queues.

mod ls;
mod manage;
pub(crate) mod spec;

use crate::args::noun;

noun! {
    /// Create, change and show queues
    Queue {
        #[command(visible_alias = "list")]
        Ls(ls::Ls),
        #[command(visible_alias = "show")]
        Get(ls::Get),
        Create(manage::Create),
        Update(manage::Update),
        #[command(visible_alias = "delete")]
        Rm(manage::Rm),
        Purge(manage::Purge),
        Pause(manage::Pause),
        Resume(manage::Resume),
    }
}
