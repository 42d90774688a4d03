//! SQS with SDKs that need other toolchains. Each program is built under the target folder. An environment variable
//! contains the broker's address.

use crate::cargo;
use crate::conformance::{run, run_checks, skip_or_fail, target};
use crate::steps::Outcome;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The oldest Java version that the program runs on.
const JAVA_RELEASE: &str = "17";

fn sources(language: &str) -> PathBuf {
    cargo::root().join("testing/conformance/sqs").join(language)
}

fn home(language: &str) -> Result<PathBuf> {
    let home = target().join(format!("conformance/sqs-{language}"));
    std::fs::create_dir_all(&home).context("cannot create the build folder")?;
    Ok(home)
}

/// `aws-sdk-sqs`; the versions are in its `Cargo.lock`.
pub(super) fn rust() -> Result<Outcome> {
    let (sources, home) = (sources("rust"), home("rust")?);
    let cargo = |what: &str| {
        let mut cargo = Command::new("cargo");
        cargo.args([what, "--locked"]).current_dir(&sources).env("CARGO_TARGET_DIR", &home);
        cargo
    };
    if let Err(why) = run(&mut cargo("fetch")) {
        return skip_or_fail("the crates of the Rust SDK", &format!("{why:#}"));
    }
    run(&mut cargo("build"))?;
    run_against_broker(&mut Command::new(home.join("debug/malote-conformance-sqs")))
}

/// `aws-sdk-go-v2`; the versions are in its `go.mod`.
pub(super) fn go() -> Result<Outcome> {
    let (sources, home) = (sources("go"), home("go")?);
    let download = run(Command::new("go").args(["mod", "download"]).current_dir(&sources));
    if let Err(why) = download {
        return skip_or_fail("Go with its modules", &format!("{why:#}"));
    }
    let program = home.join("sqs");
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-o"]).arg(&program).arg(".").current_dir(&sources);
    run(&mut build)?;
    run_against_broker(&mut Command::new(program))
}

/// `software.amazon.awssdk:sqs`. Maven downloads the dependencies in `pom.xml`; `javac` is called directly, so that
/// nothing is built in the source folder.
pub(super) fn java() -> Result<Outcome> {
    let (sources, home) = (sources("java"), home("java")?);
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return skip_or_fail("Maven with its packages, and Java", &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut compiler = Command::new("javac");
    compiler.args(["--release", JAVA_RELEASE, "-encoding", "UTF-8", "-d"]).arg(&classes);
    run(compiler.args(["-cp", &libraries]).arg(sources.join("Main.java")))?;
    let path = format!("{}:{libraries}", classes.display());
    run_against_broker(Command::new("java").args(["-cp", &path, "Main"]))
}

/// A running broker; dropping it kills the process.
struct Broker {
    child: Child,
    /// Deleted when the broker is dropped.
    data: PathBuf,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Runs checks against a new broker.
fn run_against_broker(checks: &mut Command) -> Result<Outcome> {
    let data = target().join(format!("conformance/sqs-data-{}", std::process::id()));
    let binary = target().join("release/malote");
    let mut serve = Command::new(&binary);
    serve.args(["serve", "--http", "off", "--amqp", "off"]);
    serve.args(["--servicebus-admin", "off", "--sqs", "127.0.0.1:0", "--log", "warn"]);
    let child = serve.arg("--data").arg(&data).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("cannot start {}", binary.display()))?;
    let mut broker = Broker { child, data };
    let stdout = broker.child.stdout.take().context("the broker has no stdout")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let line = lines.find(|line| line.trim_start().starts_with("SQS "));
    let line = line.context("the broker ended without listening")?;
    let at = line.split_whitespace().nth(1).context("the broker printed no address")?.to_owned();
    run_checks(checks.env("MALOTE_SQS_AT", at))
}
