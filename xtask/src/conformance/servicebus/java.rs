//! Service Bus with Java programs: the official client, and Qpid JMS. Maven downloads the dependencies in `pom.xml`;
//! `javac` is called directly, so that nothing is built in the source folders.

use super::{Server, ServerMode};
use crate::cargo;
use crate::conformance::{run, run_checks, skip_or_fail, target};
use crate::steps::Outcome;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The oldest Java version that the programs run on.
const RELEASE: &str = "17";
const NEEDED: &str = "Maven with its packages, and Java";

/// Runs all cases of the official client, in one process.
pub(in crate::conformance) fn programs() -> Result<Outcome> {
    cases("java")
}

/// Runs all cases of Qpid JMS, in one process, which also starts and kills its own server.
pub(in crate::conformance) fn jms() -> Result<Outcome> {
    cases("jms")
}

fn cases(folder: &str) -> Result<Outcome> {
    let sources = cargo::root().join("testing/conformance/servicebus").join(folder);
    let home = target().join(format!("conformance/servicebus-{folder}"));
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    std::fs::create_dir_all(&classes).context("cannot create the folder for its classes")?;
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return skip_or_fail(NEEDED, &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(sources.join("src/malote")).context("cannot list the sources")? {
        files.push(entry?.path());
    }
    let mut compiler = Command::new("javac");
    compiler.args(["--release", RELEASE, "-d"]).arg(&classes).args(["-cp", &libraries]);
    run(compiler.args(files))?;
    let binary = target().join("release/malote");
    let data = target().join("conformance/data").join(folder);
    let server = Server::start(&binary, data, &super::folder(), ServerMode::Open)?;
    let mut java = Command::new("java");
    java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off");
    java.args(["-cp", &format!("{}:{libraries}", classes.display()), "malote.Main"]);
    run_checks(java.envs(server.variables()).env("MALOTE_BINARY", binary))
}
