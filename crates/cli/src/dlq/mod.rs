//! `malote dlq …`: dead letters.

mod look;
mod redrive;
mod resend;

use crate::args::noun;

noun! {
    /// Show, redrive, correct and delete dead letters
    Dlq {
        #[command(visible_alias = "list")]
        Ls(look::Ls),
        #[command(visible_alias = "get")]
        Show(look::Show),
        Redrive(redrive::Redrive),
        Resend(Box<resend::Resend>),
        Export(look::Export),
        Purge(redrive::Purge),
    }
}
