//! Runs cargo, always in the root of the workspace.

use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Libraries that need a C toolchain or a system package. The default build must not contain them.
const NATIVE_LIBRARIES: [&str; 2] = ["openssl-sys", "aws-lc-sys"];

/// Root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_owned()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let root = root();
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// A TCP port of this machine that is not in use.
pub(crate) fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Cargo: the same one that runs this program, if known.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo, and fails if cargo fails.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let status = cargo().args(args).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Builds both release binaries. Always in one command: otherwise their dependencies have different features and are
/// built twice.
pub(crate) const RELEASE: [&str; 6] =
    ["build", "--release", "--package", "malote-cli", "--package", "malote-sim"];

/// The same with the benchmarks.
pub(crate) const RELEASE_WITH_BENCH: [&str; 8] = [
    "build",
    "--release",
    "--package",
    "malote-cli",
    "--package",
    "malote-sim",
    "--package",
    "malote-bench",
];

/// Features that are off by default but are checked, too.
pub(crate) const FEATURES: &str = "malote/sqlite,malote/postgres,malote-cli/sqlite";

/// Runs a command of the simulation package. Builds the release binaries first, because some commands test them.
pub(crate) fn sim(command: &str, args: &[&str]) -> Result<ExitStatus> {
    run(&RELEASE)?;
    Command::new(target().join("release/malote-sim"))
        .arg(command)
        .args(args)
        .current_dir(root())
        .status()
        .context("cannot start the simulation")
}

/// Runs a command of a separately built simulation. `extra` is passed to cargo, `args` to the command.
pub(crate) fn sim_separately(command: &str, args: &[&str], extra: &[&str]) -> Result<ExitStatus> {
    cargo()
        .args(["run", "--release", "--package", "malote-sim"])
        .args(extra)
        .args(["--", command])
        .args(args)
        .status()
        .context("cannot start cargo")
}

/// Runs tests, prints their output and counts their results.
pub(crate) fn tests(args: &[&str]) -> Result<Outcome> {
    tests_with(args, &[])
}

/// The same with variables of the environment.
pub(crate) fn tests_with(args: &[&str], env: &[(&str, &str)]) -> Result<Outcome> {
    let mut command = cargo();
    command.args(args).envs(env.iter().copied()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut outcome = Outcome::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read the output of the tests")?;
        let line = String::from_utf8_lossy(&line);
        // If the reader of the output has gone, the tests still count.
        let _ = writeln!(std::io::stdout(), "{line}");
        if let Some((passed, failed)) = parse_counts(&line) {
            outcome.passed += passed;
            outcome.failed += failed;
        }
    }
    let status = child.wait().context("cannot wait for the tests")?;
    if !status.success() && outcome.failed == 0 {
        bail!("`cargo {}` failed: {status}", args.join(" "));
    }
    if outcome.passed + outcome.failed == 0 {
        bail!("no test ran");
    }
    Ok(outcome)
}

/// Reads `test result: ok. 12 passed; 0 failed; …`.
fn parse_counts(line: &str) -> Option<(u32, u32)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        rest.split("; ").find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
    };
    Some((number("passed")?, number("failed")?))
}

/// Checks that the default build of the binary contains no library that is compiled from C or comes from the system.
pub(crate) fn no_native_libraries() -> Result<Outcome> {
    let args = ["tree", "--edges", "normal", "--package", "malote-cli", "--prefix", "none"];
    let output = cargo().args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("`cargo {}` failed: {}", args.join(" "), output.status);
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    for name in NATIVE_LIBRARIES {
        if tree.lines().any(|line| line.split(' ').next() == Some(name)) {
            bail!("the default build contains {name}; `cargo tree -i {name}` shows why");
        }
    }
    Ok(Outcome::one())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_counted() {
        let line = "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(parse_counts(line), Some((7, 2)));
        assert_eq!(parse_counts("test result: ok. 12 passed; 0 failed; 0 ignored"), Some((12, 0)));
        assert_eq!(parse_counts("test a::b ... ok"), None);
    }
}
