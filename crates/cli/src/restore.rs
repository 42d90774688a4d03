//! `malote restore`: creates a data directory from a backup.

use std::path::PathBuf;

use malote_engine::disk::OsDisk;
use malote_engine::journal;

use crate::args::GlobalArgs;
use crate::backup::BackupSummary;
use crate::files;

/// Create a data directory from a backup
///
/// The directory is created if it does not exist, and refused if it contains a journal. The backup is verified
/// completely; if it is damaged, the directory stays as it was.
#[derive(clap::Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    global: GlobalArgs,
    /// Backup file; `-` reads standard input
    file: PathBuf,
    /// Data directory to create
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl Restore {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut backup = files::open(&self.file)?;
        let disk = OsDisk::open(&self.data)?;
        let done = journal::restore(&mut *backup, &disk)?;
        let mut out = self.global.open_output();
        out.one(&BackupSummary::of(&done))?;
        out.note(format_args!(
            "restored; start the server with `malote serve --data {}`",
            self.data.display()
        ));
        Ok(())
    }
}
