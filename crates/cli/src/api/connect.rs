//! The flags of commands that talk to a server.

use std::path::PathBuf;
use std::time::Duration;

use super::client::Client;
use super::credentials::{CredentialArgs, Credentials};
use super::endpoint::Endpoint;
use super::{Api, ApiError, tls};
use crate::context::ServerAddress;
use crate::when;

/// The flags of every command that talks to a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    credentials: CredentialArgs,
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
    /// Creates a client, which connects with its first call.
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
        let credentials = self.credentials.resolve(server)?;
        let authorization = credentials.as_ref().map(Credentials::authorization);
        Ok(Api { client: Client::new(endpoint, authorization, tls, self.timeout) })
    }
}

/// Refuses an address that no command could use.
pub(crate) fn check_url(url: &str) -> Result<(), ApiError> {
    Endpoint::parse(url).map(drop)
}
