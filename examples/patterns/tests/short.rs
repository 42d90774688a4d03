//! Runs all patterns like a user.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

fn run(args: &[&str]) -> (String, usize) {
    let output = Command::new(env!("CARGO_BIN_EXE_patterns")).args(args).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}\n{error}");
    let ok = output_text.lines().filter(|line| line.trim_start().starts_with("ok ")).count();
    (output_text, ok)
}

#[test]
fn every_check_holds() {
    let (output_text, ok) = run(&[]);
    assert_eq!(ok, 8, "{output_text}");
}

#[test]
fn each_pattern_runs_alone() {
    for (pattern, checks) in [("fan-out", 2), ("work-queue", 3), ("request-reply", 3)] {
        let (output_text, ok) = run(&[pattern]);
        assert_eq!(ok, checks, "{output_text}");
    }
}
