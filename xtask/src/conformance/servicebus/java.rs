//! Service Bus by programs in Java: its official client, and Qpid JMS. Maven brings what `pom.xml` names; the compiler is
//! called as it is, so that nothing is built among the sources.

use super::{Kind, Server};
use crate::cargo;
use crate::conformance::{counted, missing, run, target};
use crate::steps::Outcome;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The oldest Java that it runs on.
const RELEASE: &str = "17";
const NEEDED: &str = "mvn with its packages, and java";

/// Every case of the official client, in one process.
pub(in crate::conformance) fn programs() -> Result<Outcome> {
    cases("java")
}

/// Every case of Qpid JMS, in one process. It also starts a server of its own, to kill it.
pub(in crate::conformance) fn jms() -> Result<Outcome> {
    cases("jms")
}

/// Runs the cases in this folder.
fn cases(folder: &str) -> Result<Outcome> {
    let sources = cargo::root().join("testing/conformance/servicebus").join(folder);
    let home = target().join(format!("conformance/servicebus-{folder}"));
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    std::fs::create_dir_all(&classes).context("cannot make the folder for its classes")?;
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return missing(NEEDED, &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(sources.join("src/malote")).context("no sources")? {
        files.push(entry?.path());
    }
    let mut compiler = Command::new("javac");
    compiler.args(["--release", RELEASE, "-d"]).arg(&classes).args(["-cp", &libraries]);
    run(compiler.args(files))?;
    let binary = target().join("release/malote");
    let data = target().join("conformance/data").join(folder);
    let server = Server::start(&binary, data, &super::folder(), Kind::Open)?;
    let mut java = Command::new("java");
    java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off");
    java.args(["-cp", &format!("{}:{libraries}", classes.display()), "malote.Main"]);
    counted(java.envs(server.variables()).env("MALOTE_BINARY", binary))
}
