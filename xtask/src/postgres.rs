//! Tests the worker and its broker `postgres://` on a real PostgreSQL, which they start on a free port and stop.
//!
//! Without PostgreSQL the step is skipped; only CI installs it, from Debian's package.

use std::process::Command;

use anyhow::{Context, Result, bail};
use malote_services::Postgres;

use crate::cargo::{self, FEATURES};
use crate::conformance::skip_or_fail;
use crate::steps::{Outcome, Step};

pub(crate) fn step() -> Step {
    Step::new("postgres", tests)
}

/// Returns a skipped outcome if PostgreSQL is missing. In CI it is installed instead.
pub(crate) fn skip_if_missing() -> Result<Option<Outcome>> {
    if let Err(why) = Postgres::find() {
        if std::env::var_os("CI").is_none() {
            return skip_or_fail("PostgreSQL", &why.to_string()).map(Some);
        }
        install("postgresql").with_context(|| why.to_string())?;
    }
    Ok(None)
}

fn tests() -> Result<Outcome> {
    if let Some(skipped) = skip_if_missing()? {
        return Ok(skipped);
    }
    cargo::tests(&["test", "--workspace", "--features", FEATURES, "--test", "postgres"])
}

/// Installs a Debian package. At this run level it does not start a service.
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
