//! `malote key …`: signing keys of SQS and Service Bus clients.

use clap::Subcommand;
use malote_server::credentials::{Holder, KeyKind};
use serde::Serialize;

use crate::args::GlobalArgs;
use crate::output::{Facts, Row};
use crate::user::{HolderArgs, StoreArgs, holder_of};

/// Manage the signing keys of SQS and Service Bus clients
#[derive(clap::Args)]
pub(crate) struct Key {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create a key and show its secret
    Add {
        /// Kind of key: aws or servicebus
        kind: KeyKind,
        #[command(flatten)]
        holder: HolderArgs,
        /// Key id [default: generated]
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Delete a key
    #[command(visible_alias = "delete")]
    Rm {
        /// Key id
        id: String,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "list")]
    Ls,
}

impl Key {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (store, mut out) = (self.store.open()?, self.global.open_output());
        match self.verb {
            Verb::Add { kind, holder, id } => {
                let made = store.add_key(kind, id.as_deref(), None, holder.holder())?;
                out.one(&NewKey { kind: kind.as_str(), id: made.id, secret: made.secret })
            }
            Verb::Rm { id } => {
                store.remove_key(&id)?;
                out.note(format_args!("key `{id}` deleted"));
                Ok(())
            }
            Verb::Ls => {
                let keys = store.list().keys.into_iter();
                let shown = keys.map(|key| KeyRow::new(key.kind, key.id, &key.holder));
                out.list(&shown.collect::<Vec<_>>())
            }
        }
    }
}

/// A new key.
#[derive(Serialize)]
struct NewKey {
    kind: &'static str,
    id: String,
    secret: String,
}

impl Facts for NewKey {
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
struct KeyRow {
    kind: &'static str,
    id: String,
    may: String,
}

impl KeyRow {
    fn new(kind: KeyKind, id: String, holder: &Holder) -> Self {
        Self { kind: kind.as_str(), id, may: holder_of(holder) }
    }
}

impl Row for KeyRow {
    const NOUN: &'static str = "key";
    const HEAD: &'static [&'static str] = &["KIND", "ID", "MAY"];

    fn row(&self) -> Vec<String> {
        vec![self.kind.to_owned(), self.id.clone(), self.may.clone()]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}
