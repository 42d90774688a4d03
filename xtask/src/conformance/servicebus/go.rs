//! Service Bus with its Go client. The versions are in the module's `go.mod`.

use super::{Server, ServerMode};
use crate::cargo;
use crate::conformance::{run, run_checks, skip_or_fail, target};
use crate::steps::Outcome;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

/// Programs with their arguments, each with the mode of its server.
const PROGRAMS: &[(&str, &[&str], ServerMode)] = &[
    ("features", &["open"], ServerMode::Open),
    ("features", &["secured"], ServerMode::Secured),
    ("worker", &[], ServerMode::Open),
];

pub(super) fn sources() -> PathBuf {
    cargo::root().join("testing/conformance/servicebus/go")
}

/// Downloads the modules that the programs need.
fn download() -> Result<()> {
    run(Command::new("go").args(["mod", "download"]).current_dir(sources()))
}

/// Builds all programs and returns their folder.
fn build() -> Result<PathBuf> {
    let home = target().join("conformance/servicebus-go");
    std::fs::create_dir_all(&home)?;
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-o"]).arg(&home).arg("./...").current_dir(sources());
    run(&mut build)?;
    Ok(home)
}

/// The clients of the kill -9 loop.
pub(crate) fn crash_program() -> Result<PathBuf> {
    download()?;
    Ok(build()?.join("crash"))
}

/// Runs every program and adds up their results.
pub(in crate::conformance) fn programs() -> Result<Outcome> {
    if let Err(why) = download() {
        return skip_or_fail("Go with its modules", &format!("{why:#}"));
    }
    let (target, home) = (target(), build()?);
    let folder = cargo::root().join("testing/conformance/servicebus");
    let mut outcome = Outcome::default();
    for (program, args, mode) in PROGRAMS {
        let server = Server::start(
            &target.join("release/malote"),
            target.join("conformance/data/go"),
            &folder,
            *mode,
        )?;
        let mut command = Command::new(home.join(program));
        let result = run_checks(command.args(*args).envs(server.variables()))?;
        outcome.passed += result.passed;
        outcome.failed += result.failed;
    }
    Ok(outcome)
}
