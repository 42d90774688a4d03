//! `malote context …`: named servers, so that commands need no `--url`.

mod file;
mod server;

use clap::Subcommand;
use serde::Serialize;

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::output::{Facts, Output, Row};
pub(crate) use file::{Context, ContextFile};
pub(crate) use server::ServerAddress;

/// Manage named servers
///
/// A command uses, in this order: --url, --context, MALOTE_URL, MALOTE_CONTEXT, the current context, and
/// http://127.0.0.1:8080. Contexts are stored in malote/contexts.toml in the XDG configuration directory
/// (~/.config), which only you can read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote context add prod --url https://mq.example.com --user ana
  malote context use prod
  malote --context local queue ls")]
pub(crate) struct ContextCommand {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Add(Add),
    /// Make a context the current one
    Use {
        /// Name of the context
        name: String,
    },
    /// List contexts
    #[command(visible_alias = "list")]
    Ls,
    /// Show a context; its token is not shown
    #[command(visible_alias = "get")]
    Show {
        /// Name of the context [default: the current one]
        name: Option<String>,
    },
    /// Delete a context
    #[command(visible_alias = "delete")]
    Rm {
        /// Name of the context
        name: String,
    },
}

/// Add a context, or replace one
///
/// The first context becomes the current one. Give the address with --url.
#[derive(clap::Args)]
struct Add {
    /// Name of the context
    name: String,
    /// User name; the password comes from MALOTE_PASSWORD or MALOTE_PASSWORD_FILE, or is asked for
    #[arg(long, value_name = "NAME", conflicts_with = "token")]
    user: Option<String>,
    /// Bearer token created with `malote token add`
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Trust the certificates in this PEM file, in addition to the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<std::path::PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long)]
    insecure: bool,
    /// Make it the current context
    #[arg(long = "use")]
    make_current: bool,
}

impl ContextCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut file = ContextFile::load()?;
        let mut out = self.global.open_output();
        match self.verb {
            Verb::Add(add) => add.run(&self.global, &mut file, &out),
            Verb::Use { name } => {
                file.find(&name)?;
                file.current = Some(name.clone());
                file.save()?;
                out.note(format_args!("context `{name}` is now the current one"));
                Ok(())
            }
            Verb::Ls => {
                if file.contexts.is_empty() {
                    out.note("no contexts; `malote context add NAME --url URL` adds one");
                }
                let current = file.current.as_deref();
                let items = file.contexts.iter().map(|(name, context)| {
                    ContextItem::new(name, context, current == Some(name.as_str()))
                });
                out.list(&items.collect::<Vec<_>>())
            }
            Verb::Show { name } => {
                let current = file.current.clone();
                let name = name.or(current.clone()).ok_or_else(|| {
                    Failure::NotFound("there is no current context: give a name".into())
                })?;
                let is_current = current.as_deref() == Some(name.as_str());
                out.one(&ContextItem::new(&name, file.find(&name)?, is_current))
            }
            Verb::Rm { name } => {
                file.find(&name)?;
                file.contexts.remove(&name);
                file.current = file.current.take().filter(|current| *current != name);
                file.save()?;
                out.removed("context", &name)
            }
        }
    }
}

impl Add {
    fn run(self, global: &GlobalArgs, file: &mut ContextFile, out: &Output) -> anyhow::Result<()> {
        let url = global.url.clone().ok_or_else(|| {
            Failure::Usage(format!(
                "give the address: `malote context add {} --url URL`",
                self.name
            ))
        })?;
        let ca = self.ca.map(std::path::absolute).transpose()?;
        let context =
            Context { url, user: self.user, token: self.token, ca, insecure: self.insecure };
        context.check()?;
        let replaced = file.contexts.insert(self.name.clone(), context).is_some();
        if self.make_current || file.current.is_none() {
            file.current = Some(self.name.clone());
        }
        file.save()?;
        let done = if replaced { "replaced" } else { "added" };
        let current = file.current.as_deref() == Some(self.name.as_str());
        let suffix = if current { " and is the current one" } else { "" };
        out.note(format_args!("context `{}` {done}{suffix}", self.name));
        Ok(())
    }
}

/// A context without its secret.
#[derive(Serialize)]
struct ContextItem {
    name: String,
    current: bool,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    has_token: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    insecure: bool,
}

impl ContextItem {
    fn new(name: &str, context: &Context, current: bool) -> Self {
        Self {
            name: name.to_owned(),
            current,
            url: context.url.clone(),
            user: context.user.clone(),
            has_token: context.token.is_some(),
            ca: context.ca.as_ref().map(|path| path.display().to_string()),
            insecure: context.insecure,
        }
    }

    fn credentials(&self) -> String {
        match (&self.user, self.has_token) {
            (Some(user), _) => format!("user {user}"),
            (None, true) => "token".to_owned(),
            (None, false) => "none".to_owned(),
        }
    }
}

impl Row for ContextItem {
    const NOUN: &'static str = "context";
    const HEAD: &'static [&'static str] = &["CURRENT", "NAME", "URL", "CREDENTIALS"];

    fn row(&self) -> Vec<String> {
        let current = if self.current { "*" } else { "" };
        vec![current.to_owned(), self.name.clone(), self.url.clone(), self.credentials()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Facts for ContextItem {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("name", self.name.clone()),
            ("current", if self.current { "yes" } else { "no" }.to_owned()),
            ("url", self.url.clone()),
            ("credentials", self.credentials()),
            ("certificates", self.ca.clone().unwrap_or_else(|| "system".to_owned())),
            ("verify certificate", if self.insecure { "no" } else { "yes" }.to_owned()),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
