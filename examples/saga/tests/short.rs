//! Runs the example with few messages.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

#[test]
fn every_check_holds() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga"));
    let output = command.args(["--orders", "36"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(
        stdout.lines().filter(|line| line.trim_start().starts_with("ok ")).count(),
        5,
        "{stdout}"
    );
}
