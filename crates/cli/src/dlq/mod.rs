//! `malote dlq …`: dead letters.

mod groups;
mod inspect;
mod redrive;
mod resend;

use crate::args::noun;

noun! {
    /// Show, redrive, correct and delete dead letters
    Dlq {
        #[command(visible_alias = "list")]
        Ls(inspect::Ls),
        Groups(groups::Groups),
        #[command(visible_alias = "get")]
        Show(inspect::Show),
        Redrive(redrive::Redrive),
        Resend(Box<resend::Resend>),
        Export(inspect::Export),
        Purge(redrive::Purge),
    }
}
