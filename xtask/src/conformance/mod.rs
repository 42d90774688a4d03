//! Runs real client libraries, installed as users install them, against the built binary.
//!
//! Each version of a client has its own environment under the target folder, which is created once. If an interpreter
//! or the network is missing, a step is skipped; in CI it fails.

mod cluster;
mod cross_protocol;
mod orders;
mod rabbitmq;
pub(crate) mod servicebus;
mod sqs;

use crate::cargo::{self, target};
use crate::steps::{Outcome, Step};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Which clients to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Clients that need only Python or Node: part of `cargo xtask test`.
    Quick,
    /// Also clients that need another toolchain.
    All,
}

/// All clients, or those of one protocol. They need the release build.
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
    if wanted("rabbitmq") {
        steps.extend(rabbitmq::steps(rabbitmq::Against::Malote, depth));
    }
    // Verifies the checks themselves, so it runs only if named.
    if protocol == Some("rabbitmq-real") {
        steps.extend(rabbitmq::steps(rabbitmq::Against::RabbitMq, depth));
    }
    // These need fixed ports and take minutes, so they run only if named.
    let upstream = |name: &str| ["servicebus-upstream", name].map(Some).contains(&protocol);
    if upstream("servicebus-upstream-go") {
        steps.push(Step::new("servicebus upstream go", servicebus::upstream::go::tests));
    }
    if upstream("servicebus-upstream-python") {
        steps.push(Step::new("servicebus upstream python", servicebus::upstream::python::tests));
    }
    // These start several servers, so they run only if named.
    if protocol == Some("cluster") {
        steps.extend(cluster::steps());
    }
    if protocol == Some("orders") {
        steps.extend(orders::steps());
    }
    if wanted("cross-protocol") {
        steps.push(Step::new("cross-protocol", cross_protocol::python));
    }
    steps
}

/// Reports a missing requirement: a skipped step, or an error in CI.
pub(crate) fn skip_or_fail(what: &'static str, why: &str) -> Result<Outcome> {
    if std::env::var_os("CI").is_some() {
        bail!("{what} is missing: {why}");
    }
    eprintln!("{what}: {why}");
    Ok(Outcome { skipped: Some(what), ..Outcome::default() })
}

/// A Python environment with these packages. It is created unless it exists and can run `test`.
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

/// Installs the packages of a program's `package.json` in a separate folder.
pub(crate) fn npm(source: &Path, home: &Path) -> Result<()> {
    std::fs::create_dir_all(home).context("cannot create the folder for its packages")?;
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

/// Runs checks whose last line is `N passed, N failed`.
pub(crate) fn run_checks(command: &mut Command) -> Result<Outcome> {
    let output = command
        .current_dir(cargo::root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start the checks")?;
    let said = String::from_utf8_lossy(&output.stdout);
    checks_outcome(said.lines().rev().find_map(parse_counts), output.status)
}

/// The counts of checks that ended with this status.
fn checks_outcome(counts: Option<Outcome>, status: ExitStatus) -> Result<Outcome> {
    let outcome = counts.with_context(|| format!("the checks printed no result: {status}"))?;
    if !status.success() && outcome.failed == 0 {
        bail!("the checks failed: {status}");
    }
    Ok(outcome)
}

/// Reads `12 passed, 0 failed`.
fn parse_counts(line: &str) -> Option<Outcome> {
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
            parse_counts("12 passed, 3 failed"),
            Some(Outcome { passed: 12, failed: 3, skipped: None })
        );
        assert_eq!(parse_counts("12 passed"), None);
    }
}
