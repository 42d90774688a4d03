//! `malote serve`: the server. What it says on the terminal is its own.

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
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(runtime.block_on(malote_server::run(settings))?)
    }
}
