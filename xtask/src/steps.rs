//! Named steps, their durations, and the summary.

use crate::cargo;
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::Instant;

/// A named step of a command.
pub(crate) struct Step {
    name: String,
    action: Box<dyn FnOnce() -> Result<Outcome>>,
}

/// Number of checks in a step. A step that fails as a whole counts as one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// The name of a missing requirement, if the step was skipped.
    pub(crate) skipped: Option<&'static str>,
}

/// Exit code of the simulation package if the machine lacks a requirement, which it has printed.
const SIM_SKIPPED: i32 = 77;

impl Outcome {
    pub(crate) fn one() -> Outcome {
        Outcome { passed: 1, ..Outcome::default() }
    }
}

impl Step {
    pub(crate) fn new(name: &str, action: impl FnOnce() -> Result<Outcome> + 'static) -> Step {
        Step { name: name.to_owned(), action: Box::new(action) }
    }

    /// Whether the name has this part.
    pub(crate) fn is_named(&self, part: &str) -> bool {
        self.name.contains(part)
    }

    /// A cargo command that must succeed.
    pub(crate) fn command(name: &str, args: &'static [&'static str]) -> Step {
        Step::new(name, move || cargo::run(args).map(|()| Outcome::one()))
    }

    /// A command of the simulation package that must succeed.
    pub(crate) fn sim(name: &str, command: &'static str, args: &'static [&'static str]) -> Step {
        Step::new(name, move || {
            let status = cargo::sim(command, args)?;
            if status.code() == Some(SIM_SKIPPED) {
                return Ok(Outcome { skipped: Some("a requirement"), ..Outcome::default() });
            }
            if !status.success() {
                bail!("`cargo xtask {command} {}` failed: {status}", args.join(" "));
            }
            Ok(Outcome::one())
        })
    }

    /// Runs a program if it is installed. Otherwise the step is skipped.
    pub(crate) fn tool(name: &str, program: &'static str, args: &'static [&'static str]) -> Step {
        Step::new(name, move || {
            if !is_installed(program) {
                return Ok(Outcome { skipped: Some(program), ..Outcome::default() });
            }
            let status = Command::new(program)
                .args(args)
                .current_dir(cargo::root())
                .status()
                .with_context(|| format!("cannot start {program}"))?;
            if !status.success() {
                bail!("`{program} {}` failed: {status}", args.join(" "));
            }
            Ok(Outcome::one())
        })
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs all steps, prints a report and ends with the line `N passed, N failed`. Returns whether nothing failed.
#[allow(clippy::disallowed_methods, reason = "measures real time")]
pub(crate) fn run(steps: Vec<Step>) -> bool {
    let mut report = Vec::new();
    let mut total = Outcome::default();
    for Step { name, action } in steps {
        eprintln!("── {name}");
        let begun = Instant::now();
        let result = action();
        let seconds = begun.elapsed().as_secs_f32();
        let (text, outcome) = match result {
            Ok(Outcome { skipped: Some(program), .. }) => {
                (format!("{program} is missing"), Outcome::default())
            }
            Ok(outcome) => {
                (format!("{} passed, {} failed", outcome.passed, outcome.failed), outcome)
            }
            Err(error) => {
                eprintln!("{error:#}");
                ("failed".to_owned(), Outcome { failed: 1, ..Outcome::default() })
            }
        };
        let status = match (outcome.failed, outcome.passed) {
            (0, 0) => "skipped",
            (0, _) => "ok",
            _ => "FAILED",
        };
        report.push(format!("{status:8}{name:20}{seconds:8.1} s  {text}"));
        total.passed += outcome.passed;
        total.failed += outcome.failed;
    }
    eprintln!();
    for line in report {
        eprintln!("{line}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    total.failed == 0 && total.passed > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(outcome: Result<Outcome>) -> Step {
        Step::new("a step", move || outcome)
    }

    #[test]
    fn a_failure_fails_the_run_and_later_steps_still_run() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let last = Step::new("last", move || {
            sender.send(()).expect("the receiver exists");
            Ok(Outcome::one())
        });
        assert!(!run(vec![step(Err(anyhow::anyhow!("broken"))), last]));
        assert!(receiver.recv().is_ok());
        assert!(run(vec![step(Ok(Outcome::one()))]));
    }

    #[test]
    fn a_failed_test_among_many_fails_the_run() {
        assert!(!run(vec![step(Ok(Outcome { passed: 9, failed: 1, skipped: None }))]));
    }

    #[test]
    fn a_run_without_passed_steps_fails() {
        assert!(!run(vec![]));
        assert!(!run(vec![Step::tool("t", "no-such-program-anywhere", &[])]));
    }
}
