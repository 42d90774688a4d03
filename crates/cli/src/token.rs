//! `malote token …`: bearer tokens for the HTTP API.

use clap::Subcommand;
use serde::Serialize;

use crate::output::{Facts, OutputArgs, Row};
use crate::user::{HolderArgs, StoreArgs, holder_of};

/// Make bearer tokens for the HTTP API
#[derive(clap::Args)]
pub(crate) struct Token {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a token and show it; it cannot be shown again
    Add {
        /// What it is called
        label: String,
        #[command(flatten)]
        holder: HolderArgs,
    },
    /// Remove a token
    Rm {
        /// What it is called
        label: String,
    },
    /// List tokens, without the tokens themselves
    Ls,
}

impl Token {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, mut out) = (self.store.open()?, self.output.open());
        match self.verb {
            Verb::Add { label, holder } => {
                let made = store.add_token(&label, holder.holder())?;
                out.one(&Made { label: made.label, token: made.token })
            }
            Verb::Rm { label } => {
                store.remove_token(&label)?;
                out.note(format_args!("token `{label}` removed"));
                Ok(())
            }
            Verb::Ls => {
                let tokens = store.list().tokens.into_iter();
                let shown =
                    tokens.map(|token| Shown { may: holder_of(&token.holder), label: token.label });
                out.list(&shown.collect::<Vec<_>>())
            }
        }
    }
}

/// A new token.
#[derive(Serialize)]
struct Made {
    label: String,
    token: String,
}

impl Facts for Made {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("label", self.label.clone()), ("token", self.token.clone())]
    }

    /// The token itself: `MALOTE_TOKEN=$(malote token add ci --admin -o name)`.
    fn name(&self) -> String {
        self.token.clone()
    }
}

/// A token in a list.
#[derive(Serialize)]
struct Shown {
    label: String,
    may: String,
}

impl Row for Shown {
    const HEAD: &'static [&'static str] = &["LABEL", "MAY"];

    fn row(&self) -> Vec<String> {
        vec![self.label.clone(), self.may.clone()]
    }

    fn name(&self) -> String {
        self.label.clone()
    }
}
