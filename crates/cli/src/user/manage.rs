//! Users themselves.

use std::io::Read;

use malote_server::credentials::{self, Store, UserInfo};
use serde::Serialize;

use super::grants::{listed, with_admin};
use crate::ask;
use crate::failure::Failure;
use crate::output::{Output, Row};

/// Add a user
#[derive(clap::Args)]
pub(crate) struct Add {
    /// Its name
    name: String,
    #[command(flatten)]
    password: PasswordArgs,
    /// It has no password and acts by keys and tokens only
    #[arg(long, conflicts_with = "password_stdin")]
    no_password: bool,
    /// What it may do: ACTIONS PATTERN, such as 'send,receive orders-*'
    #[arg(long, value_name = "GRANT")]
    grant: Vec<credentials::Grant>,
    /// It may do everything
    #[arg(long, conflicts_with = "grant")]
    admin: bool,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct PasswordArgs {
    /// Read the password from standard input
    #[arg(long)]
    password_stdin: bool,
}

impl PasswordArgs {
    fn read(self, name: &str) -> anyhow::Result<String> {
        if self.password_stdin {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
        }
        let nobody = || {
            Failure::Usage("nobody can be asked for a password here: say --password-stdin".into())
        };
        let first = ask::password(&format!("new password of {name}"))?.ok_or_else(nobody)?;
        let again = ask::password("once more")?.ok_or_else(nobody)?;
        if first != again {
            return Err(
                Failure::Usage("the two are not the same; nothing was changed".into()).into()
            );
        }
        Ok(first)
    }
}

impl Add {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let password = match self.no_password {
            true => None,
            false => Some(self.password.read(&self.name)?),
        };
        let grants = with_admin(self.grant, self.admin);
        let none = grants.is_empty();
        store.add_user(&self.name, password.as_deref(), grants)?;
        out.note(format_args!("user `{}` added", self.name));
        if none {
            out.note(format_args!(
                "it may do nothing yet: `malote user grant {} send,receive 'orders-*'`",
                self.name
            ));
        }
        Ok(())
    }
}

/// Remove a user with its keys and tokens
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// Its name
    name: String,
}

impl Rm {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        store.remove_user(&self.name)?;
        out.note(format_args!("user `{}` removed", self.name));
        if store.is_empty() {
            out.note(format_args!("{CLOSED}"));
        }
        Ok(())
    }
}

/// What follows when the last credential is gone.
const CLOSED: &str = "there are no credentials left: every caller is refused until a user is added, \
                      or until `malote user open` and a restart";

/// Let everyone in again, after all users, keys and tokens were removed
///
/// A data directory that has had credentials is not served without any, because the file with them may be missing by
/// mistake. This forgets that there were any. It takes effect when the server starts.
#[derive(clap::Args)]
pub(crate) struct Open {}

impl Open {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        store.reopen()?;
        out.note(format_args!("the server lets everyone in from its next start on"));
        Ok(())
    }
}

/// Change a user's password
#[derive(clap::Args)]
pub(crate) struct Passwd {
    /// Its name
    name: String,
    #[command(flatten)]
    password: PasswordArgs,
}

impl Passwd {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        store.set_password(&self.name, &self.password.read(&self.name)?)?;
        out.note(format_args!("password of `{}` changed", self.name));
        Ok(())
    }
}

/// List users and what they may do
#[derive(clap::Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(crate) fn run(self, store: &Store, mut out: Output) -> anyhow::Result<()> {
        let users: Vec<Shown> = store.list().users.into_iter().map(Shown::from).collect();
        let path = store.path().display();
        if store.is_open() {
            out.note(format_args!("no credentials in {path}: the server accepts every caller"));
        } else if store.is_empty() {
            out.note(format_args!("{CLOSED} ({path})"));
        }
        out.list(&users)
    }
}

/// A user, for people and programs.
#[derive(Serialize)]
struct Shown {
    name: String,
    has_password: bool,
    grants: Vec<credentials::Grant>,
}

impl From<UserInfo> for Shown {
    fn from(UserInfo { name, has_password, grants }: UserInfo) -> Self {
        Self { name, has_password, grants }
    }
}

impl Row for Shown {
    const HEAD: &'static [&'static str] = &["NAME", "PASSWORD", "MAY"];

    fn row(&self) -> Vec<String> {
        let password = if self.has_password { "yes" } else { "no" };
        vec![self.name.clone(), password.to_owned(), listed(&self.grants)]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
