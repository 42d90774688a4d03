//! Calling cargo, always from the root of the workspace.

use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Libraries that need a C toolchain or a system package; the default build has neither.
const FOREIGN: [&str; 2] = ["openssl-sys", "aws-lc-sys"];

/// Root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is inside").to_owned()
}

/// Where cargo builds to.
pub(crate) fn target() -> PathBuf {
    let root = root();
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// A port of this machine that nobody listens on.
pub(crate) fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("no port")?;
    Ok(listener.local_addr()?.port())
}

/// Cargo itself, the one that runs us if it does.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo and fails when it does.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let status = cargo().args(args).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// What is built for release. Always both: built apart, their libraries would differ and be built twice.
pub(crate) const RELEASE: [&str; 6] =
    ["build", "--release", "--package", "malote-cli", "--package", "malote-sim"];

/// What is off unless a user asks for it, and is checked all the same.
pub(crate) const FEATURES: &str = "malote/sqlite,malote/postgres";

/// Runs one command of the simulation package; some of them run the real binary, and an old one would prove nothing.
pub(crate) fn sim(command: &str, args: &[&str]) -> Result<ExitStatus> {
    run(&RELEASE)?;
    Command::new(target().join("release/malote-sim"))
        .arg(command)
        .args(args)
        .current_dir(root())
        .status()
        .context("cannot start the simulation")
}

/// The same of a build of its own. `extra` goes to cargo, `args` to the command.
pub(crate) fn sim_apart(command: &str, args: &[&str], extra: &[&str]) -> Result<ExitStatus> {
    cargo()
        .args(["run", "--release", "--package", "malote-sim"])
        .args(extra)
        .args(["--", command])
        .args(args)
        .status()
        .context("cannot start cargo")
}

/// Runs tests and counts them, while their output goes by.
pub(crate) fn tests(args: &[&str]) -> Result<Outcome> {
    let mut child =
        cargo().args(args).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut outcome = Outcome::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read the output of the tests")?;
        let line = String::from_utf8_lossy(&line);
        // Whoever read us may be gone; the tests still count.
        let _ = writeln!(std::io::stdout(), "{line}");
        if let Some((passed, failed)) = counts(&line) {
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
fn counts(line: &str) -> Option<(u32, u32)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        rest.split("; ").find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
    };
    Some((number("passed")?, number("failed")?))
}

/// The default build of the binary holds no library that must be compiled from C for minutes or
/// come from the system.
pub(crate) fn no_foreign_libraries() -> Result<Outcome> {
    let args = ["tree", "--edges", "normal", "--package", "malote-cli", "--prefix", "none"];
    let output = cargo().args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("`cargo {}` failed: {}", args.join(" "), output.status);
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    for name in FOREIGN {
        if tree.lines().any(|line| line.split(' ').next() == Some(name)) {
            bail!("the default build holds {name}: `cargo tree -i {name}` shows who brings it");
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
        assert_eq!(counts(line), Some((7, 2)));
        assert_eq!(counts("test result: ok. 12 passed; 0 failed; 0 ignored"), Some((12, 0)));
        assert_eq!(counts("test a::b ... ok"), None);
    }
}
