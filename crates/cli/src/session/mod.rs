//! `malote session …`: the sessions of a queue, their state and their locks.

mod look;
mod state;

use crate::args::noun;

noun! {
    /// Show sessions, their state and their locks
    Session {
        #[command(visible_alias = "list")]
        Ls(look::Ls),
        #[command(visible_alias = "get")]
        Show(look::Show),
        State(state::State),
        Break(look::Break),
    }
}
