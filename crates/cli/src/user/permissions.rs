//! Tags and permissions of RabbitMQ.

use malote_server::credentials::{NameExpression, Store, UserChange, VhostPermission};

use crate::failure::Failure;
use crate::output::Output;

/// Set the RabbitMQ tags of a user: `malote user tags ana monitoring`
///
/// Replaces the tags that the user has; without tags, removes them. RabbitMQ gives these tags a meaning: administrator,
/// monitoring, policymaker and management for its management API, and impersonator, which may publish messages with the
/// user-id of another user.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Tags {
    /// Name of the user
    name: String,
    /// Tags
    #[arg(value_name = "TAG")]
    tags: Vec<String>,
}

impl Tags {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let Self { name, tags } = self;
        store.set_tags(&name, tags.clone())?;
        match tags.is_empty() {
            true => out.note(format_args!("user `{name}` has no tags")),
            false => out.note(format_args!("tags of `{name}`: {}", tags.join(", "))),
        }
        Ok(())
    }
}

/// Set the RabbitMQ permissions of a user in a virtual host: `malote user permit ana '^ana' '.*' '^ana'`
///
/// Each permission is a regular expression that is searched for in the names of queues and exchanges. '.*' permits every
/// name, '' permits none. The permissions apply to all protocols: configure is manage, write is send, read is receive.
/// Grants of the user stay valid beside them.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Permit {
    /// Name of the user
    name: String,
    /// Names that the user may declare and delete
    configure: NameExpression,
    /// Names that the user may publish to
    write: NameExpression,
    /// Names that the user may consume from
    read: NameExpression,
    /// Virtual host
    #[arg(long, default_value = "/")]
    vhost: String,
}

impl Permit {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let Self { name, configure, write, read, vhost } = self;
        let permission = VhostPermission { vhost: vhost.clone(), configure, write, read };
        let shown = shown_permission(&permission);
        store.change_users(vec![UserChange::Permit { user: name.clone(), permission }])?;
        out.note(format_args!("`{name}` in {shown}"));
        Ok(())
    }
}

/// Remove the RabbitMQ permissions of a user in a virtual host
#[derive(clap::Args)]
pub(crate) struct Forbid {
    /// Name of the user
    name: String,
    /// Virtual host
    #[arg(long, default_value = "/")]
    vhost: String,
}

impl Forbid {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let Self { name, vhost } = self;
        let users = store.list().users;
        let user = users.iter().find(|user| user.name == name);
        if user.is_some_and(|user| !user.permissions.iter().any(|one| one.vhost == vhost)) {
            let why = format!("`{name}` has no permissions in the virtual host `{vhost}`");
            return Err(Failure::NotFound(why).into());
        }
        let change = UserChange::Forbid { user: name.clone(), vhost: vhost.clone() };
        store.change_users(vec![change])?;
        out.note(format_args!("`{name}` has no permissions in the virtual host `{vhost}`"));
        Ok(())
    }
}

pub(super) fn shown_permission(permission: &VhostPermission) -> String {
    let VhostPermission { vhost, configure, write, read } = permission;
    format!("vhost {vhost}: configure '{configure}', write '{write}', read '{read}'")
}
