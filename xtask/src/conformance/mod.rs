//! The clients that users have, as users install them, against the built binary.
//!
//! Each version of a client lives in an environment of its own under the target folder, made once. Without the
//! interpreter or the network a step is skipped on somebody's own machine; in CI that is a failure.

mod cluster;
mod orders;
pub(crate) mod servicebus;
mod sqs;
mod world;

use crate::cargo::{self, target};
use crate::steps::{Outcome, Step};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Clients that need no more than an interpreter: part of every test.
    Usual,
    /// Also those with toolchains of their own.
    All,
}

/// Every client there is, or those of one protocol. They need the release build.
pub(crate) fn steps(protocol: Option<&str>, depth: Depth) -> Vec<Step> {
    let wanted = |name: &str| protocol.is_none_or(|protocol| protocol == name);
    let mut steps = Vec::new();
    if wanted("sqs") {
        steps.extend(sqs::steps(depth));
    }
    if wanted("servicebus") {
        steps.push(Step::new("servicebus python", servicebus::python));
        steps.push(Step::new("servicebus javascript", servicebus::javascript));
        if depth == Depth::All {
            steps.push(Step::new("servicebus go", servicebus::go::programs));
            steps.push(Step::new("servicebus java", servicebus::java::programs));
            steps.push(Step::new("servicebus jms", servicebus::java::jms));
        }
    }
    // They need ports of their own and take minutes: only by their names.
    let upstream = |name: &str| ["servicebus-upstream", name].map(Some).contains(&protocol);
    if upstream("servicebus-upstream-go") {
        steps.push(Step::new("servicebus upstream go", servicebus::upstream::go::tests));
    }
    if upstream("servicebus-upstream-python") {
        steps.push(Step::new("servicebus upstream python", servicebus::upstream::python::tests));
    }
    // Servers of others, started several at a time: only by its name.
    if protocol == Some("cluster") {
        steps.extend(cluster::steps());
    }
    if protocol == Some("orders") {
        steps.extend(orders::steps());
    }
    if wanted("world") {
        steps.push(Step::new("one world", world::python));
    }
    steps
}

/// What is not on this machine: a skip, except where somebody relies on it.
pub(crate) fn missing(what: &'static str, why: &str) -> Result<Outcome> {
    if std::env::var_os("CI").is_some() {
        bail!("{what} is needed: {why}");
    }
    eprintln!("{what}: {why}");
    Ok(Outcome { skipped: Some(what), ..Outcome::default() })
}

/// A Python with these packages; made unless it is there and the test runs in it.
fn python(home: &Path, packages: &[&str], test: &str) -> Result<PathBuf> {
    let python = home.join("bin/python");
    let whole = Command::new(&python).args(["-c", test]).output();
    if whole.is_ok_and(|output| output.status.success()) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(home))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    Ok(python)
}

/// The packages that a program's `package.json` names, in a folder of their own.
pub(crate) fn npm(source: &Path, home: &Path) -> Result<()> {
    std::fs::create_dir_all(home).context("cannot make the folder for its packages")?;
    std::fs::copy(source.join("package.json"), home.join("package.json"))
        .context("cannot copy package.json")?;
    let quiet = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"];
    run(Command::new("npm").args(quiet).current_dir(home))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs checks that say how many passed and failed in their last line.
fn counted(command: &mut Command) -> Result<Outcome> {
    let output = command
        .current_dir(cargo::root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start the checks")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let counted = said.lines().rev().find_map(counts);
    let outcome = counted.with_context(|| format!("the checks did not end: {}", output.status))?;
    if !output.status.success() && outcome.failed == 0 {
        bail!("the checks failed: {}", output.status);
    }
    Ok(outcome)
}

/// Reads `12 passed, 0 failed`.
fn counts(line: &str) -> Option<Outcome> {
    let (passed, failed) = line.trim().split_once(" passed, ")?;
    let failed = failed.strip_suffix(" failed")?;
    Some(Outcome { passed: passed.parse().ok()?, failed: failed.parse().ok()?, skipped: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        assert_eq!(
            counts("12 passed, 3 failed"),
            Some(Outcome { passed: 12, failed: 3, skipped: None })
        );
        assert_eq!(counts("12 passed"), None);
    }
}
