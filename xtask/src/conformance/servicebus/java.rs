//! Service Bus by its Java client. Maven brings what `pom.xml` names; the compiler is called as it is, so that nothing is
//! built among the sources.

use super::{Kind, Server};
use crate::cargo;
use crate::conformance::{counted, missing, run, target};
use crate::steps::Outcome;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The oldest Java that it runs on.
const RELEASE: &str = "17";

/// Every case, in one process.
pub(in crate::conformance) fn programs() -> Result<Outcome> {
    let sources = cargo::root().join("testing/conformance/servicebus/java");
    let (target, home) = (target(), target().join("conformance/servicebus-java"));
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    std::fs::create_dir_all(&classes).context("cannot make the folder for its classes")?;
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return missing("mvn with its packages, and java", &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(sources.join("src/malote")).context("no sources")? {
        files.push(entry?.path());
    }
    let mut compiler = Command::new("javac");
    compiler.args(["--release", RELEASE, "-d"]).arg(&classes).args(["-cp", &libraries]);
    run(compiler.args(files))?;
    let folder = cargo::root().join("testing/conformance/servicebus");
    let server = Server::start(
        &target.join("release/malote"),
        target.join("conformance/data/java"),
        &folder,
        Kind::Open,
    )?;
    let mut java = Command::new("java");
    java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off");
    java.args(["-cp", &format!("{}:{libraries}", classes.display()), "malote.Main"]);
    counted(java.envs(server.variables()))
}
