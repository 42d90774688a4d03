//! Where the server is and who we are to it: flags, then environment.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::client::{Client, Endpoint};
use super::{Api, ApiError, tls};
use crate::context::ServerAddress;
use crate::failure::Failure;
use crate::{ask, files, when};

/// The flags of every command that talks to a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
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
    /// Trust the certificates in this PEM file, in addition to the system's
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    ca: Option<PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long, global = true, help_heading = "Server")]
    insecure: bool,
    /// Time limit for a response, in addition to --wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration, global = true, help_heading = "Server")]
    timeout: Duration,
}

impl ConnectArgs {
    /// A client; nothing is sent yet. Flags win over the credentials of the context.
    pub(crate) fn open(&self, server: &ServerAddress) -> anyhow::Result<Api> {
        let endpoint = Endpoint::parse(&server.url)?;
        let ca = self.ca.as_deref().or(server.ca.as_deref());
        let tls = match endpoint.tls {
            true => Some(tls::connector(ca, self.insecure || server.insecure)?),
            false if self.insecure || self.ca.is_some() => {
                let why = format!("--ca and --insecure need https://, not {}", server.url);
                return Err(ApiError::Usage(why).into());
            }
            false => None,
        };
        let authorization = self.authorization(server)?;
        Ok(Api { client: Client::new(endpoint, authorization, tls, self.timeout) })
    }

    fn authorization(&self, server: &ServerAddress) -> anyhow::Result<Option<String>> {
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
            return Ok(Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))));
        }
        let token = match &self.token {
            Some(token) => Some(token.clone()),
            None => secret("MALOTE_TOKEN")?.or_else(|| server.token.clone()),
        };
        Ok(token.filter(|token| !token.is_empty()).map(|token| format!("Bearer {token}")))
    }
}

/// Refuses an address that no command could use.
pub(crate) fn check_url(url: &str) -> Result<(), ApiError> {
    Endpoint::parse(url).map(drop)
}

/// A secret from an environment variable, or from the file that the variable with `_FILE` appended names.
pub(crate) fn secret(variable: &str) -> anyhow::Result<Option<String>> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(value) = set(variable) {
        return Ok(Some(value));
    }
    let Some(path) = set(&format!("{variable}_FILE")) else { return Ok(None) };
    let text = String::from_utf8(files::read(path.as_ref())?);
    let text = text.map_err(|_| Failure::Usage(format!("{path} is not text")))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}
