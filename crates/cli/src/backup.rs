//! `malote backup`: everything that a running server holds, as one file.

use std::path::PathBuf;

use anyhow::Context;
use malote_engine::journal::{self, Restored};
use serde::Serialize;

use crate::args::Remote;
use crate::files::{self, Unfinished};
use crate::output::Facts;

/// Copy everything that a running server holds into one file
///
/// The server goes on serving. The file holds what was durable when the backup began, and is checked when it is there.
/// Credentials, certificates and settings are not in it.
#[derive(clap::Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    remote: Remote,
    /// The file to make
    file: PathBuf,
}

impl Backup {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, file } = self;
        remote.run(|api, mut out| async move {
            let mut made = Unfinished::create(&file)?;
            let bytes = api.backup(|piece| made.write(piece)).await?;
            bytes.with_context(|| format!("cannot write {}", file.display()))?;
            let checked = journal::check_backup(&mut *files::open(made.part())?)?;
            made.finish()?;
            out.one(&Copied::of(&checked))?;
            Ok(())
        })
    }
}

/// What a backup holds.
#[derive(Serialize)]
pub(crate) struct Copied {
    position: String,
    files: u64,
    bytes: u64,
}

impl Copied {
    pub(crate) fn of(found: &Restored) -> Self {
        Self { position: found.position.to_string(), files: found.files, bytes: found.bytes }
    }
}

impl Facts for Copied {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("up to", self.position.clone()),
            ("files", self.files.to_string()),
            ("bytes", self.bytes.to_string()),
        ]
    }

    fn name(&self) -> String {
        self.position.clone()
    }
}
