//! Opens the credential store.

use std::path::PathBuf;

use malote_server::audit::LocalAudit;
use malote_server::credentials::{CREDENTIALS_FILE, Store};
use malote_server::settings::{Environment, RawSettings, Settings};
use parking_lot::Mutex;

use crate::output::note;

/// Where the credential store is: in the data directory of the server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Data directory of the server [env: MALOTE_DATA]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<String>,
    /// Settings file of the server [env: MALOTE_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// Opens the store; a missing file is an empty store. Changes are recorded in the audit log of the data directory.
    pub(crate) fn open(&self) -> anyhow::Result<Store> {
        let flags = RawSettings { data: self.data.clone(), ..RawSettings::default() };
        let settings = Settings::load(self.config.as_deref(), flags, &Environment::of_process())?;
        let store = Store::open(settings.data.join(CREDENTIALS_FILE))?;
        let audit = Mutex::new(LocalAudit::at(&settings.data));
        store.on_change(move |action, object, detail| {
            if let Err(error) = audit.lock().record(action, object, detail) {
                note(format_args!(
                    "the change was made but not recorded in the audit log: {error}"
                ));
            }
        });
        Ok(store)
    }
}
