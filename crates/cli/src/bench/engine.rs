//! `malote bench engine`: durable enqueue, lease and complete, one in flight, many publishers, many sessions.

use std::path::PathBuf;

/// What to measure, and where.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory on the disk to measure; made for the run and removed after it
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Temporary: the measurements are written elsewhere and take this function's place.
pub(crate) fn run(_: Args) -> anyhow::Result<()> {
    anyhow::bail!("`malote bench engine` is not built yet")
}
