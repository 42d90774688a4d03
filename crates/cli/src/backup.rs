//! `malote backup`: writes all data of a running server to a file.

use std::path::PathBuf;

use anyhow::Context;
use malote_engine::journal::{self, Restored};
use serde::Serialize;

use crate::args::Remote;
use crate::files::{self, Unfinished};
use crate::output::Facts;

/// Back up all data of a running server to a file
///
/// The server keeps running. The file contains everything that was durable when the backup started, and is verified at
/// the end. It does not contain credentials, certificates and settings.
#[derive(clap::Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    remote: Remote,
    /// File to create
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
            out.one(&BackupSummary::of(&checked))?;
            out.note(format_args!("backup written to {} and verified", file.display()));
            Ok(())
        })
    }
}

/// The contents of a backup.
#[derive(Serialize)]
pub(crate) struct BackupSummary {
    position: String,
    files: u64,
    bytes: u64,
}

impl BackupSummary {
    pub(crate) fn of(found: &Restored) -> Self {
        Self { position: found.position.to_string(), files: found.files, bytes: found.bytes }
    }
}

impl Facts for BackupSummary {
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
