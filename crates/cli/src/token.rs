//! `malote token …`: bearer tokens of the HTTP API.

use clap::Subcommand;
use serde::Serialize;

use crate::args::GlobalArgs;
use crate::output::{Facts, Row};
use crate::user::{HolderArgs, StoreArgs, holder_of};

/// Manage bearer tokens of the HTTP API
#[derive(clap::Args)]
pub(crate) struct Token {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create a token and show it; it cannot be shown again
    Add {
        /// Label of the token
        label: String,
        #[command(flatten)]
        holder: HolderArgs,
    },
    /// Delete a token
    #[command(visible_alias = "delete")]
    Rm {
        /// Label of the token
        label: String,
    },
    /// List tokens by their labels
    #[command(visible_alias = "list")]
    Ls,
}

impl Token {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, mut out) = (self.store.open()?, self.global.open_output());
        match self.verb {
            Verb::Add { label, holder } => {
                let made = store.add_token(&label, holder.holder())?;
                out.one(&NewToken { label: made.label, token: made.token })
            }
            Verb::Rm { label } => {
                store.remove_token(&label)?;
                out.note(format_args!("token `{label}` deleted"));
                Ok(())
            }
            Verb::Ls => {
                let tokens = store.list().tokens.into_iter();
                let shown = tokens
                    .map(|token| TokenRow { may: holder_of(&token.holder), label: token.label });
                out.list(&shown.collect::<Vec<_>>())
            }
        }
    }
}

/// A new token.
#[derive(Serialize)]
struct NewToken {
    label: String,
    token: String,
}

impl Facts for NewToken {
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
struct TokenRow {
    label: String,
    may: String,
}

impl Row for TokenRow {
    const NOUN: &'static str = "token";
    const HEAD: &'static [&'static str] = &["LABEL", "MAY"];

    fn row(&self) -> Vec<String> {
        vec![self.label.clone(), self.may.clone()]
    }

    fn name(&self) -> String {
        self.label.clone()
    }
}
