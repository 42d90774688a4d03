//! `malote version`: the version of this program, and of a server.

use serde::Serialize;

use crate::args::Remote;
use crate::output::Facts;

/// Show the version of this program
#[derive(clap::Args)]
pub(crate) struct Version {
    #[command(flatten)]
    remote: Remote,
    /// Show the version of the server, too
    #[arg(long)]
    server: bool,
}

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.remote.run(|api, mut out| async move {
            let server = if self.server { Some(api.version().await?.version) } else { None };
            out.one(&Versions {
                version: env!("CARGO_PKG_VERSION"),
                format: malote_engine::FORMAT,
                server,
            })
        })
    }
}

#[derive(Serialize)]
struct Versions {
    version: &'static str,
    /// The data format that this program writes.
    format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

impl Facts for Versions {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts =
            vec![("malote", self.version.to_owned()), ("data format", self.format.to_string())];
        facts.extend(self.server.iter().map(|version| ("server", version.clone())));
        facts
    }

    fn name(&self) -> String {
        self.version.to_owned()
    }
}
