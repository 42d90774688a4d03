//! Where the server is and who we are to it: flags, then environment.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::client::{Client, Endpoint};
use super::{Api, ApiError, tls};
use crate::failure::Failure;
use crate::{ask, files, when};

/// The flags of every command that talks to a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Where the server is
    #[arg(
        long,
        env = "MALOTE_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        global = true,
        help_heading = "Server"
    )]
    url: String,
    /// A bearer token made by `malote token add`
    #[arg(
        long,
        env = "MALOTE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        global = true,
        help_heading = "Server"
    )]
    token: Option<String>,
    /// A user, instead of a token; the password comes from MALOTE_PASSWORD or MALOTE_PASSWORD_FILE, or is asked for
    #[arg(
        long,
        env = "MALOTE_USER",
        hide_env_values = true,
        value_name = "NAME",
        global = true,
        help_heading = "Server"
    )]
    user: Option<String>,
    /// Trust the certificates in this PEM file, besides the system's
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    ca: Option<PathBuf>,
    /// Do not check the server's certificate
    #[arg(long, global = true, help_heading = "Server")]
    insecure: bool,
    /// How long to wait for an answer, besides what --wait asks for
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration, global = true, help_heading = "Server")]
    timeout: Duration,
}

impl ConnectArgs {
    /// A client; nothing is sent yet.
    pub(crate) fn open(&self) -> anyhow::Result<Api> {
        let endpoint = Endpoint::parse(&self.url)?;
        let tls = match endpoint.tls {
            true => Some(tls::connector(self.ca.as_deref(), self.insecure)?),
            false if self.insecure || self.ca.is_some() => {
                let why =
                    format!("--ca and --insecure mean nothing with {}: use https://", self.url);
                return Err(ApiError::Usage(why).into());
            }
            false => None,
        };
        Ok(Api { client: Client::new(endpoint, self.authorization()?, tls, self.timeout) })
    }

    fn authorization(&self) -> anyhow::Result<Option<String>> {
        if let Some(user) = &self.user {
            let password = match secret("MALOTE_PASSWORD")? {
                Some(password) => password,
                None => ask::password(&format!("password of {user}"))?.ok_or_else(|| {
                    Failure::Usage(
                        "there is no password: set MALOTE_PASSWORD or MALOTE_PASSWORD_FILE".into(),
                    )
                })?,
            };
            return Ok(Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))));
        }
        let token = match &self.token {
            Some(token) => Some(token.clone()),
            None => secret("MALOTE_TOKEN")?,
        };
        Ok(token.filter(|token| !token.is_empty()).map(|token| format!("Bearer {token}")))
    }
}

/// A secret by its variable, or by the file that its `_FILE` twin names.
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
