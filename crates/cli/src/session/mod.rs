//! `malote session …`: the sessions of a queue, their state and their locks.

mod inspect;
mod state;

use crate::args::noun;

noun! {
    /// Show sessions, their state and their locks
    Session {
        #[command(visible_alias = "list")]
        Ls(inspect::Ls),
        #[command(visible_alias = "get")]
        Show(inspect::Show),
        State(state::State),
        Break(inspect::Break),
    }
}
