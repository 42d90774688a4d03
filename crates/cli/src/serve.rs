//! `malote serve`: runs the server.

use std::io::Write;

use malote_server::logs;
use malote_server::settings::Environment;

use crate::settings::SettingsArgs;

/// Run the server
///
/// By default the server listens on this machine only and keeps its data in ~/.local/share/malote. Every setting can
/// also be a line in malote.toml or an environment variable; `malote config default` prints them all.
#[derive(clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let settings = self.settings.load()?;
        logs::start(&settings.log, &Environment::of_process())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let greet = |lines: &str| {
            // A closed standard output must not stop the server.
            let _ = writeln!(std::io::stdout(), "{lines}");
        };
        Ok(runtime.block_on(malote_server::run(settings, greet))?)
    }
}
