//! The tests of the worker and of its broker `postgres://` on a real PostgreSQL, which they start on a port of its own
//! and stop.
//!
//! Nobody's machine is changed for it: without PostgreSQL the step is skipped. CI installs Debian's package.

use std::process::Command;

use anyhow::{Context, Result, bail};
use malote_services::Postgres;

use crate::cargo::{self, FEATURES};
use crate::conformance::missing;
use crate::steps::{Outcome, Step};

pub(crate) fn step() -> Step {
    Step::new("postgres", tests)
}

/// Installs it in CI; elsewhere its absence is the outcome.
pub(crate) fn found() -> Result<Option<Outcome>> {
    if let Err(why) = Postgres::find() {
        if std::env::var_os("CI").is_none() {
            return missing("PostgreSQL", &why.to_string()).map(Some);
        }
        install("postgresql").with_context(|| why.to_string())?;
    }
    Ok(None)
}

fn tests() -> Result<Outcome> {
    if let Some(skipped) = found()? {
        return Ok(skipped);
    }
    cargo::tests(&["test", "--workspace", "--features", FEATURES, "--test", "postgres"])
}

/// A package of Debian's. At this run level no service is started: only the programs are wanted.
pub(crate) fn install(package: &str) -> Result<()> {
    let install = ["install", "--yes", "--no-install-recommends", package];
    for args in [["update"].as_slice(), &install] {
        let mut apt = Command::new("apt-get");
        apt.args(args).env("RUNLEVEL", "1").env("DEBIAN_FRONTEND", "noninteractive");
        let status = apt.status().context("cannot start apt-get")?;
        if !status.success() {
            bail!("{apt:?} failed: {status}");
        }
    }
    Ok(())
}
