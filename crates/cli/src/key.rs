//! `malote key …`: keys that sign, for SQS and Service Bus.

use clap::Subcommand;
use malote_server::credentials::{Holder, KeyKind};
use serde::Serialize;

use crate::output::{Facts, OutputArgs, Row};
use crate::user::{HolderArgs, StoreArgs, holder_of};

/// Add keys that sign, for SQS and Service Bus
#[derive(clap::Args)]
pub(crate) struct Key {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a key and show its secret
    Add {
        /// aws or servicebus
        kind: KeyKind,
        #[command(flatten)]
        holder: HolderArgs,
        /// Its id, made up otherwise
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Remove a key
    Rm {
        /// Its id
        id: String,
    },
    /// List keys, without their secrets
    Ls,
}

impl Key {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, mut out) = (self.store.open()?, self.output.open());
        match self.verb {
            Verb::Add { kind, holder, id } => {
                let made = store.add_key(kind, id.as_deref(), None, holder.holder())?;
                out.one(&Made { kind: kind.as_str(), id: made.id, secret: made.secret })
            }
            Verb::Rm { id } => {
                store.remove_key(&id)?;
                out.note(format_args!("key `{id}` removed"));
                Ok(())
            }
            Verb::Ls => {
                let keys = store.list().keys.into_iter();
                let shown = keys.map(|key| Shown::new(key.kind, key.id, &key.holder));
                out.list(&shown.collect::<Vec<_>>())
            }
        }
    }
}

/// A new key.
#[derive(Serialize)]
struct Made {
    kind: &'static str,
    id: String,
    secret: String,
}

impl Facts for Made {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("kind", self.kind.to_owned()),
            ("id", self.id.clone()),
            ("secret", self.secret.clone()),
        ]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

/// A key in a list.
#[derive(Serialize)]
struct Shown {
    kind: &'static str,
    id: String,
    may: String,
}

impl Shown {
    fn new(kind: KeyKind, id: String, holder: &Holder) -> Self {
        Self { kind: kind.as_str(), id, may: holder_of(holder) }
    }
}

impl Row for Shown {
    const HEAD: &'static [&'static str] = &["KIND", "ID", "MAY"];

    fn row(&self) -> Vec<String> {
        vec![self.kind.to_owned(), self.id.clone(), self.may.clone()]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}
