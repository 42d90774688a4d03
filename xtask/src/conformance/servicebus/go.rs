//! Service Bus by its Go client. The versions are in the module's own `go.mod`.

use super::{Kind, Server};
use crate::cargo;
use crate::conformance::{counted, missing, run, target};
use crate::steps::Outcome;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

/// Programs with their arguments, each against a server of its own kind.
const PROGRAMS: &[(&str, &[&str], Kind)] = &[
    ("features", &["open"], Kind::Open),
    ("features", &["guarded"], Kind::Guarded),
    ("worker", &[], Kind::Open),
];

pub(super) fn sources() -> PathBuf {
    cargo::root().join("testing/conformance/servicebus/go")
}

/// What is not ours: the toolchain, and the modules that the programs need.
fn download() -> Result<()> {
    run(Command::new("go").args(["mod", "download"]).current_dir(sources()))
}

/// Builds all programs; says where they are.
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

/// Every program; each tells how much of it passed.
pub(in crate::conformance) fn programs() -> Result<Outcome> {
    if let Err(why) = download() {
        return missing("go with its modules", &format!("{why:#}"));
    }
    let (target, home) = (target(), build()?);
    let folder = cargo::root().join("testing/conformance/servicebus");
    let mut outcome = Outcome::default();
    for (program, args, kind) in PROGRAMS {
        let server = Server::start(
            &target.join("release/malote"),
            target.join("conformance/data/go"),
            &folder,
            *kind,
        )?;
        let mut command = Command::new(home.join(program));
        let told = counted(command.args(*args).envs(server.variables()))?;
        outcome.passed += told.passed;
        outcome.failed += told.failed;
    }
    Ok(outcome)
}
