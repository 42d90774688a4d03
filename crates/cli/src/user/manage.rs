//! Adding, deleting and listing users.

use std::io::Read;

use malote_server::credentials::{self, Store, UserInfo, VhostPermission};
use serde::Serialize;

use super::grants::{listed, with_admin};
use super::permissions::shown_permission;
use crate::ask;
use crate::failure::Failure;
use crate::output::{Output, Row};

/// Add a user
#[derive(clap::Args)]
pub(crate) struct Add {
    /// Name of the user
    name: String,
    #[command(flatten)]
    password: PasswordArgs,
    /// Create no password; the user signs in with keys and tokens only
    #[arg(long, conflicts_with = "password_stdin")]
    no_password: bool,
    /// Permission: ACTIONS PATTERN, such as 'send,receive orders-*'; may be repeated
    #[arg(long, value_name = "GRANT")]
    grant: Vec<credentials::Grant>,
    /// Allow everything
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
        let no_terminal =
            || Failure::Usage("no terminal to ask for a password: use --password-stdin".into());
        let first = ask::password(&format!("new password of {name}"))?.ok_or_else(no_terminal)?;
        let again = ask::password("repeat the password")?.ok_or_else(no_terminal)?;
        if first != again {
            return Err(Failure::Usage("the passwords differ; nothing was changed".into()).into());
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
                "the user has no permissions yet: `malote user grant {} send,receive 'orders-*'`",
                self.name
            ));
        }
        Ok(())
    }
}

/// Delete a user with its keys and tokens
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// Name of the user
    name: String,
}

impl Rm {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        store.remove_user(&self.name)?;
        out.note(format_args!("user `{}` deleted", self.name));
        if store.is_empty() {
            out.note(format_args!("{NO_CREDENTIALS}"));
        }
        Ok(())
    }
}

/// Printed when the last credential was deleted.
const NO_CREDENTIALS: &str = "no credentials are left: every client is refused until a user is added, \
                              or until `malote user open` and a restart";

/// Allow access without credentials again, after all users, keys and tokens were deleted
///
/// A server that once had credentials refuses every client when there are none, because the credential file may be
/// missing by mistake. This command reverts that. It takes effect when the server starts.
#[derive(clap::Args)]
pub(crate) struct Open {}

impl Open {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        store.reopen()?;
        out.note(format_args!(
            "the server accepts clients without credentials from its next start"
        ));
        Ok(())
    }
}

/// Change a user's password
#[derive(clap::Args)]
pub(crate) struct Passwd {
    /// Name of the user
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

/// List users and their permissions
#[derive(clap::Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(crate) fn run(self, store: &Store, mut out: Output) -> anyhow::Result<()> {
        let users: Vec<UserRow> = store.list().users.into_iter().map(UserRow::from).collect();
        let path = store.path().display();
        if store.is_open() {
            out.note(format_args!("no credentials in {path}: the server accepts every client"));
        } else if store.is_empty() {
            out.note(format_args!("{NO_CREDENTIALS} ({path})"));
        }
        out.list(&users)
    }
}

/// A user in a list.
#[derive(Serialize)]
struct UserRow {
    name: String,
    has_password: bool,
    grants: Vec<credentials::Grant>,
    /// Tags of RabbitMQ.
    tags: Vec<String>,
    /// Permissions of RabbitMQ.
    permissions: Vec<VhostPermission>,
}

impl From<UserInfo> for UserRow {
    fn from(UserInfo { name, has_password, grants, tags, permissions }: UserInfo) -> Self {
        Self { name, has_password, grants, tags, permissions }
    }
}

impl Row for UserRow {
    const NOUN: &'static str = "user";
    const HEAD: &'static [&'static str] = &["NAME", "PASSWORD", "MAY", "TAGS"];

    fn row(&self) -> Vec<String> {
        let password = if self.has_password { "yes" } else { "no" };
        let permissions = self.permissions.iter().map(shown_permission);
        let may = match self.grants.is_empty() && !self.permissions.is_empty() {
            true => permissions.collect::<Vec<_>>().join("; "),
            false => std::iter::once(listed(&self.grants))
                .chain(permissions)
                .collect::<Vec<_>>()
                .join("; "),
        };
        vec![self.name.clone(), password.to_owned(), may, self.tags.join(",")]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
