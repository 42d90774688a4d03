//! `malote session …`: the sessions of a queue, their state and their holders.

mod look;
mod state;

use crate::args::noun;

noun! {
    /// Look at sessions, their state and their holders
    Session {
        Ls(look::Ls),
        Show(look::Show),
        State(state::State),
        Break(look::Break),
    }
}
