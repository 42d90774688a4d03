//! `malote dlq …`: dead letters.

mod look;
mod redrive;
mod resend;

use crate::args::noun;

noun! {
    /// Look at dead letters, send them back, correct them or drop them
    Dlq {
        Ls(look::Ls),
        Show(look::Show),
        Redrive(redrive::Redrive),
        Resend(Box<resend::Resend>),
        Export(look::Export),
        Purge(redrive::Purge),
    }
}
