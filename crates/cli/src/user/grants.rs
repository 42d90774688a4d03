//! Grants: actions on a queue pattern.

use malote_model::access::Action;
use malote_server::credentials::{self, Holder, Store};

use crate::failure::Failure;
use crate::output::Output;

/// Grant permissions: `malote user grant ana send,receive 'orders-*'`
///
/// The pattern must match the whole name of the queue or topic. It is case-sensitive.
///
///   *        alone: every name
///   *        any run of characters within one segment; it does not cross `/`
///   **       any run of characters, slashes included
///   ?        one character, but not `/`
///
/// A subscription is `topic/Subscriptions/name`: `sales/**` covers all subscriptions of the topic `sales`, `sales` the topic only.
/// Dead letters belong to their queue. To make a queue forward or dead-letter to another, a user needs `send` on the
/// other one.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Grant {
    /// User, `key:ID` or `token:LABEL`
    name: String,
    #[command(flatten)]
    what: GrantArgs,
}

/// Revoke permissions that were granted on exactly this pattern
#[derive(clap::Args)]
pub(crate) struct Revoke {
    /// User, `key:ID` or `token:LABEL`
    name: String,
    #[command(flatten)]
    what: GrantArgs,
}

#[derive(clap::Args)]
struct GrantArgs {
    /// send, receive, manage, a comma-separated list of these, or all
    #[arg(value_name = "ACTIONS", value_parser = actions)]
    actions: Actions,
    /// A queue or topic, or a pattern with `*`, `**` and `?`: `malote user grant --help`
    #[arg(value_name = "QUEUE")]
    queue: String,
}

#[derive(Clone, Debug)]
struct Actions(Vec<Action>);

fn actions(text: &str) -> Result<Actions, String> {
    if text == "all" {
        return Ok(Actions(Action::ALL.to_vec()));
    }
    let read = |word: &str| {
        word.parse::<Action>().map_err(|_| "expected send, receive, manage or all".to_owned())
    };
    text.split(',').map(read).collect::<Result<_, _>>().map(Actions)
}

impl GrantArgs {
    fn grant(&self) -> anyhow::Result<credentials::Grant> {
        Ok(credentials::Grant::new(self.actions.0.clone(), &self.queue)?)
    }
}

impl Grant {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let grant = self.what.grant()?;
        store.grant(&self.name, &grant)?;
        out.note(format_args!("`{}` may {grant}", self.name));
        Ok(())
    }
}

impl Revoke {
    pub(crate) fn run(self, store: &Store, out: Output) -> anyhow::Result<()> {
        let grant = self.what.grant()?;
        if !store.revoke(&self.name, &grant)? {
            let why = format!(
                "`{}` has no grant on the pattern `{}`; `malote user ls` lists the grants",
                self.name, self.what.queue
            );
            return Err(Failure::NotFound(why).into());
        }
        out.note(format_args!("`{}` may no longer {grant}", self.name));
        Ok(())
    }
}

/// The permissions of a key or token.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct HolderArgs {
    /// Act as this user
    #[arg(long = "for", value_name = "USER", conflicts_with_all = ["grant", "admin"])]
    user: Option<String>,
    /// Permission of its own: ACTIONS PATTERN, such as 'send,receive orders-*'; may be repeated
    #[arg(long, value_name = "GRANT")]
    grant: Vec<credentials::Grant>,
    /// Allow everything
    #[arg(long)]
    admin: bool,
}

impl HolderArgs {
    pub(crate) fn holder(self) -> Holder {
        match self.user {
            Some(user) => Holder::User(user),
            None => Holder::Own(with_admin(self.grant, self.admin)),
        }
    }
}

pub(super) fn with_admin(grants: Vec<credentials::Grant>, admin: bool) -> Vec<credentials::Grant> {
    if admin { vec![credentials::Grant::everything()] } else { grants }
}

pub(super) fn listed(grants: &[credentials::Grant]) -> String {
    match grants {
        [] => "nothing".to_owned(),
        grants => grants.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

pub(crate) fn holder_of(holder: &Holder) -> String {
    match holder {
        Holder::User(user) => format!("acts as {user}"),
        Holder::Own(grants) => listed(grants),
    }
}
