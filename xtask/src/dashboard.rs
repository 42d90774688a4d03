//! Tests the dashboard, and makes its pictures: `node` runs the tests of its modules, Chromium those of its screens.
//!
//! Without Node, npm or Chromium the step is skipped on a user's machine. CI installs Chromium from Debian's package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, target};
use crate::conformance::{npm, run_checks, skip_or_fail};
use crate::postgres::install;
use crate::steps::{Outcome, Step};

const CHROMIUM: &str = "/usr/bin/chromium";

/// The tests of the modules need only Node; those of the screens the release build.
pub(crate) fn steps() -> Vec<Step> {
    vec![Step::new("dashboard modules", modules), Step::new("dashboard", screens)]
}

/// Makes the pictures of the documentation.
pub(crate) fn screenshots() -> Step {
    Step::new("screenshots", || {
        run_program("screenshots.mjs", |command| {
            command.arg(cargo::root().join("docs/pictures"));
        })
    })
}

fn sources() -> PathBuf {
    cargo::root().join("testing/dashboard")
}

fn modules() -> Result<Outcome> {
    let output = match Command::new("node").arg("--test").arg(sources().join("unit")).output() {
        Ok(output) => output,
        Err(why) => return skip_or_fail("node", &why.to_string()),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = count(&said, "# pass ").context("`node --test` printed no result")?;
    let failed = count(&said, "# fail ").context("`node --test` printed no result")?;
    if !output.status.success() {
        println!("{said}");
    }
    Ok(Outcome { passed, failed, skipped: None })
}

/// Reads the number after a mark at the start of a line.
fn count(said: &str, mark: &str) -> Option<u32> {
    said.lines().find_map(|line| line.strip_prefix(mark)?.trim().parse().ok())
}

fn screens() -> Result<Outcome> {
    run_program("main.mjs", |_| {})
}

fn run_program(program: &str, add: impl FnOnce(&mut Command)) -> Result<Outcome> {
    if !Path::new(CHROMIUM).is_file() {
        if std::env::var_os("CI").is_none() {
            return skip_or_fail("Chromium", &format!("{CHROMIUM} does not exist"));
        }
        install("chromium")?;
        if !Path::new(CHROMIUM).is_file() {
            bail!("the package chromium has no {CHROMIUM}");
        }
    }
    let home = target().join("conformance/dashboard");
    if let Err(why) = npm(&sources(), &home) {
        return skip_or_fail("npm packages", &format!("{why:#}"));
    }
    let mut command = Command::new("node");
    command.arg(sources().join(program)).arg(target().join("release/malote")).arg(&home);
    add(&mut command);
    run_checks(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_node_are_read() {
        let said = "ok 1 - a\n# tests 21\n# pass 20\n# fail 1\n";
        assert_eq!((count(said, "# pass "), count(said, "# fail ")), (Some(20), Some(1)));
        assert_eq!(count(said, "# skipped "), None);
    }
}
