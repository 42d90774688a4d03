//! `malote serve`: the server. What it says on the terminal is its own.

use std::io::Write;

use malote_server::logs;
use malote_server::settings::Environment;

use crate::settings::SettingsArgs;

/// Run the server
///
/// Listens on this machine only unless told otherwise, and keeps its data in ~/.local/share/malote.
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
            // Nobody there to read it is no reason to stop.
            let _ = writeln!(std::io::stdout(), "{lines}");
        };
        Ok(runtime.block_on(malote_server::run(settings, greet))?)
    }
}
