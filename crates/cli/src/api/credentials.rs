//! How a command signs in: flags, then the environment, then the context.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::context::ServerAddress;
use crate::failure::Failure;
use crate::{ask, files};

/// The flags with credentials for a server.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CredentialArgs {
    /// Bearer token created with `malote token add`
    #[arg(
        long,
        env = "MALOTE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        global = true,
        help_heading = "Server"
    )]
    token: Option<String>,
    /// User name, instead of a token; the password comes from MALOTE_PASSWORD or MALOTE_PASSWORD_FILE, or is asked for
    #[arg(
        long,
        env = "MALOTE_USER",
        hide_env_values = true,
        value_name = "NAME",
        global = true,
        help_heading = "Server"
    )]
    user: Option<String>,
}

/// The credentials of a caller.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    Token(String),
    Password { user: String, password: String },
}

impl CredentialArgs {
    /// The credentials for a server, or none. Flags and environment win over the context.
    pub(crate) fn resolve(&self, server: &ServerAddress) -> anyhow::Result<Option<Credentials>> {
        let from_context = self.token.is_none();
        if let Some(user) = self.user.as_ref().or(server.user.as_ref().filter(|_| from_context)) {
            let password = match secret("MALOTE_PASSWORD")? {
                Some(password) => password,
                None => ask::password(&format!("password of {user}"))?.ok_or_else(|| {
                    Failure::Usage(
                        "no password: set MALOTE_PASSWORD or MALOTE_PASSWORD_FILE".into(),
                    )
                })?,
            };
            return Ok(Some(Credentials::Password { user: user.clone(), password }));
        }
        let token = match &self.token {
            Some(token) => Some(token.clone()),
            None => secret("MALOTE_TOKEN")?.or_else(|| server.token.clone()),
        };
        Ok(token.filter(|token| !token.is_empty()).map(Credentials::Token))
    }
}

impl Credentials {
    /// The value of the `Authorization` header.
    pub(super) fn authorization(&self) -> String {
        match self {
            Self::Token(token) => format!("Bearer {token}"),
            Self::Password { user, password } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }
}

/// A secret from an environment variable, or from the file that the variable with `_FILE` appended names.
fn secret(variable: &str) -> anyhow::Result<Option<String>> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(value) = set(variable) {
        return Ok(Some(value));
    }
    let Some(path) = set(&format!("{variable}_FILE")) else { return Ok(None) };
    let text = String::from_utf8(files::read(path.as_ref())?);
    let text = text.map_err(|_| Failure::Usage(format!("{path} is not text")))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}
