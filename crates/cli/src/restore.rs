//! `malote restore`: a data directory out of a backup.

use std::path::PathBuf;

use malote_engine::disk::OsDisk;
use malote_engine::journal;

use crate::backup::Copied;
use crate::files;
use crate::output::OutputArgs;

/// Make a data directory out of a backup
///
/// The directory is made if it is not there, and refused if it holds a journal. Everything is verified before this
/// says that it is done; if anything is wrong with the file, the directory is as before.
#[derive(clap::Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    output: OutputArgs,
    /// The backup; `-` is standard input
    file: PathBuf,
    /// The data directory
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl Restore {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut backup = files::open(&self.file)?;
        let disk = OsDisk::open(&self.data)?;
        let done = journal::restore(&mut *backup, &disk)?;
        let mut out = self.output.open();
        out.one(&Copied::of(&done))?;
        out.note(format_args!("start it with `malote serve --data {}`", self.data.display()));
        Ok(())
    }
}
