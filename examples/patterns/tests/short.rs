//! All patterns, as a user would start them.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

fn run(args: &[&str]) -> (String, usize) {
    let output = Command::new(env!("CARGO_BIN_EXE_patterns")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    let ok = said.lines().filter(|line| line.trim_start().starts_with("ok ")).count();
    (said, ok)
}

#[test]
fn every_check_holds() {
    let (said, ok) = run(&[]);
    assert_eq!(ok, 8, "{said}");
}

#[test]
fn each_pattern_runs_alone() {
    for (pattern, checks) in [("fan-out", 2), ("work-queue", 3), ("request-reply", 3)] {
        let (said, ok) = run(&[pattern]);
        assert_eq!(ok, checks, "{said}");
    }
}
