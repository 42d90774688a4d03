//! Which server a command talks to.

use std::path::PathBuf;

use super::{Context, ContextFile};

/// The address used when nothing else is given.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The address of a server, with the credentials of its context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    pub url: String,
    pub user: Option<String>,
    pub token: Option<String>,
    pub ca: Option<PathBuf>,
    pub insecure: bool,
}

impl From<Context> for ServerAddress {
    fn from(Context { url, user, token, ca, insecure }: Context) -> Self {
        Self { url, user, token, ca, insecure }
    }
}

impl ServerAddress {
    /// Only an address. Credentials of a context are never sent to an address that is not the context's own.
    fn at(url: &str) -> Self {
        Self { url: url.to_owned(), ..Self::default() }
    }

    /// Flags, then environment, then the current context, then the default.
    pub(crate) fn resolve(url: Option<&str>, context: Option<&str>) -> anyhow::Result<Self> {
        if let Some(url) = url {
            return Ok(Self::at(url));
        }
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if context.is_none()
            && let Some(url) = set("MALOTE_URL")
        {
            return Ok(Self::at(&url));
        }
        let file = ContextFile::load()?;
        let name = context.map(str::to_owned).or_else(|| set("MALOTE_CONTEXT"));
        match name.or_else(|| file.current.clone()) {
            Some(name) => Ok(file.find(&name)?.clone().into()),
            None => Ok(Self::at(DEFAULT_URL)),
        }
    }
}
